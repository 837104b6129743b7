"""The Java and the SPARK_HOME that the service starts Spark with."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.errors import SetupError
from service.spark import java
from service.spark.home import home, installed
from service.spark.session import prepare

RELEASES = {"17.0.15": 17, "21.0.2": 21, "25": 25, "1.8.0_392": 8}


def jdk(folder: Path, version: str) -> Path:
    """A JDK of which only the parts that are looked at exist: its `java` fails if it is started."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (folder / "bin" / "java").chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.mark.parametrize(("stated", "number"), RELEASES.items())
def test_the_version_of_a_jdk_is_read_from_its_release_file(stated: str, number: int, tmp_path: Path) -> None:
    assert java.version(str(jdk(tmp_path, stated) / "bin" / "java")) == number


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    program = jdk(tmp_path, "17") / "bin" / "java"
    (tmp_path / "release").unlink()
    program.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023-10-17' >&2\n")
    assert java.version(str(program)) == 21


def test_a_java_that_does_not_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (jdk(tmp_path, "17") / "release").unlink()
    (tmp_path / "bin" / "java").chmod(0o644)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match=r"bin/java is Java of an unknown version, Spark 4\.1 needs 17 or 21"):
        java.supported()


def test_a_java_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(jdk(tmp_path, "25.0.1")))
    with pytest.raises(SetupError, match=rf"{tmp_path}/bin/java is Java 25, Spark 4.1 needs 17 or 21\. Install"):
        prepare({})
    command = [sys.executable, "-m", "service.spark.jars"]  # what the scripts in deploy/ call
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (SetupError.status, "")
    assert ended.stderr.startswith("tidemark: SETUP: ")


def test_the_session_lacks_the_jars_that_slow_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = tmp_path / "site" / "pyspark"
    for name in (
        "__init__.py",
        "bin/spark-submit",
        "sbin/x",
        "python/lib/pyspark.zip",
        "jars/spark-core_2.13-4.1.1.jar",
    ):
        (spark / name).parent.mkdir(parents=True, exist_ok=True)
        (spark / name).write_text(name)
    mllib = spark / "jars" / "spark-mllib_2.13-4.1.1.jar"
    mllib.write_text("")
    before = sorted(spark.rglob("*"))
    monkeypatch.setattr("service.spark.home.installed", lambda: spark)
    monkeypatch.setenv("TIDEMARK_CACHE", str(tmp_path / "cache"))
    made = home()
    assert [each.name for each in (made / "jars").iterdir()] == ["spark-core_2.13-4.1.1.jar"]
    assert (made / "bin" / "spark-submit").read_text() == "bin/spark-submit"
    assert not (made / "python").exists()
    assert sorted(spark.rglob("*")) == before
    assert home() == made
    assert len(list((tmp_path / "cache" / "spark").iterdir())) == 1

    (spark / "jars" / "hadoop-aws-3.4.2.jar").write_text("")  # an operator's
    assert (home() / "jars" / "hadoop-aws-3.4.2.jar").exists()
    shutil.rmtree(home() / "jars")  # a clean-up of caches
    assert home() == spark, "what it has left is no SPARK_HOME"


def test_without_a_cache_the_installed_pyspark_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TIDEMARK_CACHE", str(tmp_path / "file"))
    assert home() == installed()

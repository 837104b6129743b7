"""The command line, as a user runs it: what it prints, and its exit status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.cli import main
from service.errors import TidemarkError
from service.failure import named
from service.redis_link import EpochLostError

GOOD = """
[service]
checkpoint = "checkpoint"
[kafka]
bootstrap = "localhost:1"
topics = ["readings"]
[input]
measures = {temperature = "temperature"}
[[views]]
name = "all"
window = "1 m"
[redis]
url = "redis://:hunter2@localhost:1"
"""


def tidemark(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "service.cli", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_version_names_tidemark_spark_and_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("tidemark 0.1.0 (Spark 4.1.1, Python 3.11.")


def test_wrong_settings_end_with_2_and_name_every_problem_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text(GOOD.replace('window = "1 m"', 'window = "1 fortnight"').replace("bootstrap", "boostrap"))
    ended = tidemark("run", "--config", str(path))
    assert ended.returncode == 2
    assert ended.stderr.startswith("tidemark: SETTINGS: ")
    for place in ("kafka.boostrap", "kafka.bootstrap", "views.0.window"):
        assert place in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "hunter2" not in ended.stderr


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    ended = tidemark("run", "--debug", "--config", str(tmp_path / "none.toml"))
    assert ended.returncode == 2
    assert "Traceback" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("tidemark: SETTINGS: ")


@pytest.mark.parametrize("arguments", [(), ("run",), ("fly", "--config", "x"), ("run", "--config", "x", "--fast")])
def test_a_wrong_command_line_ends_with_2(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_check_of_wrong_settings_is_one_failing_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text("[service\n")
    assert main(["check", "--config", str(path)]) == 2
    assert capsys.readouterr().out.startswith("FAIL settings: ")


def test_the_worker_daemon_drops_archives_from_the_import_path() -> None:
    program = (
        "import sys, service.pyworker as w; w.drop_archives(); "
        "print([p for p in (*sys.path, *sys.path_importer_cache) if p.endswith(('.zip', '.jar'))])"
    )
    environment = {**os.environ, "PYTHONPATH": "/nowhere/pyspark.zip:/nowhere/spark-core.jar"}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_an_error_of_ours_keeps_its_name_whatever_it_was_wrapped_in() -> None:
    ours = EpochLostError("Redis at h:1/0: refused", remedy="Acquire the lease again")
    assert named(ours, None) is ours
    wrapped = RuntimeError(
        "An exception was thrown from the Python worker. Please see the stack trace below.\n"
        "Traceback (most recent call last):\n"
        '  File "service/publish.py", line 7, in write\n'
        f"service.redis_link.EpochLostError: {ours}\n"
    )
    found = named(wrapped, None)
    assert type(found) is EpochLostError
    assert str(found) == str(ours)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Offsets out of range: readings-0", "SOURCE"),
        ("[KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO] Some data may have been lost", "SOURCE"),
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state", "CHECKPOINT"),
        ("java.io.IOException: No space left on device: /c/offsets/1", "SETUP"),
        ("java.util.ConcurrentModificationException: Multiple streaming queries are concurrently using it", "FENCED"),
        ("scala.MatchError: something else", "QUERY"),
    ],
)
def test_a_failure_of_the_engine_gets_a_family(text: str, code: str) -> None:
    found = named(RuntimeError(text), None)
    assert isinstance(found, TidemarkError)
    assert found.code == code
    assert found.remedy

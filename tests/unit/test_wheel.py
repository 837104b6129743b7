"""The wheel: what is in it, what is not, and that the distributions have one version."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from service.errors import SetupError
from service.spark.jars import PYSPARK
from service.spark.places import ROOT
from service.version import DISTRIBUTION, version

SOURCES = ("service", "state", "schemas", "deploy", "load", "pyproject.toml", "README.md", "LICENSE")
PROGRAMS = ("run", "submit", "driver", "master", "worker", "secret")
CLIENTS = ("clients/python", "clients/dashboard", "clients/sql")
MISSION = ("pyspark", "confluent-kafka", "fastavro", "redis", "prometheus-client", "great-expectations")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of a copy of the sources: a build leaves files beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, folder / name)
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [file] = (folder / "dist").glob("*.whl")
    return zipfile.ZipFile(file)


def project(folder: str = ".") -> Any:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


def test_the_wheel_has_every_module_and_data_file_of_the_service(wheel: zipfile.ZipFile) -> None:
    wanted = {
        each.relative_to(ROOT).as_posix()
        for name in ("service", "state", "schemas", "deploy")
        for each in (ROOT / name).rglob("*")
        if each.is_file() and "__pycache__" not in each.parts
    }
    assert sorted(wanted - set(wheel.namelist())) == ["deploy/need", "deploy/pom.xml"]  # of a checkout only


def test_the_scripts_in_the_wheel_may_be_executed(wheel: zipfile.ZipFile) -> None:
    modes = {name: wheel.getinfo(f"deploy/{name}").external_attr >> 16 for name in PROGRAMS}
    assert {name for name, mode in modes.items() if mode & 0o111 != 0o111} == set()


def test_the_wheel_has_of_the_load_programs_what_the_demo_needs(wheel: zipfile.ZipFile) -> None:
    rooms = {name.split("/")[1] for name in wheel.namelist() if name.startswith("load/") and name.count("/") > 1}
    assert rooms == {"demo", "fleet", "judge", "servers"}
    needed = {name for name in sys_modules_of("load.demo.__main__") if name.startswith("load")}
    there = {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in wheel.namelist()}
    assert sorted(needed - there) == []


def sys_modules_of(module: str) -> set[str]:
    """The modules that are loaded after the import of this one, in a process of its own."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_nothing_else_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {
        "service",
        "state",
        "schemas",
        "deploy",
        "load",
    }
    assert [
        name for name in wheel.namelist() if name.startswith(("tests", "clients")) or name.endswith((".pyc", ".jar"))
    ] == []


def test_the_wheel_needs_the_packages_of_the_mission_in_ranges_the_tested_pyspark_and_a_client_of_its_version() -> None:
    required = project()["dependencies"]
    assert [name for name in MISSION if not any(each.startswith(name) for each in required)] == []
    pinned = [f"tidemark-client=={project()['version']}", f"pyspark=={PYSPARK}"]
    assert [each for each in required if "==" in each] == pinned


def test_the_distributions_have_one_version_and_ask_for_each_other_s() -> None:
    number = project()["version"]
    assert {project(each)["version"] for each in CLIENTS} == {number}
    assert f"tidemark-client=={number}" in project("clients/dashboard")["dependencies"]
    sql = project("clients/sql")["dependencies"]
    assert {each for each in sql if each.startswith("tidemark")} == {
        f"tidemark-client=={number}",
        f"tidemark-service=={number}",
    }
    extras = project()["optional-dependencies"]
    assert (extras["dashboard"], extras["sql"]) == ([f"tidemark-dashboard=={number}"], [f"tidemark-sql=={number}"])


def test_a_worker_of_spark_imports_the_installed_package_wherever_the_service_is_started(tmp_path: Path) -> None:
    """The current folder is first on the import path of `python -m` but for PYTHONSAFEPATH, which a session sets."""
    for name in ("state", "service"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the folder of the user')")
    code = (
        "import os, subprocess, sys; from service.spark.session import prepare; prepare();"
        "sys.exit(subprocess.call([sys.executable, '-m', 'service.spark.home'], stdout=subprocess.DEVNULL))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_distributions_have_names_that_are_not_of_another_project() -> None:
    names = {folder: project(folder)["name"] for folder in (".", *CLIENTS)}
    assert names == {
        ".": DISTRIBUTION,
        "clients/python": "tidemark-client",
        "clients/dashboard": "tidemark-dashboard",
        "clients/sql": "tidemark-sql",
    }
    assert project()["scripts"] == {"tidemark": "service.cli:program"}
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "clients").glob("*/README.md")]
    of_another = re.compile(r"pip install [^`\n]*\btidemark(?![-_\w./])")
    told = [
        f"{page.name}: {line}" for page in pages for line in page.read_text().splitlines() if of_another.search(line)
    ]
    assert [line for line in told if "brings" not in line and not line.startswith("CHANGELOG")] == []


def test_an_environment_with_the_former_distribution_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(SetupError, match=r"tidemark-service is not installed.*make setup"):
        version.__wrapped__()

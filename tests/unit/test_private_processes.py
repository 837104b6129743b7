"""What a command leaves to other users of the host, and what it takes from the folder where it is started."""

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service import settings
from service.commands import dashboard
from service.daemon import probe
from service.settings import Kafka
from tests.unit.test_views_command import SITE, TEXT
from tidemark_sql import question

OPEN = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
"""The environment of a shell."""
SEES_EACH_FILE = """
import os, stat, sys

def report(event, arguments):
    if event == "os.chown":  # of the new file, after its content and before its mode
        print("written as", oct(stat.S_IMODE(os.stat(arguments[0]).st_mode)), flush=True)

sys.addaudithook(report)
os.umask(0o022)
from service.cli import program
program()
"""


def test_the_settings_are_private_from_their_first_byte(tmp_path: Path) -> None:
    """A new settings file has the passwords of the former one. `views` gives it its mode after its content."""
    config, site = tmp_path / "tidemark.toml", tmp_path / "site.toml"
    config.write_text(TEXT)
    config.chmod(0o640)
    site.write_text(SITE)
    command = [sys.executable, "-c", SEES_EACH_FILE, "views", "add", str(site), "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=OPEN) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "written as 0o600\n"
        running.kill()  # it goes on to look for a service in Redis


def test_jars_are_for_every_user_of_the_host(tmp_path: Path) -> None:
    """The image's are fetched by root."""
    command = [sys.executable, "-m", "service.cli", "jars", "--to", str(tmp_path / "jars")]
    subprocess.run(command, capture_output=True, env=OPEN, timeout=60, check=True)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "jars").rglob("*.jar")}
    assert (modes, stat.S_IMODE((tmp_path / "jars" / "spark").stat().st_mode)) == ({0o644}, 0o755)


def test_a_question_in_sql_has_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, spill = tmp_path / "here", tmp_path / "spill"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(question, "MEMORY", "64MiB")
    monkeypatch.setattr(question, "SPILLED", "8MiB")
    with question.connect(str(spill)) as connection:
        with pytest.raises(question.duckdb.OutOfMemoryException):
            connection.execute(
                "SELECT hash(range) AS h, repeat(md5(range::varchar), 30) AS a FROM range(150_000) ORDER BY h OFFSET 149_999"
            )
        with pytest.raises(question.duckdb.InvalidInputException, match="locked"):
            connection.execute("SET memory_limit = '1TiB'")
    assert list(here.iterdir()) == []


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Start in a folder with packages of the service's names; returns which of them were run."""
    for name in ("service", "state", "pyarrow", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"open({str(tmp_path / name)!r} + '.run', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return lambda: sorted(path.stem for path in tmp_path.glob("*.run"))


def test_the_dashboard_runs_nothing_of_the_folder_where_it_is_started(
    planted: Callable[[], list[str]], tmp_path: Path
) -> None:
    config = tmp_path / "tidemark.toml"
    config.write_text(TEXT)
    rejects = shlex.split(dashboard.options(settings.load(config), config)[-1])
    done = subprocess.run([*rejects, "--help"], capture_output=True, text=True, env=OPEN, timeout=60, check=False)
    assert planted() == []
    assert (done.returncode, "tidemark rejects list" in done.stdout) == (0, True), done.stderr


def test_the_probe_runs_nothing_of_the_folder_where_the_service_is_started(planted: Callable[[], list[str]]) -> None:
    assert list(probe._run(Kafka(bootstrap="localhost:1", topics=["t"]), [])) == []
    assert planted() == []

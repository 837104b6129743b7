"""The command line, as a user runs it: what it prints, and its exit status."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from service import settings
from service.cli import main
from service.cli.output import report
from service.commands import dashboard, devices
from service.commands.finding import failed
from service.errors import SettingsError, SetupError
from service.monitoring.status import State
from service.spark import places
from tests.served import served

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
    assert main(["--version"]) == 0
    python = ".".join(map(str, sys.version_info[:3]))
    assert (
        capsys.readouterr().out
        == f"tidemark {version('tidemark-service')} (Spark {version('pyspark')}, Python {python})\n"
    )


def test_a_reader_of_the_output_may_leave() -> None:
    """`tidemark ... | head` ends without a traceback."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "service.cli", "--version"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write)
    assert ended.stderr == ""


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_status_and_no_socket_takes_their_number(closed: str, tmp_path: Path) -> None:
    seen = tmp_path / "streams"
    program = (
        "import os; from service.cli import entry; entry._open_streams(); "
        f"os.system('readlink /proc/self/fd/1 /proc/self/fd/2 > {seen}'); entry._leave(entry.main(['--version']))"
    )
    words = f"exec '{sys.executable}' -c \"$0\" {closed}"
    ended = subprocess.run(["/bin/sh", "-c", words, program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ("2>" in closed) == ("/dev/null" in seen.read_text())


def test_output_without_room_is_a_message(tmp_path: Path) -> None:
    for unbuffered in ("", "1"):
        with Path("/dev/full").open("w") as full:
            ended = subprocess.run(
                [sys.executable, "-m", "service.cli", "--version"],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            )
        assert ended.returncode == SetupError.status
        assert "standard output cannot be written (No space left on device)" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_user_without_a_home_is_told_to_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, whose user has no account."""

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(places, "CHECKOUT", False)
    for name in ("HOME", "XDG_CACHE_HOME", "TIDEMARK_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(SetupError, match="Set HOME to a folder"):
        places.cache()


def test_remedies_and_faults_are_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    faults = SetupError("2 faults:\n  gap: no\n  lo: no", remedy="Mend it")
    assert report([failed("reference", faults)]) == SetupError.status
    said = capsys.readouterr().out.splitlines()
    assert said == ["FAIL reference: 2 faults:", "  gap: no", "  lo: no", "       -> Mend it"]


def test_a_marked_device_without_a_hash_is_listed() -> None:
    gone = {"device": "a", "early": None, "early.at": None, "early.ahead": None, "last_seen": None}
    there = {"device": "b", "early": 7, "early.at": 1_790_000_000_000, "early.ahead": 61_500, "last_seen": None}
    lines = list(devices.skewed_table([there, gone]))
    assert [line.split() for line in lines[2:]] == [["7", "61.5", "s", "1790000000000", "b"], ["-", "-", "-", "a"]]
    assert next(devices.skewed_table([gone])) == "1 device sends readings from the future"
    first = next(devices.skewed_table([there] * 60, 50))
    assert first == "60 devices send readings from the future, the first 50 are listed"


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


def test_check_of_wrong_settings_is_one_failing_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text("[service\n")
    assert main(["check", "--config", str(path)]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("FAIL settings: ")
    assert shown.splitlines()[-1] == "not ready, 1 failure"


def test_archives_are_dropped_from_the_import_path() -> None:
    program = (
        "import sys; from service.spark import pyworker; pyworker.drop_archives(); "
        "print([p for p in (*sys.path, *sys.path_importer_cache) if p.endswith(('.zip', '.jar'))])"
    )
    environment = {**os.environ, "PYTHONPATH": "/nowhere/pyspark.zip:/nowhere/spark-core.jar"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_dashboard_takes_settings_and_further_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text(f'{GOOD}prefix = "fleet"\n[metrics]\naddress = "0.0.0.0"\nport = 9411\n')
    *options, rejects = dashboard.options(settings.load(path), path)
    assert rejects.endswith(f"-m service.cli rejects list --config {path}")
    assert options == [
        *("--redis", "redis://localhost:1"),
        *("--prefix", "fleet"),
        *("--service", "http://127.0.0.1:9411?pipeline=tidemark"),
        "--rejects",
    ]
    assert main(["dashboard", "--config", str(path), "--address", "192.0.2.1"]) == 2
    assert "give a --token-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@redis:6379/3", "redis://redis:6379/3"),
        ("unix:///run/redis.sock?db=3", "unix:///run/redis.sock?db=3"),
        ("redis://redis:6379/3?username=user&password=secret", "redis://redis:6379/3"),
        ("unix:///run/redis.sock?password=secret&db=3", "unix:///run/redis.sock?db=3"),
        ("unix://user:secret@/run/redis.sock", "unix:///run/redis.sock"),
        ("redis+sentinel://user:secret@a:1,b:2/primary/0", "redis+sentinel://a:1,b:2/primary/0"),
    ],
)
def test_dashboard_gets_the_place_of_redis_without_the_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, shown: str
) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text(GOOD)
    monkeypatch.setenv("TIDEMARK_REDIS__URL", url)
    assert dashboard.options(settings.load(path), path)[:2] == ["--redis", shown]


@pytest.mark.parametrize("words", [("dashboard",), ("sql", "show tables")])
def test_a_command_of_an_extra_says_how_to_get_it(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text(GOOD)
    monkeypatch.setitem(sys.modules, f"tidemark_{words[0]}.command", None)
    assert main([*words, "--config", str(path)]) == SetupError.status
    assert f"wheel with its extra: tidemark-service[{words[0]}]" in capsys.readouterr().err


@pytest.mark.parametrize(("state", "exits"), [("running", 0), ("restarting", 1)])
def test_status_ends_with_0_when_the_query_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: State, exits: int
) -> None:
    with served() as service:
        service.status.becomes(state)
        path = service.settings_file(tmp_path, GOOD)
        assert main(["status", "--config", str(path)]) == exits
        assert capsys.readouterr().out.startswith(f"tidemark: {state}, no epoch yet\n")
        assert main(["status", "--config", str(path), "--json"]) == exits
        assert json.loads(capsys.readouterr().out)["state"] == state


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rejects", "replay"), "which ones?"),
        (("rejects", "replay", "readings[0]"), "names no offsets"),
        (("rejects", "replay", "--since", "yesterday"), "'yesterday' is no time"),
        (("rejects", "replay", "readings/0/7", "--set", "temperature"), "is no assignment"),
        (("rejects", "replay", "readings/0/7", "--value", "/nowhere/at/all"), "cannot be read"),
        (("rejects", "list", "--until", "soon"), "'soon' is no time"),
        (("skip", "readings:0:5", "readings[0]:7"), "'readings[0]:7' names no offsets"),
        (("skip", "--dry-run", "readings:0:5", "readings[0]:7"), "'readings[0]:7' names no offsets"),
    ],
)
def test_rejects_and_offsets_that_cannot_be_meant_are_refused_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text(GOOD)
    assert main([*arguments, "--config", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_a_profile_goes_into_the_folder_of_the_settings_from_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "tidemark.toml").write_text(GOOD)
    monkeypatch.chdir(tmp_path / "away")
    (tmp_path / "readings.expectations.json").touch()
    assert main(["profile", "--config", "../tidemark.toml"]) == SettingsError.status
    path = tmp_path / "away" / ".." / "readings.expectations.json"
    assert f"{path} is there already" in capsys.readouterr().err

"""Commands without Spark where they can be, and with a quiet, quick JVM where they cannot."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from load.testbed import free_port
from service.checkpoint.manifest import Manifest
from service.cli import main
from service.errors import CheckpointError, SinkError
from service.spark import jvm_errors, session
from tests import minimal
from tests.unit.test_cli import GOOD

OPTIONS = "-XX:+UseParallelGC -XX:MetaspaceSize=256m -Xmn640m -Xss4m"


def test_a_manifest_on_this_machine_is_shown_without_pyspark(tmp_path: Path) -> None:
    folder, path = tmp_path / "checkpoint", tmp_path / "tidemark.toml"
    path.write_text(GOOD)
    made = Manifest.of(minimal.settings().with_buckets(4), {"t": "x8XW"}, 2)
    folder.mkdir()
    (folder / "manifest.json").write_bytes(made.encode())
    program = (
        f"import sys; from service.cli import main; main(['checkpoint', 'show', '--config', {str(path)!r}]); "
        "print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == made.encode().decode().rstrip("\n") + "\n"
    for module in ("pyspark", "confluent_kafka", "redis"):
        assert f"'{module}'" not in ended.stderr


def test_a_checkpoint_needs_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "tidemark.toml"
    config.write_text(GOOD)
    assert main(["checkpoint", "show", "--config", str(config)]) == CheckpointError.status
    assert "has no manifest.json" in capsys.readouterr().err


def test_devices_with_redis_away_says_so_within_two_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text(GOOD.replace("redis://localhost:1", f"redis://127.0.0.1:{free_port()}"))
    for words in ((), ("--skewed",)):
        began_s = time.monotonic()
        assert main(["devices", "--config", str(path), *words]) == SinkError.status
        assert time.monotonic() - began_s < 2
        assert "does not answer" in capsys.readouterr().err


def test_a_brief_jvm_has_one_collector_and_one_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path))
    options = session.brief(OPTIONS).split()
    assert options == ["-XX:MetaspaceSize=256m", "-Xss4m", *session.BRIEF_JAVA]
    assert "-XX:+UseSerialGC" in options


def test_a_brief_jvm_takes_its_classes_from_an_archive_beside_the_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "the jars" / "classes" / session.BRIEF_ARCHIVE
    archive.parent.mkdir(parents=True)
    archive.touch()
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path / "the jars"))
    assert f"-XX:SharedArchiveFile={archive}" in shlex.split(session.brief(OPTIONS))


def test_lines_of_the_jvm_that_say_nothing_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    lines = b"WARNING: Using incubator modules: jdk.incubator.vector\nERROR of Spark\nNOTE: Picked up JDK_JAVA_OPTIONS: -X\n"
    write_end = jvm_errors.pipe()
    os.write(write_end, lines)
    os.write(write_end, b"the last words")
    os.close(write_end)
    end_s = time.monotonic() + 10
    while jvm_errors._read_ends and time.monotonic() < end_s:
        jvm_errors.drain()
    assert capfd.readouterr().err == "ERROR of Spark\nthe last words"


@pytest.mark.parametrize(("term", "shown"), [("xterm", True), ("dumb", False), ("unknown", False)])
def test_a_terminal_shows_what_a_command_waits_for(term: str, shown: bool) -> None:
    program = (
        "from time import sleep\nfrom service.commands.progress import waiting\n"
        "with waiting('Spark starts' + ', for a reason' * 9): sleep(0.7)\nprint('ready')"
    )
    terminal, inner = os.openpty()
    environment = {**os.environ, "TERM": term}
    subprocess.run([sys.executable, "-c", program], stderr=inner, stdout=inner, env=environment, check=True)
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 65_536)
    os.close(inner)
    os.close(terminal)
    assert (b"Spark starts" in said) == shown
    if not shown:
        assert said.split() == [b"ready"]
    else:
        assert b"0:00:00" in said, "a long text leaves room for the seconds"
        after = said.rpartition(b"Spark starts")[2]
        assert b"\x1b[2K" in after, "the line is removed"
        assert after.rstrip().endswith(b"ready")


def test_a_file_does_not_get_what_a_command_waits_for() -> None:
    program = "from time import sleep\nfrom service.commands.progress import waiting\nwith waiting('x'): sleep(0.5)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stderr == ""

"""Programs of load refuse what would prove nothing, keep a verdict whatever breaks, and end what they have started."""

import json
import signal
import sys
import time
from argparse import ArgumentTypeError
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import load.browser.__main__ as browser
import load.demo.__main__ as demo
import load.faults.__main__ as faults
from load import classes, commands
from load.faults.by_hand import fill_disk
from load.faults.failover import Loss
from load.faults.history import History, read
from load.faults.row import Row, to_end
from load.faults.rows.causes import chosen
from load.faults.rows.soak import _slopes
from load.faults.run import Figures, Run, Setup
from load.fleet.options import seconds_of
from load.image import build, container
from load.servers.child_process import spawn
from load.testbed import ended, output_of
from load.tutorial import feed
from service.errors import SetupError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--id", "causes", "F1", "--only", "disk"], "--only is for the rows causes, not for F1"),
        (["--only", "disk"], "--only is for the rows causes, not for U, F1"),
        (["--id", "F1", "--keep"], "--keep is for the rows batches and soak, not for F1"),
        (["--id", "F99"], "There is no row 'F99'"),
    ],
)
def test_an_option_that_would_hide_what_other_rows_violate_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert faults.main(words) == SetupError.status
    assert message in capsys.readouterr().err


def test_a_choice_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert [each.name for each in chosen("disk", ())] == ["disk full"]
    with pytest.raises(SetupError, match="There is no cause 'Rdis'"):
        chosen("Rdis", ())
    with pytest.raises(SystemExit):
        browser.main(["--axe", "axe.js", "--only", "redis_away redis_emtpy"])
    assert "there is no step redis_emtpy; the steps are values_under_load" in capsys.readouterr().err


def test_the_kind_of_an_archive_of_classes_is_one_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        classes.main(["folder", "bref"])
    assert "invalid choice: 'bref' (choose from 'service', 'brief', 'tests')" in capsys.readouterr().err


def test_whatever_breaks_in_a_row_is_a_violation_of_its_history(tmp_path: Path) -> None:
    def breaks(_run: Run) -> Figures:
        raise ZeroDivisionError("in the row")

    run = Run(Setup("F1", "a row that breaks"), 7, folder=tmp_path / "run")
    assert to_end(Row(run.setup, breaks), run) == {}
    run.history.close()
    [violation] = read(run.history.path)
    assert (violation["rule"], violation["text"]) == ("played", "ZeroDivisionError: in the row")


@pytest.mark.parametrize(("last_batch_s", "violations"), [(240, []), (4_000, ["observed"])])
def test_slopes_of_a_part_of_a_soak_prove_nothing(last_batch_s: int, violations: list[str], tmp_path: Path) -> None:
    run = Run(Setup("batches", "a soak whose sampling has ended"), 7, folder=tmp_path / "run")
    entries: list[dict[str, Any]] = [{"at": 0, "what": "run", "row": "batches", "seed": 7}]
    for number in range(24):
        values = {"epoch": 1, "batch": number, "values": {"open_files": 390 + number % 2}}
        entries.append({"at": number * 10_000, "what": "sample", **values})
    entries.append({"at": last_batch_s * 1000, "what": "progress"})
    run.history.close()
    run.history.path.write_text("".join(json.dumps(each) + "\n" for each in entries))
    run.history = History(run.history.path, keep=True)
    _slopes(run)
    run.history.close()
    assert [each["rule"] for each in read(run.history.path) if each["what"] == "violation"] == violations


def test_a_loss_of_nothing_proves_nothing() -> None:
    found: list[tuple[str, str]] = []
    run = SimpleNamespace(finals=dict, metrics=dict, violation=lambda *violation: found.append(violation))
    Loss(cast(Run, run), "FLUSHALL")
    assert found == [("observed", "no value was final before FLUSHALL: nothing is proven")]


def test_only_a_disk_of_its_own_is_filled(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is no disk of its own"):
        fill_disk(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_a_killed_runner_has_begun_is_not_read_and_the_next_part_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for part in (1, 2):
        history = History(path, keep=part > 1)
        history.add("run", part=part)
        history.close()
        with path.open("a") as file:
            file.write('{"at":1,"what":"metr')
        assert [each["part"] for each in read(path)] == list(range(1, part + 1))


def test_a_process_that_does_not_end_is_killed_and_named_with_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('busy', flush=True)\ntime.sleep(60)"
    )
    child = spawn([sys.executable, "-c", program], cwd=tmp_path, log=log)
    while "busy" not in log.read_text():
        time.sleep(0.01)
    child.terminate()
    with pytest.raises(SetupError, match=r"the service had not ended after .* s and was killed.*\n.*busy"):
        ended(child, 0.1, "the service", log)
    assert child.poll() == -signal.SIGKILL


def test_the_error_of_a_command_has_its_status_and_its_messages() -> None:
    assert output_of([sys.executable, "-c", r"import sys; sys.stdout.buffer.write(b'a\xff')"]) == "a\\xff"
    with pytest.raises(SetupError, match=r"ended with status 3:\nout\nwhy"):
        output_of(
            [sys.executable, "-c", "import sys; print('out', flush=True); print('why', file=sys.stderr); sys.exit(3)"]
        )
    with pytest.raises(SetupError, match="had not ended after 0 s"):
        output_of([sys.executable, "-c", "import time; time.sleep(60)"], within_s=0.1)


def test_a_fleet_that_cannot_be_is_an_error_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--devices", "0"])
    assert "a fleet needs a device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("60s", 60.0), ("20m", 1_200.0), ("1.5h", 5_400.0), ("20", 20.0)]
)
def test_a_length_of_time_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "1min", "-5s", "nan", "1e3s", "s"])
def test_what_is_no_length_of_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="no length of time, such as 500ms, 60s"):
        seconds_of(text)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_feed_that_cannot_send_ends_the_tutorial(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for its sample for ever."""
    monkeypatch.setattr(feed, "EVERY_S", 0.01)
    monkeypatch.setattr(feed, "_pumps", lambda *_: 1 / 0)
    with pytest.raises(SetupError, match="has ended before a sample"):
        feed.Feed("127.0.0.1:1", 1).start()


def test_a_container_that_cannot_be_mounted_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def buildah(*words: str) -> str:
        asked.append(words)
        if words[0] == "mount":
            raise SetupError("no mount")
        return "container-1"

    for module in (build, container):
        monkeypatch.setattr(module, "buildah", buildah)
    with pytest.raises(SetupError, match="no mount"):
        container.Container("image", {}).__enter__()
    assert asked == [("from", "image"), ("mount", "container-1"), ("rm", "container-1")]


def test_the_status_of_a_command_is_the_first_wrong_one_of_all_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = iter((0, 0, 3, 0, 0, 0, 0))
    monkeypatch.setattr(commands, "_run", lambda _: (0.1, 0.1, next(statuses)))
    assert commands.timed(commands.Command(("status",), 1.0), Path("tidemark.toml"))["status"] == 3

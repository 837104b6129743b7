"""`tidemark status --watch`: what it shows of a service, on a terminal and in a file."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import clock
from service.cli import main
from service.commands.watch import Watch
from service.errors import SinkError
from tests import minimal
from tests.served import Served, served
from tests.unit.test_cli import GOOD

ROOT = Path(__file__).parents[2]


@pytest.fixture
def service() -> Iterator[Served]:
    with served("plant7") as made:
        yield made


def seen(shown: Watch) -> str:
    return "\n".join(shown.screen())


def of(port: int) -> Watch:
    return Watch(minimal.settings(metrics={"port": port}).metrics, Path("tidemark.toml"))


def test_state_rate_lag_phases_rejects_and_alerts_are_on_one_screen(service: Served) -> None:
    service.run()
    shown = of(service.port)
    for number in range(3):
        service.batch(number, 1_000)
        shown.look()
    service.metrics.lags({"t": {0: 400, 1: 17}})
    service.metrics.rejects.labels("late").inc(12)
    service.metrics.reference_max_age.set(3_600)
    service.metrics.reference("abc", 7, lambda: 3.0)
    shown.look()
    text = seen(shown)
    assert "plant7: running, epoch 3" in text
    for part in ("417 records", "2: 1,000 records", "nearest to an alert", "18: late 18", "p99 over 60 s"):
        assert part in text
    assert "publish" in next(line for line in text.splitlines() if line.strip().startswith("phases"))
    assert "TidemarkNotRunning" not in text
    service.metrics.query_running.set(0)
    service.metrics.unreadable.set(4)
    service.status.failed(SinkError("Redis is \x1b[31mfull"))
    shown.look()
    text = seen(shown)
    assert "TidemarkNotRunning (page) for 0 s of 120 s" in text
    assert "\x1b" not in text
    assert "Redis is \\x1b[31mfull" in text
    lines = list(shown.lines())
    assert lines[1].startswith("firing (page) TidemarkUnreadable for 0 s: 4 offsets end every process of plant7")
    assert lines[2].startswith("pending (page) TidemarkNotRunning")


def test_counters_are_those_of_the_last_ten_minutes(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    service.run()
    service.metrics.rejects.labels("late").inc(500)
    shown = of(service.port)
    shown.look()
    assert "500: late 500" in seen(shown), "since the start of the process"
    now_s = time.monotonic()
    for minute in range(12):
        monkeypatch.setattr(clock, "monotonic_s", lambda minute=minute: now_s + 60 * minute)
        shown.look()
    service.metrics.rejects.labels("early").inc(2)
    shown.look()
    assert "2: early 2" in seen(shown)


def test_a_service_that_goes_away_and_comes_back_is_said_to(service: Served) -> None:
    shown = of(service.port)
    shown.look()
    assert "waiting, no epoch yet" in seen(shown)
    service.server.close()
    shown.look()
    assert f"no service answers at 127.0.0.1:{service.port}; still asking" in seen(shown)
    assert list(shown.lines()) == [f"no service answers at 127.0.0.1:{service.port}"]


def test_in_a_file_it_prints_a_line_a_look_until_ctrl_c(service: Served, tmp_path: Path) -> None:
    service.run()
    config = service.settings_file(tmp_path, GOOD)
    # A shell's background job ignores SIGINT, and so do its children.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "service.cli", "status"]
    command += ["--watch", "--every", "0.5", "--config", str(config)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        end = threading.Timer(120, process.kill)
        end.start()
        first, second = process.stdout.readline(), process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        status = process.wait(60)
        end.cancel()
        assert process.stderr is not None
        error = process.stderr.read()
    assert all(line.startswith("state running, epoch 3") for line in (first, second))
    assert (status, error) == (0, "")


def test_watch_and_json_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "tidemark.toml"
    config.write_text(GOOD)
    with pytest.raises(SystemExit) as caught:
        main(["status", "--watch", "--json", "--config", str(config)])
    assert caught.value.code == 2
    assert "exclude each other" in capsys.readouterr().err

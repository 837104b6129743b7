"""What the load programs read: an answer that is not there is no figure, one wrong status is told, a log may have any text."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from load import commands
from load.bench.__main__ import Batches, Lag
from load.commands import Command
from load.servers import spark_cluster
from load.servers.server_process import Repeated


def stage(*answers: dict[str, float]) -> Any:
    """A testbed whose service gives these samples, one answer after the other; {} stands for none."""
    left = iter(answers)
    return SimpleNamespace(metrics=lambda: next(left))


def test_a_look_without_an_answer_is_no_lag_of_zero() -> None:
    name = 'tidemark_lag_records{topic="readings",partition="0"}'
    lag = Lag(stage({}, {name: 5.0}, {name: 7.0}))
    for _ in range(3):
        lag.look()
    assert lag.summary() == {"begin": 5, "end": 7, "most": 7}


def test_a_look_without_an_answer_is_no_batch_since_the_start() -> None:
    def told(seconds: float, count: float) -> dict[str, float]:
        return {
            f'tidemark_batch_seconds_{name}{{phase="total"}}': n for name, n in (("sum", seconds), ("count", count))
        }

    batches = Batches(stage(told(100, 10), {}, told(102, 12), told(103, 13), told(104, 14)))
    for _ in range(5):
        batches.look()
    assert batches.longest_to_median() == 1.0


def test_a_command_that_ends_once_with_another_status_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    statuses = iter([0, 0, 7, 0, 0, 0, 0])  # cold, then python and the command in turn
    monkeypatch.setattr(commands, "_run", lambda _words: (1.0, 1.0, next(statuses)))
    assert commands.timed(Command(("status",), 0.5), tmp_path)["status"] == 7


def test_the_id_of_a_driver_is_read_behind_what_the_log_has_already(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = spark_cluster.Cluster(tmp_path)
    (tmp_path / "submit.log").write_text("ü" * 1_000, encoding="utf-8")

    def spawn(_command: object, *, log: Path, **_: object) -> Any:
        with log.open("a", encoding="utf-8") as out:
            out.write("The driver is submitted as driver-7\n")
        return SimpleNamespace(poll=lambda: None)

    monkeypatch.setattr(spark_cluster, "spawn", spawn)
    assert cluster.submit(tmp_path / "tidemark.toml") == "driver-7"


def test_calls_that_are_repeated_end_with_the_error_of_one() -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("lost")

    repeated = Repeated(0.001, fail)
    repeated.start()
    while not calls:
        time.sleep(0.001)
    with pytest.raises(RuntimeError, match="lost"):
        repeated.close()
    assert len(calls) == 1

"""The two faults that a change of the service is most likely to break: a crash at each point, and two writers at once.

The others, and these with a supervisor and more repetitions: `make faults`.
"""

from pathlib import Path

import pytest

from load.faults.checker import check
from load.faults.history import read
from load.faults.row import Figures, Row, find
from load.faults.rows.driver_killed import ACTIONS, POINTS, crash_points
from load.faults.run import Run, play

pytestmark = pytest.mark.end_to_end

RATE = 1_000.0
DEVICES = 300


def assert_nothing_is_violated(row: Row, folder: Path) -> Run:
    run, _ = play(row, 7, short=True, folder=folder)
    # How soon is a matter of the machine and of what else it does; `make faults` judges that, too.
    found = [violation for violation in check(read(run.history.path)) if violation.rule != "P8"]
    assert not found, "\n".join(f"{violation.rule}: {violation.text}" for violation in found[:20])
    assert run.verdict is not None
    return run


def test_after_a_kill_and_an_exception_at_each_crash_point_every_value_is_that_of_the_oracle(tmp_path: Path) -> None:
    def matrix(run: Run) -> Figures:
        crash_points(run, first=3, following=2)  # the batch that was hit is repeated, and the next one is hit
        return {}

    run = assert_nothing_is_violated(Row("F1", "crash points", matrix, RATE, DEVICES), tmp_path / "run")
    assert len((run.folder / "fired").read_text().splitlines()) == len(POINTS) * len(ACTIONS)
    epochs = {each["epoch"] for each in read(run.history.path) if each["what"] == "epoch"}
    assert len(epochs) >= 1 + len(POINTS)


def test_of_two_instances_one_writes_and_the_loser_ends_by_its_name(tmp_path: Path) -> None:
    short = find("F3")
    assert_nothing_is_violated(Row("F3", short.title, short.play, RATE, DEVICES), tmp_path / "run")

"""A crash at each point of a batch, under load, judged by the rules of `make faults`, which plays all faults and more kills."""

from pathlib import Path

import pytest

from load.faults.checker import check
from load.faults.history import read
from load.faults.row import Row, play
from load.faults.rows.driver_killed import POINTS, crash_points
from load.faults.run import Figures, Run, Setup

pytestmark = [pytest.mark.end_to_end, pytest.mark.thorough]

RATE = 1_000.0
DEVICES = 300
KILLS = ("after_publish_before_commit",)
"""What the batch has published and written of its state is there, and does not count. `make faults` kills at all points."""
CELLS = [*((name, "raise") for name in POINTS), *((name, "kill") for name in KILLS)]


def test_after_a_kill_and_an_exception_at_crash_points_every_value_is_that_of_the_oracle(tmp_path: Path) -> None:
    def matrix(run: Run) -> Figures:
        crash_points(
            run, first=3, following=2, cells=CELLS
        )  # the batch that was hit is repeated, and the next one is hit
        return {}

    run, _ = play(Row(Setup("F1", "crash points", RATE, DEVICES), matrix), 7, short=True, folder=tmp_path / "run")
    # How soon is a matter of the machine and of what else it does; `make faults` judges that, too.
    violations = [violation for violation in check(read(run.history.path)) if violation.rule != "P8"]
    assert not violations, "\n".join(f"{violation.rule}: {violation.text}" for violation in violations[:20])
    assert run.verdict is not None
    assert len((run.folder / "fired").read_text().splitlines()) == len(CELLS)
    epochs = {each["epoch"] for each in read(run.history.path) if each["what"] == "epoch"}
    assert len(epochs) >= 1 + len(KILLS)

"""A failover that loses writes and a resharding, under load, judged by the rules of `make faults`, which plays the whole row."""

from dataclasses import replace
from pathlib import Path

import pytest

from load.faults.checker import check
from load.faults.history import read
from load.faults.row import find
from load.faults.run import play

pytestmark = pytest.mark.end_to_end

RATE = 500.0
DEVICES = 300


def test_after_a_failover_that_loses_writes_and_a_resharding_every_value_is_that_of_the_oracle(tmp_path: Path) -> None:
    row = replace(find("cluster"), rate=RATE, devices=DEVICES)
    run, figures = play(row, 7, short=True, folder=tmp_path / "run")
    # How soon is a matter of the machine and of what else it does; `make faults` judges that, too.
    violations = [violation for violation in check(read(run.history.path)) if violation.rule != "P8"]
    assert not violations, "\n".join(f"{violation.rule}: {violation.text}" for violation in violations[:20])
    assert run.verdict is not None
    assert figures["republications"] >= 1

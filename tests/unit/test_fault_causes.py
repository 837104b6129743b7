"""How `make faults ID=causes` judges what the service says of a cause."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from load.faults.causes import Cause, Outcome
from load.faults.rows import causes
from service.errors import SetupError, SinkError


@contextlib.contextmanager
def nothing(_stage: Any) -> Iterator[None]:
    yield


FULL = Cause("disk full", SetupError, r"No space left", r"[Mm]ake room", nothing)
SAID = Outcome(10, "SETUP", "IOException: No space left on device. Make room")


def test_a_cause_is_named_rightly_by_status_code_cause_and_remedy_together() -> None:
    assert FULL.problems(SAID, ["SETUP"]) == []
    passing = replace(FULL, family=SinkError, ends=False)
    assert passing.problems(Outcome(None, "SINK", SAID.text), ["SINK", "SINK"]) == []


@pytest.mark.parametrize(
    ("outcome", "codes", "problem"),
    [
        (replace(SAID, status=8), ["SETUP"], "status 8, not 10"),
        (replace(SAID, status=None), ["SETUP"], "status None, not 10"),
        (replace(SAID, code="CHECKPOINT"), ["SETUP"], "code CHECKPOINT, not SETUP"),
        (replace(SAID, text="IOException. Make room"), ["SETUP"], "the cause lacks 'No space left'"),
        (replace(SAID, text="No space left on device"), ["SETUP"], "the remedy lacks '[Mm]ake room'"),
        (SAID, ["CHECKPOINT", "SETUP"], "it accused CHECKPOINT"),
    ],
)
def test_each_of_them_alone_is_not_enough(outcome: Outcome, codes: list[str], problem: str) -> None:
    assert FULL.problems(outcome, codes) == [problem]


def test_the_table_has_twenty_causes_with_names_of_their_own() -> None:
    names = [each.name for each in causes.TABLE]
    assert len(names) == len({*names}) >= 20

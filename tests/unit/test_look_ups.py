"""How often a batch runs that has unknown schema ids: each run decodes all of its records."""

from collections.abc import Sequence
from typing import Any

import pytest

from service.admission.catalogs import LOOK_UPS, LookUps
from service.admission.questions import SCHEMA_IDS, UndecidedError, until_decided
from service.admission.unknown_schemas import ALL, IDS_AT_ONCE


class Registry:
    """Stands in for the catalogs: it has none of the ids that are looked up."""

    def __init__(self) -> None:
        self.looked_up = list[int]()

    def refused(self, _batch: int) -> str:
        return ",".join(map(str, self.looked_up))

    def record_refused(self, _batch: int, _refused: str) -> None:
        pass

    def look_up(self, ids: Sequence[int]) -> None:
        self.looked_up.extend(ids)


def runs(*tasks: Sequence[int]) -> tuple[list[str], list[int]]:
    """Run a batch whose tasks have these unknown ids; return the refused ids of each run, and the ids that were looked up."""
    registry: Any = Registry()
    refused = list[str]()
    look_ups = LookUps(registry, 3)

    def attempt() -> None:
        refused.append(look_ups.refused())
        for ids in tasks if refused[-1] != ALL else ():
            if new := [each for each in ids if each not in registry.looked_up]:
                raise UndecidedError.of(SCHEMA_IDS, new[:IDS_AT_ONCE])

    until_decided(attempt, {SCHEMA_IDS: look_ups.decide}, lambda error: error)
    return refused, registry.looked_up


@pytest.mark.parametrize(
    ("tasks", "count", "looked_up"),
    [
        ((), 1, 0),
        (([5],), 2, 1),
        (([5], [5, 6], [7]), 4, 3),
        (([5], [6], [7], [8], [9]), 1 + LOOK_UPS, LOOK_UPS),
        ((range(IDS_AT_ONCE - 1),), 2, IDS_AT_ONCE - 1),
        ((range(10_000),), 2, IDS_AT_ONCE),
        (([5], range(10, 10_000), [7]), 3, 1 + IDS_AT_ONCE),
    ],
)
def test_a_batch_runs_again_for_each_new_id(tasks: Sequence[Sequence[int]], count: int, looked_up: int) -> None:
    refused, ids = runs(*tasks)
    assert (len(refused), len(ids)) == (count, looked_up)


def test_the_last_run_refuses_all() -> None:
    assert runs(range(10_000))[0] == ["", ALL]


def test_a_question_that_changes_no_decision_ends_the_batch() -> None:
    asked = UndecidedError.of(SCHEMA_IDS, [1])

    def attempt() -> None:
        raise asked

    with pytest.raises(UndecidedError):
        until_decided(attempt, {SCHEMA_IDS: lambda _: False}, lambda error: error)

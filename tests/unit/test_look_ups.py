"""How often a batch runs that has unknown schema ids: each run decodes all of its records."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from service.admission.unknown_schemas import ALL, IDS_AT_ONCE, REFUSED, UndecidedError
from service.pipeline import batch
from service.pipeline.batch import LOOK_UPS


class Batch:
    """Stands in for a publication and for the frame of its batch, whose tasks have these unknown ids."""

    def __init__(self, *tasks: Sequence[int]) -> None:
        self.tasks, self.looked_up = tasks, list[int]()
        self.refused: list[str] = []
        context = SimpleNamespace(setLocalProperty=lambda name, value: {REFUSED: self.refused}[name].append(value))
        self.term = SimpleNamespace(
            spark=SimpleNamespace(sparkContext=context), settings=SimpleNamespace(redis=SimpleNamespace(driver_rows=1))
        )
        self.micro_batch = SimpleNamespace(rows=0)
        self.catalog = SimpleNamespace(
            refused=lambda _batch: ",".join(map(str, self.looked_up)),
            record_refused=lambda _batch, _refused: None,
            look_up=self.looked_up.extend,
        )

    def toArrow(self) -> Any:  # noqa: N802 - Spark's name
        if self.refused[-1] != ALL:
            for ids in self.tasks:
                if new := [each for each in ids if each not in self.looked_up]:
                    raise UndecidedError.of(new[:IDS_AT_ONCE])
        return SimpleNamespace(to_batches=list)

    def runs(self) -> int:
        """Run the batch; return how often."""
        itself: Any = self
        made = batch.Batch(itself, 3)
        made.sink = itself
        batch.Publication._compute(itself, made)
        assert made.rows is not None
        return len(self.refused)


@pytest.mark.parametrize(
    ("tasks", "runs", "looked_up"),
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
def test_a_batch_runs_once_more_for_each_task_with_new_ids_and_once_for_one_with_too_many(
    tasks: Sequence[Sequence[int]], runs: int, looked_up: int
) -> None:
    made = Batch(*tasks)
    assert made.runs() == runs
    assert len(made.looked_up) == looked_up


def test_the_property_of_the_last_run_refuses_all() -> None:
    made = Batch(range(10_000))
    made.runs()
    assert made.refused == ["", ALL]

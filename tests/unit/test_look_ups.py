"""How often a batch runs that has unknown schema ids: each run decodes all of its records."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from service.admission.unknown_schemas import ALL, IDS_AT_ONCE, REFUSED, UndecidedError
from service.pipeline.builder import LOOK_UPS, Publication


class Batch:
    """Stands in for a publication and for the frame of its batch, whose tasks have these unknown ids."""

    def __init__(self, *tasks: Sequence[int]) -> None:
        self.tasks, self.looked_up = tasks, list[int]()
        self.refused: list[str] = []
        context = SimpleNamespace(setLocalProperty=lambda name, value: {REFUSED: self.refused}[name].append(value))
        self.term = SimpleNamespace(spark=SimpleNamespace(sparkContext=context))
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
        written: list[Any] = []
        sink: Any = SimpleNamespace(micro_batch=SimpleNamespace(batch=3), write=written.append)
        itself: Any = self
        Publication._run(itself, itself, sink, small=True)
        assert len(written) == 1
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
    batch = Batch(*tasks)
    assert batch.runs() == runs
    assert len(batch.looked_up) == looked_up


def test_the_property_of_the_last_run_refuses_all() -> None:
    batch = Batch(range(10_000))
    batch.runs()
    assert batch.refused == ["", ALL]

"""Counts of a task come together, and partitions of several topics are told apart."""

import pytest

from service.admission.readings import PARTITION_BITS, partition_of
from service.aggregation import task_counters


def test_counts_of_several_tasks_add_up_by_what_they_are_of() -> None:
    tasks = [
        task_counters.of_counts(task_counters.REJECTED, {0: 2, 3: 1}),
        task_counters.of_counts(task_counters.REJECTED, {3: 4}),
    ]
    counted = task_counters.unpack(
        task_counters.total([*tasks, task_counters.of_counts(task_counters.ADMITTED, {0: 9})]).pack()
    )
    assert [counted.sum(task_counters.REJECTED, of) for of in range(4)] == [2, 0, 0, 5]
    assert (counted.sum(task_counters.ADMITTED), counted.sum(task_counters.UNKNOWN)) == (9, 0)


def test_of_no_task_there_are_no_counts() -> None:
    assert task_counters.total([]).sum(task_counters.ADMITTED) == 0
    assert task_counters.times(task_counters.total([])) == {}


@pytest.mark.parametrize(("code", "place"), [(0, ("a", 0)), (7, ("a", 7)), ((1 << PARTITION_BITS) + 7, ("b", 7))])
def test_a_partition_of_any_topic_is_one_number(code: int, place: tuple[str, int]) -> None:
    assert partition_of(code, ["a", "b"]) == place

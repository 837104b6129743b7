"""Counts of a task come together, and partitions of several topics are told apart."""

import pytest

from service.admission.readings import PARTITION_BITS, partition_of
from service.aggregation import tally


def test_counts_of_several_tasks_add_up_by_what_they_are_of() -> None:
    tasks = [tally.of_counts(tally.REJECTED, {0: 2, 3: 1}), tally.of_counts(tally.REJECTED, {3: 4})]
    counted = tally.unpack(tally.total([*tasks, tally.of_counts(tally.ADMITTED, {0: 9})]).pack())
    assert [counted.sum(tally.REJECTED, of) for of in range(4)] == [2, 0, 0, 5]
    assert (counted.sum(tally.ADMITTED), counted.sum(tally.UNKNOWN)) == (9, 0)


def test_of_no_task_there_are_no_counts() -> None:
    assert tally.total([]).sum(tally.ADMITTED) == 0
    assert tally.times(tally.total([])) == {}


@pytest.mark.parametrize(("code", "place"), [(0, ("a", 0)), (7, ("a", 7)), ((1 << PARTITION_BITS) + 7, ("b", 7))])
def test_a_partition_of_any_topic_is_one_number(code: int, place: tuple[str, int]) -> None:
    assert partition_of(code, ["a", "b"]) == place

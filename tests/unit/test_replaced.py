"""Which rows of a batch are originals whose copies count."""

import pyarrow as pa
import pytest

from service.admission.arrays import NO_INDEX
from service.admission.expansion import INDEX
from service.aggregation.replaced import Replaced
from service.micro_batch import MicroBatch
from service.rejects import marks, two_places
from service.rejects.marks import Mark
from service.rejects.reject_log import Coordinates, Reject
from service.settings import Kafka

PLACES = [(1, 7, 0), (1, 7, 1), (1, 8, None), (2, 7, 1), (1, 9, 0), (1, 9, 3)]
"""Partition, offset and element of the readings of a batch."""


def rows(places: dict[tuple[int, int, int], bool], *, has_arrays: bool = True) -> list[tuple[int, bool]]:
    """The rows that are found, and whether each is counted."""
    partition, offset, index = map(list, zip(*PLACES, strict=True))
    columns = {"from_partition": pa.array(partition, pa.int32()), "offset": pa.array(offset, pa.int64())}
    if has_arrays:
        columns[INDEX] = pa.array(index, pa.int32())
    found, counted = Replaced(places).find(pa.table(columns))
    return [(row, bool(counted[row])) for row in range(len(PLACES)) if found[row]]


def test_a_reading_is_found_by_partition_offset_and_element() -> None:
    assert rows({(1, 7, 1): True, (2, 9, 0): True}) == [(1, True)]
    assert rows({(1, 8, NO_INDEX): False}) == [(2, False)]
    assert rows({(5, 7, 0): False}) == []


def test_an_original_that_was_a_record_is_all_readings_that_it_has_now() -> None:
    assert rows({(1, 9, NO_INDEX): False, (1, 9, 3): True}) == [(4, False), (5, True)]
    assert rows({(1, 9, NO_INDEX): False}, has_arrays=False) == [(4, False), (5, False)]


def test_a_late_reading_is_counted_where_it_is_unless_its_time_is_before_1970() -> None:
    def counted(reason: str, event_ms: int | None) -> bool:
        place = Coordinates("readings", 0, 1)
        return two_places.is_counted(Reject(place, reason, "", 9, 1, 1, None, b"", (), event_ms=event_ms))

    assert [counted("late", 0), counted("behind", 7)] == [True, True]
    assert [counted("late", -1), counted("late", None), counted("early", 7), counted("out_of_range", None)] == [
        False
    ] * 4


def test_only_what_was_sent_again_is_an_original() -> None:
    place = Coordinates("readings", 0, 1, 2)
    states = ("open", "correcting", "corrected", "replaying", "replayed")
    found = [state for state in states if two_places.originals({place: Mark(place, state, {})})]
    assert found == ["replaying", "replayed"]
    assert two_places.originals({place: Mark(place, "replayed", {"counted": True})}) == {place: True}


def test_originals_before_a_batch_are_no_work_for_it_and_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [Coordinates("readings", 0, offset) for offset in (5, 10, 12, 20)] + [Coordinates("new", 0, 3)]
    known = {place: Mark(place, "replayed", {}) for place in places}
    monkeypatch.setattr(marks, "read", lambda _kafka: known)
    query = two_places.Originals(Kafka(bootstrap="127.0.0.1:1", topics=("readings", "new")))
    first = MicroBatch(1, 4, 0, {"readings": {0: 10}}, {"readings": {0: 15}})
    later = MicroBatch(1, 5, 0, {"readings": {0: 15}}, {"readings": {0: 30}, "new": {0: 9}})
    assert [offset for _, offset, *_ in query.of_batch(first)] == [10, 12]
    assert len(query._places or ()) == 4
    assert [offset for _, offset, *_ in query.of_batch(later)] == [20, 3]
    assert len(query._places or ()) == 2

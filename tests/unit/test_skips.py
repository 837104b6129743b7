"""Skipped offsets: how they are named, and that a topic is read around them, whole and once."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.checkpoint import skips
from service.checkpoint.skips import Care, ReadAnewError, Span
from service.commands.skip import MOST, refuse
from service.errors import SettingsError
from service.kafka.source import READ_AHEAD
from service.micro_batch import MicroBatch, Offsets
from service.rejects.reject_log import Coordinates
from service.spark.files import Local


def span(begin: int, end: int, partition: int = 0) -> Span:
    return Span("readings", partition, begin, end)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("readings[2]@1207", span(1207, 1208, 2)),
        ("readings[2]@1207-1210", span(1207, 1211, 2)),
        ("readings/2/1207", span(1207, 1208, 2)),
        ("readings:2:1207", span(1207, 1208, 2)),
        ("readings:0:5-5", span(5, 6)),
        ("a.b_c-d:10:0-99", Span("a.b_c-d", 10, 0, 100)),
    ],
)
def test_both_ends_of_a_range_are_included(text: str, expected: Span) -> None:
    assert Span.parse(text) == expected
    assert Span.parse(str(expected)) == expected


@pytest.mark.parametrize(
    "text", ["readings", "readings:0", "readings:0:7-5", "readings:0:-1", "readings[0]@7-", "readings[0]:7", "r:0:5 "]
)
def test_what_names_no_offsets_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="names no offsets"):
        Span.parse(text)


PLACES = st.builds(
    lambda partition, begin, many: span(begin, begin + many, partition),
    st.integers(0, 2),
    st.integers(0, 30),
    st.integers(1, 8),
)
SPANS = st.lists(PLACES, max_size=6)


def places(begin: Offsets, end: Offsets) -> list[tuple[int, int]]:
    return [(p, o) for p, last in end["readings"].items() for o in range(begin["readings"].get(p, 0), last)]


def offsets_of(spans: Any) -> set[tuple[int, int]]:
    return {(each.partition, offset) for each in spans for offset in range(each.begin, each.end)}


@given(SPANS, SPANS)
def test_merging_and_taking_away_are_those_of_sets(some: list[Span], others: list[Span]) -> None:
    merged = skips.merged(some)
    assert offsets_of(merged) == offsets_of(some)
    assert all(a.partition != b.partition or a.end < b.begin for a, b in pairwise(merged)), "adjacent ones are one"
    assert offsets_of(skips.without(some, others)) == offsets_of(some) - offsets_of(others)


OFFSETS = st.lists(st.integers(0, 40), min_size=3, max_size=3)


@given(SPANS, OFFSETS, OFFSETS, st.integers(0, 12))
def test_stretches_and_skips_are_the_whole_without_overlap(
    some: list[Span], first: list[int], many: list[int], ahead: int
) -> None:
    begin = {"readings": dict(enumerate(first))}
    end = {"readings": {p: first[p] + many[p] for p in range(3)}}
    read = []
    for start, last, careful in skips.stretches(begin, end, skips.merged(some), ahead):
        read += places(start, last)
        behind = {"readings": {p: offset + ahead for p, offset in last["readings"].items()}}
        assert careful or not set(places(start, behind)) & offsets_of(some), "nothing that is skipped is read ahead"
    assert len(read) == len(set(read))
    assert set(read) == set(places(begin, end)) - offsets_of(some)


@given(SPANS, OFFSETS, st.integers(1, 12), st.integers(0, 12))
def test_batches_as_they_are_planned_read_around_the_skips(
    some: list[Span], ends: list[int], most: int, ahead: int
) -> None:
    """Spark plans `most` records of each partition; what it plans over a skip is narrowed, batch by batch."""
    kafka = {p: end + 10 for p, end in enumerate(ends)}
    spans = tuple(each for each in skips.merged(some) if each.end <= kafka[each.partition])
    at: Offsets = {"readings": dict.fromkeys(range(3), 0)}
    read: list[tuple[int, int]] = []
    while at["readings"] != kafka:
        begin = skips.jumped(at, spans)
        planned = {"readings": {p: min(end, begin["readings"][p] + most) for p, end in kafka.items()}}
        end = skips.narrowed(begin, planned, spans, ahead)
        assert end != at, "it goes on"
        if not skips.is_near(begin, spans, ahead):
            behind = {"readings": {p: offset + ahead for p, offset in end["readings"].items()}}
            assert not set(places(begin, behind)) & offsets_of(spans), "nothing that is skipped is read ahead"
        read += places(begin, end)
        at = end
    everything = {(p, o) for p, end in kafka.items() for o in range(end)}
    assert len(read) == len(set(read))
    assert set(read) == everything - offsets_of(spans)


def reads(care: Care, batch: int, begin: int, end: int) -> None:
    care.check(MicroBatch(1, batch, 0, {"readings": {0: begin}}, {"readings": {0: end}}))


def test_a_batch_over_a_skip_is_not_read_and_near_it_only_with_care() -> None:
    careful, quick = Care((span(50_000, 50_002),), careful=3), Care((span(50_000, 50_002),))
    assert (careful.is_needed, quick.is_needed, Care().is_needed) == (True, False, False)
    reads(careful, 3, 0, 50_000)
    reads(careful, 3, 50_002, 60_000)
    reads(quick, 3, 0, 50_000 - READ_AHEAD)
    for care, begin, end in (
        (careful, 0, 50_001),
        (careful, 50_001, 50_002),
        (careful, 0, 60_000),
        (quick, 0, 50_001 - READ_AHEAD),
        (quick, 0, 60_000),
    ):
        with pytest.raises(ReadAnewError, match=r"batch 3 reaches over readings\[0\]@50000-50001"):
            reads(care, 3, begin, end)


def test_care_ends_with_its_batch() -> None:
    reads(Care((), careful=3), 3, 1, 1)
    with pytest.raises(ReadAnewError, match="batch 3 is committed"):
        reads(Care((), careful=3), 4, 1, 1)


def test_the_file_keeps_all_skips(tmp_path: Path) -> None:
    folder = Local(tmp_path)
    assert skips.read(folder) == ()
    skips.write(folder, [span(7, 9), span(5, 7), span(1, 2, 1)])
    assert skips.read(folder) == (span(5, 9), span(1, 2, 1))
    assert skips.pending({"readings": {0: 8, 1: 2}}, skips.read(folder)) == (span(5, 9),)


def test_what_cannot_be_skipped_is_named_all_at_once() -> None:
    begin, ends = {"readings": {0: 10}}, {"readings": {0: 20, 1: 100_000}}
    refuse([span(10, 20), span(0, MOST - 10, 1)], begin, ends)
    with pytest.raises(SettingsError) as refused:
        refuse([span(9, 11), span(19, 21), span(0, MOST, 1), Span("others", 0, 1, 2)], begin, ends)
    for message in (
        "offsets below 10 are read",
        "the partition ends at 20",
        "others[0]@1: there is no such",
        "more than 10000",
    ):
        assert message in str(refused.value)


def test_a_place_of_the_service_s_error_is_taken_by_the_commands_about_rejects() -> None:
    assert Coordinates.parse(str(span(1207, 1211, 2))) == [
        Coordinates("readings", 2, offset) for offset in range(1207, 1211)
    ]
    assert Coordinates.parse("a-1[0]@7") == [Coordinates("a-1", 0, 7)]
    assert Coordinates.parse("readings[2]@1207#3") == [Coordinates("readings", 2, 1207, 3)]
    refused = {
        "readings[2]@7-6": "names no offsets",
        "readings-5": "names no offsets",
        "readings[2]@0-10000": "names 10,001 offsets",
        "readings[2]@7#": "does not name a reading",
        "readings[2]@7-8#3": "does not name a reading",
    }
    for text, message in refused.items():
        with pytest.raises(SettingsError, match=message):
            Coordinates.parse(text)

"""How far a batch moves the watermark: not past what a partition with unread records may still give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import watermark
from state.watermark import Delays, EventTime, Partition

DELAYS = Delays(delay_ms=12, max_delay_ms=10)
BEFORE = EventTime(500, 512)


def after(*partitions: Partition, before: EventTime = BEFORE) -> int:
    return watermark.advance(before, partitions, DELAYS).watermark_ms


def test_it_follows_the_newest_event_time_and_never_goes_back() -> None:
    assert after(Partition(600, 601), Partition(550, 551)) == 588
    assert after(Partition(505, 601)) == 500
    assert after() == 500
    assert watermark.advance(EventTime(), [Partition(-1, 700)], DELAYS) == EventTime()


def test_a_partition_with_unread_records_holds_it_at_what_it_may_still_give() -> None:
    lagging = Partition(540, 545, is_unread=True)
    assert after(Partition(600, 601), lagging) == 535
    assert after(Partition(600, 601), Partition(540, 545)) == 588, "one that was read to its end holds nothing"
    assert after(Partition(600, 601), Partition(is_unread=True)) == 500, "of one that gave nothing, nothing is known"


def test_the_wait_has_no_bound_in_event_time_and_is_over_when_the_partition_is_read() -> None:
    event_time = watermark.advance(BEFORE, [Partition(1 << 40, 1 << 40), Partition(540, 545, is_unread=True)], DELAYS)
    assert event_time == EventTime(535, 1 << 40)
    assert after(Partition(1_500, 1_501), before=event_time) == (1 << 40) - 12, "it jumps to where the others have been"


batches = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(-10, 2), st.integers(0, 30)), max_size=4), min_size=1, max_size=8
)


@given(batches, st.randoms(use_true_random=False))
def test_nothing_that_is_admitted_is_late_however_far_partitions_are_apart(schedule, random) -> None:
    """Each partition is a log whose broker's time grows; a batch knows which of them it has not read to the end."""
    logs = {0: [], 1: [], 2: []}
    now = 1_000
    for batch in schedule:
        for partition, event, step in batch:
            now += step
            logs[partition].append((now, now + event))
    time, at = EventTime(), dict.fromkeys(logs, 0)
    while any(at[p] < len(logs[p]) for p in logs):
        partitions = {}
        for p, log in logs.items():
            end = random.randint(at[p], len(log))
            read = log[at[p] : end]
            assert all(event >= time.watermark_ms for _, event in read)
            partitions[p] = Partition(
                max((event for _, event in read), default=-1), max((ms for ms, _ in read), default=-1), end < len(log)
            )
            at[p] = end
        parts = [watermark.report(time, {p: part}) for p, part in partitions.items()]
        time = watermark.combine(random.sample(parts, len(parts)), DELAYS)
    assert time.newest_ms == max(event for log in logs.values() for _, event in log) if any(logs.values()) else True


def test_a_partition_that_two_tasks_have_read_counts_once() -> None:
    one = watermark.report(BEFORE, {7: Partition(600, 601), 1 << 40: Partition(540, 541, is_unread=True)})
    two = watermark.report(BEFORE, {1 << 40: Partition(530, 560, is_unread=True)})
    assert watermark.combine([one, two], DELAYS) == watermark.combine([two, one], DELAYS) == EventTime(550, 600)


@pytest.mark.parametrize("time", [EventTime(), EventTime(1 << 41, 1 << 42)])
def test_event_time_comes_back_from_its_bytes(time: EventTime) -> None:
    assert EventTime.unpack(time.pack()) == time

"""The checkpoint's log of event time: what a batch begins with, and what a replay is told."""

from pathlib import Path

import pytest

from service import clock
from service.checkpoint import event_time
from service.checkpoint.event_time import KEPT, Log
from service.errors import CheckpointError
from service.micro_batch import MicroBatch
from service.settings import Kafka
from service.spark.files import Local
from state.watermark import EventTime

KAFKA = Kafka(bootstrap="nowhere:1", topics=("readings",), max_per_batch=100)


def micro_batch(batch: int, rows: int) -> MicroBatch:
    return MicroBatch(1, batch, 0, {"readings": {0: 0, 1: 0}}, {"readings": {0: rows, 1: 0}})


def test_a_batch_begins_with_what_the_one_before_has_noted(tmp_path: Path) -> None:
    log = Log(Local(tmp_path))
    assert log.before(0) == EventTime()
    log.note(0, EventTime(5, 17))
    assert log.before(1) == EventTime(5, 17)
    log.note(1, EventTime(6, 18))
    log.note(1, EventTime(6, 18))
    assert Log(Local(tmp_path)).before(1) == EventTime(5, 17), "a replay begins with the same"
    assert Log(Local(tmp_path)).before(2) == event_time.read(Local(tmp_path), 1)[0] == EventTime(6, 18)


def test_old_entries_go(tmp_path: Path) -> None:
    log = Log(Local(tmp_path))
    for batch in range(KEPT + 3):
        log.note(batch, EventTime(batch, batch))
    assert sorted(map(int, Local(tmp_path).names("event_time"))) == list(range(3, KEPT + 3))


def test_only_a_full_batch_leaves_records_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_time, "edges_now", lambda _: {"readings": {0: (0, 200), 1: (0, 0), 2: (0, 1)}})
    log = Log(Local(tmp_path))
    assert log.unread(KAFKA, micro_batch(3, 97)) == frozenset()
    assert not Local(tmp_path).names("event_time")
    assert log.unread(KAFKA, micro_batch(3, 98)) == {("readings", 0), ("readings", 2)}, "a partition may be new"


def test_a_replay_is_told_the_same_unread_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {"readings": {0: (0, 200), 1: (0, 0)}}
    monkeypatch.setattr(event_time, "edges_now", lambda _: ends)
    assert Log(Local(tmp_path)).unread(KAFKA, micro_batch(3, 100)) == {("readings", 0)}
    ends["readings"] = {0: (0, 200), 1: (0, 50)}
    assert Log(Local(tmp_path)).unread(KAFKA, micro_batch(3, 100)) == {("readings", 0)}
    assert Log(Local(tmp_path)).unread(KAFKA, micro_batch(4, 100)) == {("readings", 0), ("readings", 1)}
    Local(tmp_path).replace("event_time/4.unread", b"no")
    with pytest.raises(CheckpointError, match=r"event_time/4\.unread is damaged"):
        Log(Local(tmp_path)).unread(KAFKA, micro_batch(4, 100))


def test_the_first_batch_has_the_limit_of_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_time, "edges_now", lambda _: {"readings": {0: (0, 200), 1: (0, 0)}})
    log = Log(Local(tmp_path))
    assert log.limit(0, 70) == 70
    log.note(0, EventTime(5, 17), limit=50)
    log.note(1, EventTime(6, 18))
    for batch, limit in ((1, 50), (2, 70)):
        later = Log(Local(tmp_path))
        assert later.limit(batch, 70) == limit, "an older version notes none"
        assert later.limit(batch, 30) == 30
        assert later.unread(KAFKA, micro_batch(batch, 68), 70) == {("readings", 0)}
        assert later.limit(batch, 70) == 70, "the query has planned all others"
        assert later.unread(KAFKA, micro_batch(batch + 5, 50), 70) == frozenset()


def test_the_watermark_does_not_wait_for_a_partition_that_is_not_read_for_max_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Time is that of the process; the decision is in the checkpoint, so that a replay has the same."""
    now_s = [1_000.0]
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s[0])
    monkeypatch.setattr(event_time, "edges_now", lambda _: {"readings": {0: (0, 900), 1: (0, 900)}})
    log, read = Log(Local(tmp_path)), 0

    def unread(log: Log, batch: int, of: int) -> frozenset[tuple[str, int]]:
        """Of a batch of 100 records of the partition `of`."""
        nonlocal read
        start = {0: read, 1: 0} if of == 0 else {0: read, 1: 100}
        end = {**start, of: start[of] + 100}
        return log.unread(KAFKA, MicroBatch(1, batch, 0, {"readings": start}, {"readings": end}), 100, 60_000)

    both = {("readings", 0), ("readings", 1)}
    assert unread(log, 3, 0) == both
    now_s[0] += 60
    assert unread(log, 4, 0) == both
    now_s[0] += 1
    assert unread(log, 5, 0) == {("readings", 0)}, "the one that is read holds for as long as it is read"
    assert "no longer waits for readings[1]" in caplog.text
    assert "61 s" in caplog.text
    assert unread(Log(Local(tmp_path)), 5, 0) == {("readings", 0)}, "a replay by another process"
    assert unread(Log(Local(tmp_path)), 4, 0) == both, "a replay long after"
    assert unread(log, 6, 1) == both, "it is read again"
    now_s[0] += 3_600
    assert log.unread(KAFKA, micro_batch(7, 1)) == frozenset()
    assert unread(log, 8, 0) == both, "meanwhile it was read to its end"

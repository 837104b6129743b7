"""What Redis has lost is told from legitimate leads and delays; what Kafka can still tell, and for how long it is kept."""

import time
from dataclasses import replace

import msgpack
import pytest

from service.checkpoint.skips import Span
from service.micro_batch import MicroBatch
from service.monitoring.metrics import Metrics
from service.pipeline.outcome import Outcome
from service.publication import covered
from service.publication.rows import DEVICE, SESSION, Kind, Rows, Stamp, as_of_watermark, window_rows
from service.recompute.republish import ASKED, LOST, is_read_again, lost, mark, parse_mark
from service.recompute.sources import Partition, Source, needed_from_ms, source
from service.redis.keys import Keys
from service.settings import Reference, View
from tests.outputs import MINUTE, T0, settings, window_table

COMMITTED = MicroBatch(0, 7, T0, {"readings": {0: 0, 1: 0}}, {"readings": {0: 100, 1: 50}})
PROGRESS = MicroBatch(3, 7, T0, {}, {"readings": {0: 100, 1: 50}})


@pytest.mark.parametrize(
    ("progress", "committed"),
    [
        pytest.param(None, None, id="the first batch ever"),
        pytest.param(replace(PROGRESS, batch=900), None, id="a new checkpoint beside old values"),
        pytest.param(PROGRESS, COMMITTED, id="level"),
        pytest.param(replace(PROGRESS, epoch=1), COMMITTED, id="an older epoch before the first batch of a new term"),
        pytest.param(
            replace(PROGRESS, batch=8, end={"readings": {0: 120, 1: 50}}), COMMITTED, id="published and not committed"
        ),
        pytest.param(replace(PROGRESS, batch=8, watermark_ms=T0 + 1), COMMITTED, id="a batch without records ahead"),
        pytest.param(replace(PROGRESS, end={"readings": {0: 100, 1: 50, 2: 9}}), COMMITTED, id="a partition was added"),
        pytest.param(
            replace(PROGRESS, epoch=9, batch=2), replace(COMMITTED, batch=900), id="the number of another checkpoint"
        ),
    ],
)
def test_nothing_is_lost(progress: MicroBatch | None, committed: MicroBatch | None) -> None:
    assert lost(progress, committed) == ""


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        (None, "there is no progress, batch 7 is committed"),
        (
            replace(PROGRESS, batch=6, end={"readings": {0: 90, 1: 50}}),
            "readings[0]@90, batch 7 is committed up to 100",
        ),
        (replace(PROGRESS, batch=6, end={"readings": {0: 100}}), "readings[1]@0, batch 7 is committed up to 50"),
        (replace(PROGRESS, epoch=9, end={"other": {0: 100, 1: 50}}), "readings[0]@0"),
        (replace(PROGRESS, batch=6, watermark_ms=T0 - 1), f"watermark {T0 - 1}, batch 7 is committed with {T0}"),
        # A backup of the time before the checkpoint was rebuilt: its numbers are larger, its offsets are not.
        (replace(PROGRESS, epoch=2, batch=5000, end={"readings": {0: 99, 1: 50}}), "readings[0]@99"),
    ],
)
def test_what_is_lost_is_said(progress: MicroBatch | None, message: str) -> None:
    assert message in lost(progress, COMMITTED)


def test_what_was_skipped_behind_the_last_batch_is_not_lost() -> None:
    progress = replace(PROGRESS, end={"readings": {0: 97, 1: 50}})
    assert lost(progress, COMMITTED, [Span("readings", 0, 97, 100), Span("readings", 1, 3, 4)]) == ""
    assert "readings[0]@99" in lost(progress, COMMITTED, [Span("readings", 0, 97, 99)])


@pytest.mark.parametrize(
    ("progress", "committed", "is_again"),
    [
        (PROGRESS, None, True),
        (replace(PROGRESS, batch=0, watermark_ms=0), None, False),
        (PROGRESS, COMMITTED, False),
        (replace(PROGRESS, batch=8, watermark_ms=T0 + 1), COMMITTED, False),
        (replace(PROGRESS, batch=9, watermark_ms=T0 + 1), COMMITTED, True),
        (replace(PROGRESS, batch=2, watermark_ms=T0 + 1), COMMITTED, True),
        (replace(PROGRESS, batch=2, watermark_ms=T0 - 1), COMMITTED, False),
    ],
)
def test_a_new_checkpoint_or_an_old_copy_publishes_again(
    progress: MicroBatch, committed: MicroBatch | None, *, is_again: bool
) -> None:
    assert is_read_again(progress, committed) is is_again


def test_a_mark_says_when_it_was_set_and_up_to_when_redis_was_whole() -> None:
    at_ms, whole_ms = parse_mark(mark(LOST, T0))
    assert (at_ms > T0, whole_ms) == (True, T0)
    assert [parse_mark(text)[1] for text in (mark(ASKED), "lost 17", "asked 17")] == [None, 0, None]


AHEAD_MS = 5_000
WHOLE = Partition(oldest=0, oldest_ms=None, reached=0)


def chosen(first: Partition = WHOLE, second: Partition = WHOLE, from_ms: int = T0 - 1000, **start: int) -> Source:
    committed = replace(COMMITTED, start={"readings": {int(p[1:]): o for p, o in start.items()}})
    return source(committed, {("readings", 0): first, ("readings", 1): second}, from_ms, AHEAD_MS)


def test_a_topic_that_came_after_the_progress_is_not_lost() -> None:
    came = {"plugs": {0: 40}}
    committed = replace(COMMITTED, end={**COMMITTED.end, "plugs": {0: 40}})
    assert lost(PROGRESS, committed, (), came) == ""
    assert "plugs[0]@0" in lost(PROGRESS, committed)
    further = replace(COMMITTED, end={**COMMITTED.end, "plugs": {0: 41}})
    assert "plugs[0]@40, batch 7 is committed up to 41" in lost(PROGRESS, further, (), came)


def test_a_topic_that_is_not_read_any_more_bounds_what_can_be_told() -> None:
    partitions = {("readings", p): Partition(0, None, None) for p in (0, 1)}
    selection = source(COMMITTED, partitions, 0, AHEAD_MS, {"meters": T0 - 5_000})
    assert selection.whole_from_ms == T0 - 4_999
    assert selection.lacking == ("meters, which the settings no longer have",)


def test_where_nothing_is_lacking_everything_can_be_told() -> None:
    selection = chosen()
    assert selection.begin == {"readings": {0: 0, 1: 0}}
    assert selection.end == COMMITTED.end
    assert (selection.whole_from_ms, selection.lacking) == (0, ())


def test_what_the_checkpoint_never_read_is_not_lacking() -> None:
    selection = chosen(Partition(30, T0 - 500, 30), WHOLE, p0=40)
    assert (selection.begin["readings"][0], selection.whole_from_ms, selection.lacking) == (40, 0, ())


def test_records_that_kafka_has_deleted_bound_what_can_be_told() -> None:
    selection = chosen(Partition(30, T0 - 500, 30), Partition(10, T0 - 900, 10))
    assert selection.begin == {"readings": {0: 30, 1: 10}}
    assert selection.whole_from_ms == T0 - 500 + AHEAD_MS + 1
    assert selection.lacking == (
        "readings[0]@0 to 30, which Kafka has deleted",
        "readings[1]@0 to 10, which Kafka has deleted",
    )


def test_of_a_partition_that_is_empty_now_nothing_is_known() -> None:
    selection = chosen(Partition(100, None, None))
    assert selection.begin["readings"][0] == 100
    assert selection.whole_from_ms > COMMITTED.watermark_ms


def test_a_partition_that_was_deleted_beyond_the_cut_is_not_read_backwards() -> None:
    assert chosen(Partition(130, T0, 130)).begin["readings"][0] == 100


def test_what_has_expired_is_not_read() -> None:
    selection = chosen(Partition(0, None, 60), Partition(0, None, None), from_ms=T0 - 1000)
    assert selection.begin == {"readings": {0: 60, 1: 50}}
    assert (selection.whole_from_ms, selection.lacking) == (T0 - 1000 + AHEAD_MS, ())


def test_reading_begins_before_the_oldest_value_that_is_kept() -> None:
    long = settings("redis://127.0.0.1:1")
    short = long.sessions.model_copy(update={"retain_ms": 1, "max_duration_ms": 1, "gap_ms": 1})
    for made in (long, long.model_copy(update={"sessions": short})):
        from_ms = needed_from_ms(made, T0)
        partitions = {("readings", partition): Partition(0, None, 9) for partition in (0, 1)}
        whole_from_ms = source(COMMITTED, partitions, from_ms, made.admission.max_ahead_ms).whole_from_ms
        for view in made.views:
            assert whole_from_ms <= T0 - view.retain_ms - view.window_ms
        oldest_session = T0 - made.sessions.retain_ms - made.sessions.gap_ms - made.sessions.max_duration_ms
        assert whole_from_ms + made.sessions.gap_ms <= oldest_session
        assert needed_from_ms(made, 1000) == 0


def test_reading_begins_earlier_if_devices_have_gaps_of_their_own() -> None:
    made = settings("redis://127.0.0.1:1")
    kept = made.sessions.model_copy(update={"retain_ms": 10**9, "max_duration_ms": 10**6, "gap_ms": 1_000})
    made = made.model_copy(update={"sessions": kept})
    reference = Reference(url="jdbc:postgresql://db/fleet", query="select 1", session_gap="gap")
    own = made.model_copy(update={"reference": reference})
    assert needed_from_ms(made, T0) - needed_from_ms(own, T0) == 2 * (10**6 - 1_000)


def made_windows(*starts: int) -> Rows:
    table = window_table([("device_1m", f"d{start}", start, [1.0, 2.0]) for start in starts])
    return window_rows(table, Keys("p"), [View(name="device_1m", window="1 m", retain="1 h")], T0)


def test_a_window_of_the_past_is_complete_and_lives_no_longer_than_it_would_have() -> None:
    rows = made_windows(T0 - 90 * MINUTE, T0 - MINUTE, T0)
    complete, opened = as_of_watermark(rows, T0, gap_ms=30_000)
    for part, is_complete in ((complete, True), (opened, None)):
        [(step, packed)] = part.calls(Stamp("3", "17", str(T0), 1000, 60_000), 10)
        arguments = msgpack.unpackb(packed)
        assert (step, arguments["again"], arguments.get("complete")) == ("write", True, is_complete)
    assert [complete.keys, opened.keys] == [rows.keys[1:2], rows.keys[2:]], "the first has expired"
    # The second ends at the watermark. The last reading of the third is 59 s before its end.
    assert (complete.ttl, opened.ttl) == ([3_600_000], [3_600_000 + 59_000])


@pytest.mark.parametrize(("kind", "field"), [(SESSION, "last"), (DEVICE, "last_seen")])
def test_sessions_and_devices_count_their_life_from_when_the_session_closed(kind: Kind, field: str) -> None:
    last = [b"100000", b"69999", b"40000", b"9999"]
    rows = Rows(kind, [b"a", b"b", b"c", b"d"], [60_000] * 4, {field: list(last), "x": [b"1", b"2", None, b"4"]})
    [kept] = as_of_watermark(rows, 100_000, gap_ms=30_000)
    assert kept.kind is kind
    assert kept.keys == [b"a", b"b", b"c"]
    assert kept.ttl == [60_000, 59_999, 30_000]
    assert kept.fields == {field: last[:3], "x": [b"1", b"2", None]}


def test_what_was_republished_and_what_could_not_be_is_counted_by_kind() -> None:
    made = Metrics()
    for unrecoverable in ((0, 0), (3, 1)):
        made.republishes(Outcome(windows=2, sessions=5, devices=7), unrecoverable)
    counters = {
        (name, kind): made.registry.get_sample_value(f"tidemark_{name}_total", {"kind": kind})
        for name in ("republished", "unrepublished")
        for kind in ("windows", "sessions", "devices")
    }
    assert counters == {
        ("republished", "windows"): 4,
        ("republished", "sessions"): 10,
        ("republished", "devices"): 14,
        ("unrepublished", "windows"): 3,
        ("unrepublished", "sessions"): 1,
        ("unrepublished", "devices"): None,
    }


class _Stored:
    """A pipeline to a Redis that has every window, of a minute."""

    def __init__(self) -> None:
        self.starts: list[int] = []

    def pipeline(self, *, transaction: bool) -> "_Stored":
        return _Stored()

    def hmget(self, key: bytes, *_: str) -> None:
        self.starts.append(int(key.rpartition(b":")[2]))

    def execute(self) -> list[list[bytes | None]]:
        return [[b"%d" % (start + MINUTE), b"0", None] for start in self.starts]


def test_the_windows_of_many_views_and_measures_are_collected_in_linear_time() -> None:
    given = settings("redis://127.0.0.1:1")
    scan = covered._Scan(given, Keys("tidemark"), 1, before_ms=1, until_ms=None, final_ms=T0)
    names = [b"window:device_1m:m%d:d:%d" % (m, n * MINUTE) for m in range(1_000) for n in range(20)]
    begun_s = time.process_time()
    scan.take(_Stored(), names)
    assert len(scan.covered().windows) == 1_000
    assert time.process_time() - begun_s < 2, "it takes 0.3 s, or 5 s if each measure looks at all windows"

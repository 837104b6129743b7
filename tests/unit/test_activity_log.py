"""The lines about the flow of records: what is read, the first batch, the begin of rejects, a minute's sums."""

from dataclasses import replace
from typing import Any

import pytest

from service import clock
from service.admission.readings import REASONS
from service.micro_batch import MicroBatch
from service.monitoring.activity_log import ABSENT_AFTER, EVERY_S, QUIET_S, ActivityLog, percentile
from service.pipeline.batch import BatchReport
from service.pipeline.outcome import LATENCY_BOUNDS_MS, Outcome
from service.settings import Settings
from service.spark.internals.offset_log import Position
from tests import minimal
from tests.stream.records import BASE_MS


class Clock:
    """Monotonic seconds that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(clock, "monotonic_s", lambda: self.now_s)


@pytest.fixture
def settings() -> Settings:
    return minimal.settings(
        service={"checkpoint": "/var/lib/tidemark"},
        kafka={"bootstrap": "kafka:9092", "topics": ["readings", "more"]},
        views=[{"name": "all", "window": "1 m"}, {"name": "rooms", "by": ["device"], "window": "5 m"}],
        redis={"url": "redis://user:secret@redis:6380", "prefix": "fleet"},
    )


def report(batch: int, rows: int, **rejected: int) -> BatchReport:
    latency = [0] * (len(LATENCY_BOUNDS_MS) + 1)
    latency[4], latency[-1] = 99, 1
    of_reason = tuple(rejected.get(reason, 0) for reason in REASONS)
    admitted = rows - sum(of_reason)
    counts = {"windows": 4, "sessions": 2, "devices": 1, "admitted": admitted}
    outcome = Outcome(latency=tuple(latency), rejected=of_reason, **counts)
    micro_batch = MicroBatch(7, batch, BASE_MS, {}, {"readings": {0: rows}})
    return BatchReport(micro_batch, outcome, phases={"write": 0.5})


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.name == "service.monitoring.activity_log"]
    caplog.clear()
    return lines


@pytest.fixture
def log(settings: Settings, caplog: pytest.LogCaptureFixture) -> ActivityLog:
    caplog.set_level("INFO", "service")
    return ActivityLog(settings)


def test_a_start_names_its_sources_and_its_places(log: ActivityLog, settings: Settings, caplog: Any) -> None:
    log.query_starts(7, None, settings.views)
    assert messages(caplog) == [
        "Reading JSON records of the topics readings, more from Kafka at kafka:9092, from the earliest offsets (the checkpoint "
        "/var/lib/tidemark is new). Publishing the views all (1 m), rooms (5 m), sessions and devices to Redis at redis:6380/0 "
        "under the prefix fleet. Rejects go to readings.rejects, more.rejects"
    ]
    log.query_starts(7, Position(12, {}, is_repeated=True), settings.views[:1])
    assert messages(caplog) == [
        "The query starts again from batch 12 of the checkpoint /var/lib/tidemark, which is repeated, in epoch 7, start 2"
    ]


def test_a_start_with_hundreds_of_topics_names_a_few_of_them(caplog: Any) -> None:
    caplog.set_level("INFO", "service")
    many = minimal.settings(kafka={"topics": [f"plant-{number}" for number in range(2_000)]})
    ActivityLog(many).query_starts(7, None, many.views)
    [line] = messages(caplog)
    assert "of the topics plant-0, plant-1, " in line
    assert line.endswith(", plant-9.rejects and 1990 more")
    assert len(line) < 1_000


def test_the_first_batch_is_logged_once(log: ActivityLog, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = Clock(monkeypatch)
    log.batch(report(0, 1_200, undecodable=100, no_time=76))
    first, undecodable, no_time = messages(caplog)
    assert first == (
        "The first batch of this process, 0, is published: 1200 rows, 1024 readings admitted, 176 rejected; 4 windows, "
        "2 sessions and 1 devices written in 0.5 s"
    )
    assert undecodable == (
        "Rejects begin: 100 of 1200 records of batch 0 are rejected as undecodable. To see why, run "
        "`tidemark rejects list --reason undecodable --since 10m`"
    )
    assert "76 of 1200 records of batch 0 are rejected as no_time" in no_time
    now.now_s += QUIET_S - 1
    log.batch(report(1, 10, undecodable=1))
    assert messages(caplog) == []
    now.now_s += QUIET_S
    log.batch(report(2, 10, undecodable=1))
    assert [line.partition(":")[0] for line in messages(caplog)] == ["Rejects begin"]


@pytest.mark.silent("1.8")
def test_a_measure_that_no_reading_has_is_named_once(log: ActivityLog, caplog: Any) -> None:
    def batch(number: int, has: int, lacks: int) -> list[str]:
        made = report(number, has + lacks)
        log.batch(replace(made, outcome=replace(made.outcome, measured=((0, 0, has, lacks),))))
        return [line for line in messages(caplog) if line.startswith("None of")]

    assert batch(0, 0, ABSENT_AFTER - 1) == []
    assert batch(1, 0, 1) == [
        f"None of the first {ABSENT_AFTER} admitted readings has temperature: input.measures.temperature has no value. "
        "Correct the path, or the producers. To see which fields the records have, run `tidemark try`"
    ]
    assert batch(2, 0, 1_000) == []


def test_a_measure_that_one_reading_has_is_not_named(log: ActivityLog, caplog: Any) -> None:
    for number, has in enumerate((0, 1, 0, 0)):
        made = report(number, 90)
        log.batch(replace(made, outcome=replace(made.outcome, measured=((0, 0, has, 90 - has),))))
    assert not [line for line in messages(caplog) if line.startswith("None of")]


def test_a_minute_has_one_line_with_its_sums(settings: Settings, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = Clock(monkeypatch)
    caplog.set_level("INFO", "service")
    log = ActivityLog(settings)
    log.batch(report(0, 600, late=3))
    log.batch(report(1, 600, late=4, no_time=1))
    messages(caplog)
    now.now_s += EVERY_S - 1
    log.look(5)
    assert messages(caplog) == []
    now.now_s += 1
    log.look(5)
    log.look(5)
    assert messages(caplog) == [
        f"In 60 s: 1200 rows (20/s) in 2 batches, p99 from Kafka to Redis {LATENCY_BOUNDS_MS[4] / 1000:g} s, lag 5 records, "
        "8 rejects (late 7, no_time 1), watermark 2026-09-21T14:14:00.000Z"
    ]
    now.now_s += EVERY_S
    log.look(None)
    [line] = messages(caplog)
    assert line.startswith("In 60 s: 0 rows (0.0/s) in 0 batches, p99 from Kafka to Redis -, lag unknown, 0 rejects, ")


def test_a_query_that_starts_again_leaves_the_time_of_the_sums_as_it_was(
    log: ActivityLog, settings: Settings, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Clock(monkeypatch)
    log.query_starts(7, None, settings.views)
    log.batch(report(0, 600))
    time.now_s += 50
    log.query_starts(7, Position(1, {}, is_repeated=True), settings.views)
    time.now_s += 10
    messages(caplog)
    log.look(None)
    [line] = messages(caplog)
    assert line.startswith("In 60 s: 600 rows (10/s) in 1 batches")


def test_a_percentile_is_the_bound_of_its_bucket() -> None:
    counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
    assert percentile(counts, 0.99) == "-"
    counts[0], counts[-1] = 98, 2
    assert percentile(counts, 0.98) == "0.01 s"
    assert percentile(counts, 0.99) == "above 1 m"

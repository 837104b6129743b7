"""How far the partitions are apart, as operators see it."""

import pytest
from prometheus_client import CollectorRegistry

from service import clock
from service.micro_batch import MicroBatch
from service.monitoring.part_metrics import KEPT_S, EventTime
from service.monitoring.series import Series
from service.pipeline.batch import BatchReport
from service.pipeline.outcome import Outcome

T0 = 1_700_000_000_000


def report(*times: tuple[int, int]) -> BatchReport:
    """Oldest and newest event time of each partition, in seconds."""
    by_partition = {("t", number): (T0 + low * 1000, T0 + high * 1000) for number, (low, high) in enumerate(times)}
    return BatchReport(MicroBatch(1, 1, T0, {}, {}), Outcome(), times=by_partition, skewed=3)


@pytest.mark.parametrize(
    ("times", "apart_s"),
    [
        ([(90, 100), (91, 101)], 1),
        ([(90, 100), (91, 160)], 60),  # one lags
        ([(95, 100), (35, 100)], 60),  # one was held back, and all of it came at once
        ([(0, 100), (0, 100)], 0),  # a backlog, read alike
        ([(0, 100)], 0),
    ],
)
def test_partitions_are_apart_by_their_oldest_or_newest_readings(times: list[tuple[int, int]], apart_s: int) -> None:
    registry = CollectorRegistry()
    EventTime(Series(registry)).batch(report(*times))
    assert registry.get_sample_value("tidemark_event_spread_seconds") == apart_s
    newest = registry.get_sample_value("tidemark_event_timestamp_seconds", {"topic": "t", "partition": "0"})
    assert newest == T0 / 1000 + times[0][1]
    assert registry.get_sample_value("tidemark_skewed_devices") == 3


def test_a_batch_that_was_apart_is_seen_by_the_next_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, now_s = CollectorRegistry(), 1000.0
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s)
    metrics = EventTime(Series(registry))
    metrics.batch(report((0, 10), (60, 70)))
    metrics.batch(report((70, 80), (70, 80)))
    assert registry.get_sample_value("tidemark_event_spread_seconds") == 60
    now_s += KEPT_S + 1
    assert registry.get_sample_value("tidemark_event_spread_seconds") == 0

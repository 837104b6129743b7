"""Metrics of views, of topics and of the schedule, by what batches report."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from service import clock
from service.monitoring.metrics import Metrics
from service.monitoring.part_metrics import Schedule
from service.pipeline.batch_report import Progress
from service.pipeline.outcome import LATENCY_BOUNDS_MS, Outcome
from service.row_schemas import unpack_size
from state.processor import SIZES
from tests.reports import REPORT
from tests.stream.records import make_settings

MINUTE_MS = 60_000
VIEWS = [
    {"name": "device", "by": ["device"], "window": "1 m"},
    {"name": "site", "by": ["device"], "window": "10 m", "slide": "2 m"},
]


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    made = Metrics()
    made.limits(make_settings(tmp_path, views=VIEWS))
    return made


def value(metrics: Metrics, name: str, **labels: str) -> float:
    sample = metrics.registry.get_sample_value(f"tidemark_{name}", labels)
    assert sample is not None, name
    return sample


def test_a_bucket_replaces_its_open_windows_and_the_others_keep_theirs(metrics: Metrics) -> None:
    sizes = ((0, 9, 2, 1, 500, 50, 20), (1, 7, 3, 0, 300, 300, 40))
    metrics.batch_ends(replace(REPORT, outcome=Outcome(sizes=sizes, windows_open=((0, 0, 4), (0, 1, 5), (1, 0, 7)))))
    assert [value(metrics, "open_windows", view=view) for view in ("device", "site")] == [11, 5]
    metrics.batch_ends(replace(REPORT, outcome=Outcome(sizes=sizes[:1], windows_open=((0, 1, 2),))))
    assert [value(metrics, "open_windows", view=view) for view in ("device", "site")] == [7, 2]


def test_the_newest_final_window_has_an_age(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 100 * MINUTE_MS
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms)
    assert math.isnan(value(metrics, "final_window_age_seconds", view="device"))
    cut = replace(REPORT.micro_batch, watermark_ms=95 * MINUTE_MS + 1)
    metrics.batch_ends(replace(REPORT, micro_batch=cut))
    assert [value(metrics, "final_window_age_seconds", view=view) for view in ("device", "site")] == [300, 360]
    metrics.closes_idle(99 * MINUTE_MS)
    assert [value(metrics, "final_window_age_seconds", view=view) for view in ("device", "site")] == [60, 120]


def test_rejects_are_counted_by_topic_and_every_topic_has_its_series_from_the_start(metrics: Metrics) -> None:
    [topic] = [
        sample.labels["topic"]
        for family in metrics.registry.collect()
        if family.name == "tidemark_topic_rejects"
        for sample in family.samples
    ]
    assert value(metrics, "topic_rejects_total", topic=topic) == 0
    metrics.batch_ends(replace(REPORT, outcome=Outcome(topics=((0, 3), (0, 2)))))
    assert value(metrics, "topic_rejects_total", topic=topic) == 5


def progress(begun_ms: int, total_ms: int, planning_ms: int = 0) -> Progress:
    durations_ms = {"triggerExecution": total_ms, "queryPlanning": planning_ms, "addBatch": total_ms - planning_ms}
    return Progress(batch=1, rows=1, durations_ms=durations_ms, state_bytes=0, begun_ms=begun_ms)


def test_without_a_trigger_only_planning_delays_a_batch() -> None:
    schedule = Schedule()
    assert [schedule.delay_s(progress(at, 900, 100)) for at in (1_234, 2_200)] == [0.1, 0.1]


def test_a_batch_that_overruns_the_trigger_delays_the_next_one_but_not_one_after_a_pause() -> None:
    schedule = Schedule(1_000)
    late = [
        schedule.delay_s(progress(*each)) for each in ((5_000, 2_500), (7_500, 300, 20), (8_000, 300), (20_004, 10))
    ]
    assert late == [0.0, 1.52, 0.0, 0.004]


def test_each_latency_from_50_ms_to_a_minute_is_within_a_tenth_of_the_middle_of_its_bucket() -> None:
    bounds = [bound for bound in LATENCY_BOUNDS_MS if bound >= 50]
    assert (bounds[0], bounds[-1]) == (50, 60_000)
    for low, high in itertools.pairwise(bounds):
        assert low < high <= 1.2 * low
        assert (high - low) / 2 <= 0.1 * (low + high) / 2


def test_the_row_of_a_state_s_size_tells_windows_by_view() -> None:
    numbers = (3, 9, 2, 1, 500, 50, 20)
    assert unpack_size(SIZES.pack(*numbers) + b'{"device": 4, "site": 5}') == (numbers, {"device": 4, "site": 5})
    assert unpack_size(SIZES.pack(*numbers) + b"{}") == (numbers, {})

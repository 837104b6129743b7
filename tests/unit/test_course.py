"""/history: the course of the figures, and what happened meanwhile. The values are computed by hand."""

import json
import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from service import clock
from service.errors import SinkError
from service.monitoring import course
from service.monitoring.course import COLUMNS, Course, Marks
from service.monitoring.metrics import Metrics
from service.monitoring.monitor import Monitor
from service.monitoring.promql import quantile
from service.monitoring.status import Status
from tests.reports import REPORT
from tests.served import served


class Time:
    """A clock that the test sets; the wall clock may be set apart from the other one."""

    def __init__(self) -> None:
        self.s, self.apart_ms = 1_000.0, 0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(clock, "monotonic_s", lambda: made.s)
    monkeypatch.setattr(clock, "now_ms", lambda: int(made.s * 1000) + made.apart_ms)
    return made


def families(
    records: float = 0,
    late: float = 0,
    lag: tuple[float, ...] = (),
    latency: tuple[float, ...] = (),
    batches: float = 0,
) -> Iterator[Metric]:
    """The metrics of a time. `latency` are cumulative counts up to 1 s, 2 s and more. Each batch takes 0.5 s."""
    rejects = CounterMetricFamily("tidemark_rejects", "", labels=["reason"])
    rejects.add_metric(["late"], late)
    rejects.add_metric(["early"], 0)
    yield rejects
    yield CounterMetricFamily("tidemark_records", "", value=records)
    lags = GaugeMetricFamily("tidemark_lag_records", "", labels=["topic", "partition"])
    for number, value in enumerate(lag):
        lags.add_metric(["r", str(number)], value)
    yield lags
    buckets = HistogramMetricFamily("tidemark_event_to_redis_seconds", "")
    if latency:
        buckets.add_metric([], list(zip(("1.0", "2.0", "+Inf"), latency, strict=True)), 0.0)
        yield buckets
    seconds = HistogramMetricFamily("tidemark_batch_seconds", "", labels=["phase"])
    for phase, took_s in (("run", 0.4), ("publish", 0.1), ("total", 9.0)):
        seconds.add_metric([phase], [("+Inf", batches)], took_s * batches)
    yield seconds


def rows(document: dict[str, object], ring: str = "hour") -> list[dict[str, object]]:
    points = document[ring]["points"]  # type: ignore[index]
    return [dict(zip(COLUMNS, point, strict=True)) for point in points]


def test_a_point_has_what_counters_gained_and_the_largest_of_gauges(time: Time) -> None:
    made = Course(Marks())
    time.s += 5
    made.add(families(50, lag=(3, 4)), {})  # between two points: its lag counts, its counters belong to the next point
    time.s += 5
    made.add(families(200, 3, (1, 1), (0, 8, 10), 4), {})
    [point] = rows(made.document())
    assert point == {
        "at_ms": 1_010_000,
        "rate": 20.0,
        "lag": 7.0,
        "lag_age_s": None,
        "p50_s": 1.625,  # the fifth of ten: 5/8 of the way from 1 s to 2 s
        "p99_s": 2.0,  # beyond the last bound
        "batch_s": 0.5,
        "delay_s": None,
        "rejects": {"late": 3},
    }
    time.s += 10
    made.add(families(200, 3, (), (0, 8, 10), 4), {})
    point = rows(made.document())[-1]
    assert (point["rate"], point["p99_s"], point["batch_s"], point["lag"], point["rejects"]) == (
        0.0,
        None,
        None,
        None,
        {},
    )


def test_rejects_of_the_last_minutes_and_since_the_start_are_of_the_same_samples(time: Time) -> None:
    made = Course(Marks())
    for number in range(1, 101):
        time.s += 10
        made.add(families(10 * number, number), {})
        recent, total = made.document()["recent"], made.document()["total"]
        assert total["rejects"]["late"] == number
        assert recent["rejects"]["late"] == min(number, 60), "of the last ten minutes, or of all while it is younger"
        assert recent["records"] == 10 * min(number, 60)
        assert made.document()["at_ms"] - recent["since_ms"] == 10_000 * min(number, 60)


def test_the_rings_are_bounded_and_the_day_has_a_point_each_four_minutes(time: Time) -> None:
    made = Course(Marks())
    for number in range(1, 26 * 360):
        time.s += 10
        made.add(families(10 * number, lag=(number % 24,)), {})
    document = made.document()
    hour, day = rows(document), rows(document, "day")
    assert (len(hour), len(day)) == (360, 360)
    assert hour[-1]["at_ms"] - hour[0]["at_ms"] == 359 * 10_000
    assert {b["at_ms"] - a["at_ms"] for a, b in pairwise(day)} == {240_000}  # type: ignore[operator]
    assert {each["rate"] for each in day} == {1.0}
    assert {each["lag"] for each in day} == {23.0}, "the largest of each four minutes"
    assert len(json.dumps(document)) < 80_000


def test_a_wall_clock_that_is_set_back_neither_stops_the_course_nor_changes_rates(time: Time) -> None:
    made = Course(Marks())
    time.s += 10
    made.add(families(100), {})
    time.apart_ms = -3_600_000
    time.s += 10
    made.add(families(200), {})
    assert [each["rate"] for each in rows(made.document())] == [10.0, 10.0]


def test_what_happened_is_marked_alerts_from_their_begin_to_their_end(time: Time) -> None:
    status = Status("plant")
    monitor = Monitor(Metrics(), status)
    time.s += 1
    status.term(3)
    status.query_started()
    time.s += 1
    status.failed(SinkError("Redis is away"))
    status.restarts()
    made = monitor.conditions.course
    firing = {"TidemarkBehind": 1_020_000}
    time.s += 30
    made.add(families(), firing)
    time.s += 10
    made.add(families(), firing)
    assert made.document()["marks"][-1]["until_ms"] is None, "it fires"
    time.s += 10
    made.add(families(), {})
    found = [(each["kind"], each["text"], each["at_ms"], each["until_ms"]) for each in made.document()["marks"]]
    assert found == [
        ("start", "The process starts", 1_000_000, 1_000_000),
        ("query", "The query starts, epoch 3", 1_001_000, 1_001_000),
        ("restart", "The query restarts: SINK", 1_002_000, 1_002_000),
        ("alert", "TidemarkBehind", 1_020_000, 1_052_000),
    ]
    for _ in range(course.MOST_MARKS + 5):
        made.marks.add("query", "again")
    assert len(made.document()["marks"]) == course.MOST_MARKS


def test_an_alert_of_many_topics_is_one_mark_and_hides_no_other(time: Time) -> None:
    monitor = Monitor(Metrics(), Status("plant"))
    topics = [f"plant-{number}" for number in range(2 * course.MOST_MARKS)]
    monitor.metrics.keeps(dict.fromkeys(topics, 86_400_000))
    monitor.metrics.headrooms({topic: {0: 60.0} for topic in topics})
    marks = monitor.course()["marks"]
    assert [each["text"] for each in marks] == ["The process starts", "TidemarkRetention"]
    time.s += 10
    monitor.metrics.headrooms({topic: {0: 80_000.0} for topic in topics[1:]})
    assert monitor.course()["marks"][-1]["until_ms"] is None, "one topic is near its limit"


def test_changes_of_the_views_and_of_the_reference_are_marked(time: Time) -> None:
    metrics = Metrics()
    monitor = Monitor(metrics, Status("plant"))
    metrics.reference("v1", 10, lambda: 0.0)
    monitor.course()
    metrics.view_changes.labels("applied").inc()
    metrics.reference("v2", 10, lambda: 0.0)
    document = monitor.course()
    assert [(each["kind"], each["text"]) for each in document["marks"]][1:] == [
        ("views", "A change of the views is applied"),
        ("reference", "The reference has version v2"),
    ]


def test_the_document_is_served_with_the_batches_of_the_service(time: Time) -> None:
    with served("plant") as made:
        made.metrics.batch_ends(REPORT)
        time.s += 10
        document = made.document("/history")
    [point] = rows(document)
    assert point["rejects"] == {"late": 2}
    assert point["batch_s"] == 0.26
    assert document["total"]["rejects"]["late"] == document["recent"]["rejects"]["late"] == 2


def test_a_pipeline_that_is_stopped_for_a_while_counts_on_from_where_it_was(time: Time) -> None:
    monitor = Monitor(Metrics(), Status("plant"))
    monitor.metrics.batch_ends(REPORT)
    for step in (lambda: None, lambda: monitor.ended(None), monitor.begins):
        step()
        time.s += 10
        monitor.course()
    document = monitor.course()
    assert [each["rate"] for each in rows(document)] == [REPORT.micro_batch.rows / 10, 0.0, 0.0]
    assert [each["rejects"] for each in rows(document)] == [{"late": 2}, {}, {}]
    assert [document[name]["records"] for name in ("recent", "total")] == [REPORT.micro_batch.rows] * 2


@pytest.mark.parametrize(
    ("share", "counts", "expected"),
    [
        (0.5, {}, math.nan),
        (0.5, {1.0: 0.0, math.inf: 0.0}, math.nan),
        (0.5, {1.0: 4.0, 2.0: 4.0, math.inf: 4.0}, 0.5),
        (1.0, {1.0: 4.0, 2.0: 8.0, math.inf: 8.0}, 2.0),
        (0.99, {1.0: 4.0, 2.0: 8.0, math.inf: 80.0}, 2.0),
    ],
)
def test_a_quantile_is_prometheus_one(share: float, counts: dict[float, float], expected: float) -> None:
    assert quantile(share, counts) == pytest.approx(expected, nan_ok=True)

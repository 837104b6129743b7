"""The alerts of deploy/alerts.yml as `tidemark status --watch` and the page at / show them: a value and its limit.

Prometheus waits before an alert fires, and looks at minutes. A Span is as long as the caller has watched, so a value above its
limit is a hint here, not yet an alert. tests/unit/test_limits_of_alerts.py compares the numbers with those of deploy/alerts.yml.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from service.monitoring.samples import Span

BATCH_S = 120.0
MINUTE_OF_WORK_S = 60.0
LAG_AGE_S = 60.0
HEADROOM = 0.25
HELD = 0.25
APART = 0.5
REJECTED = 0.05
INVENTED = 0.2
REFERENCE = 0.25
OUTLET_AGE_S = 60.0
OUTLET_FULL = 0.5
SLOW_S = 10.0
FAILURES = 3.0
RESTARTS = 3.0
UNCHECKED = 3.0


@dataclass(frozen=True)
class Reading:
    """An alert with its value now. `unit` is "s", "%" or ""; the alert is over when the value is above the limit."""

    alert: str
    what: str
    value: float
    limit: float
    unit: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the value is above the limit; False for NaN."""
        return self.value > self.limit

    @property
    def share(self) -> float:
        """The value as a share of the limit: the larger, the nearer to the alert."""
        if math.isnan(self.value) or math.isnan(self.limit):
            return 0.0
        return self.value / self.limit if self.limit else math.inf * self.value if self.value > 0 else 0.0


@dataclass(frozen=True)
class _Alert:
    name: str
    what: str
    value: Callable[[Span], float]
    limit: Callable[[Span], float]
    unit: str = ""


def readings(span: Span) -> Iterator[Reading]:
    """Yield each alert with its value and its limit."""
    for each in _ALERTS:
        yield Reading(each.name, each.what, each.value(span), each.limit(span), each.unit)


def _now(name: str) -> Callable[[Span], float]:
    return lambda span: span.now.value(name)


def _grown(name: str, **labels: str) -> Callable[[Span], float]:
    return lambda span: span.increase(name, **labels) if span.before is not None else math.nan


def _fixed(limit: float) -> Callable[[Span], float]:
    return lambda _: limit


def _of(share: float, name: str) -> Callable[[Span], float]:
    return lambda span: share * span.now.value(name)


def _share(name: str, of: str) -> Callable[[Span], float]:
    def value(span: Span) -> float:
        whole = span.increase(of) if span.before is not None else 0.0
        return 100 * span.increase(name) / whole if whole else math.nan

    return value


def _not_running(span: Span) -> float:
    return 1 - span.now.value("query_running")


def _not_ready(span: Span) -> float:
    return span.now.value("lag_records") if span.now.value("role", role="leader") == 1 else 0.0


def _work_of_a_minute(span: Span) -> float:
    return MINUTE_OF_WORK_S * span.increase("records_total") / span.seconds


def _room_used(span: Span) -> float:
    """The share of the retention of a topic that is used up, at most, in %."""
    kept = {labels["topic"]: value for labels, value in span.now.rows("retention_seconds")}
    shares = [
        1 - room / kept[labels["topic"]]
        for labels, room in span.now.rows("retention_headroom_seconds")
        if math.isfinite(room) and math.isfinite(kept.get(labels["topic"], math.inf))
    ]
    return 100 * max(shares) if shares else math.nan


def _most(name: str) -> Callable[[Span], float]:
    return lambda span: max((value for _, value in span.now.rows(name)), default=math.nan)


def _backlog(span: Span) -> float:
    """The share of `max_pending` of an outlet that is kept for it, at most, in %."""
    limits = {labels["outlet"]: value for labels, value in span.now.rows("outlet_max_pending_bytes")}
    kept = span.now.rows("outlet_pending_bytes")
    return max((100 * value / limits[labels["outlet"]] for labels, value in kept), default=math.nan)


def _unmet(span: Span) -> float:
    return float(sum(value == 0 for _, value in span.now.rows("quality_expectation_met")))


def _absent(span: Span) -> float:
    """The number of measures that none of the readings had, where their input was read."""
    if span.before is None:
        return math.nan
    pairs = [labels for labels, _ in span.now.rows("measure_missing_readings_total")]
    return float(
        sum(
            span.increase("measure_missing_readings_total", **labels) > 0
            and not span.increase("measure_readings_total", **labels)
            for labels in pairs
        )
    )


def _stands(span: Span) -> float:
    """1 where readings were admitted and event time has not moved."""
    if span.before is None or not span.increase("readings_admitted_total"):
        return 0.0
    name = "watermark_timestamp_seconds"
    return float(span.now.value(name) == span.before.value(name))


def _p99_s(span: Span) -> float:
    return span.quantile("event_to_redis_seconds", 0.99) if span.before is not None else math.nan


def _schemas(span: Span) -> float:
    results = ("failed", "unusable", "full")
    return sum(_grown("schema_lookups_total", result=each)(span) for each in results)


_ALERTS = (
    _Alert("TidemarkNotRunning", "the query does not run", _not_running, _fixed(0)),
    _Alert("TidemarkNotReady", "records wait, and the service is not ready", _not_ready, _fixed(0)),
    _Alert(
        "TidemarkStuck", "the batch that runs has been running for", _now("batch_running_seconds"), _fixed(BATCH_S), "s"
    ),
    _Alert("TidemarkBehind", "records behind; limit: a minute's work", _now("lag_records"), _work_of_a_minute),
    _Alert("TidemarkLagUnknown", "since Kafka last answered", _now("lag_age_seconds"), _fixed(LAG_AGE_S), "s"),
    _Alert("TidemarkQueryRestarts", "restarts of the query", _grown("query_restarts_total"), _fixed(RESTARTS)),
    _Alert("TidemarkDriverRestarts", "new epochs", _grown("epoch"), _fixed(RESTARTS)),
    _Alert("TidemarkUnreadable", "offsets that no process can read", _now("unreadable_offsets"), _fixed(0)),
    _Alert("TidemarkRetention", "of the retention used up, unread", _room_used, _fixed(100 * (1 - HEADROOM)), "%"),
    _Alert("TidemarkRecordsLost", "records deleted unread", _grown("records_lost_total"), _fixed(0)),
    _Alert("TidemarkRedisLostData", "losses of data in Redis", _grown("redis_data_lost_total"), _fixed(0)),
    _Alert("TidemarkValuesLost", "values that Kafka no longer has", _grown("unrepublished_total"), _fixed(0)),
    _Alert("TidemarkReadingsBehind", "readings behind the watermark", _grown("readings_behind_total"), _fixed(0)),
    _Alert(
        "TidemarkWatermarkHeld",
        "the watermark is held back by",
        _now("watermark_held_seconds"),
        _of(HELD, "watermark_max_hold_seconds"),
        "s",
    ),
    _Alert(
        "TidemarkPartitionsApart",
        "event times of partitions apart",
        _now("event_spread_seconds"),
        _of(APART, "watermark_delay_seconds"),
        "s",
    ),
    _Alert(
        "TidemarkRejects",
        "of the records rejected",
        _share("rejects_total", "records_total"),
        _fixed(100 * REJECTED),
        "%",
    ),
    _Alert(
        "TidemarkInventedDevices",
        "of the readings are of new devices",
        _share("devices_new_total", "readings_admitted_total"),
        _fixed(100 * INVENTED),
        "%",
    ),
    _Alert(
        "TidemarkTooManyDevices",
        "rejects: too many devices",
        _grown("rejects_total", reason="too_many_devices"),
        _fixed(0),
    ),
    _Alert("TidemarkTooManyValues", "readings counted as (other)", _grown("readings_other_value_total"), _fixed(0)),
    _Alert("TidemarkMeasureAbsent", "measures that no reading has", _absent, _fixed(0)),
    _Alert("TidemarkSkewedDevices", "devices whose clocks are ahead", _now("skewed_devices"), _fixed(0)),
    _Alert("TidemarkSchemas", "schema ids not found", _schemas, _fixed(0)),
    _Alert("TidemarkWatermarkStands", "readings come, event time stands", _stands, _fixed(0)),
    _Alert("TidemarkQuality", "expectations that the sample does not meet", _unmet, _fixed(0)),
    _Alert("TidemarkQualityUnchecked", "samples not checked", _grown("quality_failures_total"), _fixed(UNCHECKED)),
    _Alert("TidemarkReferenceKept", "no newer reference", _now("reference_kept"), _fixed(0)),
    _Alert(
        "TidemarkReferenceOld",
        "age of the reference",
        _now("reference_age_seconds"),
        _of(REFERENCE, "reference_max_age_seconds"),
        "s",
    ),
    _Alert(
        "TidemarkOutletAway",
        "age of finals that an outlet lacks",
        _most("outlet_age_seconds"),
        _fixed(OUTLET_AGE_S),
        "s",
    ),
    _Alert("TidemarkOutletFull", "kept for an outlet, of max_pending", _backlog, _fixed(100 * OUTLET_FULL), "%"),
    _Alert(
        "TidemarkSlow",
        "p99 from the broker to Redis",
        _p99_s,
        _fixed(SLOW_S),
        "s",
    ),
    _Alert("TidemarkFailures", "failures that did not end the service", _grown("failures_total"), _fixed(FAILURES)),
)

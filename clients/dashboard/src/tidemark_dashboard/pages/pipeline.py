"""The pipeline: what Spark's streaming page shows, and what it cannot: event time, rejects, the reference, epochs, what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark_client import Progress
from tidemark_dashboard.metrics import OVERFLOW, Samples, quantile
from tidemark_dashboard.pages import Page, Query, Shown
from tidemark_dashboard.service import Look, Service
from tidemark_dashboard.sources import Sources
from tidemark_dashboard.texts import seconds

SHOWN = 60
"""Batches in the plots."""
ROWS = 15
PHASES = ("cut", "run", "publish", "finish")
STUCK_S, LAG_AGE_S, SLOW_S, HELD, HEADROOM = 120.0, 60.0, 10.0, 0.25, 0.25
"""The limits of deploy/alerts.yml."""


@dataclass(frozen=True)
class Problem:
    """Something that needs somebody. `name` is that of its page in the runbook."""

    name: str
    text: str
    severity: str
    since: str = ""


@dataclass(frozen=True)
class Latency:
    """A quantile in seconds. With `is_more` it lies beyond `value_s`, the last bound of the service's histogram."""

    value_s: float
    is_more: bool

    def __str__(self) -> str:
        return f"over {seconds(self.value_s)}" if self.is_more else seconds(self.value_s)


@dataclass(frozen=True)
class Partition:
    """A partition: `offset` is the next one to publish; times in ms, None where they are not known."""

    topic: str
    number: str
    offset: int | None
    lag: float | None
    newest_ms: float | None
    headroom_s: float | None


@dataclass(frozen=True)
class Batch:
    """A batch as the table has it. `wait_s` is the time since the end of the batch before, `took_s` the length of its phases."""

    number: int
    rows: int
    phases: Mapping[str, float]
    took_s: float
    every_s: float | None
    delay_s: float | None
    watermark_ms: int
    finished_ms: int
    moved: str


async def read(sources: Sources, query: Query) -> Shown:
    """Redis is asked for progress alone; the service has been asked before."""
    service = sources.service
    progress = await sources.look()
    samples, status = service.samples, service.status
    batches = list(_batches(service.batches[-SHOWN - 1 :]))[-SHOWN:]
    rejects = sorted(samples.by("tidemark_rejects_total", "reason").items(), key=lambda each: (-each[1], each[0]))
    recent = service.increase("tidemark_rejects_total", "reason")
    looks = list(service.looks)
    since_s = (looks[-1].at_ms - looks[0].at_ms) / 1000 if len(looks) > 1 else 0.0
    context = {
        "has_rejects": sources.rejects.is_known,
        "newest": sources.rejects.newest(),
        "service": service,
        "is_old": sources.freshness().is_old,
        "status": status,
        "samples": samples,
        "progress": progress,
        "problems": list(_problems(service)),
        "batches": batches,
        "table": batches[::-1][:ROWS],
        "plot": _plot(batches),
        "phases": PHASES,
        "partitions": _partitions(service, progress),
        "rejects": [(reason, total, recent.get(reason, 0.0)) for reason, total in rejects if total],
        "none_of": [reason for reason, total in rejects if not total],
        "since_s": since_s,
        "latency": {share: _latency(looks, share) for share in (0.5, 0.99)},
        "rate": _rate(looks),
        "role": next((role for role, is_it in samples.by("tidemark_role", "role").items() if is_it), ""),
        "restarts": {code: n for code, n in samples.by("tidemark_query_restarts_total", "code").items() if n},
        "failures": {part: n for part, n in samples.by("tidemark_failures_total", "part").items() if n},
        "kept": {why: n for why, n in samples.by("tidemark_reference_failures_total", "reason").items() if n},
        "unmet": [
            name for name, met in samples.by("tidemark_quality_expectation_met", "expectation").items() if not met
        ],
        "state": samples.by("tidemark_state_rows", "kind"),
    }
    return Shown.of(context, ("service",), ("progress",), ("rejects", ""))


def _batches(batches: Sequence[Mapping[str, Any]]) -> Iterator[Batch]:
    before: Mapping[str, Any] | None = None
    for each in batches:
        phases = {name: float(each["phases"].get(name, 0.0)) for name in PHASES}
        finished_ms, watermark_ms = int(each["finished_ms"]), int(each["watermark_ms"])
        every_s = (finished_ms - before["finished_ms"]) / 1000 if before else None
        delay_s = (finished_ms - watermark_ms) / 1000 if watermark_ms > 0 else None
        yield Batch(
            int(each["batch"]),
            int(each["rows"]),
            phases,
            sum(phases.values()),
            every_s,
            delay_s,
            watermark_ms,
            finished_ms,
            _moved(each["start"], each["end"]),
        )
        before = each


def _moved(start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> str:
    """The offsets that a batch has read, half open, such as readings 0:12-15 2:7-9."""
    parts = []
    for topic, ends in end.items():
        begins = {number: start.get(topic, {}).get(number, 0) for number in ends}
        moved = [
            f"{number}:{begins[number]}\u2013{offset}" for number, offset in ends.items() if offset != begins[number]
        ]
        parts += [f"{topic} {' '.join(moved)}"] if moved else []
    return ", ".join(parts) or "none"


def _plot(batches: Sequence[Batch]) -> str:
    columns: dict[str, Any] = {
        "t": [each.finished_ms / 1000 for each in batches],
        "batch": [each.number for each in batches],
        "rows": [each.rows for each in batches],
        "every": [each.every_s for each in batches],
        "delay": [each.delay_s for each in batches],
        **{name: [each.phases[name] for each in batches] for name in PHASES},
    }
    return json.dumps(columns, allow_nan=False)


def _partitions(service: Service, progress: Progress | None) -> list[Partition]:
    samples = service.samples
    offsets = progress.offsets if progress else {}
    places = {(topic, str(number)) for topic, ends in offsets.items() for number in ends}
    places |= {(labels["topic"], labels["partition"]) for labels, _ in samples.rows("tidemark_lag_records")}
    rows = []
    for topic, number in sorted(places, key=lambda each: (each[0], int(each[1]))):
        labels = {"topic": topic, "partition": number}
        newest_s = samples.value("tidemark_event_timestamp_seconds", **labels)
        rows.append(
            Partition(
                topic,
                number,
                offsets.get(topic, {}).get(int(number)),
                samples.value("tidemark_lag_records", **labels),
                None if newest_s is None else 1000 * newest_s,
                samples.value("tidemark_retention_headroom_seconds", **labels),
            )
        )
    return rows


def _latency(looks: Sequence[Look], share: float) -> Latency | None:
    """The quantile of the time from the broker's time of a reading to Redis, of the readings since the first look."""
    if len(looks) < 2:
        return None
    newest, first = (looks[each].samples.by("tidemark_event_to_redis_seconds_bucket", "le") for each in (-1, 0))
    value_s = quantile(share, newest, first)
    if value_s is None:
        return None
    return Latency(value_s, value_s >= max(float(bound) for bound in newest if bound != OVERFLOW))


def _rate(looks: Sequence[Look]) -> float | None:
    """Records a second in the last half minute."""
    if len(looks) < 2:
        return None
    newest = looks[-1]
    older = next((each for each in looks if each.at_ms >= newest.at_ms - 30_000), looks[0])
    took_s = (newest.at_ms - older.at_ms) / 1000
    grown = newest.samples.sum("tidemark_records_total") - older.samples.sum("tidemark_records_total")
    return grown / took_s if took_s > 0 and grown >= 0 else None


def _problems(service: Service) -> Iterator[Problem]:
    """The alerts that fire, and what the service's own answers say now; each name once."""
    seen = set()
    for each in [*_alerts(service), *_conditions(service)]:
        if each.name not in seen:
            seen.add(each.name)
            yield each


def _alerts(service: Service) -> Iterator[Problem]:
    for alert in service.alerts:
        if alert.state == "firing":
            yield Problem(alert.name, alert.summary, alert.severity or "warn", alert.since)


def _conditions(service: Service) -> Iterator[Problem]:
    """What can be seen without Prometheus: the same limits, without its waiting times."""
    if not service.is_known:
        return
    if service.health.is_away:
        yield Problem("TidemarkAbsent", f"The service does not answer: {service.health.reason}", "page")
        return
    samples, status = service.samples, service.status
    error = status.get("last_error")
    if status.get("state") == "restarting" and error:
        yield Problem(str(error["code"]), str(error["text"]), "page")
    if samples.value("tidemark_query_running") == 0 and status.get("state") != "starting":
        yield Problem("TidemarkNotRunning", "The query does not run", "page")
    for name, metric, limit, severity, text in _LIMITS:
        value = samples.value(metric) or 0.0
        if value > limit:
            yield Problem(name, text.format(value), severity)
    for name, metric, text in _EVENTS:
        if service.increase(metric).get(""):
            yield Problem(name, text, "page")
    latency = _latency(service.looks, 0.99)
    if latency is not None and latency.value_s > SLOW_S:
        yield Problem("TidemarkSlow", f"One reading in a hundred takes {latency} to Redis", "warn")
    yield from _shares(samples)


_LIMITS = (
    ("TidemarkStuck", "tidemark_batch_running_seconds", STUCK_S, "page", "A batch has been running for {:.0f} s"),
    ("TidemarkLagUnknown", "tidemark_lag_age_seconds", LAG_AGE_S, "page", "Kafka has not answered for {:.0f} s"),
    ("TidemarkUnreadable", "tidemark_unreadable_offsets", 0, "page", "{:.0f} offsets cannot be read by any process"),
    (
        "TidemarkReferenceKept",
        "tidemark_reference_kept",
        0,
        "warn",
        "There is no newer reference; the last good one stays",
    ),
    ("TidemarkSkewedDevices", "tidemark_skewed_devices", 0, "warn", "The clocks of {:.0f} devices are ahead"),
)
"""Alerts with a metric that must not exceed a limit."""
_EVENTS = (
    (
        "TidemarkRedisLostData",
        "tidemark_redis_data_lost_total",
        "Redis came back without values that it had acknowledged",
    ),
    ("TidemarkRecordsLost", "tidemark_records_lost_total", "Kafka deleted records before they were read"),
)
"""Alerts with a counter that must not grow."""


def _shares(samples: Samples) -> Iterator[Problem]:
    """Alerts that compare two metrics."""
    held_s = samples.value("tidemark_watermark_held_seconds") or 0.0
    if held_s > HELD * (samples.value("tidemark_watermark_max_hold_seconds") or float("inf")):
        text = f"Partitions that are behind hold final values back by {held_s:.0f} s"
        yield Problem("TidemarkWatermarkHeld", text, "warn")
    kept_s = samples.by("tidemark_retention_seconds", "topic")
    for labels, room_s in samples.rows("tidemark_retention_headroom_seconds"):
        if room_s < HEADROOM * kept_s.get(labels["topic"], 0.0) and room_s != float("inf"):
            text = f"Kafka deletes unread records of {labels['topic']} in {room_s:.0f} s if the service stops"
            yield Problem("TidemarkRetention", text, "page")
            break
    met = samples.value("tidemark_quality_expectations_met_ratio")
    if met is not None and met < 1:
        yield Problem("TidemarkQuality", f"A sample of readings met {100 * met:.0f} % of the expectations", "warn")


PAGE = Page(
    "pipeline",
    "/pipeline",
    "Pipeline",
    ("pipeline_now", "pipeline_batches", "pipeline_partitions", "pipeline_rejects", "pipeline_parts"),
    (),
    read,
)

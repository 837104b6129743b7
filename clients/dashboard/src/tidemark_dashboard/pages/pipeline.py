"""The pipeline: what Spark's streaming page shows, and what it cannot: event time, rejects, the reference, epochs, what to do."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tidemark_client import Progress, TidemarkClientError
from tidemark_dashboard.course import RINGS, Course, Recent
from tidemark_dashboard.metrics import Samples
from tidemark_dashboard.pages import Page, Query, Shown, address
from tidemark_dashboard.service import Alert, Look, Service
from tidemark_dashboard.sources import Sources
from tidemark_dashboard.texts import seconds

SHOWN = 60
"""Batches in the plots."""
ROWS = 15
PHASES = ("cut", "run", "publish", "finish")


@dataclass(frozen=True)
class Problem:
    """Something that needs somebody, or may soon. `name` is that of its page in the runbook."""

    name: str
    text: str
    severity: str
    is_pending: bool = False


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


@dataclass(frozen=True)
class Input:
    """A topic of an input. `lag` is in records, `newest_ms` the newest event time, None where they are not known."""

    name: str
    format: str
    topic: str
    rejects: str
    lag: float | None
    newest_ms: float | None


@dataclass(frozen=True)
class Outlet:
    """An outlet: `batch` and `watermark_ms` are of the newest entry that it has, `age_s` is how long the oldest one waits."""

    name: str
    kind: str
    batch: int | None
    watermark_ms: int | None
    pending: int
    pending_bytes: float
    age_s: float | None
    is_behind: bool
    rows: float
    refused: int
    failures: float
    error: str
    failed_ms: int | None


async def read(sources: Sources, query: Query) -> Shown:
    """Redis is asked for progress alone; the service has been asked before, and is shown without Redis, too."""
    service = sources.service
    course, recent = service.course, service.course.recent if service.course else None
    ring = query.get("over", "") if query.get("over", "") in RINGS else RINGS[0]
    progress = sources.progress
    with suppress(TidemarkClientError):  # the freshness has the reason
        progress = await sources.look()
    samples, status = service.samples, service.status
    batches = list(_batches(service.batches[-SHOWN - 1 :]))[-SHOWN:]
    rejects = [(reason, n, recent.rejects.get(reason, 0)) for reason, n in recent.total.items() if n] if recent else []
    context = {
        "has_rejects": sources.rejects.is_known,
        "newest": sources.rejects.newest(),
        "service": service,
        "is_old": sources.freshness().is_old,
        "status": status,
        "samples": samples,
        "progress": progress,
        "problems": _problems(service),
        "batches": batches,
        "table": batches[::-1][:ROWS],
        "plot": _plot(batches),
        "phases": PHASES,
        "partitions": _partitions(service, progress),
        "rejects": sorted(rejects, key=lambda each: (-each[1], each[0])),
        "recent": recent,
        "latency": _latencies(recent, samples),
        "course": course,
        "ring": ring,
        "rings": RINGS,
        "courses": _courses(course, ring) if course else [],
        "here": lambda **changed: address("/pipeline", **{**query, **changed}),
        "rate": _rate(service.looks),
        "role": next((role for role, is_it in samples.by("tidemark_role", "role").items() if is_it), ""),
        "restarts": {code: n for code, n in samples.by("tidemark_query_restarts_total", "code").items() if n},
        "failures": {part: n for part, n in samples.by("tidemark_failures_total", "part").items() if n},
        "kept": {why: n for why, n in samples.by("tidemark_reference_failures_total", "reason").items() if n},
        "unmet": [
            name for name, met in samples.by("tidemark_quality_expectation_met", "expectation").items() if not met
        ],
        "inputs": _inputs(service),
        "outlets": _outlets(service),
        "build": next((labels for labels, _ in samples.rows("tidemark_build_info")), {}),
        "redis": sources.redis,
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


def _inputs(service: Service) -> list[Input]:
    """The inputs with their topics."""
    samples = service.samples
    lags, newest = samples.by("tidemark_lag_records", "topic"), dict[str, float]()
    for labels, at_s in samples.rows("tidemark_event_timestamp_seconds"):
        newest[labels["topic"]] = max(newest.get(labels["topic"], 0.0), 1000 * at_s)
    return [
        Input(
            str(each["name"]),
            str(each["format"]),
            str(topic["topic"]),
            str(topic["rejects"]),
            lags.get(topic["topic"]),
            newest.get(topic["topic"]),
        )
        for each in service.status.get("inputs", ())
        for topic in each["topics"]
    ]


def _outlets(service: Service) -> list[Outlet]:
    samples = service.samples
    rows, failures = (samples.by(f"tidemark_outlet_{name}_total", "outlet") for name in ("rows", "failures"))
    found = []
    for name, each in service.status.get("outlets", {}).items():
        reached = each["reached"]
        found.append(
            Outlet(
                name,
                str(each["kind"]),
                None if reached is None else int(reached["batch"]),
                None if reached is None else int(reached["watermark_ms"]),
                int(each["pending_batches"]),
                float(each["pending_bytes"]),
                float(each["age_s"]) if each["pending_batches"] else None,
                bool(each["is_behind"]),
                rows.get(name, 0.0),
                int(each["refused_rows"]),
                failures.get(name, 0.0),
                str(each["error"] or ""),
                each["failed_ms"],
            )
        )
    return found


def _courses(course: Course, ring: str) -> list[tuple[str, str]]:
    """The plots of the course: title and data. They are made once for each answer of the service."""
    at_ms, made = course.made.get(ring, (0, []))
    if at_ms == course.at_ms:
        return made
    plots = [
        ("Records a second", course.plot(ring, ["rate"], "records/s")),
        ("Lag, records", course.plot(ring, ["lag"], "records")),
        ("Latency, p50 and p99", course.plot(ring, ["p50_s", "p99_s"], "s")),
        ("Time of a batch, mean", course.plot(ring, ["batch_s"], "s")),
        ("Watermark behind the clock", course.plot(ring, ["delay_s"], "s")),
        ("Rejects a minute, by reason", course.rejects(ring)),
    ]
    course.made[ring] = course.at_ms, plots
    return plots


def _latencies(recent: Recent | None, samples: Samples) -> dict[float, Latency | None]:
    """The median and the p99 of the period that the page names."""
    bounds = samples.by("tidemark_event_to_redis_seconds_bucket", "le")
    last = max((float(each) for each in bounds if each != "+Inf"), default=math.inf)
    values = {0.5: recent.p50_s, 0.99: recent.p99_s} if recent else {0.5: None, 0.99: None}
    return {share: None if value is None else Latency(value, value >= last) for share, value in values.items()}


def _rate(looks: Sequence[Look]) -> float | None:
    """Records a second in the last half minute."""
    if len(looks) < 2:
        return None
    older, newest = looks[0], looks[-1]
    took_s = newest.at_s - older.at_s
    grown = newest.samples.sum("tidemark_records_total") - older.samples.sum("tidemark_records_total")
    return grown / took_s if took_s > 0 and grown >= 0 else None


def _problems(service: Service) -> list[Problem]:
    """The alerts that fire by Prometheus and by the service, then what may become one; each text once."""
    problems = {(each.name, each.text): each for each in [*_own(service), *_alerts(service.alerts)]}
    return sorted(problems.values(), key=lambda each: (each.is_pending, each.severity != "page"))


def _own(service: Service) -> Iterator[Problem]:
    if not service.is_known:
        return
    if service.health.is_away:
        yield Problem("TidemarkAbsent", f"The service does not answer: {service.health.reason}", "page")
        return
    error = service.status.get("last_error")
    if service.status.get("state") == "restarting" and error:
        yield Problem(str(error["code"]), str(error["text"]), "page")
    yield from _alerts(service.conditions, with_pending=True)


def _alerts(alerts: Iterable[Alert], *, with_pending: bool = False) -> Iterator[Problem]:
    for alert in alerts:
        if alert.state == "firing":
            yield Problem(alert.name, alert.summary, alert.severity or "warn")
        elif with_pending:
            text = f"{alert.summary} (an alert after {seconds(alert.for_s)})"
            yield Problem(alert.name, text, alert.severity, is_pending=True)


PAGE = Page(
    "pipeline",
    "/pipeline",
    "Pipeline",
    (
        "pipeline_now",
        "pipeline_partitions",
        "pipeline_course",
        "pipeline_places",
        "pipeline_batches",
        "pipeline_rejects",
        "pipeline_parts",
    ),
    ("over",),
    read,
)

"""The course of a pipeline over the last hour and the last day, with what happened meanwhile: the document of /history.

Two rings of fixed size hold a point for each interval. A point has what each counter gained since the point before, and the
largest value of each gauge meanwhile. The counts of the last minutes and those since the start are of the same samples. The rings
begin with the process. The document has about 60 kB.
"""

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from service import clock
from service.monitoring import promql

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PATH = "/history"
RINGS: Mapping[str, tuple[int, int]] = {"hour": (10, 360), "day": (240, 360)}
"""By name: the seconds between two points, and the number of points."""
EARLY_S = 0.5
"""A sample that is early by so much ends an interval."""
RECENT_S = 600
MOST_MARKS = 200
COLUMNS = ("at_ms", "rate", "lag", "lag_age_s", "p50_s", "p99_s", "batch_s", "delay_s", "rejects")
"""Of a point. `rejects` has the counts by reason; reasons without one are left out."""
_PHASES = frozenset({"cut", "run", "publish", "finish"})


@dataclass(slots=True)
class Mark:
    """Something that happened: from `at_ms` to `until_ms`, None for what goes on, or the same as `at_ms` for a moment."""

    kind: str
    text: str
    at_ms: int
    until_ms: int | None

    def document(self) -> dict[str, Any]:
        return {"kind": self.kind, "text": self.text, "at_ms": self.at_ms, "until_ms": self.until_ms}


class Marks:
    """The last MOST_MARKS things that happened. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque(maxlen=MOST_MARKS)
        self._lock = threading.RLock()  # a signal handler may run while its own thread holds the lock

    def add(self, kind: str, text: str, at_ms: int | None = None, *, goes_on: bool = False) -> Mark:
        """Keep a moment, or the begin of something that goes on until its `until_ms` is set."""
        at_ms = clock.now_ms() if at_ms is None else at_ms
        mark = Mark(kind, text, at_ms, None if goes_on else at_ms)
        with self._lock:
            self._marks.append(mark)
        return mark

    def document(self) -> list[dict[str, Any]]:
        """Return the marks, the oldest first."""
        with self._lock:
            return sorted((each.document() for each in self._marks), key=lambda each: each["at_ms"])


@dataclass(slots=True)
class _Counts:
    """The counters of a time; `at_s` is that of the monotonic clock, because the other one may be set."""

    at_ms: int
    at_s: float
    records: float = math.nan
    """NaN for a pipeline that an operator has stopped: it shows no counters."""
    rejects: dict[str, float] = field(default_factory=dict)
    latency: dict[float, float] = field(default_factory=dict)
    """Cumulative, by upper bound in seconds."""
    seconds: float = 0.0
    batches: float = 0.0


@dataclass(slots=True)
class _Gauges:
    lag: float = math.nan
    lag_age_s: float = math.nan
    delay_s: float = math.nan

    def largest(self, other: "_Gauges") -> "_Gauges":
        names = ("lag", "lag_age_s", "delay_s")
        return _Gauges(*(_larger(getattr(self, name), getattr(other, name)) for name in names))


class _Ring:
    def __init__(self, every_s: int, size: int, before: _Counts) -> None:
        self._every_s, self._before = every_s, before
        self._gauges = _Gauges()
        self.points: deque[list[Any]] = deque(maxlen=size)

    def add(self, counts: _Counts, gauges: _Gauges) -> bool:
        """Note the samples of a time; whether they end an interval."""
        self._gauges = self._gauges.largest(gauges)
        passed_s = counts.at_s - self._before.at_s
        if passed_s < self._every_s - EARLY_S:
            return False
        before, now = self._before, self._gauges
        latency = _gained(counts.latency, before.latency)
        batches = counts.batches - before.batches
        batch_s = (counts.seconds - before.seconds) / batches if batches > 0 else math.nan
        values = [
            (counts.records - before.records) / passed_s,
            now.lag,
            now.lag_age_s,
            promql.quantile(0.5, latency),
            promql.quantile(0.99, latency),
            batch_s,
            now.delay_s,
        ]
        rejects = {name: round(n) for name, n in _gained(counts.rejects, before.rejects).items() if n > 0}
        self.points.append([counts.at_ms, *map(_rounded, values), rejects])
        self._before, self._gauges = counts, _Gauges()
        return True

    def document(self) -> dict[str, Any]:
        return {"every_s": self._every_s, "points": list(self.points)}


class Course:
    """The course of one pipeline. Its methods may be called from any thread."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self._lock = threading.Lock()
        nothing = self._last = _Counts(clock.now_ms(), clock.monotonic_s(), 0.0)
        self._rings = {name: _Ring(*each, nothing) for name, each in RINGS.items()}
        self._recent: deque[_Counts] = deque([nothing], maxlen=RECENT_S // RINGS["hour"][0] + 1)
        self._firing: dict[str, Mark] = {}
        self._former: dict[str, Any] = {}

    def add(self, families: "Iterable[Metric]", firing: Mapping[str, int]) -> None:
        """Add the samples of now, and the alerts that fire: by name, since when."""
        counts, gauges, changes = _read(families)
        with self._lock:
            if math.isnan(counts.records):
                counts = replace(self._last, at_ms=counts.at_ms, at_s=counts.at_s)
            self._last = counts
            if self._rings["hour"].add(counts, gauges):
                self._recent.append(counts)
            self._rings["day"].add(counts, gauges)
            self._note_changes(changes)
            for alert in self._firing.keys() - firing.keys():
                self._firing.pop(alert).until_ms = counts.at_ms
            for alert, since_ms in firing.items():
                if alert not in self._firing:
                    self._firing[alert] = self.marks.add("alert", alert, since_ms, goes_on=True)

    def document(self) -> dict[str, Any]:
        """Return the document of /history."""
        with self._lock:
            first, last = self._recent[0], self._recent[-1]
            latency = _gained(last.latency, first.latency)
            return {
                "at_ms": last.at_ms,
                "columns": COLUMNS,
                "recent": {
                    "since_ms": first.at_ms,
                    "p50_s": _rounded(promql.quantile(0.5, latency)),
                    "p99_s": _rounded(promql.quantile(0.99, latency)),
                    "records": round(last.records - first.records),
                    "rejects": {name: round(n) for name, n in _gained(last.rejects, first.rejects).items()},
                },
                "total": {
                    "records": round(last.records),
                    "rejects": {name: round(n) for name, n in last.rejects.items()},
                },
                **{name: each.document() for name, each in self._rings.items()},
                "marks": self.marks.document(),
            }

    def _note_changes(self, changes: Mapping[str, Any]) -> None:
        former, self._former = self._former, {**self._former, **changes}
        for result in ("applied", "refused"):
            if changes.get(result, 0.0) > former.get(result, 0.0):
                self.marks.add("views", f"A change of the views is {result}")
        if "reference" in former and changes.get("reference", former["reference"]) != former["reference"]:
            self.marks.add("reference", f"The reference has version {changes['reference']}")


def _read(families: "Iterable[Metric]") -> tuple[_Counts, _Gauges, dict[str, Any]]:
    counts, gauges, changes = _Counts(clock.now_ms(), clock.monotonic_s()), _Gauges(), dict[str, Any]()
    for family in families:
        for sample in family.samples:
            value, labels = float(sample.value), sample.labels
            match sample.name:
                case "tidemark_records_total":
                    counts.records = value
                case "tidemark_rejects_total":
                    counts.rejects[labels["reason"]] = value
                case "tidemark_event_to_redis_seconds_bucket":
                    counts.latency[float(labels["le"])] = value
                case "tidemark_batch_seconds_sum" if labels["phase"] in _PHASES:
                    counts.seconds += value
                case "tidemark_batch_seconds_count" if labels["phase"] == "run":
                    counts.batches += value
                case "tidemark_lag_records":
                    gauges.lag = value if math.isnan(gauges.lag) else gauges.lag + value
                case "tidemark_lag_age_seconds":
                    gauges.lag_age_s = value
                case "tidemark_watermark_timestamp_seconds" if value > 0:
                    gauges.delay_s = counts.at_ms / 1000 - value
                case "tidemark_view_changes_total":
                    changes[labels["result"]] = value
                case "tidemark_reference_info":
                    changes["reference"] = labels["version"]
    return counts, gauges, changes


def _gained(after: Mapping[Any, float], before: Mapping[Any, float]) -> dict[Any, float]:
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def _larger(one: float, other: float) -> float:
    return other if math.isnan(one) else one if math.isnan(other) else max(one, other)


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None

"""The figures of a running service as texts, a part of /status: for the page at / and for `tidemark status --watch`."""

import math
from collections.abc import Mapping
from typing import Any

from service import clock
from service.monitoring import promql
from service.monitoring.history import History
from service.pipeline.outcome import LATENCY_BOUNDS_MS
from service.units import rough_duration, rough_seconds

AVERAGED = 10
"""Batches of which the phases are averaged."""


EXPRESSIONS = {
    "lag": promql.parse("sum(tidemark_lag_records)"),
    "lag_age": promql.parse("max(tidemark_lag_age_seconds)"),
    "p50": promql.parse("histogram_quantile(0.5, increase(tidemark_event_to_redis_seconds_bucket[10m]))"),
    "p99": promql.parse("histogram_quantile(0.99, increase(tidemark_event_to_redis_seconds_bucket[10m]))"),
    "rejects": promql.parse("sum by (reason) (increase(tidemark_rejects_total[10m]))"),
}


def figures(document: Mapping[str, Any], history: History) -> list[tuple[str, str]]:
    """Return the figures by name. Counters are those of the last ten minutes, the rate is that of the kept batches."""
    now = {name: promql.vector(each, history) for name, each in EXPRESSIONS.items()}
    epoch = "no epoch yet" if document["epoch"] is None else f"epoch {document['epoch']}"
    rows = [
        ("state", f"{document['state']}, {epoch}, {_ago(document['started_ms'])} since the start"),
        ("restarts", f"{document['restarts']} of the query"),
    ]
    batches = document["batches"]
    if batches:
        last = batches[-1]
        seconds = f"{sum(last['phases'].values()):.2f} s"
        rows += [
            ("rate", f"{_rate(batches):,.0f} records/s in the last {len(batches)} batches"),
            ("lag", _lag(_only(now["lag"]), _only(now["lag_age"]))),
            ("batch", f"{last['batch']}: {last['rows']:,} records in {seconds}, {_ago(last['finished_ms'])} ago"),
            ("phases", phases(batches)),
            ("watermark", f"{_ago(last['watermark_ms'])} ago" if last["watermark_ms"] > 0 else "none yet"),
        ]
    latencies = [_only(now[share]) for share in ("p50", "p99")]
    if not any(map(math.isnan, latencies)):
        p50, p99 = (_latency(each * 1000) for each in latencies)
        rows.append(("latency", f"p50 {p50}, p99 {p99} from the broker's time to Redis, last 10 min"))
    rejected = rejects({labels[0][1]: value for labels, value in now["rejects"].items()})
    rows.append(("rejects", f"{rejected}, last 10 min"))
    reference = document["reference"]
    if reference is not None:
        age = rough_seconds(1000 * int(reference["age_s"]))
        rows.append(("reference", f"{reference['rows']:,} devices, read {age} ago"))
    return rows


def rejects(reasons: Mapping[str, float]) -> str:
    """Return how many records were rejected, by reason, the most frequent first."""
    counts = sorted(((reason, round(count)) for reason, count in reasons.items()), key=lambda each: -each[1])
    shown = [f"{reason} {count:,}" for reason, count in counts if count]
    return f"{sum(count for _, count in counts):,}" + (f": {', '.join(shown)}" if shown else "")


def phases(batches: list[Mapping[str, Any]]) -> str:
    """Return the mean time of each phase of the last batches."""
    some = batches[-AVERAGED:]
    means = {name: sum(each["phases"].get(name, 0.0) for each in some) / len(some) for name in some[-1]["phases"]}
    return ", ".join(f"{name} {seconds * 1000:,.0f} ms" for name, seconds in means.items())


def _latency(ms: float) -> str:
    """A quantile that lies beyond the last bound of the histogram is given as this bound."""
    shown = rough_duration(round(ms) if ms < 1_000 else round(ms / 100) * 100)
    return f"{'over ' if ms >= LATENCY_BOUNDS_MS[-1] else ''}{shown}"


def _rate(batches: list[Mapping[str, Any]]) -> float:
    """Return records a second: the records of all batches but the first, over the time since the first one's end."""
    took_ms = batches[-1]["finished_ms"] - batches[0]["finished_ms"]
    return 1000 * sum(each["rows"] for each in batches[1:]) / took_ms if took_ms > 0 else 0.0


def _ago(ms: int) -> str:
    return rough_seconds(clock.now_ms() - ms)


def _lag(records: float, asked_s: float) -> str:
    if math.isnan(records):
        return "unknown: Kafka has not answered"
    asked = "" if math.isnan(asked_s) else f", asked {rough_seconds(round(asked_s * 1000))} ago"
    return f"{records:,.0f} records{asked}"


def _only(vector: promql.Vector) -> float:
    return next(iter(vector.values()), math.nan)

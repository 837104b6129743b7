"""The arithmetic of the comparison: marks in the data, the slope between two points, and values against the oracle."""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from load.judge.oracle import Expected

WARM_UP = 1 / 3
"""Of the records: the slope begins at the first point behind them."""
STATISTICS = ("count", "sum", "mean", "min", "max", "stddev")
PROBES = 50
RELATIVE = 1e-9
"""By how much sums and means may differ, as a share of the largest value in them."""
DEVIATION = 1e-6
"""The same of deviations: Flink SQL takes the difference of two large sums."""
GAP_MS = 30_000
"""The gap of sessions, as in load/peers/java/Settings.java."""
Hash = Mapping[str, str]
Rows = Mapping[str, Hash]


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a window: the share of all records before it, and the counts of some keys' windows that end there."""

    end_ms: int
    share: float
    probes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Point:
    """At a time of the monotonic clock the values of so many records were in Redis, for so many CPU seconds by part."""

    records: float
    seconds: float
    cpu: Mapping[str, float]


def marks(expected: Expected, until_ms: int) -> list[Mark]:
    """Return a mark for each end of a window up to a time, in order. Keys are without a prefix.

    Only a measure's readings are in windows: their share stands for that of all records.
    """
    counts: dict[int, dict[str, int]] = {}
    for place, value in expected.windows.items():
        counts.setdefault(value.end, {})[":".join(map(str, ("window", *place)))] = value.count
    total, before, chooser = sum(sum(each.values()) for each in counts.values()), 0, random.Random(7)
    made = []
    for end_ms, windows in sorted(counts.items()):
        before += sum(windows.values())
        if end_ms <= until_ms:
            keys = chooser.sample(sorted(windows), min(PROBES, len(windows)))
            made.append(Mark(end_ms, before / total, {key: str(windows[key]) for key in keys}))
    return made


def slope(points: Sequence[Point], records: int) -> dict[str, float] | None:
    """Return records a second and microseconds of CPU a record, by part, between two points; None if there are no two.

    The first one is behind the warm-up, or the last before the end where none is. Start-up is in none of the figures.
    """
    if len(points) < 2:
        return None
    last = points[-1]
    first = next((each for each in points[:-1] if each.records >= WARM_UP * records), points[-2])
    count = last.records - first.records
    us = {f"{part}_us": round((last.cpu[part] - first.cpu[part]) / count * 1e6, 2) for part in last.cpu}
    return {"per_second": round(count / (last.seconds - first.seconds)), **us}


def differences(expected: Expected, rows: Rows, until_ms: int) -> list[str]:
    """Return a sentence for each window and session that was closed by a time and is missing, extra or different in Redis.

    `rows` are by key without a prefix.
    """
    right: dict[str, Mapping[str, float]] = {}
    for (view, measure, key, start), value in expected.windows.items():
        if value.end <= until_ms:
            fields = {name: getattr(value, name) for name in ("start", "end", *STATISTICS)}
            right[f"window:{view}:{measure}:{key}:{start}"] = fields
    for (device, start), session in expected.sessions.items():
        if session.state == "closed":
            right[f"session:{device}:{start}"] = {name: getattr(session, name) for name in ("start", "last", "count")}
    extra = sorted(key for key, row in rows.items() if key not in right and _is_closed(row, until_ms))
    wrong = (f"{key}: {text}" for key, values in right.items() for text in _wrong(values, rows.get(key)))
    return [*wrong, *(f"{key}: no reading gives it" for key in extra)]


def _is_closed(row: Hash, until_ms: int) -> bool:
    if "end" in row:
        return int(row["end"]) <= until_ms
    return row["state"] == "closed" and int(row["last"]) + GAP_MS < until_ms


def _wrong(right: Mapping[str, float], row: Hash | None) -> Iterable[str]:
    if row is None:
        yield "it is missing"
        return
    largest = max(abs(right.get("min", 0.0)), abs(right.get("max", 0.0)))
    errors = {"sum": RELATIVE * largest * right["count"], "mean": RELATIVE * largest, "stddev": DEVIATION * largest}
    for name, value in right.items():
        if not math.isclose(float(row.get(name, "nan")), value, rel_tol=0.0, abs_tol=errors.get(name, 0.0)):
            yield f"{name} is {row.get(name)}, expected {value}"

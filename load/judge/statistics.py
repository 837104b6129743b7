"""The plain definition of each statistic: from all readings of a window, in one go. It imports nothing of the service."""

import math
from collections.abc import Callable, Mapping, Sequence

Reading = tuple[int, float, str]
"""Event time in ms, value and device."""

DEFAULT = ("count", "sum", "mean", "min", "max", "stddev", "first", "last")
"""The statistics of a view that names none."""


def _mean(readings: Sequence[Reading]) -> float:
    return math.fsum(value for _, value, _ in readings) / len(readings)


def _stddev(readings: Sequence[Reading]) -> float:
    mean = _mean(readings)
    return math.sqrt(math.fsum((value - mean) ** 2 for _, value, _ in readings) / len(readings))


def _first(readings: Sequence[Reading]) -> int:
    return min(ms for ms, _, _ in readings)


def _last(readings: Sequence[Reading]) -> int:
    return max(ms for ms, _, _ in readings)


def _value_at(readings: Sequence[Reading], at: int) -> float:
    """Of several values at one time the largest."""
    return max(value for ms, value, _ in readings if ms == at)


def _delta(readings: Sequence[Reading]) -> float:
    return _value_at(readings, _last(readings)) - _value_at(readings, _first(readings))


def _rate(readings: Sequence[Reading]) -> float | None:
    duration_ms = _last(readings) - _first(readings)
    return _delta(readings) / duration_ms * 1000 if duration_ms else None


def _quantile(readings: Sequence[Reading], share: int) -> float:
    """The smallest value that at least `share` percent of the readings do not exceed, as `percentile_disc` of SQL."""
    values = sorted(value for _, value, _ in readings)
    return next(value for number, value in enumerate(values, 1) if 100 * number >= share * len(values))


PLAIN: Mapping[str, Callable[[Sequence[Reading]], float | None]] = {
    "count": len,
    "sum": lambda readings: math.fsum(value for _, value, _ in readings),
    "mean": _mean,
    "min": lambda readings: min(value for _, value, _ in readings),
    "max": lambda readings: max(value for _, value, _ in readings),
    "stddev": _stddev,
    "first": _first,
    "last": _last,
    "first_value": lambda readings: _value_at(readings, _first(readings)),
    "last_value": lambda readings: _value_at(readings, _last(readings)),
    "delta": _delta,
    "rate": _rate,
    "median": lambda readings: _quantile(readings, 50),
    "p95": lambda readings: _quantile(readings, 95),
    "p99": lambda readings: _quantile(readings, 99),
    "distinct": lambda readings: len({device for _, _, device in readings}),
}
"""Of at least one reading, in any order; None is "absent"."""

_SUMS, _FIRST, _LAST, _QUANTILES = {"sums"}, {"first", "first value"}, {"last value"}, {"min", "max", "quantiles"}
NEEDS: Mapping[str, set[str]] = {
    "count": set(),
    "last": set(),
    "sum": _SUMS,
    "mean": _SUMS,
    "min": {"min"},
    "max": {"max"},
    "stddev": {*_SUMS, "squares", "min", "max"},
    "first": {"first"},
    "first_value": _FIRST,
    "last_value": _LAST,
    "delta": _FIRST | _LAST,
    "rate": _FIRST | _LAST,
    "median": _QUANTILES,
    "p95": _QUANTILES,
    "p99": _QUANTILES,
    "distinct": {"devices"},
}
"""What a window keeps for a statistic: one that another statistic needs, too, is there at once."""

_SHARES: Mapping[str, float] = {"rate": 1e-9, "median": 0.01, "p95": 0.01, "p99": 0.01}
_EXACT_DEVICES, _STANDARD_ERRORS = 2_047, 5 * 0.0222


def tolerance(name: str, right: float) -> float:
    """By how much a statistic that is not in DEFAULT may differ from the right number; 0 for the same number."""
    if name == "distinct":
        return 0.0 if right <= _EXACT_DEVICES else _STANDARD_ERRORS * right
    return _SHARES.get(name, 0.0) * abs(right)

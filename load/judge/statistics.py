"""The plain definition of each statistic: from all readings of a window, in one go. It imports nothing of the service."""

import itertools
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

Steps = Sequence[tuple[int, int, float, float]]
"""Each pair of neighbouring readings: their times in ms and their values."""


def _in_order(readings: Sequence[Reading]) -> list[tuple[int, float]]:
    """Time and value; of several readings at one time the one with the largest value."""
    return sorted({ms: value for ms, value, _ in sorted(readings)}.items())


def _steps(readings: Sequence[Reading]) -> Steps:
    line = _in_order(readings)
    return [(a, b, u, v) for (a, u), (b, v) in itertools.pairwise(line)]


def _increase(readings: Sequence[Reading]) -> float:
    return math.fsum(v - u if v >= u else max(v, 0.0) for _, _, u, v in _steps(readings))


def _increase_rate(readings: Sequence[Reading]) -> float | None:
    duration_ms = _last(readings) - _first(readings)
    return _increase(readings) * 1000 / duration_ms if duration_ms else None


def _integral(readings: Sequence[Reading], end_ms: int) -> float:
    """Each value in the seconds until the next reading, the last one until the window's end."""
    at, value = _in_order(readings)[-1]
    areas = [u * (b - a) for a, b, u, _ in _steps(readings)]
    return math.fsum([*areas, value * (end_ms - at)]) / 1000


def _linear_integral(readings: Sequence[Reading]) -> float:
    return math.fsum((u / 2 + v / 2) * (b - a) for a, b, u, v in _steps(readings)) / 1000


def _linear_mean(readings: Sequence[Reading]) -> float:
    duration_ms = _last(readings) - _first(readings)
    return _linear_integral(readings) / duration_ms * 1000 if duration_ms else _in_order(readings)[0][1]


ORDERED: Mapping[str, Callable[[Sequence[Reading], int, int], float | None]] = {
    "increase": lambda readings, start, end: _increase(readings),
    "increase_rate": lambda readings, start, end: _increase_rate(readings),
    "resets": lambda readings, start, end: sum(v < u for _, _, u, v in _steps(readings)),
    "changes": lambda readings, start, end: sum(v != u for _, _, u, v in _steps(readings)),
    "longest_gap": lambda readings, start, end: max((b - a for a, b, _, _ in _steps(readings)), default=0) / 1000,
    "time_weighted_mean": lambda readings, start, end: _integral(readings, end) / (end - _first(readings)) * 1000,
    "integral": lambda readings, start, end: _integral(readings, end),
    "linear_mean": lambda readings, start, end: _linear_mean(readings),
    "linear_integral": lambda readings, start, end: _linear_integral(readings),
    "coverage": lambda readings, start, end: (end - _first(readings)) / (end - start),
}
"""Of at least one reading of one device, in any order, in a window from `start` to `end` in ms."""

ALL = (*PLAIN, *ORDERED)


def plain(name: str, readings: Sequence[Reading], start_ms: int, end_ms: int) -> float | None:
    """Return a statistic of a window's readings, at least one; None is "absent"."""
    return PLAIN[name](readings) if name in PLAIN else ORDERED[name](readings, start_ms, end_ms)


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
    **{name: {"order"} for name in ORDERED},
}
"""What a window keeps for a statistic: one that another statistic needs, too, is there at once."""

_SHARES: Mapping[str, float] = {"rate": 1e-9, "median": 0.01, "p95": 0.01, "p99": 0.01}
_ROUNDED = {"increase", "increase_rate", "time_weighted_mean", "integral", "linear_mean", "linear_integral", "coverage"}
_EXACT_DEVICES, _STANDARD_ERRORS = 2_047, 5 * 0.0222


def tolerance(name: str, right: float) -> float:
    """By how much a statistic that is not in DEFAULT may differ from the right number; 0 for the same number."""
    if name == "distinct":
        return 0.0 if right <= _EXACT_DEVICES else _STANDARD_ERRORS * right
    return _SHARES.get(name, 1e-9 if name in _ROUNDED else 0.0) * abs(right)

"""The plain definition of each statistic: from all readings of a window, in one go. It imports nothing of the service."""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

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


class Frame(NamedTuple):
    """A window in ms; by device the last reading before it that is carried into it, time and value; how long a reading holds at
    most; the seconds to which rates and areas refer; where a counter begins again at 0, if it does."""

    start: int
    end: int
    before: Mapping[str, tuple[int, float]] = {}
    hold: int | None = None
    per_s: int = 1
    wraps_at: float | None = None


def _in_order(readings: Sequence[Reading]) -> list[tuple[int, float]]:
    """Time and value; of several readings at one time the one with the largest value."""
    return sorted({ms: value for ms, value, _ in sorted(readings)}.items())


class _Line:
    """A device's readings of a window in order, after the one that is carried into it."""

    def __init__(self, readings: Sequence[Reading], frame: Frame, device: str) -> None:
        self.frame = frame
        before = frame.before.get(device)
        self.points = [*([] if before is None else [before]), *_in_order([r for r in readings if r[2] == device])]

    @property
    def steps(self) -> list[tuple[int, int, float, float]]:
        """Each pair of neighbouring readings: their times in ms and their values."""
        return [(a, b, u, v) for (a, u), (b, v) in itertools.pairwise(self.points)]

    @property
    def holds(self) -> list[tuple[int, float]]:
        """For how many ms of the window each value holds."""
        ends = [*(ms for ms, _ in self.points[1:]), self.frame.end]
        hold = math.inf if self.frame.hold is None else self.frame.hold
        return [
            (int(max(0, min(end, ms + hold) - max(ms, self.frame.start))), value)
            for (ms, value), end in zip(self.points, ends, strict=True)
        ]

    @property
    def lines(self) -> list[tuple[int, float]]:
        """For how many ms of the window a line between two readings goes, and its mean there."""
        found = []
        for a, b, u, v in self.steps:
            if self.frame.hold is None or b - a <= self.frame.hold:
                begin = max(a, self.frame.start)
                found.append((b - begin, (u + (v - u) * ((begin - a) / (b - a))) / 2 + v / 2))
        return found


def _increase(line: _Line) -> float:
    wraps_at = line.frame.wraps_at
    return math.fsum(
        v - u if v >= u else max(v, 0.0) if wraps_at is None else v - u + wraps_at for _, _, u, v in line.steps
    )


_Lines = Sequence[_Line]
"""One of each device."""


def _increase_rate(lines: _Lines) -> float | None:
    """The sum of the devices' rates."""
    spans = [(line, line.points[-1][0] - line.points[0][0]) for line in lines]
    rates = [_increase(line) * 1000 / duration_ms for line, duration_ms in spans if duration_ms]
    return math.fsum(rates) if rates else None


def _area(parts: Sequence[tuple[int, float]]) -> float:
    return math.fsum(ms * value for ms, value in parts)


def _holds(lines: _Lines) -> list[tuple[int, float]]:
    return [each for line in lines for each in line.holds]


def _lined(lines: _Lines) -> list[tuple[int, float]]:
    return [each for line in lines for each in line.lines]


def _linear_mean(lines: _Lines) -> float:
    """Without a line the mean of the devices' last values."""
    lined_ms = sum(ms for ms, _ in _lined(lines))
    return _area(_lined(lines)) / lined_ms if lined_ms else math.fsum(e.points[-1][1] for e in lines) / len(lines)


def _time_weighted_mean(lines: _Lines) -> float | None:
    held_ms = sum(ms for ms, _ in _holds(lines))
    return _area(_holds(lines)) / held_ms if held_ms else None


def _coverage(lines: _Lines) -> float | None:
    frame = lines[0].frame
    if frame.end == frame.start:  # a session of one time
        return None
    return sum(ms for ms, _ in _holds(lines)) / (frame.end - frame.start) / len(lines)


ORDERED: Mapping[str, Callable[[_Lines], float | None]] = {
    "increase": lambda lines: math.fsum(map(_increase, lines)),
    "increase_rate": _increase_rate,
    "resets": lambda lines: sum(v < u for line in lines for _, _, u, v in line.steps),
    "changes": lambda lines: sum(v != u for line in lines for _, _, u, v in line.steps),
    "longest_gap": lambda lines: max((b - a for line in lines for a, b, _, _ in line.steps), default=0) / 1000,
    "time_weighted_mean": _time_weighted_mean,
    "integral": lambda lines: _area(_holds(lines)) / 1000,
    "linear_mean": _linear_mean,
    "linear_integral": lambda lines: _area(_lined(lines)) / 1000,
    "coverage": _coverage,
}
"""Of the devices of a window that have a reading in it, or one that is carried into it."""

ALL = (*PLAIN, *ORDERED)


def plain(name: str, readings: Sequence[Reading], frame: Frame) -> float | None:
    """Return a statistic of a window's readings, at least one, in any order; None is "absent"."""
    devices = sorted({*(device for _, _, device in readings), *frame.before})
    value = (
        PLAIN[name](readings) if name in PLAIN else ORDERED[name]([_Line(readings, frame, each) for each in devices])
    )
    if value is None or frame.per_s == 1:
        return value
    return value * frame.per_s if name in _RATES else value / frame.per_s if name in _AREAS else value


def of_carried(names: Collection[str], frame: Frame) -> dict[str, float | None]:
    """Return the statistics of a window without readings, but `count` and `last`: those of what is carried into it."""
    values: dict[str, float | None] = dict.fromkeys((*DEFAULT, *names))
    values |= {name: plain(name, (), frame) for name in names if name in ORDERED}
    values |= {"last_value": max(frame.before.values())[1]} if "last_value" in names else {}
    return {name: value for name, value in values.items() if name not in {"count", "last"}}


_RATES, _AREAS = {"rate", "increase_rate"}, {"integral", "linear_integral"}


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


def kept_for(names: Iterable[str]) -> set[str]:
    """Return what a window keeps for these statistics."""
    return set[str]().union(*(NEEDS[name] for name in names))


_SHARES: Mapping[str, float] = {"rate": 1e-9, "median": 0.01, "p95": 0.01, "p99": 0.01}
_ROUNDED = {"increase", "increase_rate", "time_weighted_mean", "integral", "linear_mean", "linear_integral", "coverage"}
_EXACT_DEVICES, _STANDARD_ERRORS = 2_047, 5 * 0.0222


def tolerance(name: str, right: float) -> float:
    """By how much a statistic that is not in DEFAULT may differ from the right number; 0 for the same number."""
    if name == "distinct":
        return 0.0 if right <= _EXACT_DEVICES else _STANDARD_ERRORS * right
    return _SHARES.get(name, 1e-9 if name in _ROUNDED else 0.0) * abs(right)

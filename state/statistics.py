"""The registry of statistics: what a window or a session has of the readings of one measure.

    STATISTICS  by name: the columns that a statistic needs, how it follows from them, its unit and its error
    COLUMNS     by name: what a task folds, and how the columns of two parts become those of both

Windows and parts of windows keep the columns of the statistics that their view has (`columns_of`). Statistics are computed when a
window is published. Sessions keep the totals of each measure (`state.columns.TOTALS`), and have the statistics with `of_session`.

Merging is associative and commutative: the result depends on the set of parts only, up to the rounding of additions. Sums of
doubles are the only columns that round. Sketches (state/quantiles.py, state/distinct.py) are the same bytes in any order, and
trails (state/trails.py) have the same numbers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state import blobs, distinct, moments, quantiles, trail_groups, trails
from state.columns import Floats, Ints
from state.rules import EVENT_MS_LIMIT

Values = npt.NDArray[Any]
Walked = trails.Walked | trail_groups.Together


@dataclass(frozen=True)
class PaneReadings:
    """The readings of one measure in a task, sorted by device and event time and cut into panes.

    Pane i begins at `values[starts[i]]` and has `counts[i]` > 0 readings. No value is NaN. `devices` is the hash of the device of
    each pane (state/distinct.py); it may be None where no column is folded that needs it.
    """

    values: Floats
    event_ms: Ints
    starts: npt.NDArray[np.intp]
    counts: Ints
    devices: Ints | None = None

    @cached_property
    def sums(self) -> moments.Parts:
        """The mergeable sums of each pane."""
        return moments.split(self.values, self.starts, self.counts)


Columns = Mapping[str, Values]
"""Columns by name, one array element for each window or part; of lists (state/blobs.py) an element is `bytes`."""


@dataclass(frozen=True, slots=True)
class Taken(Mapping[str, Values]):
    """Some rows of columns. Each is copied when it is read, so that memory holds one at a time."""

    columns: Mapping[str, "Values | blobs.Stored"]
    rows: npt.NDArray[Any]

    def __getitem__(self, name: str) -> Values:
        values: Values = self.columns[name][self.rows]
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of windows and of parts of windows.

    `fold` makes it of readings. `reduce` merges parts: row i of the result is of the rows `heads[i] .. heads[i + 1] - 1`. `pair`
    merges row i of the one with row i of the other. Both may read other columns. `settle` reduces what no reading changes that is
    not before a watermark, in ms, and drops what is still of more readings than a limit, None for no limit.
    """

    name: str
    type: "pa.DataType"
    fold: Callable[[PaneReadings], Values]
    reduce: Callable[[Columns, Ints], Values]
    pair: Callable[[Columns, Columns], Values]
    settle: Callable[[Values, int, int | None], Values] | None = None


def _merged_by(merge: np.ufunc, name: str, kind: "pa.DataType", fold: Callable[[PaneReadings], Values]) -> Column:
    """Return a column whose parts merge by a commutative function of two numbers."""

    def reduce(columns: Columns, heads: Ints) -> Values:
        merged: Values = merge.reduceat(columns[name], heads)
        return merged

    def pair(left: Columns, right: Columns) -> Values:
        merged: Values = merge(left[name], right[name])
        return merged

    return Column(name, kind, fold, reduce, pair)


def _sums(name: str) -> Column:
    return _merged_by(np.add, name, pa.float64(), lambda panes: getattr(panes.sums, name))


def _value_at(name: str, time: str, edge: np.ufunc, at: Callable[[PaneReadings], Values]) -> Column:
    """Return the column of the value at the earliest or latest event time, which is the column `time`.

    Of several values at that time it is the largest, so that it does not depend on the order of arrival or on the cuts of tasks.
    """

    def largest(values: Floats, times: Ints, heads: Ints, edges: Ints) -> Values:
        is_at_edge = times == np.repeat(edges, np.diff(heads, append=len(times)))
        largest: Values = np.maximum.reduceat(np.where(is_at_edge, values, -np.inf), heads)
        return largest

    def fold(panes: PaneReadings) -> Values:
        # + 0.0 as in _min.
        return largest(panes.values + 0.0, panes.event_ms, panes.starts, at(panes))

    def reduce(columns: Columns, heads: Ints) -> Values:
        times = columns[time]
        return largest(columns[name], times, heads, edge.reduceat(times, heads))

    def pair(left: Columns, right: Columns) -> Values:
        mine, other, value, another = left[time], right[time], left[name], right[name]
        edges = edge(mine, other)
        of_mine, of_other = np.where(mine == edges, value, -np.inf), np.where(other == edges, another, -np.inf)
        largest: Values = np.maximum(of_mine, of_other)
        return largest

    return Column(name, pa.float64(), fold, reduce, pair)


def _lists(
    name: str,
    fold: Callable[[PaneReadings], Values],
    reduce: Callable[[blobs.Blobs, Ints], blobs.Blobs],
    settle: Callable[[Values, int, int | None], Values] | None = None,
) -> Column:
    """Return a column of lists (state/blobs.py)."""
    return Column(
        name,
        blobs.TYPE,
        fold,
        lambda columns, heads: reduce(columns[name], heads),
        lambda left, right: blobs.pair(reduce, left[name], right[name]),
        settle,
    )


def _count(panes: PaneReadings) -> Values:
    return panes.counts


# Adding 0.0 turns -0.0 to 0.0: which of the two is the smaller one depends on their order in NumPy.


def _min(panes: PaneReadings) -> Values:
    return np.minimum.reduceat(panes.values, panes.starts) + 0.0


def _max(panes: PaneReadings) -> Values:
    return np.maximum.reduceat(panes.values, panes.starts) + 0.0


def _first(panes: PaneReadings) -> Values:
    return panes.event_ms[panes.starts]


def _last(panes: PaneReadings) -> Values:
    last: Ints = panes.event_ms[panes.starts + panes.counts - 1]
    return last


def _devices(panes: PaneReadings) -> Values:
    if panes.devices is None:
        msg = f"the column {DEVICES} needs the devices of panes"
        raise ValueError(msg)
    return distinct.fold(panes.devices)


DEVICES = "devices"
"""The column that needs the devices of panes."""

TRAIL = "trail"
"""The column that needs the readings of each device in a window, by device."""

COLUMNS: Mapping[str, Column] = {
    column.name: column
    for column in (
        _merged_by(np.add, "count", pa.int64(), _count),
        *map(_sums, moments.NAMES),
        _merged_by(np.minimum, "min", pa.float64(), _min),
        _merged_by(np.maximum, "max", pa.float64(), _max),
        _merged_by(np.minimum, "first", pa.int64(), _first),
        _merged_by(np.maximum, "last", pa.int64(), _last),
        _value_at("first_value", "first", np.minimum, _first),
        _value_at("last_value", "last", np.maximum, _last),
        _lists("quantiles", lambda of: quantiles.fold(of.values, of.starts, of.counts), quantiles.reduce),
        _lists(DEVICES, _devices, distinct.reduce),
        _lists(
            TRAIL,
            lambda of: trails.fold(of.values, of.event_ms, of.starts, of.counts),
            trail_groups.reduce,
            trail_groups.settle,
        ),
    )
}
"""In the order in which tables have them, numbers before lists. `count` is readings, `first` and `last` are event times in ms."""


def nothing(name: str, size: int) -> Values:
    """Return a column of no readings: merging it with another one gives the other one."""
    kind = COLUMNS[name].type
    if kind == blobs.TYPE:
        return blobs.split(np.zeros(0, np.int64), np.zeros(size, np.int64))
    of_none = _OF_NONE.get(name, 0)
    return np.full(size, of_none, kind.to_pandas_dtype())


_OF_NONE: Mapping[str, float] = {"min": np.inf, "max": -np.inf, "first": EVENT_MS_LIMIT, "last": -1}


@dataclass(frozen=True, slots=True)
class Shown:
    """What readers get of a view's windows: the names of statistics, the time in ms to which rates and areas refer, and the value
    at which counters begin again at 0, None where they do not."""

    names: tuple[str, ...]
    per_ms: int = 1_000
    wraps_at: float | None = None


class Kept:
    """The columns of merged windows by name, one array element for each window; also their `start` and `end` in ms.

    `wraps_at` is the value at which each window's counter begins again at 0, NaN where it does not; None where none does.
    """

    def __init__(self, columns: Columns, wraps_at: Floats | None = None) -> None:
        self._columns, self._wraps_at = columns, wraps_at

    def __getitem__(self, name: str) -> Values:
        return self._columns[name]

    @cached_property
    def totals(self) -> tuple[Floats, Floats]:
        """Sum and mean."""
        return moments.totals(self["count"], *(self[name] for name in moments.SUMS))

    @property
    def deviation(self) -> Floats:
        """The population standard deviation. Of equal readings it is 0, which rounding hides."""
        deviation = moments.deviation(self["count"], *(self[name] for name in moments.NAMES))
        deviation[self["min"] == self["max"]] = 0.0
        return deviation

    @cached_property
    def _sketches(self) -> quantiles.Sketches:
        return quantiles.unpack(self["quantiles"])

    def quantile(self, share: int) -> Floats:
        """The smallest value that at least `share` percent of the readings do not exceed, never beyond `min` and `max`."""
        quantile: Floats = np.clip(self._sketches.quantile(share), self["min"], self["max"])
        return quantile

    @cached_property
    def trails(self) -> Walked:
        """Steps, gaps and areas."""
        column = self[TRAIL]
        walk = trail_groups.Together if trail_groups.are_groups(column).any() else trails.Walked
        return walk(column, self["start"], self["end"], self._wraps_at)

    @property
    def distinct(self) -> Ints:
        """The number of devices, never more than readings."""
        distinct_devices: Ints = np.minimum(distinct.number(self[DEVICES]), self["count"])
        return distinct_devices

    @property
    def delta(self) -> Floats:
        """The last value less the first one."""
        delta: Floats = self["last_value"] - self["first_value"]
        return delta

    @property
    def rate(self) -> Floats:
        """The delta in a second; NaN where the first and the last reading have the same event time."""
        seconds = (self["last"] - self["first"]) / 1000
        rate: Floats = np.divide(self.delta, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
        return rate


@dataclass(frozen=True, slots=True)
class Totals:
    """One measure over sessions. Where `count` is 0, `sum` is 0.0, and `min` and `max` have any value."""

    count: Ints
    sum: Floats
    min: Floats
    max: Floats

    @property
    def mean(self) -> Floats:
        """NaN where `count` is 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: Floats = self.sum / self.count
        return mean


TIME = pa.timestamp("ms", "UTC")
"""The type of times in tables."""

Unit = Literal["readings", "devices", "times", "measure", "measure/s", "measure*s", "share", "s", "ms"]


@dataclass(frozen=True, slots=True)
class Statistic:
    """What readers see as the field `name`.

    `columns` are what `of_window` reads. With `may_be_absent`, a window does not have the field where `of_window` is NaN.
    `of_session` is None where sessions do not have the statistic. `unit` "measure" is the measure's own unit, "ms" an event time,
    "times" a number of events, which may be 0.
    `error` is the largest difference to the exact number.
    """

    name: str
    meaning: str
    unit: Unit
    error: str
    columns: tuple[str, ...]
    of_window: Callable[[Kept], Values]
    of_session: Callable[[Totals], Values] | None = None
    may_be_absent: bool = False

    def per(self, numbers: Values, per_s: "Floats | float") -> Values:
        """Return numbers of the statistic that refer to these seconds in place of one."""
        if self.unit not in {"measure/s", "measure*s"}:
            return numbers
        return numbers * per_s if self.unit == "measure/s" else numbers / per_s

    @property
    def is_whole(self) -> bool:
        """Whether the field is a whole number."""
        return self.unit in {"readings", "devices", "times", "ms"}

    @property
    def is_ordered(self) -> bool:
        """Whether it is of the readings of each device in their order."""
        return TRAIL in self.columns

    @property
    def type(self) -> "pa.DataType":
        """The type of the field in tables."""
        if self.unit == "ms":
            return TIME
        return pa.int64() if self.is_whole else pa.float64()


_SUMS = ("count", *moments.SUMS)
_FIRST, _LAST = ("first", "first_value"), ("last", "last_value")
_EXACT, _ROUNDED = "none", "rounding"


def _quantile(name: str, share: int) -> Statistic:
    return Statistic(
        name,
        f"smallest value that at least {share} % of the readings do not exceed",
        "measure",
        f"none up to {quantiles.EXACT} different values, then 1 % of itself",
        ("min", "max", "quantiles"),
        lambda w: w.quantile(share),
    )


def _ordered(name: str, meaning: str, unit: Unit, error: str, of_window: Callable[[Walked], Values]) -> Statistic:
    return Statistic(name, meaning, unit, error, (TRAIL,), lambda w: of_window(w.trails), may_be_absent=True)


STATISTICS: Mapping[str, Statistic] = {
    statistic.name: statistic
    for statistic in (
        Statistic(
            "count", "number of readings", "readings", _EXACT, ("count",), lambda w: w["count"], lambda s: s.count
        ),
        Statistic("sum", "sum", "measure", _ROUNDED, _SUMS, lambda w: w.totals[0]),
        Statistic("mean", "mean", "measure", _ROUNDED, _SUMS, lambda w: w.totals[1], lambda s: s.mean),
        Statistic("min", "smallest value", "measure", _EXACT, ("min",), lambda w: w["min"], lambda s: s.min),
        Statistic("max", "largest value", "measure", _EXACT, ("max",), lambda w: w["max"], lambda s: s.max),
        Statistic(
            "stddev",
            "standard deviation of the population",
            "measure",
            "rounding; 1e-7 of it at a mean of 1e8 deviations",
            ("count", *moments.NAMES, "min", "max"),
            lambda w: w.deviation,
        ),
        Statistic("first", "event time of the first reading", "ms", _EXACT, ("first",), lambda w: w["first"]),
        Statistic("last", "event time of the last reading", "ms", _EXACT, ("last",), lambda w: w["last"]),
        Statistic(
            "first_value",
            "value at `first`; the largest if there are several",
            "measure",
            _EXACT,
            _FIRST,
            lambda w: w["first_value"],
        ),
        Statistic(
            "last_value",
            "value at `last`; the largest if there are several",
            "measure",
            _EXACT,
            _LAST,
            lambda w: w["last_value"],
        ),
        Statistic("delta", "`last_value` - `first_value`", "measure", _ROUNDED, (*_FIRST, *_LAST), lambda w: w.delta),
        Statistic(
            "rate",
            "`delta` in a second; absent if `first` = `last`",
            "measure/s",
            _ROUNDED,
            (*_FIRST, *_LAST),
            lambda w: w.rate,
            may_be_absent=True,
        ),
        _quantile("median", 50),
        _quantile("p95", 95),
        _quantile("p99", 99),
        Statistic(
            "distinct",
            "number of different devices",
            "devices",
            f"none below {distinct.MOST} devices, then {100 * distinct.ERROR:.1f} % (standard error)",
            ("count", DEVICES),
            lambda w: w.distinct,
        ),
        _ordered(
            "increase",
            "sum of the steps up; a step down counts from 0, with `wraps_at` up to there and from 0",
            "measure",
            _ROUNDED,
            lambda t: t.increase,
        ),
        _ordered(
            "increase_rate",
            "`increase` in a second; absent if `first` = `last`",
            "measure/s",
            _ROUNDED,
            lambda t: t.increase_rate,
        ),
        _ordered("resets", "number of steps down", "times", _EXACT, lambda t: t["resets"]),
        _ordered("changes", "how often the value changed", "times", _EXACT, lambda t: t["changes"]),
        _ordered("longest_gap", "longest time between two neighbouring readings", "s", _EXACT, lambda t: t.longest_gap),
        _ordered(
            "time_weighted_mean",
            "mean over the time in which values hold, each until the next reading or the window's end",
            "measure",
            _ROUNDED,
            lambda t: t.mean,
        ),
        _ordered(
            "integral",
            "`time_weighted_mean` times the seconds in which values hold",
            "measure*s",
            _ROUNDED,
            lambda t: t.integral,
        ),
        _ordered(
            "linear_mean",
            "mean over the time between `first` and `last`, by straight lines between readings",
            "measure",
            _ROUNDED,
            lambda t: t.linear_mean,
        ),
        _ordered(
            "linear_integral",
            "`linear_mean` times the seconds between `first` and `last`",
            "measure*s",
            _ROUNDED,
            lambda t: t.linear_integral,
        ),
        _ordered("coverage", "share of the window in which a value holds", "share", _ROUNDED, lambda t: t.coverage),
    )
}
"""In the order in which readers see them."""

DEFAULT = ("count", "sum", "mean", "min", "max", "stddev", "first", "last")
"""The statistics of a view that names none."""

WITHOUT_VALUES = tuple(
    name for name, each in STATISTICS.items() if each.unit in {"readings", "ms", "devices", "s", "share"}
)
"""The statistics that do not depend on values: those of a view without measures."""

ORDERED = tuple(name for name, each in STATISTICS.items() if each.is_ordered)
"""The statistics of views that have windows."""

REFERRED = tuple(name for name, each in STATISTICS.items() if each.unit in {"measure/s", "measure*s"})
"""The statistics that refer to a time: `per` of their view."""

WRAPPED = ("increase", "increase_rate")
"""The statistics of counters that may wrap."""

ALWAYS = ("count", "last")
"""Every view has these: publish.lua compares windows by their count, and a window expires after its last reading."""


def with_always(names: Iterable[str]) -> tuple[str, ...]:
    """Return these statistics and `ALWAYS`, in the order of `STATISTICS`."""
    wanted = {*names, *ALWAYS}
    return tuple(name for name in STATISTICS if name in wanted)


def columns_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that these statistics and `ALWAYS` need, in the order of `COLUMNS`."""
    wanted = {column for name in with_always(names) for column in STATISTICS[name].columns}
    return tuple(name for name in COLUMNS if name in wanted)


SESSION_STATISTICS: Mapping[str, Callable[[Totals], Values]] = {
    name: statistic.of_session for name, statistic in STATISTICS.items() if statistic.of_session is not None
}
"""Those that sessions have, in the same order. All but `count` are absent where a session has no reading of the measure."""

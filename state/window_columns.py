"""The columns of windows: what a task folds of the readings of a measure, and how the columns of two parts merge.

`COLUMNS` has them by name. Windows and parts of windows keep the columns of the statistics that their view has (`columns_of`).
Sessions keep the totals of each measure (`state.columns.TOTALS`). state/statistics.py says which statistics follow from them.

Merging is associative and commutative: the result depends on the set of parts only, up to the rounding of additions. Sums of
doubles are the only columns that round. Sketches (state/quantiles.py, state/distinct.py) are the same bytes in any order, and
trails (state/trails.py) have the same numbers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state import blobs, distinct, moments, quantiles, trail_groups, trails
from state.columns import Columns, Floats, Ints, Values
from state.list_columns import DEVICES, SKETCH, TRAIL
from state.rules import EVENT_MS_LIMIT
from state.statistics import STATISTICS, with_always


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
        raise ValueError(f"the column {DEVICES} needs the devices of panes")
    return distinct.fold(panes.devices)


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
        _lists(SKETCH, lambda of: quantiles.fold(of.values, of.starts, of.counts), quantiles.reduce),
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

CARRIED = {"count", "last", "last_value", TRAIL}
"""The columns of a window without readings into which one is carried. The others are those of nothing."""


def nothing(name: str, size: int) -> Values:
    """Return a column of no readings: merging it with another one gives the other one."""
    kind = COLUMNS[name].type
    if kind == blobs.TYPE:
        return blobs.split(np.zeros(0, np.int64), np.zeros(size, np.int64))
    of_none = _OF_NONE.get(name, 0)
    return np.full(size, of_none, kind.to_pandas_dtype())


_OF_NONE: Mapping[str, float] = {"min": np.inf, "max": -np.inf, "first": EVENT_MS_LIMIT, "last": -1}


def columns_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that these statistics and `ALWAYS` need, in the order of `COLUMNS`."""
    wanted = {column for name in with_always(names) for column in STATISTICS[name].columns}
    return tuple(name for name in COLUMNS if name in wanted)

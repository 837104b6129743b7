"""Windows before the shuffle: merge a task's panes to partial aggregates of the windows of all views.

A pane is of a unit: of one device, or, where views group by columns of the record, of one device with one value of each.

Views are not operators in the plan: each pane counts for every window of every view that contains it. state/windows.py merges
the partial aggregates of all tasks.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from service.admission.decode import OTHER
from service.reference.attributes import DEVICE
from service.settings import View
from state import trail_groups
from state.columns import Columns, factorise
from state.keyed_calendar import with_zone
from state.list_columns import TRAIL
from state.window_columns import COLUMNS, Taken, columns_of, nothing

ALL = "all"
NONE = "(none)"
"""Key of a view over all devices, and of a missing attribute."""
KEY_BYTES = 2_048
"""A longer key counts as OTHER in each of its columns: PostgreSQL has at most 2,704 bytes for all columns of a primary key."""


@dataclass(frozen=True, slots=True)
class Panes:
    """One measure's panes of one task: `code` is the unit's index in the task's units, `start` in ms."""

    code: NDArray[Any]
    start: NDArray[np.int64]
    columns: Columns
    devices: NDArray[np.int64] | None = None
    """The hash of each pane's device (state/distinct.py), where a view needs it."""

    def only(self, units: NDArray[np.bool_]) -> "Panes":
        """Return the panes of some units."""
        kept = units[self.code]
        columns = {name: values[kept] for name, values in self.columns.items()}
        return Panes(self.code[kept], self.start[kept], columns, None if self.devices is None else self.devices[kept])


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a task: `device` is the index of each one's device, None where units are the devices; `columns` are the values
    of the record's columns, strings and nulls."""

    device: NDArray[Any] | None = None
    columns: Mapping[str, pa.Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a view among the task's units: `of` is each unit's group, `keys` the groups' texts."""

    of: NDArray[Any]
    keys: pa.Array

    def texts(self, view: View, group: NDArray[Any]) -> pa.DictionaryArray | None:
        """Return the keys of some groups, None where the windows of the view do not follow them."""
        if view.zone_column is None:
            return None
        return pa.DictionaryArray.from_arrays(pa.array(group.astype(np.int32)), self.keys)


def units(codes: NDArray[Any], columns: Mapping[str, pa.DictionaryArray]) -> tuple[NDArray[Any], Units]:
    """Return the unit of each reading, and the units; `codes` are the readings' devices, `columns` are in the same order."""
    unit = codes.astype(np.int64)
    for column in columns.values():
        # Renumbered after each column, so that no product overflows: there are at most as many units as readings.
        values = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        unit = _numbered(unit * (len(column.dictionary) + 1) + values + 1)
    first = np.zeros(int(unit.max()) + 1, np.int64)
    first[unit[::-1]] = np.arange(len(unit))[::-1]
    rows = pa.array(first)
    texts = {name: column.take(rows).cast(pa.string()) for name, column in columns.items()}
    return unit, Units(codes[first], texts)


def _numbered(values: NDArray[np.int64]) -> NDArray[np.int64]:
    encoded = pa.array(values).dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)


def groups(view: View, devices: pa.Array, attributes: pa.Table | None, of: Units = Units()) -> Groups:
    """Return each unit's group in a view, and the groups' keys as in schemas/redis.md, Keys."""
    if of.columns.keys().isdisjoint(view.by):
        by_device = _groups(view, {DEVICE: devices}, attributes, len(devices))
        return by_device if of.device is None else Groups(by_device.of[of.device], by_device.keys)
    assert of.device is not None  # noqa: S101
    rows = pa.array(of.device)
    attributes = None if attributes is None else attributes.take(rows)
    return _groups(view, {DEVICE: devices.take(rows), **of.columns}, attributes, len(rows))


def _groups(view: View, known: Mapping[str, pa.Array], attributes: pa.Table | None, size: int) -> Groups:
    if not view.by:
        return Groups(np.zeros(size, np.int64), pa.array([ALL]))
    if view.by == (DEVICE,):
        return Groups(np.arange(size), known[DEVICE])
    columns = [known[name] if name in known or attributes is None else attributes[name] for name in view.by]
    if view.zone_column is not None:
        place = view.by.index(view.zone_column)
        zones = columns[place]
        columns[place] = pc.if_else(pc.is_in(zones, pa.array([OTHER])), zones, with_zone(zones, NONE))
    if len(columns) == 1:
        text = pc.fill_null(columns[0], NONE)
    else:
        # Without the escape, ("a|b", "c") and ("a", "b|c") would share a key, and a device could write into another's window.
        text = pc.binary_join_element_wise(*(pc.fill_null(_escaped(column), NONE) for column in columns), "|")
    is_long = pc.greater(pc.binary_length(text), KEY_BYTES)
    if pc.any(is_long).as_py():
        text = pc.if_else(is_long, "|".join([OTHER] * len(columns)), text)
    return Groups(*factorise(text))


def buckets_of(view: str, keys: pa.Array, buckets: int) -> NDArray[np.int32]:
    """Return the bucket of each key of a view; `view` is its name in keys. In a view by device the device's bucket is used."""
    return np.array([zlib.crc32(f"{view}|{key}".encode()) % buckets for key in keys.to_pylist()], np.int32)


def spread(view: View, panes: Panes, by: Groups) -> tuple[NDArray[Any], NDArray[np.int64], Columns]:
    """Return the view's windows of the panes: group, start in ms and columns, with one row for each window of a group.

    The columns are those that the view keeps, and `first`.
    """
    group, start = by.of[panes.code], panes.start
    columns: Columns = {name: panes.columns[name] for name in columns_of((*view.statistics, "first"))}
    if TRAIL in columns and view.has_groups and panes.devices is not None:
        columns = {**columns, TRAIL: trail_groups.of_devices(columns[TRAIL], panes.devices)}
    carry_ms = view.carry_for_ms if TRAIL in columns else None
    if view.calendar is not None and carry_ms is None:
        return _merge(group, view.starts(start, by.texts(view, group)), columns)
    step = view.step_ms
    many = 1 if view.calendar is not None else view.window_ms // step
    if many > 1 or carry_ms is not None:
        # Merged to steps of the slide first, because the next lines repeat each row for every window that contains it.
        group, start, columns = _merge(group, view.starts(start, by.texts(view, group)), columns)
    following = None if carry_ms is None else _following(view, group, start, columns, carry_ms, by)
    if many > 1:
        back = np.repeat(np.arange(many) * step, len(start))
        group, start = np.tile(group, many), np.tile(start, many) - back
        columns = {name: np.tile(values, many) for name, values in columns.items()}
    if following is not None and carry_ms is not None:
        own = {**columns, TRAIL: trail_groups.held(columns[TRAIL], start, carry_ms)}
        columns = {name: np.concatenate((values, following.columns[name])) for name, values in own.items()}
        group, start = np.concatenate((group, following.code)), np.concatenate((start, following.start))
    return _merge(group, start if view.calendar is not None else start - start % step, columns)


def _following(
    view: View, group: NDArray[Any], start: NDArray[np.int64], columns: Columns, carry_ms: int, by: Groups
) -> Panes:
    """Return a row without readings for each device and window after a step that its last reading is carried into."""
    trail = columns[TRAIL]
    is_lost = trail_groups.are_lost(trail) if view.has_groups else np.zeros(len(trail), np.bool_)
    of, lists, last_ms, last_value = trail_groups.last(trail[~is_lost])
    of = np.flatnonzero(~is_lost)[of]
    if is_lost.any():
        # Of a group of too many devices only the last reading of all is known. What it is carried into is lost, too.
        values = columns.get("last_value", np.zeros(len(trail)))
        ended = np.flatnonzero(is_lost), trail[is_lost], columns["last"][is_lost], values[is_lost]
        of, lists, last_ms, last_value = map(np.concatenate, zip((of, lists, last_ms, last_value), ended, strict=True))
    group, start = group[of], start[of]
    rows, starts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    row, at = np.arange(len(start)), view.following(start, by.texts(view, group))
    # A reading holds in a window that begins `carry_ms` after it: the step from it to the window's first reading counts there.
    while (holds := at <= last_ms[row] + carry_ms).any():
        row, at = row[holds], at[holds]
        rows.append(row)
        starts.append(at)
        at = view.following(at, by.texts(view, group[row]))
    chosen, begins = np.concatenate(rows), np.concatenate(starts)
    carried = {name: nothing(name, len(begins)) for name in columns}
    # Those of the readings in a window are later.
    carried |= {name: of[chosen] for name, of in (("last", last_ms), ("last_value", last_value)) if name in columns}
    carried[TRAIL] = trail_groups.held(lists[chosen], begins, carry_ms)
    return Panes(group[chosen], begins, carried)


def _merge(
    group: NDArray[Any], start: NDArray[np.int64], columns: Columns
) -> tuple[NDArray[Any], NDArray[np.int64], Columns]:
    """Merge the rows of one group and start."""
    order = np.lexsort((start, group))
    group, start = group[order], start[order]
    heads = np.flatnonzero(np.r_[True, (group[1:] != group[:-1]) | (start[1:] != start[:-1])])
    ordered = Taken(columns, order)
    return group[heads], start[heads], {name: COLUMNS[name].reduce(ordered, heads) for name in columns}


def _escaped(column: Any) -> Any:
    return pc.replace_substring(pc.replace_substring(column, "%", "%25"), "|", "%7C")

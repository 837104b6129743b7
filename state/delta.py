"""Compute and apply the difference that one step makes to the state of a bucket.

    diff(before, after) -> Delta        apply(before, delta) -> after

are exact: `apply` returns the rows of `after` in its order, to the bit. Only the dictionaries of windows may have another
numbering, and no step depends on it.

A delta names rows by their position. A step keeps devices and windows in their order, removes some and appends others. Runs are
sorted by (device, start), so that new ones come between old ones. Of a row that has changed a delta has the differences of its
numbers, which are small or zero where little has changed, and no text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state import blobs, windows
from state.columns import Array, Bools, Field, Ints, Keys, array, codes_of, ints, places
from state.layout import BucketState
from state.list_columns import TRAIL

_Rows = Ints | slice  # a slice copies nothing


@dataclass(frozen=True, slots=True)
class Values:
    """One column of numbers: `difference` of the changed rows, modulo 2^64, and what the added rows have.

    A double is its 64 bits, so that NaN and -0.0 stay what they are. Null is 0; `nulls` are those of the changed rows, then of
    the added ones, None when there are none.
    """

    difference: Ints
    added: Ints
    nulls: Bools | None


@dataclass(frozen=True, slots=True)
class Change:
    """What changed in one table; `columns` are those of numbers, in its order. Positions ascend.

    size     rows before the step
    removed  positions before the step
    changed  positions after it
    added    positions after it
    """

    size: int
    removed: Ints
    changed: Ints
    added: Ints
    columns: tuple[Values, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed in a state.

    Of runs the first column is the row of the device. `names` are the added devices. The added windows have `texts`, their
    dictionaries in the order of `windows.TEXTS`, and `codes`, which index them. `lists` has the columns of lists
    (state/blobs.py) of the changed windows, then of the added ones: all but trails change only with a window's count.
    `run_lists` has those of runs, all of them trails.
    """

    runs: Change
    devices: Change
    windows: Change
    names: Array
    texts: tuple[Array, ...]
    codes: tuple[Ints, ...]
    lists: tuple[Array, ...] = ()
    run_lists: tuple[Array, ...] = ()

    @property
    def changed_bytes(self) -> int:
        """Bytes of the rows that changed or were added: eight for each number, and the texts of added rows."""
        tables = self.runs, self.devices, self.windows
        numbers = sum(len(table.columns) * (len(table.changed) + len(table.added)) for table in tables)
        return 8 * numbers + sum(int(each.nbytes) for each in (self.names, *self.texts, *self.lists, *self.run_lists))


def diff(before: BucketState, after: BucketState) -> Delta | None:
    """The difference between a state and its successor; None when the step added or removed a column."""
    tables = (before.runs, after.runs), (before.devices, after.devices), (before.windows, after.windows)
    if not all(old.schema.equals(new.schema) for old, new in tables):
        return None
    names = array(after.devices.column("device"))
    device_row = _device_rows(array(before.devices.column("device")), names)
    devices = _change(_columns(before.devices), _columns(after.devices), device_row)
    old_runs = _runs(before.runs, device_row)
    run_row = _run_rows(old_runs[0].numbers, ints(before.runs, "start"), after)
    window_row = windows.rows_of(before.windows, after.windows)
    trails = (
        [] if TRAIL not in after.windows.column_names else [tuple(array(e.windows[TRAIL]) for e in (before, after))]
    )
    changed_windows = _change(_columns(before.windows), _columns(after.windows), window_row, trails)
    of_runs = zip(_lists(before.runs), _lists(after.runs), strict=True)
    changed_runs = _change(old_runs, _runs(after.runs), run_row, list(of_runs))
    added = windows.empty()
    if len(changed_windows.added):
        added = windows.compact(after.windows.take(pa.array(changed_windows.added)))
    texts = [array(added.column(name)) for name in windows.TEXTS]
    return Delta(
        changed_runs,
        devices,
        changed_windows,
        names.take(pa.array(devices.added)),
        tuple(text.dictionary for text in texts),
        tuple(codes_of(text).astype(np.int64) for text in texts),
        _touched(after.windows, changed_windows),
        _touched(after.runs, changed_runs),
    )


def _touched(table: pa.Table, change: Change) -> tuple[Array, ...]:
    rows = pa.array(np.concatenate((change.changed, change.added)))
    return tuple(column.take(rows) for column in _lists(table))


def apply(before: BucketState, delta: Delta) -> BucketState:
    """The successor of `before`. ValueError when the delta does not fit that state."""
    columns = _applied(_columns(before.devices), delta.devices)
    stay = _staying(delta.devices)
    names = array(before.devices.column("device"))
    names = pa.concat_arrays([names if isinstance(stay, slice) else names.take(pa.array(stay)), delta.names])
    devices = _table(before.devices.schema, [names], columns)

    device_row = np.full(before.devices.num_rows, -1, np.int64)
    device_row[stay] = np.arange(len(names) - len(delta.names))
    rows, *columns = _applied(_runs(before.runs, device_row), delta.runs)
    device = pa.DictionaryArray.from_arrays(rows.numbers.astype(np.int32), names)
    runs = _table(
        before.runs.schema, [device], columns, _applied_lists(_lists(before.runs), delta.runs, delta.run_lists)
    )

    columns = _applied(_columns(before.windows), delta.windows)
    texts = [array(column) for column in _window_texts(before.windows, delta).columns]
    lists = _applied_lists(_lists(before.windows), delta.windows, delta.lists)
    return BucketState(runs, devices, _table(before.windows.schema, texts, columns, lists))


def _window_texts(before: pa.Table, delta: Delta) -> pa.Table:
    kept, stay = before.select(windows.TEXTS), _staying(delta.windows)
    if not isinstance(stay, slice):
        kept = windows.compact(kept.take(pa.array(stay)))
    if not len(delta.windows.added):
        return kept
    pairs = zip(delta.codes, delta.texts, strict=True)
    added = [pa.DictionaryArray.from_arrays(codes.astype(np.int32), texts) for codes, texts in pairs]
    return windows.append(kept, pa.Table.from_arrays(added, schema=kept.schema))


@dataclass(frozen=True, slots=True)
class _Column:
    numbers: Ints
    nulls: Bools | None


def _columns(table: pa.Table) -> list[_Column]:
    """Those of numbers."""
    return [_column(array(table.column(number))) for number, field in enumerate(table.schema) if _is_number(field)]


def _column(column: Array) -> _Column:
    nulls = None
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        column = column.fill_null(0)
    return _Column(column.to_numpy(zero_copy_only=False).view(np.int64), nulls)


def _nulls(column: _Column) -> Bools:
    return np.zeros(len(column.numbers), np.bool_) if column.nulls is None else column.nulls


def _is_number(field: Field) -> bool:
    return not (pa.types.is_string(field.type) or pa.types.is_dictionary(field.type) or field.type == blobs.TYPE)


def _lists(table: pa.Table) -> list[Array]:
    return [array(table.column(number)) for number, field in enumerate(table.schema) if field.type == blobs.TYPE]


def _applied_lists(before: list[Array], change: Change, lists: Sequence[Array]) -> list[Array]:
    if len(before) != len(lists):
        raise ValueError(f"a delta of {len(lists)} columns of lists does not fit a table of {len(before)}")
    if not before:
        return []
    changed, added = len(change.changed), len(change.added)
    rows = np.arange(change.size)[_staying(change)]
    rows = _with_added(rows, change.added, change.size + changed + np.arange(added))
    rows[change.changed] = change.size + np.arange(changed)
    return [blobs.placed(pair, rows) for pair in zip(before, lists, strict=True)]


def _runs(runs: pa.Table, device_row: Ints | None = None) -> list[_Column]:
    """With the row of the device first; `device_row` are other ones by those."""
    rows = codes_of(runs.column("device")).astype(np.int64)
    return [_Column(rows if device_row is None else device_row[rows], None), *_columns(runs)]


def _table(schema: pa.Schema, texts: list[Array], columns: list[_Column], lists: Sequence[Array] = ()) -> pa.Table:
    """All tables have their texts first."""
    arrays, numbers_left, lists_left = list(texts), iter(columns), iter(lists)
    for field in list(schema)[len(texts) :]:
        if field.type == blobs.TYPE:
            arrays.append(next(lists_left))
            continue
        column = next(numbers_left)
        numbers = column.numbers.view(np.float64) if pa.types.is_floating(field.type) else column.numbers
        arrays.append(pa.array(numbers, mask=column.nulls))
    return pa.Table.from_arrays(arrays, schema=schema)


# Where the rows of a table before the step are after it, -1 of those removed. The others ascend without a hole among the
# rows that were not added.


def _device_rows(before: Array, after: Array) -> Ints:
    if after.slice(0, len(before)).equals(before):
        return np.arange(len(before))
    return places(before, after)


def _run_rows(device: Ints, start: Ints, after: BucketState) -> Ints:
    """`device` are rows after the step. Runs are sorted by device and start, and differ in them."""
    devices, starts = codes_of(after.runs.column("device")), ints(after.runs, "start")
    times = np.concatenate((start, starts))
    if not len(starts):
        return np.full(len(start), -1, np.int64)
    keys = Keys(after.devices.num_rows, int(times.min()), int(times.max()))
    sorted_keys = keys.pack(devices, starts)
    wanted = keys.pack(np.maximum(device, 0), start)
    rows = np.minimum(np.searchsorted(sorted_keys, wanted), len(starts) - 1)
    return np.where((device >= 0) & (sorted_keys[rows] == wanted), rows, -1)


def _change(before: list[_Column], after: list[_Column], row: Ints, lists: Sequence[tuple[Array, ...]] = ()) -> Change:
    """`lists` are columns of lists before and after, which may change alone."""
    stays = row >= 0
    stay: _Rows = slice(None) if stays.all() else np.flatnonzero(stays)
    at = row[stay]
    is_old = np.zeros(len(after[0].numbers), np.bool_)
    is_old[at] = True
    # Most steps remove no row, and insert none between others: then nothing but slices are compared.
    to: _Rows = slice(len(at)) if is_old[: len(at)].all() else at
    differs = np.zeros(len(at), np.bool_)
    for old, new in zip(before, after, strict=True):
        differs |= old.numbers[stay] != new.numbers[to]
        if old.nulls is not None or new.nulls is not None:
            differs |= _nulls(old)[stay] != _nulls(new)[to]
    for pair in lists:
        old_lists, new_lists = (blobs.of_rows(each, rows) for each, rows in zip(pair, (stay, to), strict=True))
        differs |= pc.not_equal(old_lists, new_lists).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(differs)
    origin = rows if isinstance(stay, slice) else stay[rows]
    changed, added = at[rows], np.flatnonzero(~is_old)
    columns = tuple(
        Values(
            new.numbers[changed] - old.numbers[origin],
            new.numbers[added],
            None if new.nulls is None else new.nulls[np.concatenate((changed, added))],
        )
        for old, new in zip(before, after, strict=True)
    )
    return Change(len(row), np.flatnonzero(~stays), changed, added, columns)


def _staying(change: Change) -> _Rows:
    """Rows before the step that it does not remove."""
    if not len(change.removed):
        return slice(None)
    stays = np.ones(change.size, np.bool_)
    stays[change.removed] = False
    return np.flatnonzero(stays)


def _applied(before: list[_Column], change: Change) -> list[_Column]:
    if len(before) != len(change.columns) or len(before[0].numbers) != change.size:
        msg = (
            f"a delta of {change.size} rows of {len(change.columns)} columns does not fit a table of "
            f"{len(before[0].numbers)} rows of {len(before)}"
        )
        raise ValueError(msg)
    stay = _staying(change)
    touched = np.concatenate((change.changed, change.added))
    columns = []
    for old, values in zip(before, change.columns, strict=True):
        numbers = _with_added(old.numbers[stay], change.added, values.added)
        numbers[change.changed] += values.difference
        nulls = None
        if old.nulls is not None or values.nulls is not None:
            nulls = _with_added(_nulls(old)[stay], change.added, np.zeros(len(change.added), np.bool_))
            nulls[touched] = False if values.nulls is None else values.nulls
        columns.append(_Column(numbers, nulls))
    return columns


def _with_added(values: npt.NDArray[Any], rows: Ints, added: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A new array that has `added` at `rows`, and between them `values`."""
    if not len(rows) or rows[0] == len(values):
        return np.concatenate((values, added))
    whole = np.empty(len(values) + len(added), values.dtype)
    whole[rows] = added
    rest = np.ones(len(whole), np.bool_)
    rest[rows] = False
    whole[rest] = values
    return whole

"""Windows: parts of windows are merged into the windows of a bucket, until the watermark passes them.

    advance(windows, parts, watermark) -> Step(open, changed, closed)

is pure and vectorised. A window is identified by (view, measure, key, start, end). Views are values in the table: adding,
changing or removing a view changes neither the query plan nor the layout of the state.

A window is closed by the step whose watermark reaches its end, after it got the parts of that step. Readings below the watermark
of the step before are not admitted, so a part never reaches a window that is closed, and a window is final exactly when it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.columns import Array, Bools, Ints, array, codes_of, joined, places
from state.statistics import COLUMNS

TEXTS = ("view", "measure", "key")
KEY = (*TEXTS, "start", "end")
_TEXT = pa.dictionary(pa.int32(), pa.string())

Stats = Mapping[str, npt.NDArray[Any]]

SCHEMA = pa.schema(
    [
        *(pa.field(name, _TEXT, nullable=False) for name in TEXTS),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        *(pa.field(column.name, column.type, nullable=False) for column in COLUMNS.values()),
    ]
)
"""Windows, and parts of windows. `start` and `end` are ms since the epoch, half open. Texts are dictionaries, because a key
occurs once for each measure and start."""

_KEY_SCHEMA = pa.schema([SCHEMA.field(name) for name in KEY])


@dataclass(frozen=True, slots=True)
class Step:
    """Tables of `SCHEMA`.

    open     the windows that the watermark has not passed
    changed  the windows, open or closed, that got parts in this step
    closed   the windows that the watermark has passed in this step
    """

    open: pa.Table
    changed: pa.Table
    closed: pa.Table


def empty() -> pa.Table:
    """No window."""
    return SCHEMA.empty_table()


def parts(
    view: str, measure: str, key: Array, group: npt.NDArray[Any], start: Ints, end: Ints, stats: Stats
) -> pa.Table:
    """Parts of one view and measure, `SCHEMA`; `key` are the texts of the groups, and `group` names one for each part."""
    size = len(start)
    zero = np.zeros(size, np.int32)
    return pa.Table.from_arrays(
        [
            pa.DictionaryArray.from_arrays(zero, pa.array([view])),
            pa.DictionaryArray.from_arrays(zero, pa.array([measure])),
            pa.DictionaryArray.from_arrays(group.astype(np.int32), key),
            pa.array(start),
            pa.array(end),
            *(pa.array(stats[name]) for name in COLUMNS),
        ],
        schema=SCHEMA,
    )


def advance(windows: pa.Table, parts: Sequence[pa.Table], watermark_ms: int) -> Step:
    """One step. The result depends on the set of `parts` only, up to the rounding of additions in another order.

    A step that changes no window returns the same `windows` object as `open`.
    """
    new = concat(parts)
    changed = empty()
    if new.num_rows:
        windows, is_changed = _merge(windows, new)
        changed = compact(windows.filter(pa.array(is_changed)))
    over = _ints(windows, "end") <= watermark_ms
    if not over.any():
        return Step(windows, changed, empty())
    closed = compact(windows.filter(pa.array(over)))
    return Step(compact(windows.filter(pa.array(~over))), changed, closed)


def only(windows: pa.Table, wanted: pa.Table) -> pa.Table:
    """The windows that are also in `wanted`. Both tables have the columns of `KEY`, as in `SCHEMA`."""
    names = list(KEY)
    codes = _codes(concat([windows.select(names), wanted.select(names)], _KEY_SCHEMA))
    mine, others = codes[: windows.num_rows], codes[windows.num_rows :]
    return compact(windows.filter(pa.array(np.isin(mine, others))))


def rows_of(before: pa.Table, after: pa.Table) -> Ints:
    """The row in `after` of each window of `before`, -1 where it has none. Both are tables of `SCHEMA`."""
    size = before.num_rows
    if _begins_with(after, before):
        return np.arange(size)
    names = list(KEY)
    codes = _codes(concat([before.select(names), after.select(names)], _KEY_SCHEMA))
    return places(pa.array(codes[:size]), pa.array(codes[size:]))


def _begins_with(table: pa.Table, first: pa.Table) -> bool:
    """Whether the keys of `table` begin with those of `first`; False also when their dictionaries do not."""
    for name in KEY:
        part, whole = array(first.column(name)), array(table.column(name))
        if name in TEXTS:
            if not whole.dictionary.slice(0, len(part.dictionary)).equals(part.dictionary):
                return False
            part, whole = part.indices, whole.indices
        if not whole.slice(0, len(part)).equals(part):
            return False
    return True


def concat(tables: Sequence[pa.Table], schema: pa.Schema = SCHEMA) -> pa.Table:
    """All rows of all tables, with one dictionary for each text."""
    tables = [table for table in tables if table.num_rows]
    if not tables:
        return schema.empty_table()
    if len(tables) == 1:
        return tables[0].combine_chunks()
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def append(windows: pa.Table, added: pa.Table) -> pa.Table:
    """The rows of both, like `concat`; quicker where few are added to many. Both have the same columns, of `SCHEMA`."""
    arrays: list[Array] = []
    for name in windows.column_names:
        first, second = array(windows.column(name)), array(added.column(name))
        if name in TEXTS:
            texts, place = joined(first.dictionary, second.dictionary)
            codes = np.concatenate((codes_of(first), place[codes_of(second)]))
            arrays.append(pa.DictionaryArray.from_arrays(codes, texts))
        else:
            arrays.append(pa.concat_arrays([first, second]))
    return pa.Table.from_arrays(arrays, schema=windows.schema)


def compact(table: pa.Table) -> pa.Table:
    """The same rows, with dictionaries that hold no text that does not occur."""
    for number, name in enumerate(TEXTS):
        column = array(table.column(name))
        codes, texts = codes_of(column), column.dictionary
        used = np.zeros(len(texts), np.bool_)
        used[codes] = True
        if not used.all():
            renumbered = (np.cumsum(used) - 1).astype(np.int32)[codes]
            column = pa.DictionaryArray.from_arrays(renumbered, texts.filter(pa.array(used)))
            table = table.set_column(number, SCHEMA.field(name), column)
    return table


def _merge(windows: pa.Table, new: pa.Table) -> tuple[pa.Table, Bools]:
    """`windows` with the parts `new` merged into them, and which rows of the result got parts. `new` is not empty."""
    size = windows.num_rows
    whole = append(windows, new) if size else new
    codes = _codes(whole)
    order = np.argsort(codes[size:], kind="stable")
    ordered = codes[size:][order]
    heads = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    place = places(pa.array(ordered[heads]), pa.array(codes[:size]))
    known = place >= 0
    # In the order of the parts, so that it does not depend on how dictionaries are numbered.
    new_heads = np.flatnonzero(~known)
    new_heads = new_heads[np.argsort(order[heads[new_heads]])]
    added = size + order[heads[new_heads]]
    changed = np.zeros(size + len(added), np.bool_)
    changed[place[known]] = True
    changed[size:] = True
    rows = pa.array(np.concatenate((np.arange(size), added)))
    arrays: list[Array] = [array(whole.column(name)).take(rows) for name in KEY]
    for name, column in COLUMNS.items():
        values, merge = _numbers(whole, name), column.merge
        parts_of = merge.reduceat(values[size:][order], heads)
        merged = np.concatenate((values[:size], parts_of[new_heads]))
        merged[place[known]] = merge(merged[place[known]], parts_of[known])
        arrays.append(pa.array(merged))
    return pa.Table.from_arrays(arrays, schema=SCHEMA), changed


def _codes(table: pa.Table) -> Ints:
    """One integer for each window: equal integers are equal windows, in one table."""
    code = np.zeros(table.num_rows, np.int64)
    room = 1
    for name in KEY:
        column = array(table.column(name)) if name in TEXTS else array(table.column(name)).dictionary_encode()
        room *= max(1, len(column.dictionary))
        code = code * len(column.dictionary) + codes_of(column)
    if room >= 1 << 63:
        msg = (
            f"{table.num_rows} windows of {room} possible ones do not fit one table: use more buckets or shorter views"
        )
        raise OverflowError(msg)
    return code


def _ints(table: pa.Table, name: str) -> Ints:
    return np.asarray(_numbers(table, name), np.int64)


def _numbers(table: pa.Table, name: str) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = array(table.column(name)).to_numpy(zero_copy_only=False)
    return numbers

"""Windows: parts of windows are merged into the windows of a bucket, until the watermark passes them.

    advance(windows, parts, watermark) -> Step(open, changed, closed)

is pure and vectorised. A window is identified by (view, measure, key, start, end). Views are values in the table: adding,
changing or removing a view changes neither the query plan nor the layout of the state.

A table has the columns of the statistics of all its views (`state.statistics.COLUMNS`). A column is null in the windows of a view
that does not need it, and in windows that began before their view needed it: null and anything merge to null.

A window is closed by the step whose watermark reaches its end, after it got the parts of that step. Readings below the watermark
of the step before are not admitted, so a part never reaches a window that is closed, and a window is final exactly when it is.

A view without windows has one window, from 0 to `state.rules.ENDLESS_MS`. No watermark closes it, so it takes late readings, too.
It is dropped when its view and measure leave the settings (`endless`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state import blobs, rollups, settled, trail_groups, waiting
from state.blobs import Stored
from state.columns import Array, Bools, Columns, Field, Ints, array, by_name, codes_of, ints, joined, places
from state.list_columns import TRAIL
from state.rollups import Level
from state.rules import ENDLESS_MS
from state.statistics import DEFAULT
from state.trails import LOST_BYTES
from state.waiting import Pace, Phases
from state.window_columns import COLUMNS, Taken, columns_of

TEXTS = ("view", "measure", "key")
KEY = (*TEXTS, "start", "end")
_TEXT = pa.dictionary(pa.int32(), pa.string())


def schema(columns: Collection[str], partly: Collection[str] = ()) -> pa.Schema:
    """Return the schema of windows that have these columns of `COLUMNS`; those in `partly` may be null.

    `start` and `end` are ms since the epoch, half open. Texts are dictionaries, because a key occurs once for each measure and
    start.
    """
    return pa.schema(
        [
            *(pa.field(name, _TEXT, nullable=False) for name in TEXTS),
            pa.field("start", pa.int64(), nullable=False),
            pa.field("end", pa.int64(), nullable=False),
            *(
                pa.field(name, column.type, nullable=name in partly)
                for name, column in COLUMNS.items()
                if name in columns
            ),
        ]
    )


def schema_of_views(statistics: Iterable[Iterable[str]]) -> pa.Schema:
    """Return the schema of windows of views that have these statistics. A column that only some views need may be null."""
    columns = [set(columns_of(names)) for names in statistics]
    every = set[str]().union(*columns)
    return schema(every, every - set[str].intersection(*columns) if columns else ())


SCHEMA = schema(columns_of(DEFAULT))
"""Of windows, and parts of windows, of views that name no statistics."""

_NO_VIEWS: Mapping[str, int] = MappingProxyType({})
_KEY_SCHEMA = pa.schema([SCHEMA.field(name) for name in KEY])


@dataclass(frozen=True, slots=True)
class Step:
    """Tables of `SCHEMA`.

    open     the windows that the watermark has not passed; also those without readings that one is carried into
    changed  the windows, open or closed, that got parts in this step; where open windows wait (state/waiting.py) those that
             leave in this step
    closed   the windows that the watermark has passed in this step
    leaving  the windows that leave for the outlets: `closed`, or where views have a lead those of state/settled.py, with REVISION
    """

    open: pa.Table
    changed: pa.Table
    closed: pa.Table
    leaving: pa.Table


def empty() -> pa.Table:
    """No window."""
    return SCHEMA.empty_table()


def parts(
    view: str,
    measure: str,
    key: Array,
    group: npt.NDArray[Any],
    start: Ints,
    end: Ints,
    columns: Columns,
    schema: pa.Schema = SCHEMA,
) -> pa.Table:
    """Parts of one view and measure, of `schema`; `key` are the texts of the groups, and `group` names one for each part."""
    size = len(start)
    zero = np.zeros(size, np.int32)
    return pa.Table.from_arrays(
        [
            pa.DictionaryArray.from_arrays(zero, pa.array([view])),
            pa.DictionaryArray.from_arrays(zero, pa.array([measure])),
            pa.DictionaryArray.from_arrays(group.astype(np.int32), key),
            pa.array(start),
            pa.array(end),
            *(_or_nulls(columns.get(field.name), field, size) for field in schema if field.name in COLUMNS),
        ],
        schema=schema,
    )


def advance(
    windows: pa.Table,
    parts: Sequence[pa.Table],
    watermark_ms: int,
    endless: Collection[tuple[str, str]] = (),
    most_readings: int | None = None,
    pace: Pace = waiting.AT_ONCE,
    update_every: Mapping[str, int] = _NO_VIEWS,
    leads: Mapping[str, int] = _NO_VIEWS,
    fills: Mapping[str, int] = _NO_VIEWS,
    levels: Sequence[Level] = (),
) -> Step:
    """One step. The result depends on the set of `parts` only, up to the rounding of additions in another order.

    A window keeps at most `most_readings` one by one (state/trails.py), None for no limit.
    Endless windows whose (view, measure) is not in `endless` are dropped: they are neither open nor closed.
    Where rows wait, by `pace` and `update_every` (`state.rules.Rules`), a window that is closed or settled leaves all the same.
    `leads` and `fills` are those of the rules, too. A window without readings is changed when it is closed or settled.
    Windows that are closed become parts of those of roll-ups, by `levels` (state/rollups.py), before these are closed.

    A step that changes no window returns the same `windows` object as `open`.
    """
    wait = waiting.DUE in windows.column_names or pace.is_holding or any(update_every.values())
    if wait or leads or settled.LEFT in windows.column_names:
        return _marked(windows, parts, watermark_ms, endless, most_readings, pace, update_every, leads, fills, levels)
    changed = empty()
    windows, is_changed = _taken(windows, concat(parts), watermark_ms, most_readings, levels)
    if is_changed.any():
        changed = with_readings(compact(windows.filter(pa.array(is_changed))))
    ends = ints(windows, "end")
    if (dropped := are_dropped(windows, endless)).any():
        windows, ends = compact(windows.filter(pa.array(~dropped))), ends[~dropped]
    over = ends <= watermark_ms
    if not over.any():
        return Step(windows, changed, empty(), empty())
    closed = with_readings(compact(windows.filter(pa.array(over))), fills)
    if (is_filled := ints(closed, "count") == 0).any():
        changed = concat([changed, compact(closed.filter(pa.array(is_filled)))])
    return Step(compact(windows.filter(pa.array(~over))), changed, closed, closed)


def _marked(
    before: pa.Table,
    parts: Sequence[pa.Table],
    watermark_ms: int,
    endless: Collection[tuple[str, str]],
    most_readings: int | None,
    pace: Pace,
    update_every: Mapping[str, int],
    leads: Mapping[str, int],
    fills: Mapping[str, int],
    levels: Sequence[Level],
) -> Step:
    """One step where windows wait, or leave before they are final."""
    bare, every_ms = waiting.without(before), Phases.of_windows(before, update_every).every_ms
    due, is_same = waiting.due_now(before, pace, every_ms), not waiting.is_moved(before, pace, every_ms)
    left, is_other = settled.left_of(before), np.zeros(before.num_rows, np.bool_)
    windows, is_changed = _taken(bare, concat(parts), watermark_ms, most_readings, levels)
    if windows is not bare:
        never = np.full(windows.num_rows - len(due), waiting.NEVER)
        due, left = np.concatenate((due, never)), np.concatenate((left, never))
        waiting.begin(due, is_changed, Phases.of_windows(windows, update_every), pace)
        is_other = is_changed & (left != settled.NEVER)
        if is_other.any():
            is_other &= _differ(before, windows, watermark_ms, most_readings)
        is_same = False
    ends = ints(windows, "end")
    is_kept = ~are_dropped(windows, endless)
    over = ends <= watermark_ms
    are_settled = settled.are_settled(windows, left, watermark_ms, leads) & is_kept
    leaves = (waiting.leaving(due, pace) | (are_settled & (due != waiting.NEVER))) & is_kept
    has_readings = ints(windows, "count") > 0
    goes = are_settled & (is_other | (left == settled.NEVER)) & are_shown(windows, fills)
    # Windows of a view that left the settings are not written any more.
    is_written = np.where(has_readings, leaves, goes) & are_of(windows, update_every)
    changed = compact(windows.filter(pa.array(is_written)))
    due[leaves] = waiting.NEVER
    closed = with_readings(compact(windows.filter(pa.array(over & is_kept))), fills) if over.any() else empty()
    left[goes] += 1
    leaving = compact(windows.filter(pa.array(goes)))
    if left[goes].any():
        leaving = settled.with_revision(leaving, left[goes])
    stays = is_kept & ~over
    has_due = pace.is_holding or any(update_every.values()) or bool((due[stays] != waiting.NEVER).any())
    has_left = bool(leads) or bool((left[stays] != settled.NEVER).any())
    has_columns = [name for name, has in ((waiting.DUE, has_due), (settled.LEFT, has_left)) if has]
    is_same &= not goes.any() and has_columns == [name for name in waiting.MARKS if name in before.column_names]
    if is_same and stays.all():
        return Step(before, changed, closed, leaving)
    if not stays.all():
        windows, due, left = compact(windows.filter(pa.array(stays))), due[stays], left[stays]
    windows = settled.with_left(windows, left, len(KEY)) if has_left else windows
    return Step(waiting.with_due(windows, due, len(KEY)) if has_due else windows, changed, closed, leaving)


def _differ(before: pa.Table, windows: pa.Table, watermark_ms: int, most_readings: int | None) -> Bools:
    """Return which windows have other readings than before, or another one that is carried into them. The first are `before`.

    A former trail is folded as the present one, because readings that are folded are no others.
    """
    count, size = ints(windows, "count"), before.num_rows
    differ = np.ones(len(count), np.bool_)
    differ[:size] = count[:size] != ints(before, "count")
    if TRAIL in before.column_names and TRAIL in windows.column_names:
        columns = [array(each[TRAIL]).slice(0, size).fill_null(b"") for each in (before, windows)]
        rows = np.flatnonzero(pc.not_equal(*columns).to_numpy(zero_copy_only=False))
        former, present = (blobs.Stored(column)[rows] for column in columns)
        differ[rows] |= trail_groups.settle(former, watermark_ms, most_readings) != present
    return differ


def are_dropped(windows: pa.Table, endless: Collection[tuple[str, str]]) -> Bools:
    """Return which windows are endless, and of no view and measure in `endless`."""
    are_over = are_endless(windows)
    if not are_over.any():
        return are_over
    views, measures = (array(windows.column(name)) for name in ("view", "measure"))
    names = views.dictionary.to_pylist(), measures.dictionary.to_pylist()
    is_kept = np.array([[(view, measure) in endless for measure in names[1]] for view in names[0]], np.bool_)
    dropped: Bools = are_over & ~is_kept[codes_of(views), codes_of(measures)]
    return dropped


def are_of(windows: pa.Table, views: Collection[str]) -> Bools:
    """Return which windows are of these views."""
    column = array(windows.column("view"))
    are_known = np.array([view in views for view in column.dictionary.to_pylist()], np.bool_)
    of_views: Bools = are_known[codes_of(column)]
    return of_views


def with_readings(windows: pa.Table, fills: Mapping[str, int] = _NO_VIEWS) -> pa.Table:
    """Return the windows that have readings, and those that show one from before their start by `fills` of the rules."""
    return windows if ints(windows, "count").all() else compact(windows.filter(pa.array(are_shown(windows, fills))))


def are_shown(windows: pa.Table, fills: Mapping[str, int]) -> Bools:
    """Return which windows have readings, or one from before their start (`carry_for` in state/trails.py) that their view shows.

    The `last` of a window without readings is the time of the last one that is carried into it.
    """
    are_shown: Bools = ints(windows, "count") > 0
    if fills and not are_shown.all():
        hold_ms = by_name(windows.column("view"), fills)
        are_shown |= ints(windows, "last") + hold_ms > ints(windows, "start")
    return are_shown


def for_silence(windows: pa.Table, fills: Mapping[str, int], levels: Sequence[Level] = ()) -> pa.Table:
    """Return the windows of a state that silence may close: those that are shown, but for what has left before it is final.

    Those of roll-ups have all readings, also of windows that are open.
    """
    if not levels:
        return with_readings(waiting.without(settled.not_left(windows)), fills)
    left = settled.left_of(windows)
    windows, _ = _taken(waiting.without(windows), empty(), ENDLESS_MS - 1, None, levels)
    left = np.concatenate((left, np.full(windows.num_rows - len(left), settled.NEVER)))
    return with_readings(compact(windows.filter(pa.array(left == settled.NEVER))), fills)


def are_endless(windows: pa.Table) -> Bools:
    """Return which windows are endless."""
    return ints(windows, "end") >= ENDLESS_MS


def lost(windows: pa.Table) -> int:
    """Return the number of windows whose trail is lost (state/trails.py)."""
    if TRAIL not in windows.column_names:
        return 0
    return int(np.count_nonzero(pc.binary_length(windows[TRAIL]).fill_null(0).to_numpy() == LOST_BYTES))


def most_keys(windows: pa.Table, views: Collection[str]) -> int:
    """Return the number of keys of that measure of these views which has the most."""
    column, measures = (array(windows.column(name)) for name in ("view", "measure"))
    codes = [code for code, name in enumerate(column.dictionary.to_pylist()) if name in views]
    of_views, width = np.isin(codes_of(column), codes), max(1, len(measures.dictionary))
    pairs = codes_of(column)[of_views].astype(np.int64) * width + codes_of(measures)[of_views]
    return int(np.bincount(pairs).max(initial=0))


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


def _or_nulls(values: npt.NDArray[Any] | None, field: Field, size: int) -> Array:
    return pa.nulls(size, field.type) if values is None else pa.array(values, field.type)


def concat(tables: Sequence[pa.Table], schema: pa.Schema = SCHEMA) -> pa.Table:
    """All rows of all tables, with one dictionary for each text and the columns of all; `schema` is that of no rows."""
    tables = [table for table in tables if table.num_rows]
    if not tables:
        return schema.empty_table()
    if len(tables) == 1:
        return tables[0].combine_chunks()
    if not all(table.schema.equals(tables[0].schema) for table in tables):
        nullable = {field.name for table in tables for field in table.schema if field.nullable}
        tables = _aligned(tables, {name for table in tables for name in table.column_names}, nullable)
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _aligned(tables: Sequence[pa.Table], columns: Collection[str], nullable: Collection[str]) -> list[pa.Table]:
    """The tables with these columns, null where a table lacks one."""
    lacking = {name for name in columns for table in tables if name not in table.column_names}
    wanted = schema(columns, lacking | set(nullable))
    return [
        pa.Table.from_arrays(
            [
                array(table[field.name]) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
                for field in wanted
            ],
            schema=wanted,
        )
        for table in tables
    ]


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


def _merge(windows: pa.Table, new: pa.Table, watermark_ms: int, most_readings: int | None) -> tuple[pa.Table, Bools]:
    """`windows` with the parts `new` merged into them, and which rows of the result got parts. `new` is not empty.

    No later reading is before the watermark. A window is settled when it gets parts: its lists change only with its count.
    """
    size = windows.num_rows
    if size and not windows.schema.equals(new.schema):
        windows, new = _of_one_schema(windows, new)
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
    names = [field.name for field in whole.schema if field.name in COLUMNS]
    columns: dict[str, npt.NDArray[Any] | Stored] = {}
    nulls: dict[str, Bools] = {}
    for name in names:
        column = array(whole.column(name))
        if column.null_count:
            is_null = column.is_null().to_numpy(zero_copy_only=False)
            of_parts = np.logical_or.reduceat(is_null[size:][order], heads)
            nulls[name] = np.concatenate((is_null[:size], of_parts[new_heads]))
            nulls[name][place[known]] |= of_parts[known]
        if column.type == blobs.TYPE:
            columns[name] = Stored(column)
        else:
            columns[name] = (column.fill_null(0) if name in nulls else column).to_numpy(zero_copy_only=False)
    of_parts_sorted = Taken(columns, size + order)
    parts = {name: COLUMNS[name].reduce(of_parts_sorted, heads) for name in names}
    left, right = Taken(columns, place[known]), Taken(parts, known)
    for name in names:
        column = columns[name]
        merged, new_values = COLUMNS[name].pair(left, right), parts[name][new_heads]
        if (settle := COLUMNS[name].settle) is not None:
            merged, new_values = (settle(lists, watermark_ms, most_readings) for lists in (merged, new_values))
        if isinstance(column, Stored):
            arrays.append(column.replaced(size, place[known], merged, new_values, nulls.get(name)))
            continue
        values = np.concatenate((column[:size], new_values))
        values[place[known]] = merged
        if name in nulls:
            values[nulls[name]] = 0
        arrays.append(pa.array(values, mask=nulls.get(name)))
    return pa.Table.from_arrays(arrays, schema=whole.schema), changed


def _taken(
    windows: pa.Table, new: pa.Table, watermark_ms: int, most_readings: int | None, levels: Sequence[Level]
) -> tuple[pa.Table, Bools]:
    """`windows` with the parts `new`, and with those of windows that the watermark passes in windows of roll-ups; and which rows
    of the result got parts. Without any the same `windows`."""
    is_changed = np.zeros(windows.num_rows, np.bool_)
    if new.num_rows:
        windows, is_changed = _merge(windows, new, watermark_ms, most_readings)
    for level in levels:
        if found := rollups.parts(windows, level, watermark_ms):
            windows, is_rolled_up = _merge(windows, concat(found), watermark_ms, most_readings)
            is_rolled_up[: len(is_changed)] |= is_changed
            is_changed = is_rolled_up
    return windows, is_changed


def _of_one_schema(windows: pa.Table, new: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Both with the columns of the parts, and those that a window still has a value of.

    So the columns are those of the settings soon after a restart, and stay the same then.
    """
    rows = windows.num_rows
    kept = {name for name in windows.column_names if windows[name].null_count < rows}
    nullable = {field.name for field in new.schema if field.nullable}
    nullable |= {name for name in windows.column_names if windows[name].null_count}
    windows, new = _aligned([windows, new], kept | set(new.column_names), nullable)
    return windows, new


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

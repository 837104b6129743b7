"""Readings folded into runs.

A run is a maximal stretch of one device's readings inside one cell with no gap above the session gap. A run is always
inside one session, whatever else arrives, which makes runs the unit that may be shuffled and merged in any order.

A device may have a session gap of its own. Then its runs bring it, in the column `gap` (ms; -1 or no such column: that of the
rules), and in `interval` how far apart its readings are expected to be (-1: not known). All runs of one device in one step
bring the same.

With `Rules.trails` a run has the trail (state/trails.py) of some measures. Runs of one cell merge theirs as parts of a window do.
The runs of a session follow each other in time, so their trails are joined when a session is emitted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from state import blobs, columns, trails
from state.columns import (
    LAST,
    TOTALS,
    Array,
    Block,
    Bools,
    Codes,
    Field,
    Floats,
    Ints,
    Keys,
    Stats,
    combine,
    combine_last,
    stats_arrays,
    table_schema,
)
from state.list_columns import TRAIL
from state.rules import EVENT_MS_LIMIT, Rules


def trail_fields(measures: Iterable[str]) -> list[Field]:
    """Columns of lists, null or empty where a row has no reading of the measure."""
    return [pa.field(f"{measure}.{TRAIL}", blobs.TYPE) for measure in measures]


def schema(measures: tuple[str, ...], with_trails: Iterable[str] = ()) -> pa.Schema:
    """Of a table of runs: `min`, `max`, `sum`, `value` and `at` of a measure are null when its count is 0."""
    plain = table_schema(
        [
            pa.field("device", pa.string(), nullable=False),
            pa.field("start", pa.int64(), nullable=False),
            pa.field("last", pa.int64(), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
        ],
        measures,
        (*TOTALS, *LAST),
    )
    return pa.schema([*plain, *trail_fields(with_trails)])


def block_of(table: pa.Table, measures: Iterable[str], with_trails: Iterable[str] = ()) -> Block:
    """As columns.block_of, with trails. That of readings from before the table had it is lost."""
    block = columns.block_of(table, measures)
    found = {}
    for name in with_trails:
        index = table.schema.get_field_index(f"{name}.{TRAIL}")
        known = index >= 0
        trail = blobs.of_column(columns.array(table.column(index))).copy() if known else _no_trails(table.num_rows)
        has_none = np.fromiter(map(len, trail), np.int64, len(trail)) == 0
        trail[has_none & (block.stats[name].count > 0)] = trails.LOST_TRAIL
        found[name] = trail
    return replace(block, trails=found)


def fold_sorted(
    codes: Codes | Ints,
    devices: Array,
    event_ms: Ints,
    values: Mapping[str, Floats],
    rules: Rules,
    gap_ms: Ints | None = None,
) -> pa.Table:
    """Fold readings, sorted by (code, event time), into runs in the same order.

    `devices` are the names of the codes, and `gap_ms` their session gaps where they differ from that of the rules.
    `event_ms` are the n event times (0 <= ms < 2^42), `values` n numbers for each measure, NaN where a reading lacks it. A
    measure of the rules may be missing. ValueError for a measure that the rules do not name, or a time out of range.
    """
    unknown = set(values) - set(rules.measures)
    if unknown:
        raise ValueError(f"measures {sorted(unknown)} are not among those of the rules: {rules.measures}")
    event_ms = np.asarray(event_ms, np.int64)
    size = len(event_ms)
    if size == 0:
        return schema(rules.measures).empty_table()
    low, high = int(event_ms.min()), int(event_ms.max())
    if low < 0 or high >= EVENT_MS_LIMIT:
        raise ValueError(f"event times {low} .. {high} ms: admission allows 0 .. {EVENT_MS_LIMIT - 1}")
    gap = rules.gap_ms if gap_ms is None else gap_ms
    heads = np.flatnonzero(_breaks(codes, event_ms, event_ms, event_ms // rules.cell_ms, gap))
    sizes = np.diff(heads, append=size)
    last = event_ms[heads + sizes - 1]
    stats, of_trails = {}, {}
    with np.errstate(invalid="ignore", over="ignore"):
        for name in rules.measures:
            column = np.asarray(values[name], np.float64) if name in values else np.full(size, np.nan)
            stats[name] = _fold_values(column, event_ms, heads, sizes, last)
            if name in rules.trails:
                of_trails[name] = _fold_trail(column, event_ms, heads)
    block = Block(event_ms[heads], last, sizes, stats, of_trails)
    return to_table(devices.take(codes[heads]), block, rules.measures)


def _fold_values(value: Floats, event_ms: Ints, heads: Ints, sizes: Ints, last: Ints) -> Stats:
    lacking = np.isnan(value)
    some = bool(lacking.any())
    at = np.where(lacking, -1, event_ms) if some else event_ms
    final, latest = combine_last(value, at, heads, len(value))
    # + 0.0 turns -0.0 to 0.0: which of the two is the smaller or larger one depends on their order in NumPy.
    return Stats(
        np.add.reduceat(~lacking, heads, dtype=np.int64) if some else sizes,
        np.add.reduceat(np.where(lacking, 0.0, value) if some else value, heads),
        (np.fmin if some else np.minimum).reduceat(value, heads) + 0.0,
        (np.fmax if some else np.maximum).reduceat(value, heads) + 0.0,
        final + 0.0,
        latest if some else last,
    )


def _no_trails(size: int) -> blobs.Blobs:
    return np.full(size, b"", np.object_)


def _fold_trail(value: Floats, event_ms: Ints, heads: Ints) -> blobs.Blobs:
    has = ~np.isnan(value)
    counts = np.add.reduceat(has.astype(np.int64), heads)
    folded = _no_trails(len(heads))
    some = counts[counts > 0]
    if len(some):
        folded[counts > 0] = trails.fold(value[has], event_ms[has], np.cumsum(some) - some, some)
    return folded


def _breaks(codes: Codes | Ints, start: Ints, reach: Ints, cell: Ints, gap_ms: int | Ints) -> Bools:
    """True where a row begins a new run: `reach[i]` is how far the device's rows up to and including i extend.

    `gap_ms` is that of all devices, or of each code.
    """
    first = np.ones(len(codes), np.bool_)
    gap = gap_ms if isinstance(gap_ms, int) else gap_ms[codes[1:]]
    first[1:] = (codes[1:] != codes[:-1]) | (start[1:] - reach[:-1] > gap) | (cell[1:] != cell[:-1])
    return first


def merge(codes: Codes, keys: Keys, block: Block, rules: Rules, gap_ms: Ints) -> tuple[Ints, Ints, Block]:
    """Runs that touch become one: (order, heads, merged). `gap_ms` is each code's.

    `order` sorts the n rows given by (code, start); `heads` are positions in that order where a merged run begins;
    `merged` has one row per head. n >= 1.
    """
    order = np.argsort(keys.pack(codes, block.start), kind="stable")
    codes, block = codes[order], block.take(order)
    # A run may end inside an earlier one, so a gap is measured from the end of all earlier runs of the device.
    reach = keys.ms(np.maximum.accumulate(keys.pack(codes, block.last)))
    heads = np.flatnonzero(_breaks(codes, block.start, reach, block.start // rules.cell_ms, gap_ms))
    if len(heads) == len(codes):
        return order, heads, block
    merged = {name: _merged(column, heads) for name, column in block.trails.items()}
    return order, heads, replace(combine(block, heads), trails=merged)


def _merged(column: blobs.Blobs, heads: Ints) -> blobs.Blobs:
    """As trails.reduce. Most runs of a step are as they were, and are not unpacked."""
    sizes = np.diff(heads, append=len(column))
    merged, is_several = column[heads], sizes > 1
    several = sizes[is_several]
    merged[is_several] = trails.reduce(column[np.repeat(is_several, sizes)], np.cumsum(several) - several)
    return merged


def settled(block: Block, is_new: Bools, watermark_ms: int, most: int | None) -> Block:
    """Return runs with the trails of `is_new` ones settled (trails.settle)."""
    found = dict(block.trails)
    for name, column in block.trails.items():
        is_long = is_new & (np.fromiter(map(len, column), np.int64, len(column)) >= trails.FOLDABLE_BYTES)
        if is_long.any():
            found[name] = column.copy()
            found[name][is_long] = trails.settle(column[is_long], watermark_ms, most)
    return replace(block, trails=found)


def sessions_of(block: Block, heads: Ints) -> Block:
    """Return the sessions whose runs, in the order of time, begin at `heads`."""
    return replace(combine(block, heads), trails=joined(block.trails, heads))


def joined(of_runs: Mapping[str, blobs.Blobs], heads: Ints) -> dict[str, blobs.Blobs]:
    """Return the trails of sessions whose runs begin at `heads`."""
    return {name: trails.in_turn(column, heads) for name, column in of_runs.items()}


def session_heads(codes: Codes, keys: Keys, start: Ints, last: Ints, rules: Rules, gap_ms: Ints) -> Bools:
    """True where a merged run, sorted by (code, start), begins a session. `gap_ms` is each code's.

    A run joins the session before it iff the gap allows it and its cell ends within `max_duration_ms` of the session's
    start. Only the set of runs matters. The loop runs once per session of the device with the most cuts.
    """
    chain = np.ones(len(codes), np.bool_)
    chain[1:] = (codes[1:] != codes[:-1]) | (start[1:] - last[:-1] > gap_ms[codes[1:]])
    heads = np.flatnonzero(chain)
    ends = np.append(heads, len(codes))[1:]
    sorted_keys: Ints | None = None
    while True:
        # Runs from this time on would end their cell after the session's longest duration.
        limit = (start[heads] + rules.max_duration_ms) // rules.cell_ms * rules.cell_ms
        long = start[ends - 1] >= limit
        if not long.any():
            return chain
        if sorted_keys is None:
            sorted_keys = keys.pack(codes, start)
        heads, ends, limit = heads[long], ends[long], limit[long]
        heads = np.searchsorted(sorted_keys, keys.pack(codes[heads], limit))
        chain[heads] = True


def to_table(device: Array, block: Block, measures: tuple[str, ...]) -> pa.Table:
    """Runs as Arrow: `device` holds one string per row."""
    arrays = [device, pa.array(block.start), pa.array(block.last), pa.array(block.count)]
    for name in measures:
        arrays += stats_arrays(block.stats[name], (*TOTALS, *LAST))
    arrays += trail_arrays(block)
    return pa.Table.from_arrays(arrays, schema=schema(measures, block.trails))


def trail_arrays(block: Block) -> list[Array]:
    """The columns of `trail_fields`."""
    return [pa.array(column, blobs.TYPE) for column in block.trails.values()]

"""Measures of many runs as NumPy columns, and the few operations that sessions are made of.

Everything here is about a `Block`: n rows, sorted however the caller likes, with one `Stats` per measure.
Inside, "lacking" is NaN (float64) or -1 (a time); in an Arrow table it is null. Conversions are at the edge only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]
Columns: TypeAlias = Mapping[str, Values]
"""Columns by name, one array element for each window or part; of lists (state/blobs.py) an element is `bytes`."""
Codes: TypeAlias = npt.NDArray[np.int32]
Array: TypeAlias = "pa.Array[Any]"  # a string: Arrow's classes take no arguments when the program runs
Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
Field: TypeAlias = "pa.Field[Any]"

TOTALS = ("count", "sum", "min", "max")
LAST = ("value", "at")
TIME = pa.timestamp("ms", "UTC")
"""The type of times in tables."""


@dataclass(frozen=True, slots=True)
class Stats:
    """One measure over n rows: `min`, `max`, `value` are NaN and `at` is -1 where `count` is 0 (`sum` is 0.0 there).

    `value` is the last value and `at` its event time; of several values at that time it is the largest, so that it
    does not depend on the order of arrival.
    """

    count: Ints
    sum: Floats
    min: Floats
    max: Floats
    value: Floats
    at: Ints

    def take(self, rows: Ints | Bools) -> "Stats":
        """The chosen rows."""
        return Stats(*(getattr(self, name)[rows] for name in Stats.__slots__))


@dataclass(frozen=True, slots=True)
class Block:
    """n stretches of time (`start` and `last` are the first and last event time, both inclusive) and their measures.

    `trails` has a column of lists (state/blobs.py) for each measure with statistics of order.
    """

    start: Ints
    last: Ints
    count: Ints
    stats: Mapping[str, Stats]
    trails: Mapping[str, npt.NDArray[np.object_]] = field(default_factory=dict)

    def take(self, rows: Ints | Bools) -> "Block":
        """The chosen rows."""
        stats = {name: stat.take(rows) for name, stat in self.stats.items()}
        trails = {name: column[rows] for name, column in self.trails.items()}
        return Block(self.start[rows], self.last[rows], self.count[rows], stats, trails)


class Keys:
    """(device code, event ms) as one int64 whose order is that of the pair: `code << bits | ms - base`.

    One integer sorts several times faster than two, and a running maximum over it restarts by itself at each device.
    Only the bits that the given times span are used: 42 at most, which leaves room for 2^21 devices, or for 2^29 when
    the times lie within a year (half of that counts, as one bit is kept for times just outside the span).
    """

    __slots__ = ("base", "bits", "top")

    def __init__(self, devices: int, low: int, high: int) -> None:
        self.base = low
        self.bits = (high - low + 1).bit_length()
        self.top = (1 << self.bits) - 1
        if max(devices - 1, 0).bit_length() + self.bits > 63:
            msg = f"{devices} devices over {high - low} ms do not fit one table: use more buckets or smaller batches"
            raise OverflowError(msg)

    def pack(self, codes: npt.NDArray[Any], ms: Ints) -> Ints:
        """Keys of the pairs; a time outside the span counts as the span's edge."""
        return (codes.astype(np.int64) << self.bits) | np.clip(ms - self.base, 0, self.top)

    def ms(self, keys: Ints) -> Ints:
        """The event times in the keys."""
        return (keys & self.top) + self.base


def combine(block: Block, heads: Ints) -> Block:
    """Rows `heads[i] .. heads[i + 1] - 1` as one row each, without trails. `heads` starts with 0 and ascends; n >= 1."""
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is a measure's own problem, not a warning
        stats = {name: _combine_stats(stat, heads, block.count.size) for name, stat in block.stats.items()}
    return Block(
        np.minimum.reduceat(block.start, heads),
        np.maximum.reduceat(block.last, heads),
        np.add.reduceat(block.count, heads),
        stats,
    )


def _combine_stats(stat: Stats, heads: Ints, size: int) -> Stats:
    value, at = combine_last(stat.value, stat.at, heads, size)
    return Stats(
        np.add.reduceat(stat.count, heads),
        np.add.reduceat(stat.sum, heads),
        np.fmin.reduceat(stat.min, heads),
        np.fmax.reduceat(stat.max, heads),
        value,
        at,
    )


def combine_last(value: Floats, at: Ints, heads: Ints, size: int) -> tuple[Floats, Ints]:
    """Value and time of the latest reading of each group; the largest value when several share the time."""
    latest = np.maximum.reduceat(at, heads)
    candidates = np.where(at == np.repeat(latest, np.diff(heads, append=size)), value, np.nan)
    return np.fmax.reduceat(candidates, heads), latest


def concat(first: Block, second: Block) -> Block:
    """Rows of both; a measure that one of them lacks is lacking in its rows. Both have trails of the same measures."""
    names = dict.fromkeys((*first.stats, *second.stats))
    stats: dict[str, Stats] = {}
    for name in names:
        left = first.stats.get(name) or empty_stats(first.count.size)
        right = second.stats.get(name) or empty_stats(second.count.size)
        stats[name] = Stats(*(np.concatenate((getattr(left, c), getattr(right, c))) for c in Stats.__slots__))
    return Block(
        np.concatenate((first.start, second.start)),
        np.concatenate((first.last, second.last)),
        np.concatenate((first.count, second.count)),
        stats,
        {name: np.concatenate((column, second.trails[name])) for name, column in first.trails.items()},
    )


def empty_stats(size: int) -> Stats:
    """A measure without readings."""
    nothing = np.full(size, np.nan)
    zero = np.zeros(size, np.int64)
    return Stats(zero, np.zeros(size), nothing, nothing, nothing, np.full(size, -1, np.int64))


# --- Arrow at the edge ---------------------------------------------------------------------------------------------

_COUNTED = {"count", "at"}


def table_schema(fixed: Iterable[Field], measures: Iterable[str], parts: Iterable[str]) -> pa.Schema:
    """The fixed fields, then `<measure>.<part>` for each measure."""
    fields: list[Field] = list(fixed)
    for name in measures:
        fields += [pa.field(f"{name}.{part}", pa.int64() if part in _COUNTED else pa.float64()) for part in parts]
    return pa.schema(fields)


def measures_of(table: pa.Table) -> tuple[str, ...]:
    """The measures whose last value or totals a table has, in the order of its columns."""
    names = (name.rpartition(".") for name in table.column_names)
    return tuple(dict.fromkeys(head for head, dot, part in names if dot and part in {"value", "count"}))


def ints(table: pa.Table, name: str) -> Ints:
    """A column of times or counts; null and a missing column are -1."""
    column = _column(table, name)
    if column is None:
        return np.full(table.num_rows, -1, np.int64)
    if column.null_count:
        column = column.fill_null(-1)
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)


def floats(table: pa.Table, name: str) -> Floats:
    """A column of numbers; null and a missing column are NaN."""
    column = _column(table, name)
    if column is None:
        return np.full(table.num_rows, np.nan)
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)


def array(column: Column) -> Array:
    """One contiguous array of a column."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    # `combine_chunks` copies even a single one (pyarrow 25).
    whole: Array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return whole


def by_name(column: Column, numbers: Mapping[str, int]) -> Ints:
    """Return the number of the name in each row of a dictionary column, 0 where it has none."""
    names = array(column)
    of_names = np.array([numbers.get(name, 0) for name in names.dictionary.to_pylist()], np.int64)
    return of_names[codes_of(names)]


def codes_of(column: Column) -> Codes:
    """The codes of a dictionary column without nulls."""
    whole = array(column)
    if not isinstance(whole, pa.DictionaryArray):
        raise TypeError(f"a dictionary column was expected, not {whole.type}")
    return np.asarray(whole.indices.to_numpy(zero_copy_only=False), np.int32)


def _column(table: pa.Table, name: str) -> "Array | None":
    index = table.schema.get_field_index(name)
    return array(table.column(index)) if index >= 0 else None


def block_of(table: pa.Table, measures: Iterable[str]) -> Block:
    """A table of runs as NumPy; a measure that it lacks is lacking in every row."""
    stats = {}
    for name in measures:
        count = np.maximum(ints(table, f"{name}.count"), 0)
        total = np.where(count > 0, floats(table, f"{name}.sum"), 0.0)
        low, high, value = (floats(table, f"{name}.{part}") for part in ("min", "max", "value"))
        stats[name] = Stats(count, total, low, high, value, ints(table, f"{name}.at"))
    return Block(ints(table, "start"), ints(table, "last"), ints(table, "count"), stats)


def stats_arrays(stat: Stats, parts: Iterable[str]) -> list[Array]:
    """Columns of one measure, null where it has no reading."""
    none = stat.count == 0
    mask = none if none.any() else None
    return [pa.array(getattr(stat, part), mask=None if part == "count" else mask) for part in parts]


def plain(table: pa.Table) -> pa.Table:
    """The table with its dictionaries of texts decoded."""
    for number, each in enumerate(table.schema):
        if pa.types.is_dictionary(each.type):
            column = array(table.column(number)).cast(pa.string())
            table = table.set_column(number, pa.field(each.name, pa.string(), each.nullable), column)
    return table


def together(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables; a column that one lacks is null there."""
    return pa.concat_tables(tables, promote_options="default").combine_chunks()


def nullable(values: npt.NDArray[Any], missing: Bools) -> Array:
    """An array that is null where `missing`."""
    column: Array = pa.array(values, mask=missing if missing.any() else None)
    return column


def places(wanted: Array, values: Array) -> Ints:
    """The place of each wanted value among `values`, -1 where it is not there. Neither has a value twice.

    Only `wanted` is hashed: it is what a step brings, and `values` are all that the state has.
    """
    found: Any = pc.index_in(values, value_set=wanted)
    numbers = found.fill_null(-1).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(numbers >= 0)
    result = np.full(len(wanted), -1, np.int64)
    result[numbers[rows]] = rows
    return result


def joined(known: Array, texts: Array) -> tuple[Array, Codes]:
    """`known`, with those of `texts` behind it that it lacks, and the place of each of `texts` in that.

    `known` has no text twice; the same object is returned where it lacks none.
    """
    encoded = texts.dictionary_encode()
    place = places(encoded.dictionary, known)
    lacking = np.flatnonzero(place < 0)
    if len(lacking):
        place[lacking] = np.arange(len(known), len(known) + len(lacking))
        known = pa.concat_arrays([known, encoded.dictionary.take(pa.array(lacking))])
    return known, place.astype(np.int32)[codes_of(encoded)]


def factorise(device: Column) -> tuple[Codes, Array]:
    """Codes and the distinct devices they stand for: exact (no hash stands for a device), in order of appearance.

    ValueError when a device is null: admission rejects those.
    """
    encoded = array(device)
    if not isinstance(encoded, pa.DictionaryArray):
        encoded = encoded.dictionary_encode()
    if encoded.null_count:
        raise ValueError(f"{encoded.null_count} of {len(encoded)} readings have no device")
    devices: Array = encoded.dictionary.cast(pa.string())
    return codes_of(encoded), devices

"""Columns of windows that have a list of integers each: its bytes, eight for an integer, little endian.

In memory a column is a NumPy array of `bytes`, in tables an Arrow array of `TYPE`. No bytes at all are an empty list.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.columns import Array, Bools, Ints

Blobs = npt.NDArray[np.object_]

TYPE = pa.large_binary()
"""With offsets of 64 bits: the lists of a bucket may have more than 2 GB."""

_WORD = 8


def join(blobs: Blobs) -> tuple[Ints, Ints]:
    """Return all integers, one list after the other, and how many each list has."""
    sizes = np.fromiter(map(len, blobs), np.int64, len(blobs)) // _WORD
    return np.frombuffer(b"".join(blobs), "<i8").astype(np.int64, copy=False), sizes


def are_new(owner: Ints, number: Ints) -> Bools:
    """Return which of some sorted pairs differ from the pair before."""
    is_new = np.ones(len(owner), np.bool_)
    is_new[1:] = (owner[1:] != owner[:-1]) | (number[1:] != number[:-1])
    return is_new


def pair(reduce: Callable[[Blobs, Ints], Blobs], left: Blobs, right: Blobs) -> Blobs:
    """Merge row i of both for each i, by a function that merges the rows `heads[i] .. heads[i + 1] - 1` of a column."""
    rows = np.empty(2 * len(left), np.object_)
    rows[::2], rows[1::2] = left, right
    return reduce(rows, np.arange(0, len(rows), 2)) if len(rows) else rows


def split(words: Ints, sizes: Ints) -> Blobs:
    """Return lists of `sizes` integers each."""
    data = words.astype("<i8", copy=False).tobytes()
    ends = (np.cumsum(sizes) * _WORD).tolist()
    blobs = np.empty(len(sizes), np.object_)
    blobs[:] = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return blobs


class Stored:
    """A column of a table. Rows become a NumPy array when they are taken, so that the others are not copied one by one."""

    def __init__(self, column: Array) -> None:
        self._column = column

    def __getitem__(self, rows: npt.NDArray[Any]) -> Blobs:
        return of_column(self._column.take(pa.array(rows)))

    def replaced(self, size: int, rows: Ints, lists: Blobs, added: Blobs, nulls: Bools | None) -> Array:
        """Return the first `size` rows with other lists in `rows`, and `added` behind them; null where `nulls`."""
        source = np.arange(size + len(added))
        source[rows] = size + len(added) + np.arange(len(rows))
        first = self._column.slice(0, size)
        return placed([first, pa.array(added, TYPE), pa.array(lists, TYPE)], source, nulls)


def of_column(column: Array) -> Blobs:
    """Return the lists of a column; null is an empty one."""
    if column.null_count:
        column = column.fill_null(b"")
    blobs: Blobs = column.to_numpy(zero_copy_only=False)
    return blobs


def of_rows(column: Array, rows: Ints | slice) -> Array:
    """Return some rows of a column; null is an empty list."""
    taken = column[rows] if isinstance(rows, slice) else column.take(pa.array(rows))
    return taken.fill_null(b"")


def placed(sources: Sequence[Array], rows: Ints, nulls: Bools | None = None) -> Array:
    """Return a column with these rows of all sources, one behind the other, or null."""
    column: Array = pa.concat_arrays(list(sources)).take(pa.array(rows, mask=nulls))
    return column


def sorted_by(owner: Ints, number: Ints) -> Ints:
    """Return the order of rows by owner, then by number; at most 2^31 rows and owners.

    NumPy sorts single integers by vector instructions, several times faster than `lexsort` (NumPy 2.4: 48 ns and 366 ns a row).
    """
    order = np.argsort(number)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    ranked: Ints = order[np.sort(owner << 32 | rank) & ((1 << 32) - 1)]
    return ranked

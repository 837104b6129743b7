"""Sketches of the values of windows, from which quantiles follow.

A sketch is a list of bins: a bin has an interval of doubles and counts the values in it. All bins of a sketch have one level. At
level 0 a bin is one double. At level L the lowest L bits of doubles do not count, so a bin has 2^L neighbouring doubles.

    level   0     while a window has at most `EXACT` different values
    level  46     above that: 64 bins between a number and its double, a quantile is within `ERROR` of itself
    level  47..   where the values need more than `MOST` bins: each level has half the bins, and twice the error

The level and the bins follow from the set of values alone. A larger set never has a lower level: the level of a part is at most
that of the whole, and a part has all bits that the whole has. Merging in any order, with any cuts, gives the same bytes.
docs/decisions/0028-sketches-of-our-own.md compares with other sketches.

A sketch is kept as integers (state/blobs.py): the level, then number and count of each bin, ascending.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from state import blobs
from state.blobs import Blobs, sorted_by
from state.columns import Floats, Ints

EXACT = 32
COARSE = 46
MOST = 4_096

ERROR = 0.008
"""The largest share of itself by which a quantile is wrong at level `COARSE`: 1/129, and rounding."""

_MAGNITUDE = np.int64((1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class Sketches:
    """n sketches: `level` of each, and all bins, sorted by sketch (`owner`) and `number`."""

    level: Ints
    owner: Ints
    number: Ints
    count: Ints

    def pack(self) -> Blobs:
        """Return the sketches as lists."""
        bins = np.bincount(self.owner, minlength=len(self.level))
        sizes = np.where(bins > 0, 1 + 2 * bins, 0)
        words = np.empty(int(sizes.sum()), np.int64)
        heads = (np.cumsum(sizes) - sizes)[bins > 0]
        is_bin = np.ones(len(words), np.bool_)
        is_bin[heads] = False
        words[heads] = self.level[bins > 0]
        words[is_bin] = np.column_stack((self.number, self.count)).ravel()
        return blobs.split(words, sizes)

    def quantile(self, share: int) -> Floats:
        """Return the smallest value that at least `share` percent of the values do not exceed; NaN for no values.

        This is `percentile_disc` of SQL. Of a bin it is the number that has the same relative distance to both ends.
        """
        ends = np.searchsorted(self.owner, np.arange(len(self.level)), "right")
        total = np.cumsum(self.count)
        through = np.concatenate(([0], total))[np.concatenate(([0], ends))]
        size = np.diff(through)
        rank = through[:-1] + -(-size * share // 100)
        at = np.searchsorted(total, rank)
        at[size == 0] = 0
        values = np.full(len(self.level), np.nan)
        if len(total):
            shown = _middle(self.number[at], self.level)
            values[size > 0] = shown[size > 0]
        return values


def fold(values: Floats, starts: npt.NDArray[np.intp], counts: Ints) -> Blobs:
    """Return a sketch of each group; group i of `values` begins at `starts[i]` and has `counts[i]` > 0."""
    owner = np.repeat(np.arange(len(starts)), counts)
    number = _number(values)
    return _merged(np.zeros(len(starts), np.int64), owner, number, np.ones(len(number), np.int64)).pack()


def reduce(column: Blobs, heads: Ints) -> Blobs:
    """Return the sketch of the rows `heads[i] .. heads[i + 1] - 1` for each i."""
    sizes = np.diff(heads, append=len(column))
    if (sizes == 1).all():
        return column
    parts = unpack(column)
    of_part = np.repeat(np.arange(len(heads)), sizes)
    level = np.maximum.reduceat(parts.level, heads)
    owner = of_part[parts.owner]
    number = parts.number >> (level[owner] - parts.level[parts.owner])
    return _merged(level, owner, number, parts.count).pack()


def unpack(column: Blobs) -> Sketches:
    """Return the sketches in lists."""
    words, sizes = blobs.join(column)
    heads = (np.cumsum(sizes) - sizes)[sizes > 0]
    is_bin = np.ones(len(words), np.bool_)
    is_bin[heads] = False
    level = np.zeros(len(column), np.int64)
    level[sizes > 0] = words[heads]
    bins = words[is_bin].reshape(-1, 2)
    return Sketches(level, np.repeat(np.arange(len(column)), sizes // 2), bins[:, 0], bins[:, 1])


def text(sketch: bytes) -> bytes:
    """Return a sketch as Redis has it: the level, then number:count of each bin."""
    level, *bins = np.frombuffer(sketch, "<i8").tolist()
    return b" ".join([b"%d" % level, *map(b"%d:%d".__mod__, zip(bins[::2], bins[1::2], strict=True))])


def _merged(level: Ints, owner: Ints, number: Ints, count: Ints) -> Sketches:
    """Return the sketches of these bins, of which several may have one number; `owner` is sorted."""
    order = sorted_by(owner, number)
    owner, number, count = _once(owner[order], number[order], count[order])
    while True:
        limit = np.where(level == 0, EXACT, MOST)
        is_over = np.bincount(owner, minlength=len(level)) > limit
        if not is_over.any():
            return Sketches(level, owner, number, count)
        higher = np.where(is_over, np.maximum(level + 1, COARSE), level)
        number = number >> (higher - level)[owner]
        level = higher
        owner, number, count = _once(owner, number, count)


def _once(owner: Ints, number: Ints, count: Ints) -> tuple[Ints, Ints, Ints]:
    """Return sorted bins, with the counts of equal ones added up."""
    is_new = blobs.are_new(owner, number)
    if is_new.all():
        return owner, number, count
    heads = np.flatnonzero(is_new)
    return owner[heads], number[heads], np.add.reduceat(count, heads)


def _number(values: Floats) -> Ints:
    """Return integers in the order of the doubles, a step for each double. Adding 0.0 turns -0.0 to 0.0."""
    bits = (values + 0.0).view(np.int64)
    return np.where(bits < 0, bits ^ _MAGNITUDE, bits)


def _double(number: Ints) -> Floats:
    return np.where(number < 0, number ^ _MAGNITUDE, number).view(np.float64)


def _middle(number: Ints, level: Ints) -> Floats:
    """Return a value of each bin. A bin at zero, of numbers below 1e-307, has 0."""
    low, high = _double(number << level), _double(((number + 1) << level) - 1)
    middle = np.where(low == high, low, 0.0)
    is_apart = (low * np.sign(high) > 0) & (low != high)
    low, high = low[is_apart], high[is_apart]
    # Halves, because the sum of two doubles may be beyond the largest one.
    middle[is_apart] = low * (high / (low / 2 + high / 2))
    return middle

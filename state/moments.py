"""Mergeable sums for mean and standard deviation, which stay accurate when they are added in any order.

The variance of merged panes needs the sum of n*mean^2, and subtracting n*mean^2 of the whole from it cancels: with a mean a
million times the deviation, plain double sums leave four digits, with a hundred million times none. So a pane's mean is
split in two, `mean = coarse + fine`, where `coarse` has 16 significant bits. Its square has 32, so sums of n*coarse^2 stay
exact up to two million readings of one magnitude; what is left over is 2^16 times smaller, and so is its rounding.

    sum_hi = n*coarse   sum_lo = n*fine   sq_a = n*coarse^2   sq_b = 2*n*coarse*fine   sq_c = n*fine^2 + m2

where m2 is the pane's own sum of squared deviations. All five merge by addition.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SUMS = ("sum_hi", "sum_lo")
SQUARES = ("sq_a", "sq_b", "sq_c")
NAMES = (*SUMS, *SQUARES)
"""The five sums: `SUMS` are those of the mean, the deviation needs all."""

_COARSE_BITS = 16


@dataclass(frozen=True, slots=True)
class Parts:
    """The five sums, one array element per pane."""

    sum_hi: Floats
    sum_lo: Floats
    sq_a: Floats
    sq_b: Floats
    sq_c: Floats


def split(values: Floats, starts: NDArray[np.intp], counts: Integers) -> Parts:
    """Return the sums of each group; group i of `values` (finite) begins at `starts[i]` and has `counts[i]` > 0 values."""
    # Values of one device and minute are close together: their differences from the first one are small, and add up exactly.
    anchor = values[starts]
    offset = values - np.repeat(anchor, counts)
    offset_sum = np.add.reduceat(offset, starts)
    offset_mean = offset_sum / counts
    m2 = np.add.reduceat(np.square(offset - np.repeat(offset_mean, counts)), starts)
    mantissa, exponent = np.frexp(anchor + offset_mean)
    coarse = np.ldexp(np.round(np.ldexp(mantissa, _COARSE_BITS)), exponent - _COARSE_BITS)
    fine = (anchor - coarse) + offset_mean
    return Parts(
        sum_hi=counts * coarse,
        sum_lo=counts * fine,
        sq_a=counts * np.square(coarse),
        sq_b=2.0 * counts * coarse * fine,
        sq_c=counts * np.square(fine) + m2,
    )


def totals(count: Integers, sum_hi: Floats, sum_lo: Floats) -> tuple[Floats, Floats]:
    """Return sum and mean of merged panes, as float64 arrays."""
    total = sum_hi.astype(np.longdouble) + sum_lo.astype(np.longdouble)
    return total.astype(np.float64), (total / count.astype(np.longdouble)).astype(np.float64)


def deviation(count: Integers, sum_hi: Floats, sum_lo: Floats, sq_a: Floats, sq_b: Floats, sq_c: Floats) -> Floats:
    """Return the population standard deviation of merged panes, as a float64 array."""
    # The last subtraction cancels digits: it uses extended precision where the machine has it (64-bit mantissa on x86).
    n = count.astype(np.longdouble)
    high, low = sum_hi.astype(np.longdouble), sum_lo.astype(np.longdouble)
    m2 = (sq_a - high * high / n) + (sq_b - 2 * high * low / n) + (sq_c - low * low / n)
    result: Floats = np.sqrt(np.maximum(m2 / n, 0)).astype(np.float64)
    return result

"""Quantiles of a span, from the sketches of its windows (schemas/redis.md, "Quantiles of a longer span")."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

_MAGNITUDE = (1 << 63) - 1
_INFINITE = 0x7FF << 52
"""The number of the first double that is none; below zero it is that of the last one."""
_FORM = re.compile(r"[0-9]{1,2}( -?[0-9]{1,19}:[0-9]{1,19})+")


class Sketch(NamedTuple):
    """The level, and number and count of each bin."""

    level: int
    bins: list[tuple[int, int]]


def read(text: str) -> Sketch:
    """The sketch in a field. Raises ValueError for what no service writes: another form, or bins of no doubles."""
    head, *rest = text.split(" ") if _FORM.fullmatch(text) else ["64"]
    level = int(head)
    bins = [(int(number), int(count)) for number, _, count in (each.partition(":") for each in rest)]
    if level >= 64 or not all(count and -_INFINITE <= number << level < _INFINITE for number, count in bins):
        raise ValueError(f"no sketch: {text[:60]!r}")
    return Sketch(level, bins)


def quantiles(sketches: Sequence[Sketch], percents: Sequence[int]) -> list[float]:
    """The smallest values that at least so many percent of all readings do not exceed; of at least one sketch."""
    level = max(each for each, _ in sketches)
    counts: Counter[int] = Counter()
    for own, bins in sketches:
        for number, count in bins:
            counts[number >> (level - own)] += count
    size, found = sum(counts.values()), list[float]()
    for percent in percents:
        rank = -(-size * percent // 100)
        for at in sorted(counts):
            rank -= counts[at]
            if rank <= 0:
                found.append(_middle(at, level))
                break
    return found


def _middle(number: int, level: int) -> float:
    """The value of a bin; one at zero has 0."""
    low, high = _double(number << level), _double(((number + 1) << level) - 1)
    if low == high:
        return low
    # Halves, because the sum of two doubles may be beyond the largest one.
    return low * (high / (low / 2 + high / 2)) if low and high and (low > 0) == (high > 0) else 0.0


def _double(number: int) -> float:
    bits = number ^ _MAGNITUDE if number < 0 else number
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value

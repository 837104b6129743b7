"""Quantiles of a span, from the sketches of its windows (schemas/redis.md, "Quantiles of a longer span")."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence

_MAGNITUDE = (1 << 63) - 1


def quantiles(sketches: Sequence[str], percents: Sequence[int]) -> list[float]:
    """The smallest values that at least so many percent of all readings do not exceed; of each sketch at least one bin."""
    parts = [each.split() for each in sketches]
    level = max(int(head) for head, *_ in parts)
    counts: Counter[int] = Counter()
    for head, *bins in parts:
        for each in bins:
            number, count = map(int, each.split(":"))
            counts[number >> (level - int(head))] += count
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
    return low * (2 * (high / (low + high))) if low and high and (low > 0) == (high > 0) else 0.0


def _double(number: int) -> float:
    bits = number ^ _MAGNITUDE if number < 0 else number
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value

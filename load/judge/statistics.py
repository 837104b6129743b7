"""The plain definition of each statistic: from all readings of a window, in one go. It imports nothing of the service."""

import math
from collections.abc import Callable, Mapping, Sequence

Reading = tuple[int, float]
"""Event time in ms, and value."""


def _mean(readings: Sequence[Reading]) -> float:
    return math.fsum(value for _, value in readings) / len(readings)


PLAIN: Mapping[str, Callable[[Sequence[Reading]], float | None]] = {
    "count": len,
    "sum": lambda readings: math.fsum(value for _, value in readings),
    "mean": _mean,
    "min": lambda readings: min(value for _, value in readings),
    "max": lambda readings: max(value for _, value in readings),
    "stddev": lambda readings: math.sqrt(
        math.fsum((value - _mean(readings)) ** 2 for _, value in readings) / len(readings)
    ),
    "first": lambda readings: min(ms for ms, _ in readings),
    "last": lambda readings: max(ms for ms, _ in readings),
}
"""Of at least one reading, in any order; None is "absent"."""

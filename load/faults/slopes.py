"""How a quantity changes with the number of batches, over all lives of the service together."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from load.faults.history import Entry

_WARM_UP = 0.2
"""The share of a life that is left out: heaps, pools and caches grow first, whatever comes later."""
_LEAST = 10
"""Samples of a life that has fewer are left out."""


@dataclass(frozen=True, slots=True)
class Slope:
    """The change per 1,000 batches with its standard error, and the mean and the number of the samples."""

    per_1000_batches: float
    error: float
    mean: float
    samples: int

    @property
    def is_zero(self) -> bool:
        """Whether the change is within three standard errors of zero."""
        return abs(self.per_1000_batches) <= 3 * self.error


def slopes(entries: Iterable[Entry]) -> dict[str, Slope]:
    """Return the slope of every quantity in the entries `sample`, which have `epoch`, `batch` and `values`."""
    lives: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for entry in entries:
        if entry["what"] == "sample":
            values: Mapping[str, float] = entry["values"]
            for name, value in values.items():
                if not math.isnan(value):
                    lives.setdefault(name, {}).setdefault(entry["epoch"], []).append((entry["batch"], value))
    fits = {name: fit(list(of_epochs.values())) for name, of_epochs in lives.items()}
    return {name: slope for name, slope in sorted(fits.items()) if slope is not None}


def fit(lives: Sequence[Sequence[tuple[float, float]]]) -> Slope | None:
    """Fit one slope by least squares, with a level of its own for each life; None where no life is long enough.

    A restart begins a new life: a process that is new has other open files and another heap.
    """
    kept = [life[int(len(life) * _WARM_UP) :] for life in lives if len(life) >= _LEAST]
    points = [point for life in kept for point in _centred(life)]
    spread = sum(x * x for x, _ in points)
    freedom = len(points) - len(kept) - 1
    if not spread or freedom < 1:
        return None
    slope = sum(x * y for x, y in points) / spread
    residual = sum((y - slope * x) ** 2 for x, y in points)
    mean = sum(y for life in kept for _, y in life) / len(points)
    error = math.sqrt(residual / freedom / spread)
    return Slope(round(1000 * slope, 3), round(1000 * error, 3), round(mean, 3), len(points))


def _centred(life: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    mean_x = sum(x for x, _ in life) / len(life)
    mean_y = sum(y for _, y in life) / len(life)
    return [(x - mean_x, y - mean_y) for x, y in life]

"""The samples of a registry over time, by series."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, in the order of the names."""
Point: TypeAlias = tuple[float, float]
"""A time of the monotonic clock in seconds, and a value."""


class History:
    """Samples of a registry by series: the newest sample, and the samples of the ranges that expressions read.

    Samples are kept `EVERY_S` apart. The newest ones may be nearer to those before, and are then replaced by the next.
    """

    EVERY_S = 10.0

    def __init__(self, ranges_s: Mapping[str, float]) -> None:
        """`ranges_s` has the name of each metric that is kept, and how far expressions look back at it, 0 for not at all."""
        self._ranges_s = ranges_s
        self._series: dict[str, dict[Labels, deque[Point]]] = {name: {} for name in ranges_s}
        self._times_s: deque[float] = deque(maxlen=2)
        self.at_s = math.nan

    def add(self, families: "Iterable[Metric]", at_s: float) -> None:
        """Add the samples of a time, which is not before that of the former ones."""
        times_s = self._times_s
        replaces = len(times_s) == 2 and times_s[1] - times_s[0] < self.EVERY_S
        former_s = times_s.pop() if replaces else math.nan
        times_s.append(at_s)
        self.at_s = at_s
        for family in families:
            for sample in family.samples:
                if (kept := self._series.get(sample.name)) is None:
                    continue
                points = kept.setdefault(tuple(sorted(sample.labels.items())), deque())
                if replaces and points and points[-1][0] == former_s:
                    points.pop()
                points.append((at_s, float(sample.value)))
        for name, kept in self._series.items():
            oldest_s = at_s - self._ranges_s[name]
            for labels, points in tuple(kept.items()):
                while points and points[0][0] < oldest_s:
                    points.popleft()
                if not points:
                    del kept[labels]

    def series(self, name: str) -> Iterator[tuple[Labels, list[Point]]]:
        """Yield the series of a metric with the samples that are kept, the newest last."""
        for labels, points in self._series.get(name, {}).items():
            yield labels, list(points)

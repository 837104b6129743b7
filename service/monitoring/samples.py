"""Samples of metrics at one time, from the registry of this process or from the text of another one's /metrics."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "tidemark_"

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Samples:
    """The samples by name. Names are given without `tidemark_`; `at_s` is a time of a monotonic clock."""

    by_name: Mapping[str, list[tuple[Labels, float]]]
    at_s: float

    @classmethod
    def of(cls, families: "Iterable[Metric]", at_s: float) -> Self:
        """Return the samples of families, as a registry collects them and as prometheus_client.parser reads them."""
        by_name: dict[str, list[tuple[Labels, float]]] = {}
        for family in families:
            for sample in family.samples:
                name = sample.name.removeprefix(PREFIX)
                by_name.setdefault(name, []).append((sample.labels, float(sample.value)))
        return cls(by_name, at_s)

    def rows(self, name: str, **labels: str) -> list[tuple[Labels, float]]:
        """Return the samples of a metric that have these labels."""
        return [row for row in self.by_name.get(name, ()) if labels.items() <= row[0].items()]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of these samples, NaN where there are none."""
        rows = self.rows(name, **labels)
        return math.fsum(value for _, value in rows) if rows else math.nan

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of a metric by a label, without zeros, the largest first."""
        sums: dict[str, float] = {}
        for labels, value in self.rows(name):
            sums[labels.get(label, "")] = sums.get(labels.get(label, ""), 0.0) + value
        return dict(sorted(((text, value) for text, value in sums.items() if value), key=lambda item: -item[1]))


@dataclass(frozen=True)
class Span:
    """Two times of one process. Without an earlier one, counters count from the start of the process."""

    now: Samples
    before: Samples | None = None

    @property
    def seconds(self) -> float:
        """The length, NaN without an earlier time."""
        return math.nan if self.before is None else self.now.at_s - self.before.at_s

    def increase(self, name: str, **labels: str) -> float:
        """Return by how much the sum of a counter has grown. A counter that fell belongs to a new process and began at 0."""
        value = self.now.value(name, **labels)
        former = math.nan if self.before is None else self.before.value(name, **labels)
        return value if math.isnan(former) or value < former else value - former

    def quantile(self, name: str, share: float) -> float:
        """Return a quantile of a histogram, interpolated inside its bucket; NaN where nothing was observed."""
        bounds = sorted({float(labels["le"]) for labels, _ in self.now.rows(f"{name}_bucket")})
        texts = {float(labels["le"]): labels["le"] for labels, _ in self.now.rows(f"{name}_bucket")}
        counts = [self.increase(f"{name}_bucket", le=texts[bound]) for bound in bounds]
        total = counts[-1] if counts else 0.0
        below_bound = below = 0.0
        for bound, count in zip(bounds, counts, strict=True):
            if total and count >= share * total:
                if math.isinf(bound):
                    return below_bound
                return below_bound + (bound - below_bound) * (share * total - below) / max(count - below, 1e-9)
            below_bound, below = bound, count
        return math.nan

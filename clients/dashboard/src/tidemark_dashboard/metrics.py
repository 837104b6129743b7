"""The service's metrics, as /metrics has them, to be asked by name and label."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


class Samples:
    """The samples of one answer of /metrics."""

    def __init__(self, text: str = "") -> None:
        """Raises ValueError when the text is no exposition of Prometheus."""
        self._samples: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                self._samples.setdefault(sample.name, {})[labels] = float(sample.value)

    def __bool__(self) -> bool:
        return bool(self._samples)

    def value(self, name: str, **labels: str) -> float | None:
        """A sample's value; None where there is none, or it is NaN."""
        found = self._samples.get(name, {}).get(tuple(sorted(labels.items())))
        return None if found is None or math.isnan(found) else found

    def by(self, name: str, label: str) -> dict[str, float]:
        """A metric's values by one label, added up over the others."""
        values: dict[str, float] = {}
        for labels, value in self._samples.get(name, {}).items():
            key = dict(labels).get(label)
            if key is not None and not math.isnan(value):
                values[key] = values.get(key, 0.0) + value
        return values

    def rows(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """A metric's samples, each with its labels."""
        for labels, value in self._samples.get(name, {}).items():
            yield dict(labels), value

    def sum(self, name: str) -> float:
        """A metric's values added up over all labels."""
        return math.fsum(value for value in self._samples.get(name, {}).values() if not math.isnan(value))

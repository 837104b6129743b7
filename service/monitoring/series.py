"""Counters and gauges of one registry, with the names of this service."""

import os
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client import values as kinds_of_values

# Where one of these is set for other programs, values are in files by process id and metric name, and begin with what is there:
# the value of another pipeline or, in a container, whose process ids repeat, of a former process (0.26.0).
for _name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
    os.environ.pop(_name, None)
kinds_of_values.ValueClass = kinds_of_values.MutexValue


class Series:
    """Makes the counters and gauges `tidemark_<name>` of a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def counter(self, name: str, text: str, label: str = "", values: Iterable[str] = ()) -> Counter:
        """Make a counter with at most one label, or with several that have blanks between them.

        The series of the label's known `values` exist from the start: Prometheus sees no increase in a series that begins with
        its first increment.
        """
        counter = Counter(f"tidemark_{name}", text, label.split(), registry=self.registry)
        for value in values:
            counter.labels(value)
        return counter

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tidemark_{name}", text, labels, registry=self.registry)


def replace(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
    """Set the series of a gauge, by the values of its labels, and remove all others. A scrape meanwhile finds all that stay."""
    [family] = gauge.collect()
    for gone in {tuple(sample.labels.values()) for sample in family.samples} - values.keys():
        gauge.remove(*gone)
    for labels, value in values.items():
        gauge.labels(*labels).set(value)

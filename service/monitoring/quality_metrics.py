"""Metrics of data quality."""

import math
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge


class Quality:
    """Fed by the checker, in the registry of the service's metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.met = Gauge(
            "tidemark_quality_expectations_met_ratio",
            "Share of the expectations that the last sample met; NaN before there was one",
            registry=registry,
        )
        self.met.set(math.nan)
        self.each = Gauge(
            "tidemark_quality_expectation_met",
            "1 when the last sample met the expectation, else 0",
            ["expectation"],
            registry=registry,
        )
        self.checked = Gauge(
            "tidemark_quality_checked_timestamp_seconds",
            "When a sample was checked last; 0 for never",
            registry=registry,
        )
        self.sampled = Gauge(
            "tidemark_quality_sampled_readings", "Admitted readings in the last sample", registry=registry
        )
        self.failures = Counter("tidemark_quality_failures", "Checks that could not be made", registry=registry)

    def checks(self, met: Mapping[str, bool], readings: int, now_s: float) -> None:
        """A sample was checked: replaces what was known; an expectation that is no more is gone here, too."""
        self.met.set(sum(met.values()) / len(met) if met else math.nan)
        self.each.clear()
        for label, is_met in met.items():
            self.each.labels(label).set(is_met)
        self.sampled.set(readings)
        self.checked.set(now_s)

"""Metrics of data quality."""

import math
from collections.abc import Mapping

from service.monitoring.series import Series


class Quality:
    """The part of the service's metrics that the quality checker sets."""

    def __init__(self, series: Series) -> None:
        self.met = series.gauge(
            "quality_expectations_met_ratio",
            "Share of the expectations that the last sample met; NaN before there was one",
        )
        self.met.set(math.nan)
        self.each = series.gauge(
            "quality_expectation_met", "1 when the last sample met the expectation, else 0", "expectation"
        )
        self.checked = series.gauge("quality_checked_timestamp_seconds", "When a sample was checked last; 0 for never")
        self.sampled = series.gauge("quality_sampled_readings", "Admitted readings in the last sample")
        self.failures = series.counter("quality_failures", "Checks that could not be made")

    def checks(self, met: Mapping[str, bool], readings: int, now_s: float) -> None:
        """Replace the results of the last check by the results of a new one."""
        self.met.set(sum(met.values()) / len(met) if met else math.nan)
        self.each.clear()
        for label, is_met in met.items():
            self.each.labels(label).set(is_met)
        self.sampled.set(readings)
        self.checked.set(now_s)

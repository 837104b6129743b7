"""What the demo shows while the load runs: samples of the service's metrics and of a view in Redis."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Group
from rich.table import Table

from load.testbed import by_label, percentile, total

OPENED, CLOSED = (f'tidemark_sessions_total{{change="{change}"}}' for change in ("opened", "closed"))
WARM_BATCHES = 3
"""The warm-up has so many batches at least."""
WARM_LAG_S = 2.0
"""The service has caught up when its lag is no more than so many seconds of load."""


@dataclass
class Sample:
    """One look at the service: its metrics, and the newest complete window of each site in Redis."""

    at: float
    metrics: dict[str, float]
    sites: list[tuple[str, str, str]]

    def sum(self, name: str) -> float:
        return total(self.metrics, name)

    def by_label(self, name: str) -> dict[str, float]:
        """Return the values of a metric with one label, the largest first."""
        return dict(sorted(by_label(self.metrics, name).items(), key=lambda item: -item[1]))


@dataclass
class Samples:
    """The samples of a run. `rate` is the load in readings a second; the warm-up ends after `longest_s` at the latest."""

    rate: float
    longest_s: float
    first: Sample | None = None
    warm: Sample | None = None
    caught_up: bool = False
    last: Sample = field(default_factory=lambda: Sample(0.0, {}, []))

    def add(self, sample: Sample) -> None:
        """Add a sample. Ignore one without metrics: the service did not answer."""
        if not sample.metrics:
            return
        self.last = sample
        if self.first is None and sample.sum("tidemark_records_total"):
            self.first = sample
        elif self.first is not None and self.warm is None:
            batches = sample.metrics.get("tidemark_batch", 0) - self.first.metrics.get("tidemark_batch", 0)
            self.caught_up = batches >= WARM_BATCHES and sample.sum("tidemark_lag_records") <= WARM_LAG_S * self.rate
            if self.caught_up or sample.at - self.first.at >= self.longest_s:
                self.warm = sample

    def end_warm_up(self) -> float:
        """Return the time of the end of the warm-up. If it has not ended, it ends with the first sample, and nothing is warm."""
        if self.warm is None:
            self.warm, self.caught_up = self.first or self.last, False
        return self.warm.at

    def latency_ms(self, share: float) -> float:
        """Return a quantile of the latency since the end of the warm-up; NaN before, and where there was no batch since."""
        before = self.warm.metrics if self.warm is not None else self.last.metrics
        return percentile({name: value - before.get(name, 0.0) for name, value in self.last.metrics.items()}, share)

    def figures(self) -> list[tuple[str, str]]:
        now, first = self.last, self.first
        if first is None:
            return [("readings", "none yet")]
        records = now.sum("tidemark_records_total")
        rate = (records - first.sum("tidemark_records_total")) / max(now.at - first.at, 0.001)
        behind_s = time.time() - now.metrics.get("tidemark_watermark_timestamp_seconds", math.nan)
        latencies = {f"p{share * 100:.0f}": self.latency_ms(share) for share in (0.5, 0.99)}
        return [
            ("readings", f"{records:,.0f}"),
            ("rate", f"{rate:,.0f}/s"),
            ("lag", f"{now.sum('tidemark_lag_records'):,.0f}"),
            ("batch", f"{now.metrics.get('tidemark_batch', 0):.0f}"),
            ("watermark", f"{behind_s:.1f} s ago" if behind_s < 1e6 else "none yet"),
            *((name, "warm-up" if math.isnan(value) else f"{value:.0f} ms") for name, value in latencies.items()),
            ("rejects", f"{now.sum('tidemark_rejects_total'):,.0f}"),
            ("sessions opened", f"{now.metrics.get(OPENED, 0):,.0f}"),
            ("closed", f"{now.metrics.get(CLOSED, 0):,.0f}"),
        ]

    def line(self) -> str:
        return "  ".join(f"{name} {value}" for name, value in self.figures())

    def panel(self) -> Group:
        """Return the figures, the warmest sites and the rejects, as tables."""
        figures, sites, rejects = Table(box=None), Table(title="site, last minute"), Table(title="rejects")
        for name, _ in self.figures():
            figures.add_column(name, justify="right")
        figures.add_row(*[value for _, value in self.figures()])
        for name in ("site", "mean temperature", "readings"):
            sites.add_column(name, justify="right")
        rejects.add_column("reason")
        rejects.add_column("records", justify="right")
        for row in self.last.sites:
            sites.add_row(*row)
        for reason, count in self.last.by_label("tidemark_rejects_total").items():
            if count:
                rejects.add_row(reason, f"{count:,.0f}")
        side_by_side = Table.grid(padding=(0, 4))
        side_by_side.add_row(sites, rejects)
        return Group(figures, side_by_side)


def rounded(latencies: Mapping[str, float]) -> dict[str, float]:
    """Return the latencies without NaN, in tenths of a millisecond."""
    return {name: round(value, 1) for name, value in latencies.items() if not math.isnan(value)}

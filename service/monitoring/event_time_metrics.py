"""Metrics of event time: the watermark, and how far apart the partitions are."""

from collections import deque
from typing import TYPE_CHECKING

from service import clock
from service.monitoring.series import Series

if TYPE_CHECKING:
    from service.pipeline.batch import BatchReport

KEPT_S = 60.0
"""The spread shown is the largest of so many seconds, because many batches end between two scrapes."""


class EventTime:
    """The part of the service's metrics that is about event time."""

    def __init__(self, series: Series) -> None:
        gauge = series.gauge
        self.watermark = gauge("watermark_timestamp_seconds", "The line that event time has reached")
        self.newest = gauge(
            "event_timestamp_seconds", "The newest event time that a partition has given", "topic", "partition"
        )
        self.spread = gauge(
            "event_spread_seconds",
            "How far the admitted event times of a batch's partitions were apart, oldest or newest: the most of the last minute",
        )
        self.spread.set_function(self._spread_s)
        self._spreads: deque[tuple[float, float]] = deque()
        self.held = gauge("watermark_held_seconds", "How far partitions with unread records hold the watermark back")
        self.unread = gauge("unread_partitions", "Partitions whose unread records hold the watermark")
        self.skewed = gauge("skewed_devices", "Devices whose clocks are ahead: `tidemark devices --skewed`")

    def batch(self, report: "BatchReport") -> None:
        """Show the event times of a published batch."""
        self.watermark.set(report.micro_batch.watermark_ms / 1000)
        self.skewed.set(report.skewed)
        self.held.set(report.held_ms / 1000)
        self.unread.set(report.unread)
        for (topic, partition), (_, newest_ms) in report.times.items():
            self.newest.labels(topic, partition).set(newest_ms / 1000)
        if report.times:
            # A partition that is released after a while gives its oldest readings together with its newest.
            apart_ms = max(max(ends) - min(ends) for ends in zip(*report.times.values(), strict=True))
            now_s = clock.monotonic_s()
            self._spreads.append((now_s, apart_ms / 1000))
            while self._spreads[0][0] < now_s - KEPT_S:
                self._spreads.popleft()

    def _spread_s(self) -> float:
        since_s = clock.monotonic_s() - KEPT_S
        return max((apart_s for at_s, apart_s in tuple(self._spreads) if at_s >= since_s), default=0.0)

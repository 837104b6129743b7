"""Metrics of the parts of a pipeline: event time, views, outlets, data quality, the schedule of triggers."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from service import clock
from service.monitoring.series import Series, replace
from service.outlets.delivery import Progress as Delivery

if TYPE_CHECKING:
    from service.pipeline.batch import BatchReport
    from service.pipeline.batch_report import Progress
    from service.settings import Outlet, Settings, View

KEPT_S = 60.0
"""The spread shown is the largest of so many seconds, because many batches end between two scrapes."""
Ask = Callable[[], Mapping[str, Delivery]]
_BEFORE = ("latestOffset", "getBatch", "queryPlanning", "walCommit")
"""Spark's phases before a batch runs."""


class EventTime:
    """The part of the service's metrics that is about event time."""

    def __init__(self, series: Series) -> None:
        gauge = series.gauge
        self.watermark = gauge("watermark_timestamp_seconds", "The line that event time has reached")
        self.newest = gauge("event_timestamp_seconds", "The newest event time of a partition", "topic", "partition")
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


class Views:
    """The part of the service's metrics that has the label `view`; its values are the names in the settings."""

    def __init__(self, series: Series) -> None:
        self.open = series.gauge("open_windows", "Windows in the state that the watermark has not passed", "view")
        self.final_age = series.gauge(
            "final_window_age_seconds", "Time since the newest final window ended; NaN without one", "view"
        )
        self.final_max_age = series.gauge("final_window_max_age_seconds", "Limit of the age by the settings", "view")
        self._names: list[str] = []
        self._counts: dict[int, dict[int, int]] = {}
        self._final_ms = 0

    def named(self, settings: "Settings") -> None:
        """Set the views, in the order of the settings, and what the ages of their windows follow from."""
        admission, views = settings.admission, settings.views
        latest_ms = admission.watermark_delay_ms + admission.max_delay_ms + admission.idle_after_ms
        latest_ms += settings.service.trigger_ms  # between two batches nothing becomes final
        for name in set(self._names) - {view.name for view in views}:
            self.open.remove(name)
            self.final_age.remove(name)
            self.final_max_age.remove(name)
        self._names, self._counts = [], {}
        for view in views:
            self._names.append(view.name)
            self.open.labels(view.name).set(0)
            if not view.is_endless:
                age_s = partial(self._final_age_s, view)
                self.final_age.labels(view.name).set_function(age_s)
                step_ms = view.step_ms if view.calendar is None else view.longest_ms
                self.final_max_age.labels(view.name).set((step_ms + latest_ms) / 1000)

    def opened(self, buckets: Iterable[int], counts: Iterable[tuple[int, int, int]]) -> None:
        """Replace the open windows of these buckets by `counts`: (bucket, number of the view, windows)."""
        for bucket in buckets:
            self._counts[bucket] = {}
        for bucket, number, windows in counts:
            self._counts[bucket][number] = windows
        for number, name in enumerate(self._names):
            self.open.labels(name).set(sum(each.get(number, 0) for each in self._counts.values()))

    def finals(self, until_ms: int) -> None:
        """Note that every window that ends by the event time `until_ms` is final."""
        self._final_ms = max(self._final_ms, until_ms)

    def _final_age_s(self, view: "View") -> float:
        window_ms = view.window_ms
        if view.calendar is not None:
            final = np.array([max(self._final_ms, 0)])
            [newest_ms] = view.calendar.like.starts(final).tolist()  # where the window before it ends
        else:
            newest_ms = (self._final_ms - window_ms) // view.step_ms * view.step_ms + window_ms
        return (clock.now_ms() - newest_ms) / 1000 if self._final_ms > window_ms else math.nan


class Outlets:
    """The part of the service's metrics that has the label `outlet`; its values are the names in the settings."""

    def __init__(self, series: Series) -> None:
        self.rows = series.counter("outlet_rows", "Final values that an outlet has", "outlet")
        self.bytes = series.counter("outlet_bytes", "Bytes sent to an outlet", "outlet")
        self.failures = series.counter("outlet_failures", "Failed attempts to write to an outlet", "outlet")
        self.batches = series.gauge("outlet_pending_batches", "Batches whose finals an outlet lacks", "outlet")
        self.pending = series.gauge("outlet_pending_bytes", "Bytes of finals that an outlet lacks", "outlet")
        self.limit = series.gauge("outlet_max_pending_bytes", "max_pending of the outlet", "outlet")
        self.age = series.gauge("outlet_age_seconds", "Age of the oldest batch whose finals an outlet lacks", "outlet")
        self.behind = series.gauge("outlet_behind", "1 while batches do not wait for the outlet", "outlet")
        self.refused = series.gauge("outlet_refused_rows", "Final values that an outlet refuses, set aside", "outlet")
        self._ask: Ask = dict

    def named(self, outlets: "Iterable[Outlet]") -> None:
        """Set the outlets."""
        for outlet in outlets:
            name = outlet.name
            for counter in (self.rows, self.bytes, self.failures):
                counter.labels(name)
            self.limit.labels(name).set(int(outlet.max_pending))
            self.batches.labels(name).set_function(partial(self._of, name, lambda each: each.pending))
            self.pending.labels(name).set_function(partial(self._of, name, lambda each: each.pending_bytes))
            self.behind.labels(name).set_function(partial(self._of, name, lambda each: each.is_behind))
            self.refused.labels(name).set_function(partial(self._of, name, lambda each: each.refused))
            self.age.labels(name).set_function(partial(self._of, name, _age_s))

    def watch(self, ask: Ask) -> None:
        """Set the source of the gauges; each scrape calls it."""
        self._ask = ask

    def document(self) -> dict[str, dict[str, object]]:
        """Return the part of /status."""
        return {
            name: {
                "kind": each.kind,
                "reached": each.reached
                and {name: getattr(each.reached, name) for name in ("epoch", "batch", "watermark_ms")},
                "pending_batches": each.pending,
                "pending_bytes": each.pending_bytes,
                "age_s": round(_age_s(each)),
                "is_behind": each.is_behind,
                "error": each.error,
                "failed_ms": each.failed_ms,
                "refused_rows": each.refused,
            }
            for name, each in self._ask().items()
        }

    def _of(self, name: str, value: Callable[[Delivery], float]) -> float:
        progress = self._ask().get(name)
        return 0.0 if progress is None else float(value(progress))


def _age_s(progress: Delivery) -> float:
    return 0.0 if progress.oldest_ms is None else (clock.now_ms() - progress.oldest_ms) / 1000


class Quality:
    """The part of the service's metrics that the quality checker sets."""

    def __init__(self, series: Series) -> None:
        self.met = series.gauge("quality_expectations_met_ratio", "Share of the expectations that the last sample met")
        self.met.set(math.nan)
        self.each = series.gauge("quality_expectation_met", "1 if the last sample met the expectation", "expectation")
        self.checked = series.gauge("quality_checked_timestamp_seconds", "When a sample was checked last; 0 for never")
        self.sampled = series.gauge("quality_sampled_readings", "Admitted readings in the last sample")
        self.failures = series.counter("quality_failures", "Checks that could not be made")

    def checks(self, met: Mapping[str, bool], readings: int, now_s: float) -> None:
        """Replace the results of the last check by the results of a new one."""
        self.met.set(sum(met.values()) / len(met) if met else math.nan)
        replace(self.each, {(label,): is_met for label, is_met in met.items()})
        self.sampled.set(readings)
        self.checked.set(now_s)


@dataclass(slots=True)
class Schedule:
    """Computes the delay of each committed batch from Spark's own times; call `delay_s` once for each, in order.

    With `service.trigger` a trigger is due at the multiples of that interval (ProcessingTimeExecutor, Spark 4.1.1). A batch
    that runs longer makes the next trigger late. Without it a trigger is due when it begins.
    """

    trigger_ms: int = 0
    _ended_ms: int = 0
    _due_ms: int = 0

    def delay_s(self, progress: "Progress") -> float:
        late_ms = 0
        if self.trigger_ms:
            # A batch that ended after the next trigger was due makes that one begin at its end, in between two multiples.
            waited = (
                self._ended_ms > self._due_ms
                and progress.begun_ms // self.trigger_ms == self._ended_ms // self.trigger_ms
            )
            due_ms = self._due_ms if waited else progress.begun_ms // self.trigger_ms * self.trigger_ms
            late_ms = progress.begun_ms - due_ms
            self._due_ms = (progress.begun_ms // self.trigger_ms + 1) * self.trigger_ms
            self._ended_ms = progress.begun_ms + progress.durations_ms.get("triggerExecution", 0)
        return (late_ms + sum(progress.durations_ms.get(phase, 0) for phase in _BEFORE)) / 1000

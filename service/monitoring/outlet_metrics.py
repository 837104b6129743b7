"""Metrics of outlets: what they have, what they lack, and since when."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from service import clock
from service.monitoring.series import Series
from service.outlets.delivery import Progress

if TYPE_CHECKING:
    from service.settings import Outlet

Ask = Callable[[], Mapping[str, Progress]]


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
        self.behind = series.gauge(
            "outlet_behind", "1 while batches do not wait for an outlet that lacks finals", "outlet"
        )
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
                "reached": None
                if each.reached is None
                else {
                    "epoch": each.reached.epoch,
                    "batch": each.reached.batch,
                    "watermark_ms": each.reached.watermark_ms,
                },
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

    def _of(self, name: str, value: Callable[[Progress], float]) -> float:
        progress = self._ask().get(name)
        return 0.0 if progress is None else float(value(progress))


def _age_s(progress: Progress) -> float:
    return 0.0 if progress.oldest_ms is None else (clock.now_ms() - progress.oldest_ms) / 1000

"""Metrics of views: their open windows, and the age of their newest final window."""

import math
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from service import clock
from service.monitoring.series import Series

if TYPE_CHECKING:
    from service.settings import Admission, View


class Views:
    """The part of the service's metrics that has the label `view`; its values are the names in the settings."""

    def __init__(self, series: Series) -> None:
        self.open = series.gauge("open_windows", "Windows in the state that the watermark has not passed", "view")
        self.final_age = series.gauge(
            "final_window_age_seconds",
            "Time since the end of the newest window that is final; NaN before one is",
            "view",
        )
        self.final_max_age = series.gauge(
            "final_window_max_age_seconds",
            "Limit of final_window_age_seconds that follows from the settings: beyond it the view's windows do not close",
            "view",
        )
        self._names: list[str] = []
        self._counts: dict[int, dict[int, int]] = {}
        self._final_ms = 0

    def named(self, views: "Iterable[View]", admission: "Admission") -> None:
        """Set the views, in the order of the settings, and what the ages of their windows follow from."""
        latest_ms = admission.watermark_delay_ms + admission.max_delay_ms + admission.idle_after_ms
        views = list(views)
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
            [newest_ms] = view.starts(np.array([max(self._final_ms, 0)])).tolist()  # where the window before it ends
        else:
            newest_ms = (self._final_ms - window_ms) // view.step_ms * view.step_ms + window_ms
        return (clock.now_ms() - newest_ms) / 1000 if self._final_ms > window_ms else math.nan

"""What statistics follow from: the merged columns of windows (state/window_columns.py), and the totals of sessions."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from state import distinct, moments, quantiles, trail_groups, trails
from state.columns import Columns, Floats, Ints, Values
from state.list_columns import DEVICES, SKETCH, TRAIL

Walked = trails.Walked | trail_groups.Together


class Kept:
    """The columns of merged windows by name, one array element for each window; also their `start` and `end` in ms.

    `wraps_at` is the value at which each window's counter begins again at 0, NaN where it does not; None where none does.
    """

    def __init__(self, columns: Columns, wraps_at: Floats | None = None) -> None:
        self._columns, self._wraps_at = columns, wraps_at

    def __getitem__(self, name: str) -> Values:
        return self._columns[name]

    @cached_property
    def totals(self) -> tuple[Floats, Floats]:
        """Sum and mean."""
        return moments.totals(self["count"], *(self[name] for name in moments.SUMS))

    @property
    def deviation(self) -> Floats:
        """The population standard deviation. Of equal readings it is 0, which rounding hides."""
        deviation = moments.deviation(self["count"], *(self[name] for name in moments.NAMES))
        deviation[self["min"] == self["max"]] = 0.0
        return deviation

    @cached_property
    def _sketches(self) -> quantiles.Sketches:
        return quantiles.unpack(self[SKETCH])

    def quantile(self, share: int) -> Floats:
        """The smallest value that at least `share` percent of the readings do not exceed, never beyond `min` and `max`."""
        quantile: Floats = np.clip(self._sketches.quantile(share), self["min"], self["max"])
        return quantile

    @cached_property
    def trails(self) -> Walked:
        """Steps, gaps and areas."""
        column = self[TRAIL]
        walk = trail_groups.Together if trail_groups.are_groups(column).any() else trails.Walked
        return walk(column, self["start"], self["end"], self._wraps_at)

    @property
    def distinct(self) -> Ints:
        """The number of devices, never more than readings."""
        distinct_devices: Ints = np.minimum(distinct.number(self[DEVICES]), self["count"])
        return distinct_devices

    @property
    def delta(self) -> Floats:
        """The last value less the first one."""
        delta: Floats = self["last_value"] - self["first_value"]
        return delta

    @property
    def rate(self) -> Floats:
        """The delta in a second; NaN where the first and the last reading have the same event time."""
        seconds = (self["last"] - self["first"]) / 1000
        rate: Floats = np.divide(self.delta, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
        return rate


@dataclass(frozen=True, slots=True)
class Totals:
    """One measure over sessions. Where `count` is 0, `sum` is 0.0, and `min` and `max` have any value."""

    count: Ints
    sum: Floats
    min: Floats
    max: Floats

    @property
    def mean(self) -> Floats:
        """NaN where `count` is 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: Floats = self.sum / self.count
        return mean

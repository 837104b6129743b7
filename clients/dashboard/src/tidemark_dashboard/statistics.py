"""The statistics of windows, as the pages name and show them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from tidemark_client import View, Window
from tidemark_dashboard.texts import count, moment, number

NAMES: Mapping[str, str] = {
    "count": "readings",
    "stddev": "standard deviation",
    "first": "first reading",
    "last": "last reading",
    "first_value": "first value",
    "last_value": "last value",
    "distinct": "devices",
    "increase_rate": "rate of increase",
    "longest_gap": "longest gap",
    "time_weighted_mean": "time-weighted mean",
    "linear_mean": "linear mean",
    "linear_integral": "linear integral",
}
"""The names of statistics whose name in the settings is not that of people; the others have the same one."""
TIMES = frozenset({"first", "last"})
WHOLE = frozenset({"count", "distinct", "resets", "changes"})
RATES, INTEGRALS = frozenset({"rate", "increase_rate"}), frozenset({"integral", "linear_integral"})
PER: Mapping[int, str] = {60_000: "min", 3_600_000: "h", 86_400_000: "d"}
BANDED = frozenset({"mean", "median", "p95", "p99", "first_value", "last_value"})
"""Statistics that lie between min and max."""
USUAL = "mean"


def name(statistic: str) -> str:
    """The name of a statistic for people."""
    return NAMES.get(statistic, statistic)


def title(statistic: str) -> str:
    """The name at the beginning of a heading; p99 stays as it is."""
    found = name(statistic)
    return found if any(each.isdigit() for each in found) else found[:1].upper() + found[1:]


def unit(statistic: str, of_measure: str, view: View) -> str:
    """The unit of a statistic of a view and a measure with this unit, "" where there is none to write."""
    if statistic in WHOLE or statistic in TIMES or statistic == "coverage":
        return ""
    if statistic == "longest_gap":
        return "s"
    if not of_measure:
        return ""
    per = PER.get(view.per_ms, "s")
    between = "/" if statistic in RATES else "\u00b7" if statistic in INTEGRALS else ""
    return f"{of_measure}{between}{per}" if between else of_measure


def plotted(view: View) -> list[str]:
    """The statistics of a view that are values and not times; each window has `count`, whatever the view names."""
    found = [each for each in view.statistics if each not in TIMES]
    return found if "count" in found else ["count", *found]


def chosen(view: View, wanted: str) -> str:
    """The statistic of an address; without one of the view's, its mean, or its first one that is no count."""
    choices = plotted(view)
    if wanted in choices:
        return wanted
    return USUAL if USUAL in choices else next((each for each in choices if each not in WHOLE), "count")


def others(view: View, statistic: str, among: Sequence[str]) -> list[str]:
    """The statistics of a list that a view has, without the chosen one."""
    return [each for each in among if each != statistic and each in {"count", *view.statistics}]


def value(window: Window, statistic: str) -> float | None:
    """A statistic of a window; None where the window does not have it, or it is beyond the largest number."""
    found: float | None = getattr(window, statistic, None)
    return found if found is not None and math.isfinite(found) else None


def text(window: Window | None, statistic: str) -> str | Markup:
    """A statistic of a window as the pages write it; a dash for none."""
    found = None if window is None else value(window, statistic)
    if found is None:
        return "\u2013"
    return moment(found) if statistic in TIMES else count(found) if statistic in WHOLE else number(found)

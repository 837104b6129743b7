"""The registry of statistics: what a window or a session has of the readings of one measure.

`STATISTICS` has them by name: the columns that a statistic needs, how it follows from them, its unit and its error. They are
computed when a window is published. state/window_columns.py folds and merges the columns.

This module imports neither NumPy nor Arrow, because settings need the names alone and `tidemark status` starts fast.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from state.list_columns import DEVICES, SKETCH, TRAIL

if TYPE_CHECKING:
    import pyarrow as pa

    from state.columns import Floats, Values
    from state.kept import Kept, Totals, Walked


@dataclass(frozen=True, slots=True)
class Shown:
    """What readers get of a view's windows: the names of statistics, the time in ms to which rates and areas refer, and the value
    at which counters begin again at 0, None where they do not."""

    names: tuple[str, ...]
    per_ms: int = 1_000
    wraps_at: float | None = None


Unit = Literal["readings", "devices", "times", "measure", "measure/s", "measure*s", "share", "s", "ms"]


@dataclass(frozen=True, slots=True)
class Statistic:
    """What readers see as the field `name`.

    `columns` are what `of_window` reads. With `may_be_absent`, a window does not have the field where `of_window` is NaN.
    `of_session` is None where sessions do not have the statistic. `unit` "measure" is the measure's own unit, "ms" an event time,
    "times" a number of events, which may be 0.
    `error` is the largest difference to the exact number.
    """

    name: str
    meaning: str
    unit: Unit
    error: str
    columns: tuple[str, ...]
    of_window: "Callable[[Kept], Values]"
    of_session: "Callable[[Totals], Values] | None" = None
    may_be_absent: bool = False

    def per(self, numbers: "Values", per_s: "Floats | float") -> "Values":
        """Return numbers of the statistic that refer to these seconds in place of one."""
        if self.unit not in {"measure/s", "measure*s"}:
            return numbers
        return numbers * per_s if self.unit == "measure/s" else numbers / per_s

    @property
    def is_whole(self) -> bool:
        """Whether the field is a whole number."""
        return self.unit in {"readings", "devices", "times", "ms"}

    @property
    def is_ordered(self) -> bool:
        """Whether it is of the readings of each device in their order."""
        return TRAIL in self.columns

    @property
    def type(self) -> "pa.DataType":
        """The type of the field in tables."""
        import pyarrow as pa  # noqa: PLC0415 - see the module

        from state.columns import TIME  # noqa: PLC0415

        if self.unit == "ms":
            return TIME
        return pa.int64() if self.is_whole else pa.float64()


_SUMS = ("count", "sum_hi", "sum_lo")
_FIRST, _LAST = ("first", "first_value"), ("last", "last_value")
_EXACT, _ROUNDED = "none", "rounding"


def _quantile(name: str, share: int) -> Statistic:
    return Statistic(
        name,
        f"smallest value that at least {share} % of the readings do not exceed",
        "measure",
        "none up to 32 different values, then 1 % of itself",
        ("min", "max", SKETCH),
        lambda w: w.quantile(share),
    )


def _ordered(name: str, meaning: str, unit: Unit, error: str, of_window: "Callable[[Walked], Values]") -> Statistic:
    return Statistic(name, meaning, unit, error, (TRAIL,), lambda w: of_window(w.trails), may_be_absent=True)


STATISTICS: Mapping[str, Statistic] = {
    statistic.name: statistic
    for statistic in (
        Statistic(
            "count", "number of readings", "readings", _EXACT, ("count",), lambda w: w["count"], lambda s: s.count
        ),
        Statistic("sum", "sum", "measure", _ROUNDED, _SUMS, lambda w: w.totals[0]),
        Statistic("mean", "mean", "measure", _ROUNDED, _SUMS, lambda w: w.totals[1], lambda s: s.mean),
        Statistic("min", "smallest value", "measure", _EXACT, ("min",), lambda w: w["min"], lambda s: s.min),
        Statistic("max", "largest value", "measure", _EXACT, ("max",), lambda w: w["max"], lambda s: s.max),
        Statistic(
            "stddev",
            "standard deviation of the population",
            "measure",
            "rounding; 1e-7 of it at a mean of 1e8 deviations",
            (*_SUMS, "sq_a", "sq_b", "sq_c", "min", "max"),
            lambda w: w.deviation,
        ),
        Statistic("first", "event time of the first reading", "ms", _EXACT, ("first",), lambda w: w["first"]),
        Statistic("last", "event time of the last reading", "ms", _EXACT, ("last",), lambda w: w["last"]),
        Statistic(
            "first_value",
            "value at `first`; the largest if there are several",
            "measure",
            _EXACT,
            _FIRST,
            lambda w: w["first_value"],
        ),
        Statistic(
            "last_value",
            "value at `last`; the largest if there are several",
            "measure",
            _EXACT,
            _LAST,
            lambda w: w["last_value"],
        ),
        Statistic("delta", "`last_value` - `first_value`", "measure", _ROUNDED, (*_FIRST, *_LAST), lambda w: w.delta),
        Statistic(
            "rate",
            "`delta` in a second; absent if `first` = `last`",
            "measure/s",
            _ROUNDED,
            (*_FIRST, *_LAST),
            lambda w: w.rate,
            may_be_absent=True,
        ),
        _quantile("median", 50),
        _quantile("p95", 95),
        _quantile("p99", 99),
        Statistic(
            "distinct",
            "number of different devices",
            "devices",
            "none below 2048 devices, then 2.2 % (standard error)",
            ("count", DEVICES),
            lambda w: w.distinct,
        ),
        _ordered(
            "increase",
            "sum of the steps up; a step down counts from 0, with `wraps_at` up to there and from 0",
            "measure",
            _ROUNDED,
            lambda t: t.increase,
        ),
        _ordered(
            "increase_rate",
            "`increase` in a second; absent if `first` = `last`",
            "measure/s",
            _ROUNDED,
            lambda t: t.increase_rate,
        ),
        _ordered("resets", "number of steps down", "times", _EXACT, lambda t: t["resets"]),
        _ordered("changes", "how often the value changed", "times", _EXACT, lambda t: t["changes"]),
        _ordered("longest_gap", "longest time between two neighbouring readings", "s", _EXACT, lambda t: t.longest_gap),
        _ordered(
            "time_weighted_mean",
            "mean over the time in which values hold, each until the next reading or the window's end",
            "measure",
            _ROUNDED,
            lambda t: t.mean,
        ),
        _ordered(
            "integral",
            "`time_weighted_mean` times the seconds in which values hold",
            "measure*s",
            _ROUNDED,
            lambda t: t.integral,
        ),
        _ordered(
            "linear_mean",
            "mean over the time between `first` and `last`, by straight lines between readings",
            "measure",
            _ROUNDED,
            lambda t: t.linear_mean,
        ),
        _ordered(
            "linear_integral",
            "`linear_mean` times the seconds between `first` and `last`",
            "measure*s",
            _ROUNDED,
            lambda t: t.linear_integral,
        ),
        _ordered("coverage", "share of the window in which a value holds", "share", _ROUNDED, lambda t: t.coverage),
    )
}
"""In the order in which readers see them."""

DEFAULT = ("count", "sum", "mean", "min", "max", "stddev", "first", "last")
"""The statistics of a view that names none."""

WITHOUT_VALUES = tuple(
    name for name, each in STATISTICS.items() if each.unit in {"readings", "ms", "devices", "s", "share"}
)
"""The statistics that do not depend on values: those of a view without measures."""

ORDERED = tuple(name for name, each in STATISTICS.items() if each.is_ordered)
"""The statistics of views that have windows."""

REFERRED = tuple(name for name, each in STATISTICS.items() if each.unit in {"measure/s", "measure*s"})
"""The statistics that refer to a time: `per` of their view."""

SKETCHED = tuple(name for name, each in STATISTICS.items() if SKETCH in each.columns)
"""The statistics of a sketch of values."""

WRAPPED = ("increase", "increase_rate")
"""The statistics of counters that may wrap."""

ALWAYS = ("count", "last")
"""Every view has these: publish.lua compares windows by their count, and a window expires after its last reading."""


def with_always(names: Iterable[str]) -> tuple[str, ...]:
    """Return these statistics and `ALWAYS`, in the order of `STATISTICS`."""
    wanted = {*names, *ALWAYS}
    return tuple(name for name in STATISTICS if name in wanted)


SESSION_STATISTICS: Mapping[str, "Callable[[Totals], Values]"] = {
    name: statistic.of_session for name, statistic in STATISTICS.items() if statistic.of_session is not None
}
"""Those that all sessions have, in the same order. All but `count` are absent where a session has no reading of the measure."""


def with_those_of_sessions(names: Iterable[str]) -> tuple[str, ...]:
    """Return these statistics and `SESSION_STATISTICS`, in the order of `STATISTICS`."""
    wanted = {*names, *SESSION_STATISTICS}
    return tuple(name for name in STATISTICS if name in wanted)

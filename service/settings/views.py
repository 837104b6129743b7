"""[[views]] and [sessions]: what is computed."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from service.settings.input import Predicate
from service.settings.section import YEAR_MS, Name, NotNegative, Positive, Section
from service.units import format_duration
from state import statistics
from state.rules import DAY_MS, ENDLESS_MS, MONTH_MS
from state.statistics import Shown

if TYPE_CHECKING:
    from state.calendar import Calendar
    from state.columns import Bools, Ints
    from state.keyed_calendar import KeyedCalendar

EVENTS = "events"
"""Takes the measure's place in the keys of a view without measures."""


_DEVICE = "device"

MOST_CARRIED = 60
"""Steps of a window over which readings are carried: each is a row of the state for each device."""

NO_WINDOW = "none"
"""`window = "none"`: one value of each key since the view began."""


_OF_CALENDAR = re.compile(r"\s*(\d{1,6})\s*(w|mo|y)\s*")
_PER_MS = {"s": 1_000, "min": 60_000, "h": 3_600_000, "d": DAY_MS}
_FULL = frozenset({*(2.0**bits for bits in (8, 15, 16, 24, 31, 32)), *(10.0**digits for digits in range(2, 13))})
"""Where counters of whole bytes or digits begin again."""
_UNITS_MS = {"w": 7 * DAY_MS, "mo": MONTH_MS, "y": 12 * MONTH_MS}


def _length(value: object, validate: ValidatorFunctionWrapHandler) -> int:
    length: int = ENDLESS_MS if value == NO_WINDOW else _span(value, validate)
    return length


def _span(value: object, validate: ValidatorFunctionWrapHandler) -> int:
    """Return a duration, also one of weeks, months or years, in ms; a month has MONTH_MS."""
    match = _OF_CALENDAR.fullmatch(value) if isinstance(value, str) else None
    if match is not None and int(match[1]) * _UNITS_MS[match[2]] > YEAR_MS:
        raise ValueError(f"must be at most {format_duration(YEAR_MS)}")
    span: int = validate(value if match is None else int(match[1]) * _UNITS_MS[match[2]])
    return span


@dataclass(frozen=True, slots=True)
class ZoneColumn:
    """The column of a view's keys that has the time zone of each key."""

    column: str


def _time_zone(value: object) -> "str | ZoneColumn | None":
    if isinstance(value, Mapping) and [*value] == ["column"] and isinstance(value["column"], str):
        return ZoneColumn(value["column"])
    if value is None or isinstance(value, str | ZoneColumn):
        return value
    msg = "must be the name of a time zone, such as 'Europe/Rome', or the column that has it: { column = 'zone' }"
    raise ValueError(msg)


def _first_value_that_a_counter_lacks(value: float) -> float:
    if value + 1 in _FULL:
        msg = f"{value:.0f} is the largest value of such a counter. It begins again at {value + 1:.0f}: set that"
        raise ValueError(msg)
    return value


_Per = Literal["s", "min", "h", "d"]
_WrapsAt = Annotated[float, Field(gt=0, le=2**53), AfterValidator(_first_value_that_a_counter_lacks)]


class View(Section):
    name: Name = Field(examples=["device"])
    """The view's name in keys: lower-case letters, digits and _."""
    by: tuple[str, ...] = Field(default=(), examples=[["device"]])
    """Columns to group by: "device", those of [input.columns] or the reference's. Default: none, one group of all
    devices.
    """
    window_ms: Annotated[Positive, WrapValidator(_length)] = Field(alias="window", examples=["10 m"])
    """Length of the windows, or "none" for one value of each key since the view began, which late readings correct and
    which does not expire. With `time_zone` also "1 d", "1 w" (from Monday), "1 mo" and "1 y" of that zone's clock, or
    several; "1 w", "1 mo" and "1 y" without one are of UTC.
    """
    time_zone: Annotated[str | ZoneColumn | None, BeforeValidator(_time_zone)] = Field(
        default=None, examples=["Europe/Rome"]
    )
    """The zone whose days, weeks, months or years the windows are: a name of the IANA database. A day has 23 or 25
    hours when its clocks change. With `{ column = "zone" }` each key has the days of its own zone, which is in that column
    of `by`; without one that exists it is of "(none)", and its days are of UTC. Default: none; then a window always has the
    same length, and "1 d" is 24 hours from midnight UTC.
    """
    offset_ms: Annotated[NotNegative, WrapValidator(_span)] = Field(default=0, alias="offset")
    """How long after midnight, Monday, or the first of the month such windows begin, on the zone's clock: "6 h" for a
    day that begins at six, "3 mo" for a year that begins in April.
    """
    slide_ms: Positive | None = Field(default=None, alias="slide", examples=["1 m"])
    """Distance between the starts of two windows; the window must be a multiple of it. Default: the window, no overlap.
    """
    measures: tuple[str, ...] | None = Field(default=None, examples=[["temperature"]])
    """Measures to aggregate; [] counts readings, also those without a measure. Default: all."""
    source: Name | None = Field(default=None, alias="from", examples=["minute"])
    """Another view, of whose closed windows this view's are put together: an hour of minutes. It costs a merge for each of
    them, where readings are not folded again. It has the same `by` and `where`, and at least the measures and statistics of
    this view. Values are the same; an open window has the readings up to the last closed window of that view. Default:
    windows are of readings.
    """
    where: Predicate = Field(default=None, examples=["temperature > 0"])
    """A SQL predicate; readings that do not meet it are not in the view. Default: none."""
    statistics: tuple[str, ...] = statistics.DEFAULT
    """Statistics of schemas/redis.md to compute. count and last are always there."""
    carry_for_ms: Positive | None = Field(default=None, alias="carry_for", examples=["2 h"])
    """How long a reading holds at most in statistics of order, also in the windows that follow. Each step of it costs as much
    as one more step of the window. Default: a reading holds until the next one or its window's end.
    """
    fill: Literal["last", "none"] = "none"
    """What a window without a reading shows while an earlier one still holds by `carry_for`: "last" publishes it when it is
    closed, with count 0 and what is carried into it; "none" publishes windows with readings only.
    """
    per: _Per = "s"
    """The time to which `rate`, `increase_rate`, `integral` and `linear_integral` refer: with "h" the integral of kW is in
    kWh. A view with another one is another version.
    """
    wraps_at: _WrapsAt | None = Field(default=None, examples=[65536])
    """The value at which a counter begins again at 0: 65536 for 16 bits, 100000 for five digits. A step down is then a
    wrap: `increase` and `increase_rate` count up to there, and on from 0. Default: none, a step down counts from 0.
    """
    sketches: bool = False
    """Whether a window in Redis has a sketch of its values, from which a reader computes quantiles of longer spans: some
    0.5 KB for each window, up to 50 KB. It needs median, p95 or p99.
    """
    retain_ms: Positive = Field(default=86_400_000, alias="retain")
    """How long a window stays in Redis after its end; not with window = "none". A window is final max_delay + max_ahead
    after its end: `check` warns of a shorter time. Default with a time_zone: its longest window, such as 31 d.
    """
    final_after_ms: NotNegative | None = Field(default=None, alias="final_after", examples=["10 s"])
    """How far behind the broker's time a reading may be to be in a window when that is settled and leaves for the outlets;
    at most max_delay. A later reading up to max_delay still counts, and has the window leave again at once, as a revision.
    Default: max_delay. Windows leave when no reading can change them any more.
    """
    update_every_ms: NotNegative = Field(default=0, alias="update_every", examples=["30 s"])
    """How long an open window may wait before a change of it is written: it is written at most once in that time. Finals
    and corrections are written at once. Default: every batch writes each window that it changes.
    """

    @model_validator(mode="before")
    @classmethod
    def _counts_by_default(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "statistics" not in value and value.get("measures") in ([], ()):
            return {**value, "statistics": ("count", "first", "last")}
        return value

    @model_validator(mode="before")
    @classmethod
    def _has_zone_of_calendar(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or value.get("time_zone") is not None or value.get("window") == NO_WINDOW:
            return value
        text = value.get("window")
        has_calendar = isinstance(text, str) and _OF_CALENDAR.fullmatch(text) is not None
        has_offset = re.fullmatch(r"\s*0*\s*[a-zA-Z]*\s*", str(value.get("offset", 0))) is None
        return {**value, "time_zone": "UTC"} if has_calendar or has_offset else value

    @model_validator(mode="before")
    @classmethod
    def _has_windows_for_its_times(cls, value: Any) -> Any:
        is_endless = isinstance(value, Mapping) and value.get("window") == NO_WINDOW
        if is_endless and (
            unused := [n for n in ("slide", "retain", "time_zone", "offset", "final_after") if n in value]
        ):
            msg = (
                f"{' and '.join(unused)}: of no window. A view with window = {NO_WINDOW!r} has one value of each key, "
                "which is kept as long as the view is in the settings"
            )
            raise ValueError(msg)
        return value

    @field_validator("statistics")
    @classmethod
    def _are_statistics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name not in statistics.STATISTICS]:
            msg = f"{', '.join(map(repr, unknown))}: no such statistic; there are {', '.join(statistics.STATISTICS)}"
            raise ValueError(msg)
        return statistics.with_always(value)

    @model_validator(mode="after")
    def _follows_its_calendar(self) -> Self:
        if self.calendar is not None and "retain_ms" not in self.model_fields_set:
            object.__setattr__(self, "retain_ms", self.calendar.longest_ms)
        return self

    def conflicts(self) -> Iterator[str]:
        lacking = [name for name in self.statistics if name not in statistics.WITHOUT_VALUES]
        if self.measures == () and lacking:
            known = ", ".join(statistics.WITHOUT_VALUES)
            yield f"statistics: {', '.join(lacking)} of no measure; with measures = [] there are {known}"
        ordered = [name for name in self.statistics if name in statistics.ORDERED]
        if ordered and self.is_endless:
            yield (
                f"statistics: {', '.join(ordered)} of a view without windows; they follow the order of a device's readings in a "
                "window, where late ones have no place: set a window with an end, name them in [sessions] statistics, or remove "
                "them"
            )
        if self.carry_for_ms is not None:
            if not ordered:
                known = ", ".join(statistics.ORDERED)
                yield f"carry_for: of no statistic that follows the order of readings; these are {known}"
            between_ms = self.step_ms if self.time_zone is None else self.window_ms
            if self.carry_for_ms > MOST_CARRIED * between_ms:
                yield (
                    f"carry_for {format_duration(self.carry_for_ms)} is more than {MOST_CARRIED} times "
                    f"{format_duration(between_ms)}, the time between the starts of two windows: shorten it, or lengthen that"
                )
        elif self.fill == "last":
            yield "fill: needs carry_for, which says for how long after its last reading a device has windows without one"
        for name, is_set, needed in (
            ("per", self.per != "s", statistics.REFERRED),
            ("wraps_at", self.wraps_at is not None, statistics.WRAPPED),
            ("sketches", self.sketches, statistics.SKETCHED),
        ):
            if is_set and not any(each in needed for each in self.statistics):
                yield f"{name}: of no statistic that it changes; these are {', '.join(needed)}"
        if self.source is not None:
            yield from self._conflicts_of_rollup()
        if self.slide_ms is None:
            return
        if self.time_zone is not None:
            yield "slide: windows of a time_zone do not slide, because they differ in length. Leave out slide, or time_zone"
        if self.window_ms % self.slide_ms != 0:
            yield (
                f"window {format_duration(self.window_ms)} must be a whole multiple of slide "
                f"{format_duration(self.slide_ms)}: windows are put together from slides"
            )

    def _conflicts_of_rollup(self) -> Iterator[str]:
        if self.is_endless:
            yield "from: a view without windows counts late readings, which closed windows do not have. Remove from"
        reasons = {
            "slide": "a window of another view is in one of its windows only",
            "final_after": "its windows have all readings when those of the other view are final, not before",
            "carry_for": "what is carried over the start of a closed window cannot be taken out of it",
        }
        for name, reason in reasons.items():
            if getattr(self, f"{name}_ms") is not None:
                yield f"from: is given beside {name}: {reason}. Remove {name}, or from"

    @property
    def reads(self) -> str | None:
        """The name in keys of the view that it is computed from."""
        return self.source

    @property
    def has_groups(self) -> bool:
        """Whether a key may have readings of several devices."""
        return _DEVICE not in self.by

    @property
    def shown(self) -> Shown:
        """What readers get of its windows."""
        return Shown(tuple(self.statistics), _PER_MS[self.per], self.wraps_at)

    @property
    def is_endless(self) -> bool:
        """Whether it has no windows, but one value of each key since it began."""
        return self.window_ms == ENDLESS_MS

    @property
    def length(self) -> str:
        """The length of its windows, for people."""
        if self.calendar is not None:
            return self.calendar.text
        return "no window" if self.is_endless else format_duration(self.window_ms)

    @property
    def zone_column(self) -> str | None:
        """The column of `by` that has the time zone of each key, if its windows follow it."""
        return self.time_zone.column if isinstance(self.time_zone, ZoneColumn) else None

    @property
    def zone(self) -> str | int | None:
        """The time zone of its windows, or the place of `zone_column` in the columns of its keys."""
        return self.by.index(self.time_zone.column) if isinstance(self.time_zone, ZoneColumn) else self.time_zone

    @property
    def calendar(self) -> "Calendar | KeyedCalendar | None":
        """Where its windows begin and end, if they are of a time zone; `window_ms` is then their length on average."""
        if self.time_zone is None:
            return None
        from state.calendar import Calendar  # noqa: PLC0415 - it imports NumPy, which settings without a zone do not need

        if isinstance(self.time_zone, str):
            return Calendar.of(self.window_ms, self.time_zone, self.offset_ms)
        from state.keyed_calendar import UTC, KeyedCalendar  # noqa: PLC0415

        column, like = self.time_zone.column, Calendar.of(self.window_ms, UTC, self.offset_ms)
        if column == _DEVICE or column not in self.by:
            msg = f"time_zone: {column!r} is no attribute in by, which makes the zone a part of each key: add it there"
            raise ValueError(msg)
        return KeyedCalendar(like, column, self.by.index(column))

    @property
    def longest_ms(self) -> int:
        return self.window_ms if self.calendar is None else self.calendar.longest_ms

    @property
    def step_ms(self) -> int:
        """Distance between the starts of two neighbouring windows; with a calendar a divisor of all distances and starts."""
        return self.slide_ms or (self.window_ms if self.calendar is None else self.calendar.step_ms)

    def starts(self, event_ms: "Ints", keys: Any = None) -> "Ints":
        """Return the start of the newest window that contains each event time.

        `keys`, here and below, are the texts of their keys in Arrow. Only a view with a `zone_column` needs them.
        """
        if self.calendar is not None:
            return self.calendar.starts(event_ms, keys)
        return event_ms - event_ms % self.step_ms

    def following(self, start: "Ints", keys: Any = None) -> "Ints":
        """Return the start of the window that begins next after the one that begins at each time."""
        return start + self.step_ms if self.calendar is None else self.calendar.ends(start, keys)

    def ends(self, start: "Ints", keys: Any = None) -> "Ints":
        """Return the end of the window that begins at each time."""
        return start + self.window_ms if self.calendar is None else self.calendar.ends(start, keys)

    def latest_end(self, event_ms: "Ints") -> "Ints":
        """Return a time by which the newest window that contains each event time has ended, whatever its key."""
        if self.calendar is None:
            return event_ms - event_ms % self.step_ms + self.window_ms
        return self.calendar.latest_end(event_ms)

    def are_windows(self, start: "Ints", end: "Ints", keys: Any = None) -> "Bools":
        """Return which pairs of times are the start and the end of one of its windows."""
        if self.calendar is not None:
            return self.calendar.are_windows(start, end, keys)
        are_windows: Bools = (end - start == self.window_ms) & (start % self.step_ms == 0)
        return are_windows

    @property
    def of(self) -> str:
        """The name in the settings. `name` is that in keys, which a ViewVersion may have of its own."""
        return self.name

    @property
    def is_next(self) -> bool:
        """Whether an older version still serves the name in the settings."""
        return False

    @property
    def is_marked(self) -> bool:
        """Whether `complete_from` has a time for some measure."""
        return False

    def complete_from(self, measure: str) -> int | None:
        """Return the event time (ms) from which a measure's windows have all readings; None when all of them do."""
        return None

    @property
    def identity(self) -> tuple[object, ...]:
        """The properties that all windows of one name in keys share. A view with another identity is another version."""
        step_ms = self.step_ms if self.time_zone is None else 0  # that of a calendar follows from the version of tzdata
        times = step_ms, self.carry_for_ms, self.time_zone, self.offset_ms
        return self.by, self.window_ms, self.where, *times, self.per, self.wraps_at, self.source


class ViewVersion(View):
    """A version of a view. The checkpoint has it; settings files do not."""

    name: str
    """The name in keys: that of the settings, or for a later version with `@` and the version's number."""
    title: str
    """The name in the settings."""
    is_waiting: bool = False
    incomplete: Mapping[str, int] = Field(default_factory=dict)
    """By measure, the event time (ms) from which windows have all readings; the past of other measures is computed."""
    since: int = 0
    """The first batch of its present measures and statistics."""
    zone_rules: str = ""
    """Where its windows begin by the version of tzdata that wrote this; "" for windows of no calendar."""
    begins_ms: int = 0
    """The event time from which the computed past goes, because Kafka has no older records; 0 if it has what is kept."""
    source_keys: str | None = None
    """The name in keys of the view that it is computed from."""

    @property
    def of(self) -> str:
        return self.title

    @property
    def is_next(self) -> bool:
        return self.is_waiting

    @property
    def reads(self) -> str | None:
        return self.source_keys

    @property
    def is_marked(self) -> bool:
        return bool(self.incomplete)

    def complete_from(self, measure: str) -> int | None:
        return self.incomplete.get(measure)


class Sessions(Section):
    gap_ms: Positive = Field(default=300_000, alias="gap")
    """Readings of a device at most this far apart are of one session."""
    max_duration_ms: Positive = Field(default=86_400_000, alias="max_duration")
    """No session lasts longer. It is cut at a multiple of max_duration / 16."""
    retain_ms: Positive = Field(default=604_800_000, alias="retain")
    """How long sessions and devices stay in Redis after their last write, and devices in the state after their last
    reading.
    """
    measure_status: bool = False
    """Whether each measure of a device has a status of its own, by the rules of the device's: a device that still sends
    humidity and no longer temperature has `temperature.status` = `offline`.
    """
    status_delay_ms: NotNegative | None = Field(default=None, alias="status_delay", examples=["30 s"])
    """How late readings usually arrive. A device is `quiet` or `offline` when its interval or gap was over so long before the
    newest reading of all devices, also while its session waits for late readings. Default: when the watermark says so,
    after max_delay and max_ahead.
    """
    update_every_ms: NotNegative = Field(default=0, alias="update_every", examples=["30 s"])
    """The same for devices and their open sessions as update_every of a view. A device whose status or session changes is
    written at once. Default: every batch writes each device that has a reading.
    """
    buckets: int | None = Field(default=None, gt=0, le=4096, examples=[16])
    """State tables that devices are spread over. Each costs a batch some 5 ms, whatever it holds. The number is part of
    the checkpoint: a start with another one is refused, and `tidemark checkpoint reshape` changes it. Default: one a
    core at the first start, at most 16; then the checkpoint's number.
    """

    statistics: tuple[str, ...] = tuple(statistics.SESSION_STATISTICS)
    """Statistics of each measure in a session: count, mean, min and max, which are always there, and those that follow the
    order of readings, such as increase, resets and integral. A session has its own readings only. The last one holds until
    the session's last reading.
    """
    measures: tuple[str, ...] | None = Field(default=None, examples=[["energy"]])
    """Measures that have those of `statistics` that follow the order of readings. Default: all."""
    per: _Per = "s"
    """The same for statistics of sessions as per of a view."""
    wraps_at: _WrapsAt | None = Field(default=None, examples=[65536])
    """The same for statistics of sessions as wraps_at of a view."""

    @field_validator("statistics")
    @classmethod
    def _are_statistics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = statistics.with_those_of_sessions(statistics.ORDERED)
        if unknown := [name for name in value if name not in known]:
            raise ValueError(f"{', '.join(map(repr, unknown))}: no statistic of sessions; there are {', '.join(known)}")
        return statistics.with_those_of_sessions(value)

    @property
    def ordered(self) -> tuple[str, ...]:
        return tuple(name for name in self.statistics if name in statistics.ORDERED)

    @property
    def shown(self) -> Shown:
        """What readers get of a measure that has statistics of order."""
        return Shown(self.ordered, _PER_MS[self.per], self.wraps_at)

    def conflicts(self) -> Iterator[str]:
        for name, is_set, needed in (
            ("measures", self.measures is not None, statistics.ORDERED),
            ("per", self.per != "s", statistics.REFERRED),
            ("wraps_at", self.wraps_at is not None, statistics.WRAPPED),
        ):
            if is_set and not any(each in needed for each in self.statistics):
                yield f"{name}: of no statistic that it changes; these are {', '.join(needed)}"
        if 2 * self.update_every_ms > self.retain_ms:
            yield (
                f"update_every {format_duration(self.update_every_ms)} is more than half of retain "
                f"{format_duration(self.retain_ms)}: a device that is online would expire in Redis before it is written again. "
                "Shorten update_every, or lengthen retain"
            )

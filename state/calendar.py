"""Windows of people's time: days, weeks, months and years of a time zone, as event times in UTC.

    calendar = Calendar.of(window_ms, "Europe/Rome", offset_ms)
    start = calendar.starts(event_ms)
    end = calendar.ends(start)

says where windows of a calendar begin and end. A window begins at the first instant at which the zone's clock shows its beginning
or later. So windows follow each other without a gap, each reading is in one of them, and

    a day on which clocks are set forward has 23 hours, one on which they are set back 25 (Lord Howe: 23.5 and 24.5)
    a day that begins in the hour that clocks skip begins with the next hour
    a day that a zone has skipped (Samoa, 30 December 2011) has no window

Days are counted from a Monday, so weeks are days by seven. Months are counted from January 1970. The rules of zones are those of
the package `tzdata`, not the host's: driver and executors have the same.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import tzdata

from state.columns import Bools, Ints
from state.rules import DAY_MS, EVENT_MS_LIMIT, MONTH_MS

VERSION: str = tzdata.IANA_VERSION
"""The rules of time zones that windows follow, such as 2026f."""
_MONDAY = -3
"""The day of a Monday, in days since 1 January 1970."""
_MONTHS = 140 * 12
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the clock of any zone


@cache
def zone(name: str) -> ZoneInfo:
    """Return a time zone of the package tzdata. Raises ValueError for a name that it does not have."""
    parts = name.split("/")
    try:
        if name != name.strip() or not all(part and part[0] != "." for part in parts):
            raise FileNotFoundError(name)  # a path that leaves the package is no name either
        with _file(parts).open("rb") as file:
            return ZoneInfo.from_file(file, key=name)
    except (OSError, ValueError) as error:
        msg = f"{name!r} is no time zone of tzdata {VERSION}; write one such as 'Europe/Rome' or 'UTC'"
        raise ValueError(msg) from error


@cache
def zone_names() -> frozenset[str]:
    """Return the names of all time zones of the package tzdata."""
    return frozenset((resources.files("tzdata") / "zones").read_text().split())


def zone_files() -> dict[str, bytes]:
    """Return the files of all time zones of the package tzdata, by name in order."""
    return {name: _file(name.split("/")).read_bytes() for name in sorted(zone_names())}


def _file(parts: Sequence[str]) -> Traversable:
    return resources.files("tzdata.zoneinfo").joinpath(*parts)


def local_times(times_ms: Ints, time_zone: str) -> list[str]:
    """Return times on a zone's clock, as ISO 8601 with the difference from UTC."""
    different, place = np.unique(times_ms, return_inverse=True)
    rules = zone(time_zone)
    texts = [_utc(ms).astimezone(rules).isoformat(timespec="seconds") for ms in different.tolist()]
    return [texts[number] for number in place.tolist()]


@dataclass(frozen=True, slots=True)
class Calendar:
    """Windows of `days` or of `months`, one of which is 0. On the clock of a zone they begin `offset_ms` after midnight, and
    `offset_months` after the first month."""

    days: int
    months: int
    time_zone: str
    offset_ms: int = 0
    offset_months: int = 0

    @classmethod
    def of(cls, window_ms: int, time_zone: str, offset_ms: int = 0) -> "Calendar":
        """Return the calendar of a length in whole days or in MONTH_MS. Raises ValueError, with the reason."""
        months, days = _counted(window_ms)
        if months == days == 0:
            msg = (
                "a window of a time zone is of whole days, weeks, months or years, such as '1 d', '1 w', '1 mo', '1 y'"
            )
            raise ValueError(msg)
        offset_months = _counted(offset_ms)[0]
        rest_ms = 0 if offset_months else offset_ms
        if offset_months >= max(months, 1) or rest_ms >= (28 * DAY_MS if months else days * DAY_MS):
            limit = f"{months} mo, or 28 d" if months > 1 else "28 d" if months else f"{days} d"
            msg = f"offset: must be less than {limit}: windows begin so long after midnight, Monday or the first of the month"
            raise ValueError(msg)
        zone(time_zone)
        return cls(days, months, time_zone, rest_ms, offset_months)

    @property
    def longest_ms(self) -> int:
        """The length of the longest window."""
        return _table(self).longest_ms

    @property
    def step_ms(self) -> int:
        """The longest interval of which the start of every window is a multiple."""
        return _table(self).step_ms

    @property
    def text(self) -> str:
        """The length and the zone, for people."""
        months = f"{self.months // 12} y" if self.months % 12 == 0 else f"{self.months} mo"
        days = f"{self.days // 7} w" if self.days % 7 == 0 else f"{self.days} d"
        return f"{months if self.months else days} of {self.time_zone}"

    @property
    def text_of_offset(self) -> str:
        """When windows begin, for people; "" at midnight of their first day."""
        hours, minutes = divmod(self.offset_ms // 60_000, 60)
        parts = (
            [f"{self.offset_months} mo"] * (self.offset_months > 0)
            + [f"{hours} h"] * (hours > 0)
            + [f"{minutes} min"] * (minutes > 0)
        )
        return f", {' '.join(parts)} later" if parts else ""

    def starts(self, event_ms: Ints, _keys: object = None) -> Ints:
        """Return the start of the window that contains each event time, whatever its key."""
        starts = _table(self).starts
        found: Ints = starts[np.searchsorted(starts, event_ms, "right") - 1]
        return found

    def ends(self, start: Ints, _keys: object = None) -> Ints:
        """Return the end of the window that begins at each time, or that contains it."""
        starts = _table(self).starts
        found: Ints = starts[np.searchsorted(starts, start, "right")]
        return found

    @property
    def like(self) -> "Calendar":
        """The calendar that stands for those of all keys."""
        return self

    def latest_end(self, event_ms: Ints) -> Ints:
        """Return the end of the window that contains each event time."""
        return self.ends(event_ms)

    @property
    def document(self) -> dict[str, Any]:
        """The field of a view by which readers know the calendar."""
        return {"calendar": asdict(self)}

    @property
    def zones(self) -> str:
        """The time zone, for people."""
        return self.time_zone

    def between(self, since_ms: int, until_ms: int) -> list[int]:
        """Return the starts from a time to another one, both inclusive."""
        starts = _table(self).starts
        low, high = np.searchsorted(starts, since_ms), np.searchsorted(starts, until_ms, "right")
        chosen: list[int] = starts[low:high].tolist()
        return chosen

    def are_windows(self, start: Ints, end: Ints, _keys: object = None) -> Bools:
        """Return which pairs of times are a window's start and end."""
        found: Bools = (self.starts(start) == start) & (self.ends(start) == end)
        return found

    def local(self, times_ms: Ints) -> list[str]:
        """Return times on the zone's clock, as ISO 8601 with the difference from UTC."""
        return local_times(times_ms, self.time_zone)

    @property
    def rules(self) -> str:
        """A text that says where windows begin, month by month since 1970: two bytes for each, as base64."""
        return _rules(self)

    def other_months(self, rules: str) -> list[int]:
        """Return the months since January 1970 in which windows began otherwise by the tzdata that gave these `rules`."""
        return other_months(self.rules, rules)


def other_months(*rules: str) -> list[int]:
    """Return the months since January 1970 in which two texts of `rules` differ."""
    mine, others = (np.frombuffer(b64decode(text), "<u2") for text in rules)
    size = min(len(mine), len(others))
    months: list[int] = np.flatnonzero(mine[:size] != others[:size]).tolist()
    return months


@dataclass(frozen=True, slots=True)
class _Table:
    """The starts of all windows that may have a reading, and one after them."""

    starts: Ints
    longest_ms: int
    step_ms: int


@cache
def _table(calendar: Calendar) -> _Table:
    """Return the windows of a calendar: for days 50,000 in 0.1 s, and 0.4 MB."""
    rules = zone(calendar.time_zone)
    clock_ms, begins = clock(replace(calendar, time_zone=""))
    offsets_ms = _offsets_ms(rules, begins)
    starts = clock_ms - offsets_ms
    # A beginning that the clock skips has the offset of before. The next one has another, unless windows are long.
    for number in np.flatnonzero(np.append(offsets_ms[1:] != offsets_ms[:-1], True) | (calendar.months > 0)).tolist():
        later_ms = _offset_ms(rules, begins[number].replace(fold=1))
        if later_ms > offsets_ms[number]:
            starts[number] = _first(rules, int(clock_ms[number]), int(clock_ms[number] - later_ms), int(starts[number]))
    # A window that the zone's clock skips begins and ends at the same time: it is none.
    table = np.unique(starts)
    return _Table(table, int(np.diff(table).max()), int(np.gcd.reduce(table)))


@cache
def _rules(calendar: Calendar) -> str:
    starts = _table(calendar).starts
    return digests(starts, starts)


def digests(times_ms: Ints, values: Ints) -> str:
    """Return a checksum of the values in each month since 1970, by their ascending times: two bytes for each, as base64."""
    edges = np.searchsorted(times_ms, _month_starts()).tolist()
    content = memoryview(values.astype("<i8").tobytes())
    checksums = [zlib.crc32(content[8 * low : 8 * high]) & 0xFFFF for low, high in pairwise(edges)]
    return b64encode(np.array(checksums, "<u2").tobytes()).decode()


@cache
def _month_starts() -> Ints:
    months: Ints = np.arange(_MONTHS + 1).astype("datetime64[M]").astype("datetime64[ms]").astype(np.int64)
    return months


def _clock_ms(calendar: Calendar) -> Ints:
    """Return what the zone's clock shows when windows begin, in ms since 1970, from before 1970 until after EVENT_MS_LIMIT."""
    if calendar.months:
        last = EVENT_MS_LIMIT // (28 * DAY_MS)
        months = np.arange(-2 * calendar.months, last, calendar.months) + calendar.offset_months
        days = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        days = days[days * DAY_MS < EVENT_MS_LIMIT + 800 * DAY_MS]
    else:
        last = EVENT_MS_LIMIT // DAY_MS + 2 * calendar.days + 3
        days = np.arange(_MONDAY - 2 * calendar.days, last, calendar.days)
    clock_ms: Ints = days * DAY_MS + calendar.offset_ms
    return clock_ms


@lru_cache(maxsize=2)
def clock(calendar: Calendar) -> tuple[Ints, list[datetime]]:
    """Return `_clock_ms`, also as times of the clock; whatever the zone."""
    clock_ms = _clock_ms(calendar)
    return clock_ms, [_EPOCH + timedelta(milliseconds=ms) for ms in clock_ms.tolist()]


def _offsets_ms(rules: ZoneInfo, begins: Sequence[datetime]) -> Ints:
    """Return the difference of a zone's clock from UTC when it shows these times: of 50,000 in 10 ms."""
    offsets = list(map(rules.utcoffset, begins))
    ms = {each: (each or timedelta()) // timedelta(milliseconds=1) for each in set(offsets)}
    return np.array([ms[each] for each in offsets], np.int64)


def _offset_ms(rules: ZoneInfo, clock: datetime) -> int:
    return (clock.replace(tzinfo=rules).utcoffset() or timedelta()) // timedelta(milliseconds=1)


def _first(rules: ZoneInfo, clock_ms: int, before_ms: int, after_ms: int) -> int:
    """Return the first second in (`before_ms`, `after_ms`] in UTC at which a zone's clock shows `clock_ms` or later."""
    while after_ms - before_ms > 1_000:
        middle_ms = before_ms + (after_ms - before_ms) // 2_000 * 1_000
        offset = _utc(middle_ms).astimezone(rules).utcoffset() or timedelta()
        is_after = middle_ms + offset // timedelta(milliseconds=1) >= clock_ms
        before_ms, after_ms = (before_ms, middle_ms) if is_after else (middle_ms, after_ms)
    return after_ms


def _counted(length_ms: int) -> tuple[int, int]:
    """Return a length as a number of months and of days; both 0 if it is neither."""
    if length_ms % DAY_MS == 0:
        return 0, length_ms // DAY_MS
    return (length_ms // MONTH_MS, 0) if length_ms % MONTH_MS == 0 else (0, 0)


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)

"""Where windows of days, weeks, months and years of a time zone begin, as schemas/redis.md says.

The rules of zones are those of the package `tzdata` if it is installed, else the host's. `Meta.tzdata` is the version that the
service follows: with an older one a window may be looked for under a start that it does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache, lru_cache
from importlib import resources
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemark_client.errors import ContractError

DAY_MS = 86_400_000
_MONDAY = -3
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - what a clock shows
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Calendar:
    """Windows of `days` or of `months`, one of which is 0. On the clock of `time_zone` they begin `offset_ms` after midnight, and
    `offset_months` after the first month. Days are counted from a Monday, months from January 1970."""

    days: int
    months: int
    time_zone: str
    offset_ms: int = 0
    offset_months: int = 0

    @property
    def shortest_ms(self) -> int:
        """About the length of the shortest window."""
        return 28 * self.months * DAY_MS or self.days * (DAY_MS - 7_200_000)

    @property
    def text(self) -> str:
        """The length and the zone, for people."""
        if self.months:
            length = f"{self.months} mo" if self.months % 12 else f"{self.months // 12} y"
        else:
            length = f"{self.days} d" if self.days % 7 else f"{self.days // 7} w"
        return f"{length} of {self.time_zone}"

    def start(self, at: int) -> int:
        """The start of the window that contains a time."""
        number = self._number(at) + 1
        while (start := _begin(self, number)) > at:
            number -= 1
        return start

    def end(self, at: int) -> int:
        """The end of the window that contains a time."""
        number = self._number(at)
        while (end := _begin(self, number)) <= at:
            number += 1
        return end

    def local(self, at: int) -> str:
        """A time on the zone's clock, as ISO 8601 with the difference from UTC."""
        return _utc(at).astimezone(zone(self.time_zone)).isoformat(timespec="seconds")

    def _number(self, at: int) -> int:
        clock = _utc(at).astimezone(zone(self.time_zone)).replace(tzinfo=None) - self.offset_ms * _MS
        if self.months:
            return ((clock.year - 1970) * 12 + clock.month - 1 - self.offset_months) // self.months
        return ((clock - _EPOCH).days - _MONDAY) // self.days


@dataclass(frozen=True)
class Calendars:
    """Calendars of which each key has that of its own time zone, which is in `time_zone_column` of the key."""

    days: int
    months: int
    time_zone_column: str
    offset_ms: int = 0
    offset_months: int = 0

    def of(self, time_zone: str) -> Calendar:
        """The calendar of a zone. A key without one has `(none)` or `(other)` in its place, and days of UTC."""
        name = "UTC" if time_zone.startswith("(") else time_zone
        return Calendar(self.days, self.months, name, self.offset_ms, self.offset_months)

    @property
    def text(self) -> str:
        """The length and the column, for people."""
        return self.of("UTC").text.replace("UTC", f"the zone in {self.time_zone_column}")


@cache
def zone(name: str) -> ZoneInfo:
    """A time zone. Raises ContractError where neither the package tzdata nor the host has it."""
    parts = name.split("/")
    try:
        if ".." not in parts:  # a name may be that of an address
            with resources.files("tzdata.zoneinfo").joinpath(*parts).open("rb") as file:
                return ZoneInfo.from_file(file, key=name)
    except (ImportError, OSError, ValueError):
        pass
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError) as error:  # OSError: a folder of zones, such as America (3.11)
        msg = f"the service has windows of the time zone {name!r}, which is not known here: pip install tzdata"
        raise ContractError(msg) from error


@lru_cache(maxsize=100_000)
def _begin(calendar: Calendar, number: int) -> int:
    """The first time at which the zone's clock shows the beginning of a window, or more."""
    if calendar.months:
        month = number * calendar.months + calendar.offset_months
        first = datetime(1970 + month // 12, month % 12 + 1, 1)  # noqa: DTZ001 - what a clock shows
    else:
        first = _EPOCH + timedelta(days=_MONDAY + number * calendar.days)
    begin, rules = first + calendar.offset_ms * _MS, zone(calendar.time_zone)
    after, before = ((begin - _offset(begin.replace(tzinfo=rules, fold=fold)) - _EPOCH) // _MS for fold in (0, 1))
    while after - before > 1_000:  # the clock skips the beginning: it shows less `before`, and more `after`
        middle = before + (after - before) // 2_000 * 1_000
        shown = _utc(middle).astimezone(rules).replace(tzinfo=None)
        before, after = (before, middle) if shown >= begin else (middle, after)
    return after


def _offset(time: datetime) -> timedelta:
    return time.utcoffset() or timedelta()


def _utc(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + ms * _MS

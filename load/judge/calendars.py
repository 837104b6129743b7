"""Days, weeks, months and years of a time zone, one time after another: the second, independent implementation of the rules.

It looks at the clock with zoneinfo and shares no code with state/calendar.py. A window begins at the first moment at which the
clock shows its beginning or later.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo

_TEXT = re.compile(r"\s*(\d+)\s*(\w+)\s*")
_HOURS = {"h": 1, "d": 24, "w": 168}
_SECOND = timedelta(seconds=1)


@cache
def zone(name: str) -> ZoneInfo:
    """Return a zone of the package tzdata, whatever the host has."""
    with (resources.files("tzdata") / "zoneinfo" / name).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@cache
def is_zone(name: str | None) -> bool:
    """Whether the package tzdata has a zone of this name."""
    return name in (resources.files("tzdata") / "zones").read_text(encoding="utf-8").split()


@dataclass(frozen=True)
class Calendar:
    """Windows of `number` units ("d", "w", "mo" or "y"), that begin `hours` after midnight and `months` after the first month."""

    number: int
    unit: str
    zone: str
    hours: float = 0
    months: int = 0

    @staticmethod
    def of(window: str, time_zone: str | Mapping[str, str] | None, offset: str | None) -> "Calendar | None":
        """Return the calendar of a view's settings; None for windows that always have the same length.

        That of a view whose keys have zones is of no zone.
        """
        match = _TEXT.fullmatch(str(window))
        if match is None or (match[2] not in {"w", "mo", "y"} and time_zone is None and not offset):
            return None
        after = _TEXT.fullmatch(offset or "0 h")
        assert after is not None  # noqa: S101
        months, hours = (int(after[1]), 0.0) if after[2] == "mo" else (0, int(after[1]) * _hours(after[2]))
        return Calendar(
            int(match[1]), match[2], "" if isinstance(time_zone, Mapping) else time_zone or "UTC", hours, months
        )

    def span(self, event_ms: int) -> tuple[int, int]:
        """Return the start and the end of the window that contains a time, in ms."""
        return _span(self, event_ms)

    def _find(self, event_ms: int) -> tuple[int, int]:
        clock = _utc(event_ms).astimezone(zone(self.zone))
        # A day that clocks repeat for an hour may show yesterday's date again: so look from the day after tomorrow back.
        number = self._number(clock.date() + timedelta(days=2)) + 1
        end = self._start(number)
        while (start := self._start(number)) > event_ms:
            number, end = number - 1, start
        return start, end

    def latest_end(self, event_ms: int) -> int:
        """Return when the window of a time has surely ended in each zone: they are 12 hours behind UTC at most, and 14 ahead."""
        ahead = replace(self, zone="UTC").span(event_ms + 14 * 3_600_000)
        return ahead[1] + 12 * 3_600_000

    def local(self, ms: int) -> str:
        """Return a time on the zone's clock, with the difference from UTC."""
        return _utc(ms).astimezone(zone(self.zone)).isoformat()

    def _number(self, day: date) -> int:
        """The window that a day is in, if windows begin at midnight."""
        if self.unit in {"mo", "y"}:
            return ((day.year - 1970) * 12 + day.month - 1 - self.months) // self._months
        return (day - date(1969, 12, 29)).days // (self.number * (7 if self.unit == "w" else 1))

    @property
    def _months(self) -> int:
        return self.number * (12 if self.unit == "y" else 1)

    def _start(self, number: int) -> int:
        if self.unit in {"mo", "y"}:
            month = number * self._months + self.months
            begin = datetime(1970 + month // 12, month % 12 + 1, 1)
        else:
            begin = datetime(1969, 12, 29) + timedelta(days=number * self.number * (7 if self.unit == "w" else 1))
        return _first(self.zone, begin + timedelta(hours=self.hours))


@cache
def _span(calendar: Calendar, event_ms: int) -> tuple[int, int]:
    return calendar._find(event_ms)


@cache
def _first(name: str, begin: datetime) -> int:
    rules = zone(name)
    times = [begin.replace(tzinfo=rules, fold=fold).astimezone(UTC) for fold in (0, 1)]
    shown = [time for time in times if time.astimezone(rules).replace(tzinfo=None) == begin]
    if shown:
        return _ms(min(shown))
    time = min(times)  # the clock skips this time: it shows less now, and more later
    for step in (timedelta(minutes=1), _SECOND):
        while (time + step).astimezone(rules).replace(tzinfo=None) < begin:
            time += step
    return _ms(time + _SECOND)


def _hours(unit: str) -> float:
    return _HOURS[unit] if unit in _HOURS else {"m": 1 / 60, "min": 1 / 60, "s": 1 / 3600}[unit]


def _utc(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def _ms(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)

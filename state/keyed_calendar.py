"""Windows of a calendar whose time zone is a column of the view: each key has the days of its own zone.

    calendar = KeyedCalendar(Calendar.of(window_ms, "UTC", offset_ms), column="zone", place=1)
    start = calendar.starts(event_ms, keys)       keys such as device-7|Europe/Rome

Whoever has a window has its key, and so its zone: the fold, Redis, outlets, readers. The state keeps nothing more. A key without
a zone that tzdata has, such as `(none)`, has windows of UTC.

The zones that will occur are not known before. So what holds for all windows of a view is computed for all zones of tzdata.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state import calendar, zone_clocks
from state.calendar import Calendar
from state.columns import Bools, Ints
from state.rules import DAY_MS

UTC = "UTC"
STEP_MS = 900_000
"""Since REGULAR_MS every zone's midnight is a multiple of it in UTC."""
REGULAR_MS = 315_532_800_000
"""1980. Before, Liberia was 44 minutes and 30 seconds behind UTC, and Kiritimati 10 hours and 40 minutes."""
EARLY_STEP_MS = 1_000
_SKIPPED_MS, _MINUTE_MS = 4 * 3_600_000, 60_000
"""Clocks were set forward at one minute past midnight, in St. John's until 2011: a window that begins in the hours that they
skip begins at that minute. Later in the day they are set at whole quarters of an hour."""
WEST_MS, EAST_MS = 12 * 3_600_000, 14 * 3_600_000
"""The most that a zone's clock is behind UTC, and ahead of it, since 1970."""
SET_BACK_MS = 7 * 3_600_000
"""The most by which a zone has been set back since 1970: Vostok, in 1994."""


@dataclass(frozen=True, slots=True)
class KeyedCalendar:
    """The calendars of all zones. Each is `like`, which is of UTC, but for its zone. `column` has the zone, in this `place` among
    a key's columns."""

    like: Calendar
    column: str
    place: int

    @property
    def longest_ms(self) -> int:
        """A length that no window of any zone exceeds."""
        return self.like.longest_ms + SET_BACK_MS

    @property
    def step_ms(self) -> int:
        """An interval of which the start of every window since REGULAR_MS is a multiple, in all zones."""
        is_skipped = 0 < self.like.offset_ms % DAY_MS <= _SKIPPED_MS
        return math.gcd(_MINUTE_MS if is_skipped else STEP_MS, self.like.offset_ms)

    @property
    def text(self) -> str:
        """The length and the column, for people."""
        return self.like.text.replace(self.like.time_zone, f"the zone in {self.column}")

    @property
    def text_of_offset(self) -> str:
        """When windows begin, for people."""
        return self.like.text_of_offset

    @property
    def document(self) -> dict[str, Any]:
        """The field of a view by which readers know the calendars. Older readers find windows by `window_ms` and `slide_ms`."""
        fields = asdict(self.like)
        del fields["time_zone"]
        return {"calendars": {**fields, "time_zone_column": self.column}}

    @classmethod
    def parse(cls, fields: Mapping[str, Any], by: Sequence[str]) -> "KeyedCalendar":
        """Return the calendar of such a field of a view with these columns."""
        of_like = dict(fields)
        column = of_like.pop("time_zone_column")
        return cls(Calendar(time_zone=UTC, **of_like), column, by.index(column))

    @property
    def zones(self) -> str:
        """The time zones, for people."""
        return "a time zone"

    def starts(self, event_ms: Ints, keys: Any) -> Ints:
        """Return the start of the window of each event time, in the zone of its key; `keys` are texts of Arrow."""
        found: Ints = self._each(Calendar.starts, keys, event_ms, dtype=np.int64)
        return found

    def ends(self, start: Ints, keys: Any) -> Ints:
        """Return the end of the window that begins at each time, in the zone of its key."""
        found: Ints = self._each(Calendar.ends, keys, start, dtype=np.int64)
        return found

    def are_windows(self, start: Ints, end: Ints, keys: Any) -> Bools:
        """Return which pairs of times are a window's start and end, in the zone of its key."""
        found: Bools = self._each(Calendar.are_windows, keys, start, end, dtype=np.bool_)
        return found

    def latest_end(self, event_ms: Ints) -> Ints:
        """Return a time by which the window that contains each event time has ended in every zone."""
        return self.like.ends(event_ms + EAST_MS) + WEST_MS

    @property
    def rules(self) -> str:
        """A text that says where windows begin in all zones of tzdata, and which zones these are."""
        return _rules(self.like)

    def other_months(self, rules: str) -> list[int]:
        """Return the months since January 1970 in which windows of a zone began otherwise by the tzdata that gave these `rules`.
        A zone that it did not have has no windows."""
        return _other_months(self.like, rules)

    def _each(self, of: Callable[..., Any], keys: Any, *times: Ints, dtype: Any) -> Any:
        def of_zone(name: str, *own: Ints) -> Any:
            return of(replace(self.like, time_zone=name), *own)

        return _by_zone(of_zone, keys, self.place, times, dtype)


def local_times(times_ms: Ints, place: int, keys: Any) -> list[str]:
    """Return times as `calendar.local_times` of the zones in this place of their keys' columns."""

    def of_zone(name: str, own: Ints) -> Any:
        return calendar.local_times(own, name)

    texts: list[str] = _by_zone(of_zone, keys, place, (times_ms,), object).tolist()
    return texts


def _by_zone(of_zone: Callable[..., Any], keys: Any, place: int, times: Sequence[Ints], dtype: Any) -> Any:
    """Return a function of the times, called once for each zone in this place of the columns of their keys."""
    encoded = keys if pa.types.is_dictionary(keys.type) else keys.dictionary_encode()
    names = pc.list_element(pc.split_pattern(encoded.dictionary, "|"), place)
    zones = with_zone(names, UTC).dictionary_encode()
    numbers = zones.indices.take(encoded.indices).to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=len(zones.dictionary))).tolist()
    found = np.empty(len(numbers), dtype)
    for name, begin, end in zip(zones.dictionary.to_pylist(), [0, *ends], ends, strict=False):
        own = order[begin:end]
        found[own] = of_zone(name, *(each[own] for each in times))
    return found


def with_zone(names: Any, other: str) -> Any:
    """Return the names that are time zones of tzdata, and `other` in place of each that is none, or null."""
    return pc.if_else(are_zones(names), names, other)


def are_zones(names: Any) -> Any:
    """Return which names are time zones of tzdata, as Arrow has it; null is none."""
    return pc.is_in(names, _names())


@cache
def _names() -> pa.Array:
    return pa.array(sorted(calendar.zone_names()))


@cache
def _rules(like: Calendar) -> str:
    return zone_clocks.rules(*calendar.clock(like))


@cache
def _other_months(like: Calendar, rules: str) -> list[int]:
    return zone_clocks.other_months(*calendar.clock(like), rules)

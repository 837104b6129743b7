"""Times of the contract, whole milliseconds since 1970 in UTC, from and to Python's datetime and timedelta."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Union

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MILLISECOND = timedelta(milliseconds=1)

Time = Union[int, datetime]
"""A time as an argument: milliseconds, or a datetime with a time zone."""
Since = Union[int, datetime, timedelta]
"""The same, or a timedelta: so long before now, by this machine's clock."""


def to_datetime(ms: int) -> datetime:
    """A time in UTC. Raises OverflowError outside of the years 1 to 9999."""
    return EPOCH + ms * MILLISECOND


def to_timedelta(ms: int) -> timedelta:
    """A length."""
    return ms * MILLISECOND


def to_ms(time: datetime) -> int:
    """Milliseconds of a time with a zone, rounded down."""
    return (time - EPOCH) // MILLISECOND


def ago_ms(length: timedelta) -> int:
    """The milliseconds of the time that is so long before now."""
    return to_ms(datetime.now(timezone.utc) - length)


class Span:
    """What lasts from `start` to `end`, in milliseconds."""

    start: int
    end: int

    @property
    def start_time(self) -> datetime:
        """`start` as a time in UTC."""
        return to_datetime(self.start)

    @property
    def end_time(self) -> datetime:
        """`end` as a time in UTC."""
        return to_datetime(self.end)

    @property
    def length(self) -> timedelta:
        """From `start` to `end`."""
        return to_timedelta(self.end - self.start)

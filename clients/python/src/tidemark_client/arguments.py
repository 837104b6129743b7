"""Checks of arguments, before anything is asked: a wrong type is an ArgumentError that names the argument and its value."""

from __future__ import annotations

import operator
from datetime import datetime, timedelta, timezone
from typing import Any

from tidemark_client import times
from tidemark_client.errors import ArgumentError

EARLIEST_MS, LATEST_MS = (times.to_ms(datetime(year, 1, 1, tzinfo=timezone.utc)) for year in (2, 9999))
"""Calendars have years of four digits, and look at the windows around a time."""


def time(name: str, value: Any, *, is_ago: bool = False) -> int:
    """The milliseconds of a time: an int, a datetime with a zone, or with `is_ago` a timedelta before now."""
    if is_ago and isinstance(value, timedelta):
        try:
            found = times.ago_ms(value)
        except OverflowError:
            found = EARLIEST_MS - 1
    elif isinstance(value, datetime) and value.tzinfo is not None:
        found = times.to_ms(value)
    elif _is_whole(value):
        found = operator.index(value)
    else:
        forms = (
            "whole milliseconds since 1970 as an int, such as int(time.time() * 1000), or a datetime with a time zone"
        )
        raise ArgumentError(f"{name} = {value!r}: give {forms}{', or a timedelta before now' if is_ago else ''}")
    if not EARLIEST_MS <= found <= LATEST_MS:
        raise ArgumentError(f"{name} = {value!r} is not a time of the years 2 to 9998")
    return found


def some_time(name: str, value: Any, *, is_ago: bool = False) -> int | None:
    """The same, or None."""
    return None if value is None else time(name, value, is_ago=is_ago)


def counts(**values: Any) -> None:
    """Check numbers of answers, which are whole."""
    for name, value in values.items():
        if not _is_whole(value):
            raise ArgumentError(f"{name} = {value!r}: give a whole number as an int")


def texts(**values: Any) -> None:
    """Check names, which are text, or None."""
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise ArgumentError(f"{name} = {value!r}: give text, a str")


def _is_whole(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True

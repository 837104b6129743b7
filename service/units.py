"""Durations as people write them ("10 s"), as the integers the code computes with, and points in time."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator

_DURATIONS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUANTITY = re.compile(r"^\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]+)\s*$")


def parse_duration_ms(value: object) -> int:
    """Milliseconds of "250 ms", "10 s", "5 m", "1 h", "7 d"; integers are taken as milliseconds already."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _QUANTITY.match(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _DURATIONS_MS:
        raise ValueError(f"must be a number and a unit, one of {', '.join(_DURATIONS_MS)}, such as '10 s'")
    amount = Decimal(match[1]) * _DURATIONS_MS[match[2].lower()]
    if amount != int(amount):
        raise ValueError("must be a whole number of milliseconds, such as '10 s'")
    return int(amount)


Duration = Annotated[int, BeforeValidator(parse_duration_ms)]


def format_duration(ms: int) -> str:
    """The shortest exact way to write a duration: 60000 -> "1 m"."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _DURATIONS_MS[unit] == 0:
            return f"{ms // _DURATIONS_MS[unit]} {unit}"
    return f"{ms} ms"


def rough_duration(ms: int) -> str:
    """Return a duration in the largest unit that it fills, seconds below ten minutes: 129512171971 -> "4.1 years"."""
    if abs(ms) < 1_000:
        return f"{ms} ms"
    if abs(ms) < 600_000:
        return f"{ms / 1000:.6g} s"
    units = ((31_557_600_000, "years"), (86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))
    unit_ms, name = next(unit for unit in units if abs(ms) >= unit[0])
    return f"{ms / unit_ms:.1f}".removesuffix(".0") + f" {name}"


def rough_seconds(ms: float) -> str:
    """Return `rough_duration` of the whole seconds: "0 s" below a second, and for a time to come."""
    whole = max(0, int(ms)) // 1000 * 1000
    return rough_duration(whole) if whole else "0 s"


def rough_bytes(size: float) -> str:
    """Return a size in the largest binary unit that it fills: 2684354560 -> "2.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def parse_time_ms(text: str, now_ms: int) -> int:
    """A point in time: "2 h" is so long before `now_ms`; an ISO 8601 date or time is UTC unless it has an offset.

    Digits alone are milliseconds since the epoch. ValueError names the allowed forms, or says that no calendar has the time.
    """
    if text.isdecimal():
        time_ms = int(text)
    elif _QUANTITY.match(text):
        time_ms = now_ms - parse_duration_ms(text)
    else:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError("is no time: write 2026-11-20T08:00, or 2 h for two hours ago") from None
        time_ms = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    try:
        datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        raise ValueError("is before the year 1 or after 9999") from None
    return time_ms


def format_time(ms: int) -> str:
    """ISO 8601 in UTC, to the millisecond; the number itself where no calendar has it."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(ms)

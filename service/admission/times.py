"""Read times from texts: the forms of ISO 8601 and RFC 3339 that databases and languages write.

    2026-09-21T14:14:00.5Z             2026-09-21 14:14:00,5 +02      20260921T141400Z      2026-09-21t14:14z
    2026-09-21 14:14:00.5 +0000 UTC    2026-09-21T16:14:00+02:00[Europe/Vienna]

The plan reads the usual forms with Spark's own function (decode.ISO_TIME). This module reads the others, in the plan and in one
record, by one regular expression. A time without a zone is in the zone of the settings. A local time that does not exist, because
clocks go forward, is moved forward by the same time; of one that exists twice the first is taken. So do Java and Python.
"""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = r"(?!0000)(\d{4})(-?)(\d\d)\2(\d\d)"
_TIME = r"(\d\d)(:?)(\d\d)(?:\6(\d\d)(?:[.,](\d+))?)?"
_OFFSET = r"([+-])(0\d|1[0-8])(?::?([0-5]\d)(?::?00)?)?(?: [A-Z]{3,5})?"
_ZONE = rf"(?:(?:([Zz]|UTC|GMT)|{_OFFSET})(?:\[[\w/+:-]+\])?)?"
FORMS = rf"^\s*{_DATE}[Tt ]{_TIME} ?{_ZONE}\s*\z"
"""The groups: year, sign, month, day, hour, sign, minute, second, fraction, UTC, sign of the offset, its hours and minutes."""
_FORMS = re.compile(FORMS.replace(r"\z", r"\Z"), re.ASCII)
_LARGEST_OFFSET = 18 * 60


def sql(text: str, zone: str = "UTC") -> str:
    """Return SQL for the time of a text in ms since the epoch, floored; null for a text of another form."""

    def group(number: int) -> str:
        return f"regexp_extract(x, r'{FORMS}', {number})"

    parts = [group(1), "'-'", group(3), "'-'", group(4), "'T'", group(5), "':'", group(7), "':'"]
    local = f"try_to_timestamp(concat({', '.join(parts)}, lpad({group(8)}, 2, '0')))"
    if zone != "UTC":
        has_zone = f"{group(10)} <> '' OR {group(11)} <> ''"
        local = f"CASE WHEN {has_zone} THEN {local} ELSE to_utc_timestamp({local}, '{zone}') END"
    minutes = f"(coalesce(try_cast({group(12)} AS INT), 0) * 60 + coalesce(try_cast({group(13)} AS INT), 0))"
    offset = (
        f"CASE WHEN {group(11)} = '' THEN 0 WHEN {minutes} > {_LARGEST_OFFSET} THEN NULL"
        f" WHEN {group(11)} = '-' THEN -{minutes} ELSE {minutes} END"
    )
    fraction = f"CAST(rpad(left({group(9)}, 3), 3, '0') AS INT)"
    ms = f"unix_millis({local}) + {fraction} - CAST({offset} AS INT) * 60000"
    # A function of a lambda is not part of the method that Spark generates for each record: few texts come here.
    return f"get(transform(array({text}), x -> CASE WHEN x RLIKE r'{FORMS}' THEN CAST({ms} AS BIGINT) END), 0)"


def of_text(text: str, zone: str = "UTC") -> int | None:
    """Return the same of one text."""
    found = _FORMS.match(text)
    if found is None:
        return None
    year, _, month, day, hour, _, minute, second, fraction, utc, sign, hours, minutes = found.groups()
    try:
        local = datetime(*map(int, (year, month, day, hour, minute, second or 0)), tzinfo=UTC)  # type: ignore[arg-type,misc]
        offset = int(hours or 0) * 60 + int(minutes or 0)
        if offset > _LARGEST_OFFSET:
            return None
        if utc or sign:
            ms = (local - _EPOCH) // timedelta(milliseconds=1) - offset * (-60_000 if sign == "-" else 60_000)
        else:
            ms = local_ms(local, zone)
    except (ValueError, OverflowError):
        return None
    return ms + int(((fraction or "") + "000")[:3])


def local_ms(local: datetime, zone: str) -> int:
    """Return a local time of a zone in ms since the epoch, floored. Raises OverflowError."""
    return (local.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)

"""Read times from texts: the forms of ISO 8601 and RFC 3339 that databases and languages write, and those of a pattern.

    2026-09-21T14:14:00.5Z             2026-09-21 14:14:00,5 +02      20260921T141400Z      2026-09-21t14:14z
    2026-09-21 14:14:00.5 +0000 UTC    2026-09-21T16:14:00+02:00[Europe/Vienna]

The plan reads the usual forms with Spark's own function (decode.ISO_TIME). This module reads the others, in the plan and in one
record, by one regular expression. A time without a zone is in the zone of the settings. A local time that does not exist, because
clocks go forward, is moved forward by the same time; of one that exists twice the first is taken. So do Java and Python.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from service.settings.time_pattern import MONTHS, Form

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = r"(?!0000)(\d{4})(-?)(\d\d)\2(\d\d)"
_TIME = r"(\d\d)(:?)(\d\d)(?:\6(\d\d)(?:[.,](\d+))?)?"
_OFFSET = r"([+-])(0\d|1[0-8])(?::?([0-5]\d)(?::?00)?)?(?: [A-Z]{3,5})?"
_ZONE = rf"(?:(?:([Zz]|UTC|GMT)|{_OFFSET})(?:\[[\w/+:-]+\])?)?"
ISO = Form(
    rf"^\s*{_DATE}[Tt ]{_TIME} ?{_ZONE}\s*\z",
    {
        "year": 1,
        "month": 3,
        "day": 4,
        "hour": 5,
        "minute": 7,
        "second": 8,
        "fraction": 9,
        "utc": 10,
        "sign": 11,
        "hours": 12,
        "minutes": 13,
    },
)
_LARGEST_OFFSET = 18 * 60


def sql(text: str, zone: str = "UTC", form: Form = ISO) -> str:
    """Return SQL for the time of a text in ms since the epoch, floored; null for a text of another form."""

    def group(part: str, otherwise: str = "''") -> str:
        number = form.groups.get(part)
        return otherwise if number is None else f"regexp_extract(x, r'{form.regex}', {number})"

    def two(digits: str) -> str:
        return f"lpad({digits}, 2, '0')"

    year = group("year", f"concat('20', {group('short_year')})")
    month = group("month", f"CAST((instr('{MONTHS}', lower({group('month_name')})) + 2) div 3 AS STRING)")
    of_half = f"try_cast({group('half_hour')} AS INT) % 12 + CASE WHEN lower({group('half')}) = 'pm' THEN 12 ELSE 0 END"
    hour = group("hour", f"CAST({of_half} AS STRING)" if "half_hour" in form.groups else "''")
    date = [year, "'-'", two(month), "'-'", two(group("day")), "'T'"]
    time = [two(hour), "':'", two(group("minute")), "':'", two(group("second"))]
    local = f"try_to_timestamp(concat({', '.join([*date, *time])}))"
    if zone != "UTC":
        has_zone = f"{group('utc')} <> '' OR {group('sign')} <> ''"
        local = f"CASE WHEN {has_zone} THEN {local} ELSE to_utc_timestamp({local}, '{zone}') END"
    minutes = (
        f"(coalesce(try_cast({group('hours')} AS INT), 0) * 60 + coalesce(try_cast({group('minutes')} AS INT), 0))"
    )
    offset = (
        f"CASE WHEN {group('sign')} = '' THEN 0 WHEN {minutes} > {_LARGEST_OFFSET} THEN NULL"
        f" WHEN {group('sign')} = '-' THEN -{minutes} ELSE {minutes} END"
    )
    fraction = f"CAST(rpad(left({group('fraction')}, 3), 3, '0') AS INT)"
    ms = f"unix_millis({local}) + {fraction} - CAST({offset} AS INT) * 60000"
    # A function of a lambda is not part of the method that Spark generates for each record: few texts come here.
    return f"get(transform(array({text}), x -> CASE WHEN x RLIKE r'{form.regex}' THEN CAST({ms} AS BIGINT) END), 0)"


def of_text(text: str, zone: str = "UTC", form: Form = ISO) -> int | None:
    """Return the same of one text."""
    found = form.of_python.match(text)
    if found is None:
        return None
    part = {name: found[number] for name, number in form.groups.items()}
    year = part["year"] if "year" in part else f"20{part['short_year']}"
    month = part["month"] if "month" in part else MONTHS.index(part["month_name"].lower()) // 3 + 1
    hour = int(part.get("hour") or part.get("half_hour") or 0)
    if "half" in part:
        hour = hour % 12 + 12 * (part["half"].lower() == "pm")
    minute, second = (int(part.get(name) or 0) for name in ("minute", "second"))
    try:
        local = datetime(int(year), int(month), int(part["day"]), hour, minute, second, tzinfo=UTC)
        offset = int(part.get("hours") or 0) * 60 + int(part.get("minutes") or 0)
        if offset > _LARGEST_OFFSET:
            return None
        if part.get("utc") or part.get("sign"):
            ms = (local - _EPOCH) // timedelta(milliseconds=1) - offset * (-60_000 if part["sign"] == "-" else 60_000)
        else:
            ms = local_ms(local, zone)
    except (ValueError, OverflowError):
        return None
    return ms + int(((part.get("fraction") or "") + "000")[:3])


def local_ms(local: datetime, zone: str) -> int:
    """Return a local time of a zone in ms since the epoch, floored. Raises OverflowError."""
    return (local.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)

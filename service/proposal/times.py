"""Find the event time: fields whose values are times, their unit, and how far they are from the broker's time."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from service.admission import numbers
from service.admission import times as forms
from service.admission.decode import ISO_TIME
from service.proposal.columns import NUMBER, TEXT, TIMESTAMP, Column, Columns, Seen, kind
from service.proposal.names import is_readable, words, words_set
from service.settings import time_pattern
from service.settings.source import HEADER
from service.settings.source import TIMESTAMP as TIMESTAMP_WORD
from service.units import rough_duration

_ISO = re.compile(ISO_TIME.replace(r"\z", r"\Z"))
_ZONE = re.compile(r"([Zz]|UTC|GMT|[+-]\d\d(:?\d\d)?)( [A-Z]{3,5})?(\[[^]]*\])?\s*\Z")
_UNITS = {"s": 1_000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
_FROM_MS, _TO_MS = 946_684_800_000, 4_102_444_800_000
"""The years 2000 to 2100: a number is a time in the unit in which it lies between them, and in no other."""
MOSTLY = 0.95
_TIME_WORDS = words_set("time timestamp ts t date datetime at utc when epoch instant clock")
_OF_THE_EVENT = words_set("event measured observed recorded sampled reading measurement observation")
_OF_SOMETHING_ELSE = words_set(
    "received ingest ingested processed created changed updated stored published sent start end expire expiry "
    "expiration install installed metadata local valid birth"
)
_OF_A_CONNECTOR = words_set("ts_ms ts_us ts_ns")
"""Debezium's names for the times at which it has seen a change."""
_SAME_MS = 2_000
_CLOSE_MS, _DAY_MS, _QUARTER_MS = 600_000, 86_400_000, 900_000


@dataclass(frozen=True, slots=True)
class Clock:
    """A field that may be the event time: `ms` has its value in every record; `score` ranks it among the others."""

    path: str
    unit: str
    ms: Sequence[int | None]
    score: float
    lag_ms: int
    """The median of the broker's time less this one."""
    has_zone: bool = True
    is_text: bool = False
    """Whether it is a number in a text."""
    pattern: str | None = None
    """The pattern of its texts, if they are not of ISO 8601."""
    others: tuple[str, ...] = ()
    """Other patterns that all of its texts have, too."""

    @property
    def is_local(self) -> bool:
        """Whether it looks like local time without a zone: whole quarters of an hour from the broker's time, at most 14 hours."""
        off = round(self.lag_ms / _QUARTER_MS) * _QUARTER_MS
        return not self.has_zone and 0 < abs(off) <= 14 * 3_600_000 and abs(self.lag_ms - off) < _CLOSE_MS / 5


_PATTERNS = (
    "dd.MM.yyyy HH:mm:ss",
    "dd.MM.yyyy HH:mm",
    "dd/MM/yyyy HH:mm:ss",
    "dd/MM/yyyy HH:mm",
    "dd-MM-yyyy HH:mm:ss",
    "MM/dd/yyyy HH:mm:ss",
    "MM/dd/yyyy HH:mm",
    "M/d/yyyy h:mm:ss a",
    "d/M/yyyy h:mm:ss a",
    "yyyy/MM/dd HH:mm:ss",
    "yyyy/MM/dd HH:mm",
    "yyyyMMddHHmmss",
    "yyyyMMddHHmm",
    "yyyyMMdd HHmmss",
    "yyyyMMdd HH:mm:ss",
    "dd/MMM/yyyy:HH:mm:ss X",
    "dd-MMM-yyyy HH:mm:ss",
    "dd MMM yyyy HH:mm:ss",
    "EEE, dd MMM yyyy HH:mm:ss X",
    "EEE MMM d HH:mm:ss yyyy",
)
"""The patterns that are tried, in this order."""


def clocks(columns: Columns, sample: Sequence[Seen]) -> list[Clock]:
    """Return the fields that may be the event time, the likeliest first."""
    headers = [each for each in columns.leaves() if each.path.startswith(HEADER)]
    found = [clock for column in (*columns.fields(), *headers) if (clock := _clock(column, sample)) is not None]
    return sorted(found, key=lambda clock: -clock.score)


def is_same(one: Clock, other: Clock) -> bool:
    """Whether two fields have nearly the same time in nearly all records, so that the choice does not matter."""
    apart = [abs(a - b) for a, b in zip(one.ms, other.ms, strict=True) if a is not None and b is not None]
    return bool(apart) and sorted(apart)[int(MOSTLY * (len(apart) - 1))] <= _SAME_MS


def lag(clock: Clock) -> str:
    """Return the median distance of a field's times to the broker's, for people."""
    side = "behind" if clock.lag_ms >= 0 else "ahead of"
    return f"{rough_duration(abs(clock.lag_ms))} {side} the broker's time"


def says_time(name: str) -> bool:
    """Whether a field's name says that it is a time."""
    return bool(_TIME_WORDS & set(words(name)))


def unit_of(values: Sequence[float]) -> str | None:
    """Return the unit in which nearly all of these numbers are times of 2000 to 2100: s, ms, us, ns, or None."""
    for unit, factor in _UNITS.items():
        low, high = _FROM_MS / factor, _TO_MS / factor
        if values and sum(low <= value < high for value in values) >= MOSTLY * len(values):
            return unit
    return None


def _clock(column: Column, sample: Sequence[Seen]) -> Clock | None:
    if not is_readable(column.parts):
        return None
    unit, has_zone = _form(column)
    patterns: tuple[str, ...] = ()
    if not unit:
        patterns = _patterns(column, sample)
        if not patterns:
            return None
        unit, has_zone = "iso", "X" in patterns[0]
    ms = [_ms(value, unit, patterns[0] if patterns else None) for value in column.values]
    lags = [seen.broker_ms - at for seen, at in zip(sample, ms, strict=True) if at is not None]
    if not lags:
        return None
    lag_ms = int(statistics.median(lags))
    name = set(words(column.parts[-1]))
    is_named = bool(name & _TIME_WORDS)
    near = abs(lag_ms) <= _CLOSE_MS
    if unit not in {"iso", "logical"} and not is_named and not near:
        return None  # some large number
    every = {word for part in column.parts for word in words(part)}
    score = 4.0 if near else 3.0 if abs(lag_ms) <= _DAY_MS else 1.0
    score += (
        is_named + bool(every & _OF_THE_EVENT) - 1.0 * bool(every & _OF_SOMETHING_ELSE) - 0.5 * (len(column.parts) - 1)
    )
    if len(name) == 1 and name <= {"time", "timestamp", "ts", "t", "datetime"}:
        score += 1
    if column.parts[-1] in _OF_A_CONNECTOR:
        score -= 1.5
    if len(lags) < 0.99 * len(sample):
        score -= 3
    is_text = unit not in {"iso", "logical"} and bool(column.kinds[TEXT]) and not column.path.startswith(HEADER)
    clock = Clock(column.path, unit, ms, score, lag_ms, has_zone, is_text)
    return replace(clock, pattern=patterns[0], others=patterns[1:]) if patterns else clock


def _text(value: Any) -> str | None:
    """Return a value as the text that a pattern reads: a number, too, such as 20260921141400."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def _patterns(column: Column, sample: Sequence[Seen]) -> tuple[str, ...]:
    """Return the patterns that nearly all texts of a field have, the one whose times are nearest to the broker's first."""
    texts = [text for value in column.present if (text := _text(value)) is not None]
    if not texts or len(texts) < MOSTLY * len(column.present):
        return ()
    lags = {}
    for pattern in _PATTERNS:
        form = time_pattern.parse(pattern)
        if forms.of_text(texts[0], form=form) is None and forms.of_text(texts[-1], form=form) is None:
            continue
        ms = [_ms(value, "iso", pattern) for value in column.values]
        apart = [abs(seen.broker_ms - at) for seen, at in zip(sample, ms, strict=True) if at is not None]
        if len(apart) >= MOSTLY * len(texts):
            lags[pattern] = statistics.median(apart)
    return tuple(sorted(lags, key=lags.__getitem__))


def of_kafka(sample: Sequence[Seen]) -> Clock:
    """Return the records' time in Kafka."""
    return Clock(TIMESTAMP_WORD, "ms", [seen.broker_ms for seen in sample], 0.0, 0)


def _form(column: Column) -> tuple[str, bool]:
    """The unit of a field's times, "" if it has none, and whether its texts have a zone."""
    if column.is_all(TIMESTAMP):
        return "logical", all(value.tzinfo is not None for value in column.present)
    most = MOSTLY * len(column.present)
    texts = [value for value in column.present if isinstance(value, str) and _iso_ms(value) is not None]
    if texts and len(texts) >= most:
        return "iso", sum(bool(_ZONE.search(text)) for text in texts) >= MOSTLY * len(texts)
    found = [number for value in column.present if (number := number_of(value)) is not None]
    return (unit_of(found) or "" if len(found) >= most else ""), True


def number_of(value: Any) -> float | None:
    """Return the number of a value, also in a text; None for what is none."""
    if kind(value) == TEXT:
        value = numbers.of_text(value) if value not in {"true", "false"} else None
        return value if value is not None and math.isfinite(value) else None
    return value if kind(value) == NUMBER else None


def _iso_ms(text: str) -> int | None:
    if not _ISO.match(text):
        return forms.of_text(text)
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return round((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)


def _ms(value: Any, unit: str, pattern: str | None = None) -> int | None:
    """A value as milliseconds since the epoch, None if it is no time."""
    if pattern is not None:
        text = _text(value)
        return None if text is None else forms.of_text(text, form=time_pattern.parse(pattern))
    try:
        if unit in {"iso", "logical"}:
            if isinstance(value, str):
                return _iso_ms(value)
            if not isinstance(value, datetime):
                return None
            return round((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
        number = number_of(value)
        return None if number is None else int(number * _UNITS[unit])
    except (ValueError, OverflowError):
        return None

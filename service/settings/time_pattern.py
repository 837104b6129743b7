"""Patterns of times in texts: `dd.MM.yyyy HH:mm:ss`, with the letters of Java, Spark and most spreadsheets.

    yyyy yy          year, yy of 2000 to 2099        HH H   hour, 0 to 23         X    offset or Z: +01, +0100, +01:00
    MM M MMM         month, MMM Jan to Dec           hh h   hour, 1 to 12         a    AM or PM
    dd d             day of the month                mm ss  minute, second        EEE  day of the week, not compared
    S SS SSS ...     digits of a fraction            '...'  a text, '' a quote

A single letter takes one or two digits. Other letters are refused, other signs stand for themselves; a blank may be a no-break
space. A pattern becomes a regular expression that Java and Python read alike; its time grows with the text alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
_LONGEST = 100
_TOKEN = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|[^A-Za-z']")
_OFFSET = r"(?:([Zz]|UTC|GMT)|([+-])(0\d|1[0-8])(?::?([0-5]\d))?)"
_PARTS: Mapping[str, tuple[str, ...]] = {
    # Letters: the parts that the groups of the regular expression are, and the expression.
    "yyyy": ("year", r"((?!0000)\d{4})"),
    "yy": ("short_year", r"(\d\d)"),
    "MMM": ("month_name", f"(?i:({'|'.join(re.findall('...', MONTHS))}))"),
    "MM": ("month", r"(\d\d)"),
    "M": ("month", r"(\d\d?)"),
    "dd": ("day", r"(\d\d)"),
    "d": ("day", r"(\d\d?)"),
    "HH": ("hour", r"([01]\d|2[0-3])"),
    "H": ("hour", r"([01]?\d|2[0-3])"),
    "hh": ("half_hour", r"(0[1-9]|1[0-2])"),
    "h": ("half_hour", r"(1[0-2]|0?[1-9])"),
    "a": ("half", r"(?i:([ap]m))"),
    "mm": ("minute", r"([0-5]\d)"),
    "m": ("minute", r"([0-5]?\d)"),
    "ss": ("second", r"([0-5]\d)"),
    "s": ("second", r"([0-5]?\d)"),
    "X": ("utc", "sign", "hours", "minutes", _OFFSET),
    "EEE": (r"(?i:mon|tue|wed|thu|fri|sat|sun)",),
}
_SHOWN = "yyyy yy MMM MM M dd d HH H hh h a mm m ss s S X EEE"
_YEARS, _MONTHS, _HOURS = {"year", "short_year"}, {"month", "month_name"}, {"hour", "half_hour"}


@dataclass(frozen=True, slots=True)
class Form:
    """A regular expression of Java for texts with a time, and the number of the group that has each part."""

    regex: str
    groups: Mapping[str, int]

    @property
    def of_python(self) -> re.Pattern[str]:
        return re.compile(self.regex.replace(r"\z", r"\Z"), re.ASCII)


@lru_cache(maxsize=64)
def parse(pattern: str) -> Form:
    """Return the form of a pattern's texts. Raises ValueError."""
    if len(pattern) > _LONGEST:
        raise ValueError(f"has {len(pattern)} letters, limit {_LONGEST}")
    regex, groups, at = r"^\s*", dict[str, int](), 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise ValueError(f"{pattern!r}: a text between quotes has no end")
        at, letters = token.end(), token[0]
        if token[1] is None:
            if any(not 0x20 <= ord(each) <= 0xFFFF for each in letters):
                raise ValueError(f"{pattern!r}: has a sign that no text of a time has")
            text = "'" if letters == "''" else letters if token[2] is None else token[2].replace("''", "'")
            regex += "".join(map(_literal, text))
            continue
        *parts, expression = _part(letters, pattern)
        for part in parts:
            if part in groups:
                raise ValueError(f"{pattern!r}: {letters} is a part that the pattern has twice")
            groups[part] = len(groups) + 1
        regex += expression
    _require(set(groups), pattern)
    return Form(regex + r"\s*\z", groups)


def _part(letters: str, pattern: str) -> tuple[str, ...]:
    if set(letters) == {"S"} and len(letters) <= 9:
        return "fraction", rf"(\d{{{len(letters)}}})"
    found = _PARTS.get("X" if set(letters) <= {"X", "x", "Z"} else letters)
    if found is None:
        hint = ", and not those of strftime" if "%" in pattern else ""
        msg = f"{pattern!r}: {letters} is no part of a time; there are {_SHOWN}{hint}. A text is between quotes: 'T'"
        raise ValueError(msg)
    return found


def _literal(sign: str) -> str:
    """Return a sign as a regular expression that may stand in a text of SQL."""
    if sign == " ":  # ICU writes a narrow one before AM and PM
        return r"[ \u00a0\u202f]"
    return sign if sign.isalnum() and sign.isascii() else "".join(f"\\u{ord(each):04x}" for each in sign)


def _require(parts: set[str], pattern: str) -> None:
    for of, name in ((_YEARS, "a year"), (_MONTHS, "a month"), (_HOURS, "an hour")):
        if len(of & parts) > 1:
            raise ValueError(f"{pattern!r}: has {name} twice")
    lacking = [
        text
        for text, is_there in (
            ("a year, yyyy or yy", parts & _YEARS),
            ("a month, MM or MMM", parts & _MONTHS),
            ("a day, dd", "day" in parts),
            ("an hour, HH", parts & _HOURS or not parts & {"minute", "second", "fraction", "half"}),
            ("minutes, mm", "minute" in parts or not parts & {"second", "fraction"}),
            ("seconds, ss", "second" in parts or "fraction" not in parts),
            ("AM or PM, a", ("half_hour" in parts) == ("half" in parts) or "half" in parts),
            ("hours of 1 to 12, hh", ("half_hour" in parts) == ("half" in parts) or "half_hour" in parts),
        )
        if not is_there
    ]
    if lacking:
        raise ValueError(f"{pattern!r}: lacks {', '.join(lacking)}")

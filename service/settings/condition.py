"""Conditions under which a field is a measure: `metric = 'temperature'`, for records that name what their value is."""

import re
from dataclasses import dataclass

from service.settings import field_path

_TEXT = r"'(?:[^']|'')*'"
_NAME = r"(?:`[^`]+`|[^\s`'=(),]+)(?:\.(?:`[^`]+`|[^\s`'=(),.]+))*"
_ONE = re.compile(rf"\s*({_NAME})\s*(?:=\s*({_TEXT})|in\s*\(\s*({_TEXT}(?:\s*,\s*{_TEXT})*)\s*\))\s*", re.IGNORECASE)
_AND = re.compile(r"and\b", re.IGNORECASE)
_QUOTED = re.compile(_TEXT)


@dataclass(frozen=True, slots=True)
class Condition:
    """A field has one of some texts. A whole number and a truth value count as their text."""

    path: str
    texts: tuple[str, ...]


def parse(text: str) -> tuple[Condition, ...]:
    """Return the conditions of a text, all of which have to hold. Raises ValueError."""
    found, at, is_open = [], 0, True
    while is_open and (match := _ONE.match(text, at)):
        name, one, several = match.groups()
        texts = tuple(each[1:-1].replace("''", "'") for each in _QUOTED.findall(one or several))
        found.append(Condition(field_path.of_field(name), texts))
        at = match.end()
        following = _AND.match(text, at)
        is_open, at = following is not None, at if following is None else following.end()
    if is_open or at != len(text):
        msg = (
            f"{text!r} is no condition: a field and a text, such as \"metric = 'temperature'\" or "
            "\"metric in ('t', 'temp')\", with AND between"
        )
        raise ValueError(msg)
    return tuple(found)


def spelled(name: str, text: str) -> str:
    quoted = text.replace("'", "''")
    return f"{name} = '{quoted}'"

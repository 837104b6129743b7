"""What a request may give: names, forms and limits of parameters, and their values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tidemark_dashboard.api.problems import ProblemError, wrong

LONGEST = 2_000
"""Characters of a value."""
MOST_VALUES = 16
"""Values of a parameter that may be repeated."""
_LENGTHS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"([0-9]{1,12})(ms|s|min|h|d)")
_LONGEST_MS = 36_500 * 86_400_000
"""A length before now that is longer is this one: a century."""
_MS = re.compile(r"-?[0-9]{1,16}")
_WHOLE = re.compile(r"[0-9]{1,9}")

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """`form` is text, time, since (a time, or a length before now), whole, flag or pair (column=value)."""

    name: str
    text: str
    form: str = "text"
    is_required: bool = False
    is_repeated: bool = False
    usual: Any = None
    least: int = 0
    most: int = 0
    choices: tuple[str, ...] = ()
    example: str = ""

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of a value."""
        found: dict[str, Any] = {"type": "string", "maxLength": LONGEST}
        if self.form == "whole":
            found = {"type": "integer", "minimum": self.least, "maximum": self.most}
        elif self.form == "flag":
            found = {"type": "boolean"}
        elif self.choices:
            found = {"type": "string", "enum": list(self.choices)}
        if self.usual is not None:
            found["default"] = self.usual
        return {"type": "array", "items": found, "maxItems": MOST_VALUES} if self.is_repeated else found

    def read(self, texts: Sequence[str]) -> Any:
        """The value of these texts, as many as the request has. Raises ProblemError."""
        for text in texts:
            if len(text) > LONGEST:
                detail = f"{self.name} has {len(text)} characters"
                raise wrong(self.name, detail, f"Give at most {LONGEST}", LONGEST)
        most = MOST_VALUES if self.is_repeated else 1
        if len(texts) > most:
            raise wrong(self.name, f"{self.name} is given {len(texts)} times", f"Give it {most} time(s) at most", most)
        if self.is_repeated:
            return [self._value(text) for text in texts]
        if not texts:
            if self.is_required:
                raise wrong(self.name, f"{self.name} is missing", f"Give {self.name}: {self.text}")
            return self.usual
        return self._value(texts[0])

    def _value(self, text: str) -> Any:
        if self.form == "whole":
            return self._whole(text)
        if self.form == "flag":
            if text not in {"true", "false"}:
                raise wrong(self.name, f"{self.name} = {text!r} is no flag", "Give true or false")
            return text == "true"
        if self.form in {"time", "since"}:
            return self._time(text)
        if self.form == "pair":
            column, sign, value = text.partition("=")
            if not sign or not column:
                remedy = "Give a column of the reference and its value, such as site=leeds"
                raise wrong(self.name, f"{self.name} = {text!r} is no column=value", remedy)
            return column, value
        if self.choices and text not in self.choices:
            raise wrong(self.name, f"{self.name} = {text!r} is not known", f"Give one of {', '.join(self.choices)}")
        return text

    def _whole(self, text: str) -> int:
        if not _WHOLE.fullmatch(text) or not self.least <= int(text) <= self.most:
            detail = f"{self.name} = {text!r} is not a whole number from {self.least} to {self.most}"
            raise wrong(self.name, detail, f"Give {self.least} to {self.most}", self.most)
        return int(text)

    def _time(self, text: str) -> int | datetime | timedelta:
        if _MS.fullmatch(text):
            return int(text)
        if self.form == "since" and (ago := _AGO.fullmatch(text)):
            length = int(ago[1]) * _LENGTHS[ago[2]]
            return timedelta(milliseconds=min(length, _LONGEST_MS))
        try:
            found = datetime.fromisoformat(text.replace(" ", "+"))  # a form's "+" is a space
        except ValueError:
            found = None
        if found is None or found.tzinfo is None:
            forms = "milliseconds since 1970, or ISO 8601 with a zone, such as 2026-03-29T00:00:00Z"
            more = ", or a length before now, such as 15min, 1h, 7d" if self.form == "since" else ""
            raise wrong(self.name, f"{self.name} = {text!r} is not a time", f"Give {forms}{more}")
        return found


def read(parameters: Sequence[Parameter], given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The values of all parameters. Raises ProblemError, also for a parameter that is none of these."""
    names = [each.name for each in parameters]
    for name, _ in given:
        if name not in names:
            remedy = f"Give {', '.join(names)}" if names else "Give no parameter"
            more = {"parameter": name[:LONGEST], "remedy": remedy}
            raise ProblemError("unknown_parameter", 400, f"There is no parameter {name[:LONGEST]!r} here", more)
    return {each.name: each.read([text for name, text in given if name == each.name]) for each in parameters}

"""Expressions of measures: numbers, fields, functions and operators of SQL, in one line of the settings.

This module finds the fields, without Spark: the plan decodes no others. Spark parses the rest: service/admission/expressions.py.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from service.settings import field_path

LONGEST = 1_000
"""Characters of an expression."""
_PART = r"(?:`[^`]+`|[^\W\d]\w*)"
_TOKEN = re.compile(
    rf"(?P<blank>\s+)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w`])|(?P<name>{_PART}(?:\.{_PART})*)"
    r"|(?P<operator><=>|<=|>=|<>|!=|[-+*/%=<>(),])"
)
_KEYWORDS = frozenset({"and", "or", "not", "is", "null", "in", "between", "case", "when", "then", "else", "end"})
_MAKERS_OF_NULL = frozenset({"null", "case", "nullif", "if"})
_COMPARISONS = frozenset({"<=>", "<=", ">=", "<>", "!=", "=", "<", ">", "in", "between", "least", "greatest"})
_ASKING_FOR_NAN = frozenset({"isnan", "nanvl"})
_BEGINS, _ENDS = frozenset({"(", "case"}), frozenset({")", "end", "null"})
"""Tokens besides fields, numbers and functions with which an operand begins, and ends."""
_EITHER = re.compile(r"(?!\d)[\w.]+(?:-\d|[-+/%][^\W\d])[\w.\-+/%]*")
"""A text without blanks that is a field's name or a computation, such as `km/h` and `sensor-2`."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; `fields` are the paths of the fields that it reads, each once."""

    tokens: tuple[tuple[str, str], ...]
    """Kind and text: `number`, `field` (the text is a path), `function`, or `other`."""

    @classmethod
    def parse(cls, text: str) -> "Expression":
        """Raises ValueError for a text that is no expression, and for one without a field."""
        if len(text) > LONGEST:
            raise ValueError(f"has {len(text)} characters; an expression has at most {LONGEST}")
        if _EITHER.fullmatch(text):
            msg = f"{text!r} is a field or a computation. Put the field in backticks: `{text}`, or blanks around the operators"
            raise ValueError(msg)
        parsed = cls(tuple(_tokens(text)))
        if not parsed.fields:
            raise ValueError(f"{text!r} reads no field of the record")
        # Spark reads `a b` as `a AS b`.
        tokens = [(kind, each) for kind, each in parsed.tokens if not each.isspace()]
        for (kind, one), (following, other) in pairwise(tokens):
            is_end = kind in {"number", "field"} or one.lower() in _ENDS
            if is_end and (following in {"number", "field", "function"} or other.lower() in _BEGINS):
                msg = (
                    f"{text!r} has no operator between {one} and {other}. A field with a blank in its name is in `...`"
                )
                raise ValueError(msg)
        return parsed

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for kind, text in self.tokens if kind == "field"))

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the functions that it calls, in lower case."""
        return tuple(dict.fromkeys(text.lower() for kind, text in self.tokens if kind == "function"))

    @property
    def compares(self) -> bool:
        """Whether it compares numbers, and does not itself ask which are none."""
        kept = {text.lower() for _, text in self.tokens}
        return bool(kept & _COMPARISONS) and not kept & _ASKING_FOR_NAN

    @property
    def may_leave_out(self) -> bool:
        """Whether the expression may be null by intent, though the record has all fields."""
        return any(kind != "field" and text.lower() in _MAKERS_OF_NULL for kind, text in self.tokens)

    def sql(self, column: Callable[[str], str]) -> str:
        """Return SQL with `column` in the place of each field. All numbers are doubles: none overflows as integers do."""
        return "".join(
            f"{text}D" if kind == "number" else column(text) if kind == "field" else text for kind, text in self.tokens
        )


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        # Two signs would begin a comment.
        match = None if text.startswith(("--", "/*"), at) else _TOKEN.match(text, at)
        if match is None:
            what = f"{text!r} cannot be read from character {at + 1}, {text[at]!r}"
            msg = (
                f"{what}. An expression has fields, numbers, operators and functions, and no text; a field with another name is "
                "in `...`. For records of one kind, use `where`"
            )
            raise ValueError(msg)
        at = match.end()
        token = match[0]
        if match.lastgroup == "name" and token.lower() not in _KEYWORDS:
            is_called = text[at:].lstrip().startswith("(")
            yield ("function", token) if is_called else ("field", field_path.normal(token))
        elif match.lastgroup == "number":
            yield "number", token
        else:
            yield "other", token

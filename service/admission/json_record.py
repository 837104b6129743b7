"""Read a JSON record without Spark, by the rules of Spark's parser (Jackson 2.18, Spark 4.1), for people.

NaN, Infinity, -INF   numbers that are not finite: allowed, and a mapped one is `not_finite`, also as a text
a name twice          the last value counts, and each of the values must be a number if it is read as one
too large             more than 1,000 levels, 1,000 digits of a number, or 50,000 letters of a name: no JSON
"""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from service.admission import long_format, mapped, numbers
from service.settings import Input, field_path

SHOWN = 80
"""The longest value that is quoted, in characters."""
_JSON_BLANKS = " \t\n\r"
_LEVELS, _DIGITS, _NAME = 1_000, 1_000, 50_000
sys.setrecursionlimit(max(sys.getrecursionlimit(), 4 * _LEVELS))  # for json, which recurs into each level
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]|[+-]INF\b|\+Infinity\b', re.DOTALL)
_NOT_DIGITS = re.compile(r"[-+.eE]")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TEXTS = _NOT_FINITE | {"+INF": math.inf, "+Infinity": math.inf, "-INF": -math.inf}
"""Texts that are read as numbers."""
HALF_ESCAPE = r"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB]\w\w(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]\w\w)\\u[dD][c-fC-F])"
"""An escape of JSON for half of a character, which is no text, as a regular expression of Java and of Python."""
HALF = re.compile(HALF_ESCAPE, re.ASCII)


class Object(dict[str, Any]):
    """An object of JSON; `every` returns all values of a name, the last one at the end."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs if len(self) < len(pairs) else None

    def every(self, name: str) -> list[Any]:
        if self._pairs is None:
            return [self[name]] if name in self else []
        return [value for each, value in self._pairs if each == name]


def value_of(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError; a JSONDecodeError has the place."""
    tokens = _require_levels(text)
    try:
        return _loaded(text)
    except json.JSONDecodeError:
        infinities = [each for each in tokens if each[0][-1] in "Fy"]
        if not infinities:
            raise
        for token in reversed(infinities):
            name = "-Infinity" if token[0][0] == "-" else "Infinity"
            text = text[: token.start()] + name + text[token.end() :]
        return _loaded(text)


def first_value(text: str) -> Any:
    """Return the value at the begin of a text, by the rules of Spark's try_parse_json. Raises ValueError."""
    text = text.lstrip(_JSON_BLANKS)
    value, end = _STRICT.raw_decode(text)
    if isinstance(value, int | float) and text[end : end + 1] not in ("", *_JSON_BLANKS):
        raise ValueError("is not JSON: a number with letters behind it")
    _require_levels(text[:end])
    return value


def as_number(value: Any) -> float | None:
    """Return a value as a double, None for null. Raises TypeError for what is no number."""
    if isinstance(value, str) and value in _TEXTS:
        return _TEXTS[value]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def wrong_types(record: Mapping[str, Any], form: Input) -> Iterator[str]:
    """Yield a line for each mapped field whose type cannot be read; null and a missing field can."""
    for path in mapped.number_paths(form):
        for place, value in _every(record, path):
            if place != path:
                yield f"{place} = {quoted(value)}: expected an object, to read {path}"
            elif not _is_number(value):
                yield f"{path} = {quoted(value)}: expected a number{_hint(value, form)}"
    yield from long_format.wrong_values(form, partial(at, record), quoted)
    columns, device = dict.fromkeys(form.column_fields), form.device_fields
    times = form.time_fields if form.event_time_unit == "iso" or form.text_numbers else ()
    for path in dict.fromkeys((*columns, *times, *device, *form.text_fields)):
        for place, value in _every(record, path):
            if place != path:
                yield f"{place} = {quoted(value)}: expected an object, to read {path}"
        value = at(record, path)  # of a text the last value counts alone
        roles = [is_column for is_column, paths in ((True, columns), (False, device)) if path in paths]
        yield from list(filter(None, (wrong_text(path, value, is_column=each) for each in roles)))[:1]


def _hint(value: Any, form: Input) -> str:
    """Return the setting that reads a number in a text, or a truth value."""
    text = json.dumps(value) if isinstance(value, bool) else value
    number = numbers.of_text(text) if isinstance(text, str) else None
    return f" ({form.place}.text_numbers = true reads it)" if number is not None and math.isfinite(number) else ""


def wrong_text(path: str, value: Any, *, is_column: bool) -> str:
    """Return why a value of JSON cannot be a column, or a part of a device id; "" for one that can."""
    if is_column and not isinstance(value, bool) and not _is_device(value):
        return f"{path} = {quoted(value)}: expected text, a whole number of 64 bits, true or false"
    if not is_column and not _is_device(value):
        return f"{path} = {quoted(value)}: expected text, or a whole number of 64 bits"
    return ""


def at(record: Any, path: str) -> Any:
    """Return the value at a path, None without it."""
    for part in field_path.parts(path):
        record = record.get(part) if isinstance(record, Mapping) else None
    return record


def quoted(value: Any, most: int = SHOWN) -> str:
    """Return a value as JSON, or as text where it is not JSON, cut to `most` characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = str(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _require_levels(text: str) -> list[re.Match[str]]:
    """Return the tokens of a text that are no strings. Raises ValueError for too many levels."""
    tokens = [each for each in _TOKENS.finditer(text) if each[0][0] != '"']
    depth = deepest = 0
    for token in tokens:
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        deepest = max(deepest, depth)
    if deepest > _LEVELS:
        raise ValueError(f"is not JSON: {deepest} levels, limit {_LEVELS}")
    return tokens


def _loaded(text: str) -> Any:
    return json.loads(
        text,
        parse_constant=_NOT_FINITE.__getitem__,
        parse_int=_integer,
        parse_float=_fraction,
        object_pairs_hook=_object,
    )


def _object(pairs: list[tuple[str, Any]]) -> Object:
    if longest := next((name for name, _ in pairs if len(name) > _NAME), ""):
        raise ValueError(f"is not JSON: a name of {len(longest)} letters, limit {_NAME}")
    return Object(pairs)


def _once(pairs: list[tuple[str, Any]]) -> Object:
    found = _object(pairs)
    if len(found) < len(pairs):
        raise ValueError("is not JSON: a name twice in one object")
    return found


def _not_finite(name: str) -> Any:
    raise ValueError(f"is not JSON: {name}")


def _integer(text: str) -> int:
    return int(_checked(text))


def _fraction(text: str) -> float:
    return float(_checked(text))


def _checked(text: str) -> str:
    if len(text) > _DIGITS and (digits := len(_NOT_DIGITS.sub("", text).removeprefix("0"))) > _DIGITS:
        raise ValueError(f"is not JSON: a number of {digits} digits, limit {_DIGITS}")
    return text


_STRICT = json.JSONDecoder(
    parse_constant=_not_finite, parse_int=_integer, parse_float=_fraction, object_pairs_hook=_once
)
"""Decodes as VariantBuilder does: no NaN, and no name twice."""


def _is_number(value: Any) -> bool:
    try:
        as_number(value)
    except TypeError:
        return False
    return True


def _is_device(value: Any) -> bool:
    if isinstance(value, str):
        return not re.search("[\ud800-\udfff]", value)  # JSON can escape half of a surrogate pair, which is not UTF-8
    if isinstance(value, bool):
        return False
    return value is None or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)


def _every(record: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path with each of its values; or the parent that is not an object, and its value."""

    names = field_path.parts(path)

    def walk(node: Any, depth: int) -> Iterator[tuple[str, Any]]:
        if node is None or depth == len(names):
            yield path, node
        elif not isinstance(node, Mapping):
            yield field_path.spelled(names[:depth]), node
        else:
            name = names[depth]
            for each in node.every(name) if isinstance(node, Object) else [node.get(name)]:
                yield from walk(each, depth + 1)

    yield from walk(record, 0)

"""Readings within a record: `array = "values"` is an array at a path, `array = "*"` an object whose keys are names.

    array = "values"     {"ts": 1, "values": [{"t": 5}, {"t": 6}]}       two readings
    array = "*"          {"pump-1": [{"t": 5}], "pump-2": {"t": 6}}      two readings
    array = "a.b"        {"a": [{"b": [{"t": 5}]}, {"b": [{"t": 6}]}]}   two readings: arrays on the way are opened, too

A reading is a JSON object: the element, with `^`, the object around it without what the path leads into. That object has a `^`
of its own. So a field beside the array is `^.ts`, one further out `^.^.ts`. `^key` is the key of an entry, for `*`. An element
that is an array becomes an object by position, `0`, `1`; a single value becomes the field `value`. A text
at the path or on the way that holds an object or an array of JSON is opened.

As in arrays.py the record is cut without a JSON parser: the bytes of a reading are those of the record, and its number is its
place in the record. Both must stay the same for ever. An object with `^` is one reading: a replay sends a rejected reading as
such a record.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from service.admission.arrays import (
    CLOSES,
    EMPTY,
    OPENS,
    QUOTE,
    STRING,
    TOKEN,
    UNDECODABLE,
    UnreadableArrayError,
    collected,
)
from service.settings.field_path import AROUND, KEY

EACH = "*"
"""The step of a path into all members of an object that are objects or arrays."""
_LEVELS = 1_000
"""As in Spark's parser (json_record.py)."""
_MOST_LISTS = 8
"""Arrays directly in one another on the way to the readings: each of them is searched for its end."""
_BLANKS = b" \t\n\r"
_SPACE = re.compile(rb"[ \t\n\r]*+")
_NAME = re.compile(STRING, re.DOTALL)
_SINGLE = re.compile(STRING + rb"|[^ \t\n\r,\[\]{}\"]++", re.DOTALL)
_Member = tuple[str, int, int, int]
"""Name, begin, begin of the value, and end."""


@dataclass(frozen=True)
class _Around:
    """The object around a reading: its `members`, the object around it, and with `key` the reading's name in it.

    The text is made when there is a reading: a large record may hold many arrays without one.
    """

    members: Sequence[bytes]
    outer: "_Around | None"
    key: bytes = b""

    @cached_property
    def text(self) -> bytes:
        """The members that each reading gets."""
        return b'"%b":{%b}%b' % (
            AROUND.encode(),
            b",".join([*self.members, self.outer.text] if self.outer else self.members),
            self.key,
        )


def readings(value: bytes, path: Sequence[str], limit: int, place: str = "input") -> list[bytes] | None:
    """Return the readings at a path of a record; None for a record that is one reading. Raises UnreadableArrayError.

    The readings have at most `limit` bytes together.
    """
    text = value.strip(_BLANKS)
    if text[:1] not in {b"{", b"["}:
        raise UnreadableArrayError(UNDECODABLE, "is neither an array of readings nor an object")
    members = list(_members(text, 0)) if text.startswith(b"{") else None
    # Of an object, the members are found once: each pass over a record of 8 MB takes a second.
    end = _end(text, 0) if members is None else _skip(text, members[-1][3] if members else 1) + 1
    if end != len(text):
        raise UnreadableArrayError(UNDECODABLE, f"{len(text) - end} bytes after the record")
    if members is not None and any(name == AROUND for name, *_ in members):
        return None
    lacking: list[str] = []
    try:
        return collected(_at(text, 0, tuple(path), None, lacking, members), limit, place)
    except UnreadableArrayError as error:
        if error.reason != EMPTY or not lacking:
            raise
        raise UnreadableArrayError(UNDECODABLE, f"has no field {lacking[0]!r}, where its readings are") from error


def _at(
    text: bytes,
    at: int,
    path: tuple[str, ...],
    around: _Around | None,
    lacking: list[str],
    members: Sequence[_Member] | None = None,
    lists: int = 0,
) -> Iterator[bytes]:
    """Yield the readings at a path of the value that begins at `at`; each of them gets the members of `around`.

    An object on the way may lack the field, where others of an array have it: its name is added to `lacking`.
    `members` are those of the value, if they are found already. `lists` counts the arrays that are directly in one another.
    """
    first = text[at : at + 1]
    if first == b'"' and (opened := _opened(text, at)):
        yield from _at(opened, 0, path, around, lacking)
    elif first == b"[":
        if lists == _MOST_LISTS:
            raise UnreadableArrayError(
                UNDECODABLE, f"has more than {_MOST_LISTS} arrays in one another before its readings"
            )
        for begin, end in _elements(text, at):
            inner_lists = lists + 1
            yield from (
                _at(text, begin, path, around, lacking, lists=inner_lists)
                if path
                else [_reading(text[begin:end], around)]
            )
    elif text.startswith(b"null", at):
        return
    elif not path:
        yield _reading(text[at : _end(text, at)], around)
    elif first == b"{":
        members = list(_members(text, at)) if members is None else members
        if path[0] == EACH:
            inner = [each for each in members if text[each[2]] in OPENS]
            beside = [text[begin:end] for _, begin, value, end in members if text[value] not in OPENS]
            for name, _, value, _ in inner:
                key = b',"%b":%b' % (KEY.encode(), json.dumps(name).encode())
                yield from _at(text, value, path[1:], _Around(beside, around, key), lacking)
            return
        values = [value for name, _, value, _ in members if name == path[0]]
        if not values:
            lacking.append(path[0])
            return
        beside = [text[begin:end] for name, begin, _, end in members if name != path[0]]
        # Of a name that occurs twice the last value counts.
        yield from _at(text, values[-1], path[1:], _Around(beside, around), lacking)
    else:
        raise UnreadableArrayError(UNDECODABLE, f"has no object with {path[0]!r}, where its readings are")


def _opened(text: bytes, at: int) -> bytes:
    """Return the JSON that a text holds, an object or an array; nothing of another text."""
    try:
        inner = str(json.loads(text[at : _end(text, at)])).encode().strip(_BLANKS)
    except ValueError:
        return b""
    return inner if inner[:1] in {b"{", b"["} and _end(inner, 0) == len(inner) else b""


def _reading(element: bytes, around: _Around | None) -> bytes:
    """Return an element as an object, with the members of `around` behind its own."""
    if element.startswith(b"["):
        parts = [element[begin:end] for begin, end in _elements(element, 0)]
        element = b"{%b}" % b",".join(b'"%d":%b' % pair for pair in enumerate(parts))
    elif not element.startswith(b"{"):
        element = b'{"value":%b}' % element
    own, more = element[1:-1].strip(_BLANKS), around.text if around else b""
    return b"{%b%b%b}" % (own, b"," if own and more else b"", more)


def _members(text: bytes, at: int) -> Iterator[_Member]:
    """Yield name, begin, begin of the value and end of each member of the object at `at`."""
    place = _skip(text, at + 1)
    while text[place : place + 1] != b"}":
        begin = place
        quoted = _NAME.match(text, begin)
        if quoted is None or text[value := _skip(text, quoted.end())] != ord(":"):
            raise UnreadableArrayError(UNDECODABLE, f"is not JSON: expected a name at byte {begin}")
        value = _skip(text, value + 1)
        end = _end(text, value)
        yield _name(quoted[0], begin), begin, value, end
        place = _after(text, end, b"}")


def _elements(text: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each element of the array at `at`."""
    place = _skip(text, at + 1)
    while text[place : place + 1] != b"]":
        end = _end(text, place)
        yield place, end
        place = _after(text, end, b"]")


def _after(text: bytes, end: int, last: bytes) -> int:
    """Return where the next member or element begins, or where `last` is."""
    place = _skip(text, end)
    if text[place : place + 1] == last:
        return place
    following = _skip(text, place + 1)
    if text[place : place + 1] != b"," or text[following : following + 1] == last:
        raise UnreadableArrayError(UNDECODABLE, f"is not JSON: expected a comma and a value at byte {place}")
    return following


def _end(text: bytes, at: int) -> int:
    """Return the end of the value that begins at `at`."""
    if text[at : at + 1] in {b"{", b"["}:
        depth = 0
        for token in TOKEN.finditer(text, at):
            begin, end = token.span()
            if end - begin > 1:
                if depth == 0:
                    return end
            elif text[begin] in OPENS:
                depth += 1
                if depth > _LEVELS:
                    raise UnreadableArrayError(UNDECODABLE, f"is not JSON: more than {_LEVELS:,} levels")
            elif text[begin] == QUOTE:
                break
            elif text[begin] in CLOSES:
                depth -= 1
                if depth == 0:
                    return end
        raise UnreadableArrayError(UNDECODABLE, f"is not JSON: what begins at byte {at} has no end")
    single = _SINGLE.match(text, at)
    if single is None:
        raise UnreadableArrayError(UNDECODABLE, f"is not JSON: expected a value at byte {at}")
    return single.end()


def _skip(text: bytes, at: int) -> int:
    blank = _SPACE.match(text, at)
    end = blank.end() if blank else at
    if end >= len(text):
        raise UnreadableArrayError(UNDECODABLE, "is not JSON: it ends early")
    return end


def _name(quoted: bytes, at: int) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError as error:
        raise UnreadableArrayError(UNDECODABLE, f"is not JSON: the name at byte {at}") from error

"""Arrays of readings: a record of an input with `array = true` is a JSON array, plain or compressed by gzip.

The array is cut at the commas of its outermost level, without a JSON parser. So an element that is no JSON is rejected alone,
and each element reaches decode.py with the bytes that the device has sent. The number of an element in its array is part of its
place in rejects and marks: the cuts must stay the same for ever.

    [{"t": 1}, 5, {"t": 3}]    three readings, with the index 0, 1 and 2; the second one is rejected
    {"t": 1}                   one reading, without an index; a replay sends a rejected element as such a record
    []                         no reading: counted as filtered
    anything else              one reject, without an index, with the bytes of the record

What a record unpacks to is bounded while it is unpacked, by `max_array_bytes` and MAX_READINGS.
"""

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

NO_INDEX = -1
OVERSIZED, UNDECODABLE = "oversized", "undecodable"
"""Reasons, as in readings.REASONS."""
EMPTY = "filtered"
"""The fault of a record whose array has no element, in the place of a reason: it is counted as filtered."""
MAX_READINGS = 100_000
"""The most readings of a record."""
LARGEST_ARRAY = 256 << 20
"""The largest `max_array_bytes`."""

_GZIP = b"\x1f\x8b"
_GZIP_BITS = 16 + zlib.MAX_WBITS
_MAX_MEMBERS = 100
"""The most gzip members of a record: each costs a copy of what follows."""
_BLANKS = b" \t\n\r"
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_PLAIN = rb'[^"{}\[\]]*+'
_FLAT = _PLAIN + rb"(?:" + STRING + _PLAIN + rb")*+"
_NESTED = _PLAIN + rb"(?:(?:" + STRING + rb"|\{" + _FLAT + rb"\}|\[" + _FLAT + rb"\])" + _PLAIN + rb")*+"
TOKEN = re.compile(rb"\{" + _NESTED + rb"\}|" + STRING + rb'|[\[\]{},"]', re.DOTALL)
"""An object with at most one level below it, a string, or one of the characters that count.

The first is there for speed: one token of a usual reading. Possessive, so that the time grows with the text alone.
"""
_BETWEEN = re.compile(rb"\}[ \t\n\r]*+,[ \t\n\r]*+\{")
OPENS, CLOSES, _COMMA, QUOTE = frozenset(b"[{"), frozenset(b"]}"), ord(","), ord('"')


@dataclass(frozen=True, slots=True)
class Cut:
    """A record's text, unpacked, and its readings; None where the text is the one reading."""

    text: bytes
    readings: list[bytes] | None = None

    @property
    def each(self) -> list[bytes]:
        return [self.text] if self.readings is None else self.readings

    @property
    def size(self) -> int:
        """The bytes of the readings, at least those of the record."""
        return max(len(self.text), sum(map(len, self.each)))


class UnreadableArrayError(ValueError):
    """Raised for a value without readings; `reason` is that of its reject, or EMPTY."""

    def __init__(self, reason: str, detail: str) -> None:
        # It may quote the record, and JSON can escape half of a character, which is no text for Arrow.
        super().__init__(detail.encode(errors="backslashreplace").decode())
        self.reason = reason


def unpacked(value: bytes, limit: int = LARGEST_ARRAY, place: str = "input") -> bytes:
    """Return a value as text of JSON: decompressed if it begins as gzip does. Raises UnreadableArrayError."""
    allowed = f"limit {limit} ({place}.max_array_bytes)"
    if len(value) > limit:
        raise UnreadableArrayError(OVERSIZED, f"{len(value)} bytes, {allowed}")
    if not value.startswith(_GZIP):
        return value
    parts: list[bytes] = []
    size, rest = 0, value
    while rest:
        if len(parts) == _MAX_MEMBERS:
            raise UnreadableArrayError(UNDECODABLE, f"gzip: more than {_MAX_MEMBERS} members")
        member = zlib.decompressobj(_GZIP_BITS)
        try:
            parts.append(member.decompress(rest, limit + 1 - size))
        except zlib.error as error:
            raise UnreadableArrayError(UNDECODABLE, f"gzip: {error}") from error
        size += len(parts[-1])
        if size > limit:
            raise UnreadableArrayError(OVERSIZED, f"{len(value)} bytes of gzip, unpacked {allowed}")
        if not member.eof:
            raise UnreadableArrayError(UNDECODABLE, "gzip: the stream ends early")
        rest = member.unused_data.lstrip(b"\0")  # gzip pads with zeros
    return b"".join(parts)  # of one part: the part itself, not a copy


def collected(readings: Iterable[bytes], limit: int, place: str) -> list[bytes]:
    """Return the readings of a record that are made one after the other.

    Each of them may repeat what the record has once. Raises UnreadableArrayError for none, too many, or more than `limit` bytes.
    """
    found: list[bytes] = []
    size = 0
    for reading in readings:
        size += len(reading)
        if len(found) >= MAX_READINGS:
            raise UnreadableArrayError(OVERSIZED, f"more than {MAX_READINGS} readings in one record")
        if size > limit:
            detail = f"its readings have more than {limit} bytes, with what each of them repeats of the record"
            raise UnreadableArrayError(OVERSIZED, f"{detail} ({place}.max_array_bytes)")
        found.append(reading)
    if not found:
        raise UnreadableArrayError(EMPTY, "the record has no readings")
    return found


def elements(text: bytes) -> list[bytes] | None:
    """Return the elements of an array as they are in the text; None for an object. Raises UnreadableArrayError."""
    text = text.strip(_BLANKS)
    if text.startswith(b"{"):
        return None
    if not text.startswith(b"["):
        raise UnreadableArrayError(UNDECODABLE, "is neither an array of readings nor an object")
    flat = _flat(text)
    return _walked(text) if flat is None else _counted(flat, b"")


def _flat(text: bytes) -> list[bytes] | None:
    """Return the elements of an array of objects of single values, as most devices write them; None for another array.

    It takes a quarter of the time of `_walked`. All braces are those of elements if they are as many, and no cut is in a
    string if each element has an even number of quotes, none of them escaped.
    """
    between = _BETWEEN.search(text)
    inner = text[1:-1].strip(_BLANKS)
    braces = text.count(b"{")
    if between is None or b"\\" in text or braces > MAX_READINGS or braces != text.count(b"}"):
        return None
    if not (inner.startswith(b"{") and inner.endswith(b"}") and text.endswith(b"]")):
        return None
    parts = inner[1:-1].split(between[0])
    is_cut_in_text = any(each.count(b'"') & 1 for each in parts)
    if is_cut_in_text or len(parts) != braces or text.count(b"[") != 1 or text.count(b"]") != 1:
        return None
    return [b"{%b}" % each for each in parts]


def _walked(text: bytes) -> list[bytes]:
    found: list[bytes] = []
    depth, begin = 0, 1
    for token in TOKEN.finditer(text):
        at, end = token.span()
        first = text[at]
        if end - at > 1:
            continue
        if first in OPENS:
            depth += 1
        elif first == QUOTE:
            raise UnreadableArrayError(UNDECODABLE, f"the array has a string without an end, at byte {at}")
        elif first in CLOSES:
            depth -= 1
            if depth == 0:
                found.append(text[begin:at].strip(_BLANKS))
                return _counted(found, text[end:])
        elif first == _COMMA and depth == 1:
            if len(found) >= MAX_READINGS:
                raise UnreadableArrayError(OVERSIZED, f"more than {MAX_READINGS} readings in one record")
            found.append(text[begin:at].strip(_BLANKS))
            begin = end
    raise UnreadableArrayError(UNDECODABLE, "the array has no end")


def _counted(found: list[bytes], behind: bytes) -> list[bytes]:
    if behind:
        raise UnreadableArrayError(UNDECODABLE, f"{len(behind)} bytes after the array")
    if found == [b""]:
        raise UnreadableArrayError(EMPTY, "the array has no readings")
    if len(found) > MAX_READINGS:
        raise UnreadableArrayError(OVERSIZED, f"more than {MAX_READINGS} readings in one record")
    return found

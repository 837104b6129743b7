"""The readings of a record that is an array, as the oracle reads them: character by character."""

import gzip
import zlib

MOST = 100_000
UNDECODABLE, OVERSIZED, EMPTY = "undecodable", "oversized", ""
_BLANKS = b" \t\n\r"


class NoReadingsError(ValueError):
    """Raised for a record without readings; its text is the reason of the reject, EMPTY for an empty array."""


def readings(value: bytes, limit: int, key_bytes: int) -> list[bytes] | None:
    """The elements of a record's array; None for a record that is one reading. Raises NoReadingsError."""
    text = text_of(value, limit).strip(_BLANKS)
    if text.startswith(b"{"):
        return None
    if not text.startswith(b"["):
        raise NoReadingsError(UNDECODABLE)
    found = _elements(text)
    if found == [b""]:
        raise NoReadingsError(EMPTY)
    if len(found) > MOST or len(text) + len(found) * key_bytes > limit:
        raise NoReadingsError(OVERSIZED)
    return found


def text_of(value: bytes, limit: int) -> bytes:
    """The text of a record, which may be compressed. Raises NoReadingsError."""
    if len(value) > limit:
        raise NoReadingsError(OVERSIZED)
    if value[:2] != b"\x1f\x8b":
        return value
    if value[3:4] > b"\x1f":  # reserved flags, which Python's gzip overlooks (RFC 1952, 2.3.1.2)
        raise NoReadingsError(UNDECODABLE)
    try:
        text = gzip.decompress(value)
    except (EOFError, OSError, zlib.error) as error:
        raise NoReadingsError(UNDECODABLE) from error
    if len(text) > limit:
        raise NoReadingsError(OVERSIZED)
    return text


def _elements(text: bytes) -> list[bytes]:
    """Cut at the commas that are in no string and in no inner bracket."""
    found: list[bytes] = []
    depth, begin, in_string, escaped = 0, 1, False, False
    for at, each in enumerate(text):
        letter = chr(each)
        if in_string:
            if escaped:
                escaped = False
            elif letter == "\\":
                escaped = True
            elif letter == '"':
                in_string = False
        elif letter == '"':
            in_string = True
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
            if depth == 0:
                if text[at + 1 :]:
                    raise NoReadingsError(UNDECODABLE)
                return [*found, text[begin:at].strip(_BLANKS)]
        elif letter == "," and depth == 1:
            found.append(text[begin:at].strip(_BLANKS))
            begin = at + 1
    raise NoReadingsError(UNDECODABLE)

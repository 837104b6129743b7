"""Print the output of commands as plain text: text of a device, a broker or a file cannot control the terminal."""

import json
from typing import Any


def printable(text: str) -> str:
    """The text with each control character, newline, terminal escape and invisible character as its Python escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def say(line: object) -> None:
    """Print one line on standard output. Characters outside of the output's encoding are escaped, too."""
    print(printable(str(line)).encode(errors="backslashreplace").decode())  # noqa: T201


def counted(count: int, noun: str) -> str:
    """The number with the noun, in the plural unless it is 1."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def document(content: Any) -> str:
    """JSON of one line, in ASCII without control characters. Raises ValueError for NaN and infinities."""
    return json.dumps(content, allow_nan=False).replace("\x7f", "\\u007f")

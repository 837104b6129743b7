"""Limits of a device id: its length, and the characters that it must not have.

An id becomes part of key names, terminal lines and pages. Characters that change the text around the id are refused:

    control characters        C0, DEL and C1: they end a line, or command a terminal
    U+2028, U+2029            they end a line for JavaScript and for Python's splitlines
    bidirectional controls    Unicode's 12: they change the order of the text around the id

Characters that only make two ids look alike (zero-width joiners, letters of several scripts) are allowed: some languages need
them, and they affect only the readers of that device.
"""

import re

from pyspark.sql import Column
from pyspark.sql import functions as F

MAX_BYTES = 256
"""Bytes of UTF-8. The longest ids in use, URNs and certificate subjects, are shorter."""

_REFUSED = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_PLAIN = r"\A[ -~]*\z"
_SHOWN = 64


def is_bad(device: Column) -> Column:
    """Whether an id is too long or has a refused character; null for null."""
    # The first pattern is one range, and decides for every id of printable ASCII; only other ids are searched with the second.
    return (F.octet_length(device) > MAX_BYTES) | (~device.rlike(_PLAIN) & device.rlike(f"[{_REFUSED}]"))


def fault(device: Column) -> Column:
    """Describe a bad id in printable text: its length, the rule, its first characters in hexadecimal.

    An expression that replaces the characters would make admission's generated method longer than HotSpot compiles
    (docs/decisions/0012-no-generated-method-that-hotspot-refuses.md).
    """
    rule = f" bytes, the limit is {MAX_BYTES} and no control character: 0x"
    return F.concat(F.octet_length(device), F.lit(rule), F.hex(F.left(device, F.lit(_SHOWN))))


def problem(device: str) -> str:
    """Return which limit an id breaks, for people; "" for an id without a fault."""
    size = len(device.encode(errors="replace"))
    if size > MAX_BYTES:
        return f"{size} bytes, limit {MAX_BYTES} bytes"
    refused = re.search(f"[{_REFUSED}]", device)
    return f"character {refused.start() + 1} is U+{ord(refused[0]):04X}, a control character" if refused else ""

"""Device ids: how long one may be, and which characters it may not have.

An id becomes part of key names, lines of a terminal and pages, so what would leave its place there is refused:

    control characters    C0, DEL and C1: they end a line, or command a terminal
    U+2028, U+2029        they end a line for JavaScript and for Python's splitlines
    Unicode's 12 bidirectional controls: they change the order in which the text *beside* the id is shown

Characters that only make two ids look alike (zero-width joiners, letters of several scripts) are allowed: some languages need
them, and they harm only whoever reads that device.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

MAX_BYTES = 256
"""Of UTF-8. The longest id that is in use anywhere, a URN or a certificate's subject, is shorter."""

_REFUSED = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_PLAIN = r"\A[ -~]*\z"
_SHOWN = 64


def is_bad(device: Column) -> Column:
    """Whether an id is too long or has a character that is refused; null for null."""
    # An id of printable ASCII is looked at once, by a loop over one range; only another is searched for what is refused.
    return (F.octet_length(device) > MAX_BYTES) | (~device.rlike(_PLAIN) & device.rlike(f"[{_REFUSED}]"))


def fault(device: Column) -> Column:
    """A bad id as text that can be printed: its first characters in hexadecimal, its length, the rule.

    Short on purpose: text with the characters replaced made admission's generated method longer than HotSpot compiles
    (docs/decisions/0012-no-generated-method-that-hotspot-refuses.md).
    """
    rule = f" bytes, the limit is {MAX_BYTES} and no control character: 0x"
    return F.concat(F.octet_length(device), F.lit(rule), F.hex(F.left(device, F.lit(_SHOWN))))

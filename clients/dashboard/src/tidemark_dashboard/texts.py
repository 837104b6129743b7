"""How values are written for people: the filters of the templates. What a device has sent is text, never markup."""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime

from markupsafe import Markup

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode's categories of characters that cannot be seen, or that change how others are shown."""
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
LONGEST = 80
"""Characters of an id in a table."""


def shown(text: object) -> str:
    """The text with every character visible: control characters and the like as escapes, such as \\x1b."""
    return "".join(
        each
        if unicodedata.category(each) not in _HIDDEN
        else (f"\\x{ord(each):02x}" if ord(each) < 256 else f"\\u{{{ord(each):x}}}")
        for each in str(text)
    )


def short(text: object) -> str:
    """`shown`, cut to what a table has room for."""
    found = shown(text)
    return found if len(found) <= LONGEST else found[: LONGEST - 1] + "\u2026"


def count(value: float | None) -> str:
    """A whole number with commas between thousands; a dash for none."""
    return "\u2013" if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    """A measured value with two decimals, or with four digits where it is very large or small; a dash for none."""
    if value is None:
        return "\u2013"
    if value != 0 and not 1e-2 <= abs(value) < 1e9:
        return f"{value:.3e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return f"{value:,.2f}".replace("-", "\u2212")


def seconds(value: float | None) -> str:
    """Seconds, in ms below one second."""
    if value is None:
        return "\u2013"
    return f"{value * 1000:,.0f} ms" if value < 1 else duration(value * 1000) if value >= 120 else f"{value:.1f} s"


def duration(ms: float | None) -> str:
    """A length of time by its two largest units, such as 1 h 20 min."""
    if ms is None:
        return "\u2013"
    if abs(ms) == float("inf"):
        return "unlimited"
    sign, left = ("\u2212" if ms < 0 else ""), round(abs(ms))
    if left < 1000:
        return f"{sign}{left} ms"
    left = round(left / 1000) * 1000
    parts: list[str] = []
    for unit, length in _UNITS:
        if left >= length and len(parts) < 2:
            parts.append(f"{left // length} {unit}")
            left %= length
        elif parts:
            break
    return sign + " ".join(parts)


def size(value: float | None) -> str:
    """Bytes."""
    if value is None:
        return "\u2013"
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= length:
            return f"{value / length:,.1f} {unit}"
    return f"{value:,.0f} B"


def percent(value: float | None) -> str:
    """A share, rounded down: only all is 100 %, and only none is 0 %."""
    if value is None:
        return "\u2013"
    if value in {0.0, 1.0}:
        return f"{100 * value:.0f} %"
    if value < 0.001:
        return "below 0.1 %"
    tenths = math.floor(1000 * value + 1e-9) / 10
    return f"{tenths:.1f} %" if value < 0.1 or value > 0.9 else f"{math.floor(tenths)} %"


def moment(ms: float | None, form: str = "time") -> Markup:
    """A point in time: in UTC, until the page's script writes it in the reader's zone. `form` is time, full or ago."""
    if not ms or ms <= 0:
        return Markup('<span class="none">never</span>')
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # beyond the year 9999
        return Markup("<span>{} ms</span>").format(int(ms))
    utc = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    text = utc if form in {"full", "ago"} else f"{at:%H:%M:%S} UTC"
    return Markup('<time datetime="{}" data-form="{}" title="{}">{}</time>').format(
        at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z", form, utc, text
    )


def points(values: list[float | None], width: int = 120, height: int = 26) -> str:
    """The path of a sparkline; a missing value interrupts the line."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    spread = (high - low) or 1.0
    step = width / max(1, len(values) - 1)
    path, pen = [], "M"
    for place, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        middle = height / 2 if high == low else 2 + (high - value) / spread * (height - 4)
        path.append(f"{pen}{place * step:.1f} {middle:.1f}")
        pen = "L"
    if len(known) == 1:
        path.append("h2")
    return " ".join(path)


FILTERS = {
    each.__name__: each for each in (shown, short, count, number, seconds, duration, size, percent, moment, points)
}

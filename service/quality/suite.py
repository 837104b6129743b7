"""A suite of Great Expectations as `tidemark profile` draws it: its expectations, its limits with margins, its file."""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from service.errors import SettingsError, SetupError
from service.quality.validation import labels

FOLDER = "schemas"
MOSTLY = 0.99
LESS_THERE = 0.02
SHAPES = 5
"""With more shapes of texts than this, an expectation only has their characters."""
OTHERS = 16

Item = dict[str, Any]
"""One expectation: its type and its kwargs."""


def default_place(folder: Path, name: str) -> Path:
    """Return the file of a suite if the settings in `folder` name none: in its folder `schemas` if there is one, else in it."""
    schemas = folder / FOLDER
    return (schemas if schemas.is_dir() else folder) / name


def hint(section: str, folder: Path, out: Path) -> str:
    """Return the line that says how settings in `folder` name the file, relative to it where the file is below it."""
    place, base = out.resolve(), folder.resolve()
    name = place.relative_to(base) if place.is_relative_to(base) else place
    return f'To use it, set expectations = "{name}" in [{section}], and restart'


def require_place(out: Path, *, replace: bool) -> None:
    """Raise SettingsError if the file exists and `replace` is false, SetupError if its folder cannot be written."""
    if out.exists() and not replace:
        raise SettingsError(f"{out} is there already", remedy="Name another file with --out, or give --replace")
    if not os.access(out.parent, os.W_OK):
        what = f"{out}: there is no folder {out.parent} that can be written"
        raise SetupError(what, remedy="Make it, or name another file with --out")


def save(out: Path, suite: Mapping[str, Any], drawn_from: str, say: Callable[[str], object], *, replace: bool) -> None:
    """Write the suite, and print its expectations. Raises SetupError."""
    write(out, suite, replace=replace)
    for line in shown(suite):
        say(line)
    say(f"drawn from {drawn_from}, written to {out}")


def write(out: Path, suite: Mapping[str, Any], *, replace: bool) -> None:
    """Write the suite atomically, with one line for each expectation. Raises SetupError."""
    lines = ",\n    ".join(json.dumps(each, ensure_ascii=False) for each in suite["expectations"])
    head = json.dumps({k: v for k, v in suite.items() if k != "expectations"}, indent=2, ensure_ascii=False)
    text = f'{head[:-2]},\n  "expectations": [\n    {lines}\n  ]\n}}\n'
    new = out.with_name(f".{out.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        # A link, unlike a rename, replaces nothing.
        new.replace(out) if replace else out.hardlink_to(new)
    except OSError as error:
        what = f"{out} cannot be written ({error.strerror})"
        raise SetupError(what, remedy="Name another file with --out") from error
    finally:
        new.unlink(missing_ok=True)


def shown(suite: Mapping[str, Any]) -> Iterator[str]:
    """Return a readable line for each expectation."""
    named = labels([(each["type"], each["kwargs"]) for each in suite["expectations"]])
    width = max(map(len, named))
    for name, each in zip(named, suite["expectations"], strict=True):
        limits = {k: v for k, v in each["kwargs"].items() if k not in {"column", "row_condition"}}
        yield f"{name:<{width}}  {', '.join(f'{key} {value}' for key, value in limits.items())}"


def pattern(texts: Iterable[str]) -> str:
    """Return a regular expression for these texts, such as ids, and similar ones; "" when they have too little in common."""
    all_texts = set(texts)
    shapes = sorted({re.sub(r"[0-9]+", "0", each) for each in all_texts})
    if len(shapes) <= SHAPES:
        patterns = [re.escape(shape).replace(r"\-", "-").replace("0", "[0-9]+") for shape in shapes]
        return f"^{patterns[0]}$" if len(patterns) == 1 else f"^(?:{'|'.join(patterns)})$"
    used = set().union(*all_texts)
    kinds = {"0-9": "0123456789", "A-Z": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "a-z": "abcdefghijklmnopqrstuvwxyz"}
    others = sorted(used.difference(*kinds.values()))
    ranges = "".join(name for name, characters in kinds.items() if used & set(characters))
    many = "*" if "" in all_texts else "+"
    return f"^[{ranges}{''.join(map(re.escape, others))}]{many}$" if len(others) <= OTHERS else ""


def item(kind: str, column: str, **kwargs: Any) -> Item:
    """Return an expectation of a column."""
    return {"type": f"expect_{kind}", "kwargs": {"column": column, **kwargs}}


def wider(low: float, high: float, by: float, unit: float | None = None) -> tuple[float, float]:
    """Widen the range by so many units, rounded outwards to two figures of the margin. The unit is the width if not given."""
    margin = max(by * (unit or high - low or abs(high) or 1.0), sys.float_info.min)
    digits = max(-300, min(1 - math.floor(math.log10(margin)), 300))
    return min(low, down(low - margin, digits)), max(high, up(high + margin, digits))


def less(share: float, by: float) -> float:
    """Return a share that is lower by so much, rounded down to hundredths."""
    return max(0.0, down(share - by, 2))


def down(value: float, digits: int) -> float:
    """Round down to so many digits after the point."""
    scaled = value * 10.0**digits
    return round(math.floor(scaled + 1e-9) / 10.0**digits, digits) if math.isfinite(scaled) else value


def up(value: float, digits: int) -> float:
    """Round up to so many digits after the point."""
    return -down(-value, digits) + 0.0

"""What commands print: plain lines, and the findings of a check with colours on a terminal."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from service.printing import complete, counted, printable, say

if TYPE_CHECKING:
    from service.commands.finding import Line

_STYLES = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[1;31m"}
_PLAIN = "\x1b[0m"


def say_all(lines: "Iterable[object]") -> None:
    """Print these, of which each may have several lines."""
    for line in lines:
        for text in str(line).splitlines() or [""]:
            say(text)


def is_coloured() -> bool:
    """Whether standard output is a terminal, and NO_COLOR (https://no-color.org) does not forbid colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def verdict(lines: "Sequence[Line]") -> str:
    """Return whether a service is ready by these findings: "ready, 2 warnings"."""
    failures, warnings = (sum(line.status == status for line in lines) for status in ("fail", "warn"))
    counts = [counted(number, noun) for number, noun in ((failures, "failure"), (warnings, "warning")) if number]
    return ", ".join(["not ready" if failures else "ready", *counts])


def report(lines: "Sequence[Line]") -> int:
    """Print the findings of a command; the exit status is that of the first failure, 0 without one."""
    if is_coloured():
        for line in lines:
            first, *others = map(printable, complete(str(line)).splitlines())
            print(f"{_STYLES[line.status]}{first[:4]}{_PLAIN}{first[4:]}", *others, sep="\n")
    else:
        say_all(complete(str(line)) for line in lines)
    return next((line.exit_status for line in lines if line.status == "fail"), 0)

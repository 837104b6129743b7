"""`tidemark status --watch`: the screen of `tidemark status` until Ctrl-C, with the conditions nearest to their limits."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from service.commands import status as screen
from service.monitoring import attention, status
from service.monitoring.pages import NoServiceError
from service.printing import aligned, printable, say
from service.settings import Metrics

SHOWN = 6
"""Conditions that are inactive: those nearest to their limits."""


class Watch:
    """What was seen of one service."""

    def __init__(self, metrics: Metrics, config: Path, name: str = "") -> None:
        """`name` is that of the pipeline, where the process may have several. Commands on the screen name `config`."""
        self._metrics, self._config, self._name = metrics, config, name
        self.document: dict[str, Any] | None = None
        self.conditions: dict[str, Any] = {}
        self.away = ""
        """Why `document` is None."""

    def look(self) -> None:
        """Ask the service once. If it does not answer, `document` is None."""
        try:
            self.document = status.asked(self._metrics, self._name)
            self.conditions = attention.asked(self._metrics, self._name)
        except NoServiceError as reason:
            self.document, self.away = None, str(reason)

    def lines(self) -> Iterator[str]:
        """Yield what is seen for a file: a line of figures, then a line for each alert."""
        if self.document is None:
            yield self.away
            return
        yield "; ".join(f"{name} {value}" for name, value in self.document["figures"].items())
        if attention.active(self.conditions):
            yield from attention.lines(self.conditions)

    def screen(self) -> Iterator[str]:
        """Yield what is seen for a terminal."""
        if self.document is None:
            yield f"{self.away}; still asking"
            return
        yield from screen.lines(self.document, self.conditions, 0, self._config)
        near = [each for each in self.conditions["conditions"] if each["state"] == "inactive" and _share(each) > 0]
        rows = [
            (each["alert"], attention.amount(each, each["value"]), attention.amount(each, each["limit"]))
            for each in sorted(near, key=_share, reverse=True)[:SHOWN]
        ]
        if rows:
            yield ""
            yield from aligned([("nearest to an alert", "now", "limit"), *rows])


def watch(metrics: Metrics, every_s: float, config: Path, name: str) -> int:
    """Show the service until Ctrl-C: on a terminal in place, else as lines. Return 0 if it runs, else 1."""
    shown = Watch(metrics, config, name)
    with contextlib.suppress(KeyboardInterrupt):
        _in_place(shown, every_s) if sys.stdout.isatty() else _lines(shown, every_s)
    return 0 if shown.document is not None and shown.document["state"] == "running" else 1


def _share(each: Mapping[str, Any]) -> float:
    """Return the value as a share of its limit, 0 where it has none."""
    value, limit = each["value"], each["limit"]
    return float(value / limit) if value and limit and value < limit else 0.0


def _in_place(shown: Watch, every_s: float) -> None:
    from rich.console import Console  # noqa: PLC0415 - as in service/commands/progress.py
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            shown.look()
            live.update(Text("\n".join(map(printable, shown.screen()))), refresh=True)
            time.sleep(every_s)


def _lines(shown: Watch, every_s: float) -> None:
    while True:
        shown.look()
        for line in shown.lines():
            say(line)
        sys.stdout.flush()
        time.sleep(every_s)

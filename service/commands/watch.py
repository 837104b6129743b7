"""`tidemark status --watch`: the running service in a terminal: state, rates, lag, phases, rejects, and what needs attention."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from service.monitoring import attention, status
from service.monitoring.pages import NoServiceError
from service.printing import printable, say
from service.settings import Metrics

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 6
"""Conditions that are inactive: those nearest to their limits."""


class Watch:
    """What was seen of one service."""

    def __init__(self, metrics: Metrics, name: str = "") -> None:
        """`name` is that of the pipeline, where the process may have several."""
        self._metrics, self._name = metrics, name
        self.document: dict[str, Any] | None = None
        self.conditions: dict[str, Any] | None = None
        self.away = ""
        """Why `document` is None."""

    def look(self) -> None:
        """Ask the service once. If it does not answer, `document` is None."""
        try:
            self.document = status.asked(self._metrics, self._name)
            self.conditions = attention.asked(self._metrics, self._name)
        except NoServiceError as reason:
            self.document, self.away = None, str(reason)


def watch(metrics: Metrics, every_s: float, count: int | None = None, *, name: str = "") -> int:
    """Show the service until Ctrl-C, or `count` times: on a terminal in place, else as lines. Return 0 if it runs, else 1."""
    shown = Watch(metrics, name)
    with contextlib.suppress(KeyboardInterrupt):
        _in_place(shown, every_s, count) if sys.stdout.isatty() else _lines(shown, every_s, count)
    return 0 if shown.document is not None and shown.document["state"] == "running" else 1


def lines(shown: Watch) -> Iterator[str]:
    """Yield what is seen as lines: the figures, then what needs attention."""
    if shown.document is None:
        yield shown.away
        return
    yield "; ".join(f"{name} {value}" for name, value in _figures(shown.document).items())
    if attention.active(shown.conditions):
        yield from attention.lines(shown.conditions)


def panel(shown: Watch) -> "RenderableType":
    """Return what is seen for a terminal."""
    from rich.console import Group  # noqa: PLC0415 - as in service/commands/progress.py
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if shown.document is None:
        return Text(f"{shown.away}; still asking", style="bold red")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in _figures(shown.document).items():
        table.add_row(Text(name, style="bold"), Text(printable(value)))
    error = shown.document["last_error"]
    if error is not None:
        table.add_row(Text("last error", style="bold red"), Text(printable(f"{error['code']}: {error['text']}")))
    styles = {"firing": "bold red", "pending": "yellow"}
    needs = [
        Text(printable(line), style=styles.get(line.partition(" ")[0], "dim"))
        for line in attention.lines(shown.conditions)
    ]
    near = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("nearest to an alert", "now", "limit"):
        near.add_column(name, justify="left" if name.startswith("nearest") else "right")
    rows = sorted((shown.conditions or {"conditions": ()})["conditions"], key=_share, reverse=True)
    for each in [row for row in rows if row["state"] == "inactive" and _share(row) > 0][:SHOWN]:
        near.add_row(each["alert"], attention.amount(each, each["value"]), attention.amount(each, each["limit"]))
    name = printable(str(shown.document["service"]))
    return Group(
        Text(f"{name}: counters of the last ten minutes; Ctrl-C ends", style="dim"),
        table,
        Text(),
        *needs,
        Text(),
        near,
    )


def _figures(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the figures; of a service of an earlier version the state alone."""
    return document.get("figures") or {"state": document["state"]}


def _share(each: Mapping[str, Any]) -> float:
    """Return the value as a share of its limit, 0 where it has none."""
    value, limit = each["value"], each["limit"]
    return float(value / limit) if value and limit and value < limit else 0.0


def _in_place(shown: Watch, every_s: float, count: int | None) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        for _ in _times(every_s, count):
            shown.look()
            live.update(panel(shown), refresh=True)


def _lines(shown: Watch, every_s: float, count: int | None) -> None:
    for _ in _times(every_s, count):
        shown.look()
        for line in lines(shown):
            say(line)
        sys.stdout.flush()


def _times(every_s: float, count: int | None) -> Iterator[int]:
    done = 0
    while count is None or done < count:
        yield done
        done += 1
        if count is None or done < count:
            time.sleep(every_s)

"""`tidemark status --watch`: the running service in a terminal: state, rates, lag, phases, rejects, alerts with their limits."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from service import clock
from service.monitoring import pages, status
from service.monitoring.figures import figures
from service.monitoring.limits import Reading, readings
from service.monitoring.pages import NoServiceError
from service.monitoring.samples import Samples, Span
from service.printing import printable, say
from service.settings import Metrics

if TYPE_CHECKING:
    from rich.console import RenderableType

SPAN_S = 600.0
"""Counters are those of the last ten minutes, which is the time of most alerts."""
SHOWN = 6
"""Alerts that are not over their limits: those nearest to them."""


class Watch:
    """What was seen of one service."""

    def __init__(self, metrics: Metrics, name: str = "") -> None:
        """`name` is that of the pipeline, where the process may have several."""
        self._metrics, self._name = metrics, name
        self._seen: deque[Samples] = deque()
        self.document: dict[str, Any] | None = None
        self.away = ""
        """Why `document` is None."""

    def look(self) -> None:
        """Ask the service once. If it does not answer, `document` is None, and the counters of the next answer begin anew."""
        try:
            document, samples = status.asked(self._metrics, self._name), ask(self._metrics, self._name)
        except NoServiceError as reason:
            self.document, self.away = None, str(reason)
            self._seen.clear()
            return
        self.document = document
        self._seen.append(samples)
        while samples.at_s - self._seen[0].at_s > SPAN_S:
            self._seen.popleft()

    @property
    def span(self) -> Span:
        """From the oldest samples that are not older than SPAN_S to the newest."""
        return Span(self._seen[-1], self._seen[0] if len(self._seen) > 1 else None)


def ask(metrics: Metrics, name: str = "") -> Samples:
    """Return the samples of the running service. Raises NoServiceError when no Tidemark service answers."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - no other command needs it

    try:
        text = pages.document(metrics, f"/metrics{status.query(name)}").decode()
        return Samples.of(text_string_to_metric_families(text), clock.monotonic_s())
    except ValueError as error:
        raise pages.foreign(metrics) from error


def watch(metrics: Metrics, every_s: float, count: int | None = None, *, name: str = "") -> int:
    """Show the service until Ctrl-C, or `count` times: on a terminal in place, else as lines. Return 0 if it runs, else 1."""
    shown = Watch(metrics, name)
    with contextlib.suppress(KeyboardInterrupt):
        _in_place(shown, every_s, count) if sys.stdout.isatty() else _lines(shown, every_s, count)
    return 0 if shown.document is not None and shown.document["state"] == "running" else 1


def lines(shown: Watch) -> Iterator[str]:
    """Yield what is seen as lines: the figures, then the alerts whose values are above their limits."""
    if shown.document is None:
        yield shown.away
        return
    yield "; ".join(f"{name} {value}" for name, value in figures(shown.document, shown.span))
    yield from (
        f"over the limit: {each.alert}: {_value(each)} {each.what}, limit {_limit(each)}"
        for each in readings(shown.span)
        if each.is_over
    )


def panel(shown: Watch) -> "RenderableType":
    """Return what is seen for a terminal."""
    from rich.console import Group  # noqa: PLC0415 - as in service/commands/progress.py
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if shown.document is None:
        return Text(f"{shown.away}; still asking", style="bold red")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in figures(shown.document, shown.span):
        table.add_row(Text(name, style="bold"), Text(printable(value)))
    error = shown.document["last_error"]
    if error is not None:
        table.add_row(Text("last error", style="bold red"), Text(printable(f"{error['code']}: {error['text']}")))
    alerts = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("alert", "now", "limit", ""):
        alerts.add_column(name, justify="right" if name in {"now", "limit"} else "left")
    known = list(readings(shown.span))
    over = [each for each in known if each.is_over]
    near = sorted((each for each in known if not each.is_over and each.share > 0), key=lambda each: -each.share)[:SHOWN]
    for each in [*over, *near]:
        style = "bold red" if each.is_over else ""
        alerts.add_row(*(Text(text, style=style) for text in (each.alert, _value(each), _limit(each), each.what)))
    quiet = len(known) - len(over) - len(near)
    name = printable(str(shown.document["service"]))
    span = shown.span
    counted = "counters since the start of the process"
    if span.before is not None:
        counted = f"counters of the last {span.seconds:.0f} s"
    return Group(
        Text(f"{name}: {counted}; Ctrl-C ends", style="dim"),
        table,
        Text(),
        alerts,
        Text(f"{quiet} other alerts: nothing", style="dim"),
    )


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


def _value(each: Reading) -> str:
    return f"{each.value:,.4g} {each.unit}".strip()


def _limit(each: Reading) -> str:
    return f"{each.limit:,.4g} {each.unit}".strip()

"""Windows as a plot and as rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemark_client import Session, View, Window
from tidemark_client.values import ENDLESS_MS
from tidemark_dashboard.statistics import BANDED, name, value

SPANS_MS = (600_000, 3_600_000, 6 * 3_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000)
MOST = 1_500
"""Windows in a plot."""
USUAL = 400
LEAST = 2
"""Slides in a plot that is zoomed in."""
OPEN, FINAL, IDLE, INCOMPLETE = 0, 1, 2, 3
Here = Callable[..., str]
"""The address of a page with some of its words changed."""


@dataclass(frozen=True)
class Span:
    """A stretch of event time, [since, until)."""

    length_ms: int
    since: int
    until: int
    is_live: bool


@dataclass(frozen=True)
class Moves:
    """Addresses of spans, "" where there is none. `fixed` always shows what is seen now, `any` is to be completed by a zoom."""

    earlier: str
    later: str
    newest: str
    closer: str
    wider: str
    fixed: str
    any: str


@dataclass(frozen=True)
class Newest:
    """The newest windows of a key: `complete` has all of its readings and changes no more, `open` is a later one."""

    complete: Window | None = None
    open: Window | None = None

    def __bool__(self) -> bool:
        return self.complete is not None or self.open is not None

    @property
    def value(self) -> Window | None:
        """The window whose value is shown first. A view without windows has one, which is never closed."""
        return self.open if self.complete is None and self.open is not None and self.is_endless else self.complete

    @property
    def is_endless(self) -> bool:
        return self.open is not None and self.open.end - self.open.start == ENDLESS_MS


def newest(windows: Sequence[Window]) -> Newest:
    """The newest windows of a key's windows, which are in the order of their starts."""
    complete = next((each for each in reversed(windows) if is_complete(each)), None)
    after = complete.start if complete else -1
    return Newest(complete, next((each for each in reversed(windows) if not each.final and each.start > after), None))


def is_complete(window: Window) -> bool:
    """Whether a window is closed and has the readings from before its view was added."""
    return window.final and window.complete_from is None


def spans(view: View) -> list[int]:
    """The lengths of time that a plot of a view is offered with."""
    fitting = [each for each in SPANS_MS if 5 * view.step_ms <= each <= MOST * view.step_ms]
    kept = [each for each in fitting if each <= view.retain_ms] or fitting[:1]
    return kept or [max(view.window_ms, 100 * view.step_ms)]


def usual(view: View) -> int:
    """The length that is shown at first."""
    choices = spans(view)
    return max((each for each in choices if each <= USUAL * view.step_ms), default=choices[0])


def span(view: View, newest_end: int, wanted: str, until: str) -> Span:
    """The span of an address: `wanted` in ms and `until` are texts, or empty for the usual length up to now.

    A length that is zoomed to is a multiple of the slide.
    """
    asked = int(wanted[:15]) if wanted[:15].isdecimal() else 0
    is_fit = LEAST * view.step_ms <= asked <= longest(view)
    length = _up(asked, view.step_ms) if is_fit else usual(view)
    given = int(until[:15]) if until[:15].isdecimal() else 0
    end = given if 0 < given < newest_end else newest_end
    return Span(length, end - length, end, end == newest_end)


def fitted(view: View, stretch: Span, windows: Sequence[Window], wanted: str) -> Span:
    """The span, or without a wanted one the shortest choice with all of its windows: a young view is no thin line at the edge."""
    if wanted or not windows:
        return stretch
    needed = stretch.until - windows[0].start
    length = min((each for each in spans(view) if needed <= each <= stretch.length_ms), default=stretch.length_ms)
    return Span(length, stretch.until - length, stretch.until, stretch.is_live)


def longest(view: View) -> int:
    """The longest span of a plot."""
    return max(*spans(view), min(MOST * view.step_ms, view.retain_ms))


def moves(stretch: Span, view: View, here: Here) -> Moves:
    """The addresses of the spans around a span."""
    length, slide = stretch.length_ms, view.step_ms
    half = -(-length // (2 * slide)) * slide
    middle = stretch.until - length // 2
    return Moves(
        earlier=here(span=length, until=stretch.since),
        later="" if stretch.is_live else here(until=stretch.until + length),
        newest="" if stretch.is_live else here(until=""),
        closer=here(span=half, until=_up(middle + half // 2, slide)) if half >= LEAST * slide and half < length else "",
        wider=here(span=2 * length, until=_up(middle + length, slide)) if 2 * length <= longest(view) else "",
        fixed=here(span=length, until=stretch.until),
        any=here(span="", until=""),
    )


def _up(time: int, step: int) -> int:
    return -(-time // step) * step


def plot(windows: Sequence[Window], view: View, statistic: str, stretch: Span, sessions: Sequence[Session] = ()) -> str:
    """The data of a plot as JSON: columns by time, with a gap where windows have no readings.

    `t` is the middle of each window in s. `revised` counts corrections; `sessions` are [start, last, is open] in s. The axis is
    the whole span, so that the plots of a page can be compared.
    """
    has_band = statistic in BANDED
    columns: dict[str, list[float | None]] = {
        name: [] for name in ("t", "value", "min", "max", "state", "revised", "count")
    }
    for window in windows:
        middle = (window.start + window.end) / 2000
        before = columns["t"][-1] if columns["t"] else None
        if before is not None and middle - before > 1.5 * view.step_ms / 1000:
            for column, nothing in zip(columns.values(), ((before + middle) / 2, *[None] * 4, 0, 0), strict=True):
                column.append(nothing)
        low, high = (window.min, window.max) if has_band else (None, None)
        known = (middle, value(window, statistic), low, high, _state(window), window.revision, window.count)
        for column, each in zip(columns.values(), known, strict=True):
            column.append(each)
    bands = [[each.start / 1000, each.last / 1000, each.state == "open"] for each in sessions]
    axis = [stretch.since / 1000, stretch.until / 1000]
    more = {"half": view.window_ms / 2000, "slide": view.step_ms, "axis": axis, "sessions": bands}
    return json.dumps({**columns, **more}, allow_nan=False)


def _state(window: Window) -> int:
    if not window.final:
        return OPEN
    return INCOMPLETE if window.complete_from is not None else IDLE if window.closed_by == "idle" else FINAL


def summary(windows: Sequence[Window], measure: str, unit: str, statistic: str) -> str:
    """The plot in a sentence, for those who cannot see it."""
    if not windows:
        return f"{measure}: no windows with readings in this span"
    known = [found for each in windows if (found := value(each, statistic)) is not None]
    unit_ = f" {unit}".rstrip()
    values = f"{name(statistic)} from {min(known):.2f} to {max(known):.2f}{unit_}, " if known else ""
    complete = newest(windows).complete
    last = value(complete, statistic) if complete else None
    newest_ = f"of the newest complete window {last:.2f}{unit_}, " if last is not None else ""
    opened, corrected = sum(not each.final for each in windows), sum(each.revision > 0 for each in windows)
    return f"{measure}: {len(windows)} windows, {values}{newest_}{opened} open, {corrected} corrected. The table has the values."

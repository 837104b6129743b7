"""Windows as a plot and as rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tidemark_client import Session, View, Window

SPANS_MS = (600_000, 3_600_000, 6 * 3_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000)
MOST = 1_500
"""Windows in a plot."""
USUAL = 400
OPEN, FINAL = 0, 1


@dataclass(frozen=True)
class Span:
    """A stretch of event time, [since, until)."""

    length_ms: int
    since: int
    until: int
    is_live: bool


def spans(view: View) -> list[int]:
    """The lengths of time that a plot of a view may have."""
    fitting = [each for each in SPANS_MS if 5 * view.slide_ms <= each <= MOST * view.slide_ms]
    kept = [each for each in fitting if each <= view.retain_ms] or fitting[:1]
    return kept or [max(view.window_ms, 100 * view.slide_ms)]


def usual(view: View) -> int:
    """The length that is shown at first."""
    choices = spans(view)
    return max((each for each in choices if each <= USUAL * view.slide_ms), default=choices[0])


def span(view: View, newest_end: int, wanted: str, until: str) -> Span:
    """The span of an address: `wanted` in ms and `until` are texts, or empty for the usual length up to now."""
    choices = spans(view)
    length = int(wanted) if wanted.isdecimal() and int(wanted[:15]) in choices else usual(view)
    given = int(until[:15]) if until[:15].isdecimal() else 0
    end = given if 0 < given < newest_end else newest_end
    return Span(length, end - length, end, end == newest_end)


def plot(windows: Sequence[Window], view: View, sessions: Sequence[Session] = ()) -> str:
    """The data of a plot as JSON: columns by time, with a gap where windows have no readings.

    `t` is the middle of each window in s. `revised` counts corrections; `sessions` are [start, last, is open] in s.
    """
    t: list[float] = []
    mean: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    state: list[int | None] = []
    revised: list[int] = []
    counts: list[int] = []
    for window in windows:
        middle = (window.start + window.end) / 2000
        if t and middle - t[-1] > 1.5 * view.slide_ms / 1000:
            t.append((t[-1] + middle) / 2)
            mean.append(None)
            low.append(None)
            high.append(None)
            state.append(None)
            revised.append(0)
            counts.append(0)
        t.append(middle)
        mean.append(window.mean)
        low.append(window.min)
        high.append(window.max)
        state.append(FINAL if window.final else OPEN)
        revised.append(window.revision)
        counts.append(window.count)
    bands = [[each.start / 1000, each.last / 1000, each.state == "open"] for each in sessions]
    columns = {"t": t, "mean": mean, "min": low, "max": high, "state": state, "revised": revised, "count": counts}
    return json.dumps({**columns, "half": view.window_ms / 2000, "sessions": bands}, allow_nan=False)


def summary(windows: Sequence[Window], measure: str, unit: str) -> str:
    """The plot in a sentence, for those who cannot see it."""
    if not windows:
        return f"{measure}: no windows with readings in this span"
    unit = f" {unit}" if unit else ""
    lows = [each.min for each in windows if each.min is not None]
    highs = [each.max for each in windows if each.max is not None]
    values = f"values from {min(lows):.2f} to {max(highs):.2f}{unit}, " if lows and highs else ""
    mean = windows[-1].mean
    newest = f"newest mean {mean:.2f}{unit}, " if mean is not None else ""
    opened, corrected = sum(not each.final for each in windows), sum(each.revision > 0 for each in windows)
    return f"{measure}: {len(windows)} windows, {values}{newest}{opened} open, {corrected} corrected. The table has the values."

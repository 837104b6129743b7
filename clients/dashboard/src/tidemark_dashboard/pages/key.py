"""One key of a view: its windows as a plot, as a table and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from tidemark_client import View, Window, queries
from tidemark_dashboard import statistics
from tidemark_dashboard.keys import newest_start, of_key
from tidemark_dashboard.pages import NotFoundError, Page, Query, Shown, address
from tidemark_dashboard.pages.series import fitted, moves, newest, plot, span, spans, summary
from tidemark_dashboard.pages.views import chosen
from tidemark_dashboard.sources import Sources

ROWS = 60


async def read(sources: Sources, query: Query) -> Shown:
    """Redis is asked for the windows of the span: at most series.MOST."""
    view, measure = await chosen(sources, query)
    key = query.get("key", "")
    if not key:
        raise NotFoundError("The address names no key of the view")
    view = of_key(view, key)
    progress = await sources.look()
    final = progress.final if progress else 0
    start = await sources.ask(newest_start(view, key))
    has_expired = start is None or start < final - view.retain_ms - view.window_ms
    newest_end = final if start is None or has_expired else view.end(start)
    stretch = span(view, newest_end, query.get("span", ""), query.get("until", ""))
    windows = await sources.ask(
        queries.windows(view.name, key, since=max(0, stretch.since), until=stretch.until, measure=measure)
    )

    def here(**changed: object) -> str:
        return address("/key", **{**query, **changed})

    stretch = fitted(view, stretch, windows, query.get("span", ""))
    statistic = statistics.chosen(view, query.get("stat", ""))
    unit = statistics.unit(statistic, sources.options.units.get(measure, ""), view)
    context = {
        "view": view,
        "key": key,
        "measure": measure,
        "newest": newest(windows),
        "windows": windows[::-1][:ROWS],
        "hidden": max(0, len(windows) - ROWS),
        "statistic": statistic,
        "statistics": statistics.plotted(view),
        "columns": statistics.others(view, statistic, view.statistics),
        "plot": plot(() if view.endless else windows, view, statistic, stretch),
        "summary": summary(windows, measure, unit, statistic),
        "span": stretch,
        "spans": spans(view),
        "here": here,
        "csv": address("/key.csv", **query),
        "moves": moves(stretch, view, here),
        "is_device": view.by == ("device",),
    }
    return Shown.of(context, ("progress",), ("window", view.stored, key))


def table(windows: Sequence[Window], view: View) -> str:
    """The windows as CSV, with all statistics of the view, and `complete_from` where a window lacks earlier readings.

    It has no text that a device has sent: a spreadsheet would take some for formulas.
    """
    out = io.StringIO()
    rows = csv.writer(out)
    local = ["local_start"] if view.calendar else []
    rows.writerow(["start", "end", *view.statistics, "state", "revision", "complete_from", *local])
    for window in windows:
        values = [statistics.value(window, name) for name in view.statistics]
        state = window.closed_by or "open"
        more = [window.local_start] if local else []
        rows.writerow([window.start, window.end, *values, state, window.revision, window.complete_from, *more])
    return out.getvalue()


async def read_csv(sources: Sources, query: Query) -> str:
    """The windows of an address as CSV."""
    shown = await read(sources, query)
    view, stretch = shown.context["view"], shown.context["span"]
    found = await sources.ask(
        queries.windows(
            view.name,
            query["key"],
            since=max(0, stretch.since),
            until=stretch.until,
            measure=shown.context["measure"],
        )
    )
    return table(found, view)


PAGE = Page(
    "key",
    "/key",
    "Key",
    ("key_now", "key_plot", "key_table"),
    ("name", "key", "measure", "stat", "span", "until"),
    read,
)

"""One key of a view: its windows as a plot, as a table and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from tidemark_client import Window, queries
from tidemark_dashboard.pages import NotFoundError, Page, Query, Shown, address
from tidemark_dashboard.pages.series import plot, span, spans, summary
from tidemark_dashboard.pages.views import chosen
from tidemark_dashboard.sources import Sources

ROWS = 60
COLUMNS = "start", "end", "count", "sum", "mean", "min", "max", "stddev", "first", "last", "state", "revision"


async def read(sources: Sources, query: Query) -> Shown:
    """Redis is asked for the windows of the span: at most series.MOST."""
    view, measure = await chosen(sources, query)
    key = query.get("key", "")
    if not key:
        msg = "The address names no key of the view"
        raise NotFoundError(msg)
    progress = await sources.look()
    final = progress.final if progress else 0
    keys = await sources.keys.of(view, final - view.retain_ms - view.window_ms)
    start = keys.newest(key)
    newest_end = final if start is None else start + view.window_ms
    stretch = span(view, newest_end, query.get("span", ""), query.get("until", ""))
    windows = await sources.ask(
        queries.windows(view.name, key, since=max(0, stretch.since), until=stretch.until, measure=measure)
    )

    def here(**changed: object) -> str:
        return address("/key", **{**query, **changed})

    unit = sources.options.units.get(measure, "")
    context = {
        "view": view,
        "key": key,
        "measure": measure,
        "newest": windows[-1] if windows else None,
        "windows": windows[::-1][:ROWS],
        "hidden": max(0, len(windows) - ROWS),
        "plot": plot(() if view.endless else windows, view),
        "summary": summary(windows, measure, unit),
        "span": stretch,
        "spans": spans(view),
        "here": here,
        "csv": address("/key.csv", **query),
        "back": here(until=stretch.since) if windows and not view.endless else "",
        "forward": here(until=stretch.until + stretch.length_ms) if not stretch.is_live else "",
        "is_device": view.by == ("device",),
    }
    return Shown.of(context, ("progress",), ("window", view.stored, key))


def table(windows: Sequence[Window]) -> str:
    """The windows as CSV. It has no text that a device has sent: a spreadsheet would take some for formulas."""
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(COLUMNS)
    for window in windows:
        state = window.closed_by or "open"
        values = [getattr(window, name) for name in COLUMNS if name not in {"state", "revision"}]
        rows.writerow([*values, state, window.revision])
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
    return table(found)


PAGE = Page(
    "key", "/key", "Key", ("key_now", "key_plot", "key_table"), ("name", "key", "measure", "span", "until"), read
)

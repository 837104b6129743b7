"""The views, and the keys of one view with their newest values."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark_client import UnknownViewError, View, Window, queries
from tidemark_dashboard.pages import NotFoundError, Page, Query, Shown, address
from tidemark_dashboard.sources import Sources

SIZE = 25
SPARKS = 30
"""Windows in a sparkline."""


async def read_views(sources: Sources, query: Query) -> Shown:
    """The views that the service has now."""
    meta = await sources.meta()
    await sources.look()
    return Shown.of({"meta": meta}, ("progress",))


async def read_view(sources: Sources, query: Query) -> Shown:
    """A page of keys; Redis is asked for the last SPARKS windows of each, or for the only one."""
    view, measure = await chosen(sources, query)
    progress = await sources.look()
    expired_before = (progress.final if progress else 0) - view.retain_ms - view.window_ms
    keys = await sources.keys.of(view, expired_before)
    prefix = query.get("q", "")
    page, matches, earlier, later = keys.page(
        prefix, SIZE, after=query.get("after", ""), before=query.get("before", "")
    )
    span_ms = (SPARKS - 1) * view.slide_ms
    series = await sources.ask_all(
        queries.windows(
            view.name, key, since=0 if view.endless else newest - span_ms + view.window_ms - 1, measure=measure
        )
        for key, newest in page
    )
    rows = [
        (key, windows[-1] if windows else None, _line(windows, view, newest))
        for (key, newest), windows in zip(page, series, strict=True)
    ]

    def here(**changed: object) -> str:
        return address("/view", **{**query, "after": "", "before": "", **changed})

    context = {
        "view": view,
        "measure": measure,
        "rows": rows,
        "matches": matches,
        "total": len(keys),
        "q": prefix,
        "here": here,
        "earlier": here(before=page[0][0]) if earlier and page else "",
        "later": here(after=page[-1][0]) if later and page else "",
        "sparks": SPARKS,
    }
    return Shown.of(context, ("progress",), ("keys", view.stored), (("window", view.stored, key) for key, _ in page))


async def chosen(sources: Sources, query: Query) -> tuple[View, str]:
    """The view and the measure of an address. Raises NotFoundError."""
    meta = await sources.meta()
    try:
        view = meta.view(query.get("name", ""))
        return view, view.measure(query.get("measure") or view.measures[0])
    except UnknownViewError as error:
        raise NotFoundError(str(error)) from error


def _line(windows: Sequence[Window], view: View, newest: int) -> list[float | None]:
    """The means of the last SPARKS windows, None where a window has no readings."""
    means = {window.start: window.mean for window in windows}
    return [means.get(newest - back * view.slide_ms) for back in range(SPARKS - 1, -1, -1)]


VIEWS = Page("views", "/views", "Views", ("views",), (), read_views)
VIEW = Page("view", "/view", "View", ("view_keys",), ("name", "measure", "q", "after", "before"), read_view)

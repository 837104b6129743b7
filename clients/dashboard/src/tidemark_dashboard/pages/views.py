"""The views, and the keys of one view with their newest values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tidemark_client import UnknownViewError, View, Window, queries
from tidemark_dashboard import statistics
from tidemark_dashboard.pages import NotFoundError, Page, Query, Shown, address
from tidemark_dashboard.pages.series import is_complete, newest
from tidemark_dashboard.sources import Sources

SIZE = 25
SPARKS = 30
"""Windows in a sparkline, which ends with the newest complete one."""
COLUMNS = ("mean", "min", "max", "count")
"""Statistics that stand beside the chosen one."""
OPEN = 3
"""The last windows among which the newest open one is looked for: a window may have no readings of the measure."""


async def read_views(sources: Sources, query: Query) -> Shown:
    """The views that the service has now."""
    meta = await sources.meta()
    await sources.look()
    return Shown.of({"meta": meta}, ("progress",))


async def read_view(sources: Sources, query: Query) -> Shown:
    """A page of keys; Redis is asked for the last SPARKS closed windows of each and the newest ones, or for the only one."""
    view, measure = await chosen(sources, query)
    statistic = statistics.chosen(view, query.get("stat", ""))
    progress = await sources.look()
    expired_before = (progress.final if progress else 0) - view.retain_ms - view.window_ms
    keys = await sources.keys.of(view, expired_before)
    prefix = query.get("q", "")
    page, matches, earlier, later = keys.page(
        prefix, SIZE, after=query.get("after", ""), before=query.get("before", "")
    )
    closed_until = max(progress.closed_until, progress.settled_until(view)) if progress else 0
    closed = [_closed(view.of_key(key), start, closed_until) for key, start in page]
    series = await sources.ask_all(
        queries.windows(view.name, key, since=since, until=until, measure=measure)
        for (key, start), last in zip(page, closed, strict=True)
        for since, until in _stretches(view.of_key(key), start, last)
    )
    rows = [
        (key, newest([*shut, *late]), _line(shut, view.of_key(key), statistic))
        for (key, _), shut, late in zip(page, series[::2], series[1::2], strict=True)
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
        "statistic": statistic,
        "statistics": statistics.plotted(view),
        "columns": statistics.others(view, statistic, COLUMNS),
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


def _closed(view: View, newest_start: int, closed_until: int) -> int:
    """The start of a key's newest window that may be closed, on the grid of its newest one."""
    if view.calendar is not None:
        return min(newest_start, view.last_closed(closed_until))
    after = newest_start + view.window_ms - closed_until
    return newest_start if after <= 0 or view.endless else newest_start - -(-after // view.slide_ms) * view.slide_ms


def _stretches(view: View, start: int, closed: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The ends after which, and the starts before which: of the windows of a sparkline, and of the newest ones behind it."""
    if view.calendar is not None:
        *_, shut = islice(view.backwards(closed), SPARKS)
        first = max(view.end(closed), *islice(view.backwards(start), OPEN - 1, OPEN))
        return (max(0, shut), max(0, closed + 1)), (first, start + 1)
    first = max(closed + view.slide_ms, start - (OPEN - 1) * view.slide_ms)
    shut = 0 if view.endless else closed - (SPARKS - 1) * view.slide_ms + view.window_ms - 1
    return (max(0, shut), max(0, closed + 1)), (first + view.window_ms - 1, start + 1)


def _line(windows: Sequence[Window], view: View, statistic: str) -> list[float | None]:
    """The values of the SPARKS windows up to the newest complete one, None where one has no readings or is not complete."""
    values = {window.start: statistics.value(window, statistic) for window in windows if is_complete(window)}
    last = max(values, default=0)
    return [values.get(start) for start in islice(view.backwards(last), SPARKS)][::-1]


VIEWS = Page("views", "/views", "Views", ("views",), (), read_views)
VIEW = Page("view", "/view", "View", ("view_keys",), ("name", "measure", "stat", "q", "after", "before"), read_view)

"""Roll-ups: views whose windows are put together of another view's closed windows (`from`). What must hold between the two."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from service.settings.views import View
from state import statistics
from state.calendar import Calendar
from state.rules import EVENT_MS_LIMIT
from state.window_columns import columns_of


def problems(views: Sequence[View], measures: Callable[[View], Sequence[str]]) -> Iterator[str]:
    """Yield what no roll-up can be computed from. `measures` returns those of a view."""
    known = {view.name: view for view in views}
    for view in views:
        if view.source is None:
            continue
        place, source = f"views.{view.name}.from", known.get(view.source)
        if source is None:
            yield f"{place}: {view.source!r} is no view; there are {', '.join(sorted(known.keys() - {view.name}))}"
        elif _is_circle(view, known):
            yield f"{place}: {view.source!r} is computed from {view.name!r} in turn. One of them must be of readings: remove from"
        else:
            yield from (f"{place}: {problem}" for problem in _between(view, source, measures))


def _is_circle(view: View, known: Mapping[str, View]) -> bool:
    passed, current = set[str](), known.get(view.source or "")
    while current is not None and current.name not in passed:
        if current is view:
            return True
        passed.add(current.name)
        current = known.get(current.source or "")
    return False


def _between(view: View, source: View, measures: Callable[[View], Sequence[str]]) -> Iterator[str]:
    if source.is_endless or source.slide_ms not in {None, source.window_ms}:
        what = "has no windows" if source.is_endless else "has windows that slide, which have readings in common"
        yield f"{source.name!r} {what}. Take a view whose windows follow each other"
    elif zoned := next((each.name for each in (view, source) if each.zone_column is not None), None):
        yield f"{zoned!r} has windows in the time zone of each key. Remove from, or give both one time_zone"
    elif not nests(source, view):
        yield (
            f"a window of {source.length} may lie in two windows of {view.length}. "
            f"Choose windows of {source.name!r} of which a window of {view.name!r} has a whole number, from the same start"
        )
    for name in ("by", "where"):
        mine, its = getattr(view, name), getattr(source, name)
        if mine != its:
            yield f"{name} is {_text(mine)}, that of {source.name!r} is {_text(its)}. Give both the same"
    if lacking := [name for name in measures(view) if name not in measures(source)]:
        yield f"{source.name!r} lacks the measures {', '.join(lacking)}. Add them there, or name others here"
    kept = set(columns_of(source.statistics))
    if lacking := [name for name in view.statistics if not kept.issuperset(columns_of((name,)))]:
        yield f"{source.name!r} does not keep what {', '.join(lacking)} need. Add them to its statistics, or remove them here"
    ordered = [name for name in view.statistics if name in statistics.ORDERED]
    if ordered and source.carry_for_ms is not None and view.carry_for_ms is None:
        yield (
            f"{source.name!r} has carry_for, and {', '.join(ordered)} of its windows have what is carried over their start. "
            "Remove these statistics here, or carry_for there"
        )


def _text(value: object) -> str:
    return repr(list(value) if isinstance(value, tuple) else value) if value else "not set"


def nests(source: View, view: View) -> bool:
    """Return whether each window of `source` lies in one window of `view`. Neither slides or has zones by key."""
    calendar = source.calendar
    if not isinstance(calendar, Calendar):
        return view.step_ms % source.window_ms == 0
    starts = np.array(calendar.between(0, EVENT_MS_LIMIT))
    return bool((view.starts(starts) == view.starts(source.ends(starts) - 1)).all())

"""What windows of views hold that change while the service runs, for the first executor: one reading after the other.

A version of a view counts readings since it began. Its past is computed twice: when the query begins with the version, for the
windows that are closed then; and when the watermark has passed every window that lacks readings. A view without windows has no
past. A window has the statistics that its view had when the window got its last reading, of those that it could keep since its
first one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from load.judge.expected import Readings, View, WindowKey, Windows, WindowValue, windows
from load.judge.oracle import Ledger
from load.judge.rules import Reference
from load.judge.statistics import NEEDS, kept_for
from load.judge.versions import Versions


@dataclass(frozen=True, slots=True)
class Shown:
    """A window, the names of its statistics, and `complete_from` (ms) where it lacks the readings before its view began."""

    value: WindowValue
    statistics: Sequence[str]
    complete_from: int | None = None


class ViewChanges:
    """The views of a run. `passes` counts how often the past of a version, by its name in keys, was computed."""

    def __init__(self, views: Sequence[View]) -> None:
        self._versions = Versions(views)
        self._phases: dict[str, list[tuple[int, View]]] = {}
        self._filled_ms: dict[str, int] = {}
        self.passes: Counter[str] = Counter()

    @property
    def views(self) -> tuple[View, ...]:
        """Return the computed views by their names in keys."""
        return self._versions.views

    @property
    def has_parts(self) -> bool:
        """Whether windows lack readings."""
        return any(each.marks for each in self._versions.all)

    def change(self, wanted: Sequence[View], ledger: Ledger, watermark_ms: int) -> None:
        """Change the views. New views count the records after those that the ledger has taken."""
        newest_ms = -1 if ledger.newest_ms is None else ledger.newest_ms
        before = {view.name: view for view in self.views}
        self._versions.change(wanted, newest_ms)
        for view in self.views:
            was = before.get(view.name)
            if was is None or was.statistics != view.statistics:
                admitted = len((ledger.with_late if view.is_endless else ledger.admitted).event_ms)
                self._phases.setdefault(view.name, [] if was is None else [(0, was)]).append((admitted, view))
        self._begin(watermark_ms)

    def reach(self, watermark_ms: int) -> bool:
        """Whether the past of a version is complete now, and it serves."""
        due = {each.view.name for each in self._versions.all if each.marks and watermark_ms >= each.ends_ms}
        self.passes.update(due)
        self._versions.complete(due)
        if due:
            self._begin(watermark_ms)
        return bool(due)

    def _begin(self, watermark_ms: int) -> None:
        """A query begins with these versions."""
        for each in self._versions.all:
            if each.marks:
                self._filled_ms[each.view.name] = watermark_ms
                self.passes[each.view.name] += 1

    def items(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Each view of the settings: its name in keys, that of a version that is to follow, and what its windows lack."""
        for each in self._versions.all:
            if each.waits:
                continue
            following = next((other for other in self._versions.all if other.waits and other.title == each.title), None)
            marks = (each if following is None else following).marks
            names = {"keys": each.view.name, "next": None if following is None else following.view.name}
            yield f"view {each.title}", {**names, "complete_from": max(marks.values(), default=None)}

    def windows(self, whole: Windows, ledger: Ledger, reference: Reference) -> Iterator[tuple[WindowKey, Shown]]:
        """Of the windows with all readings of the ledger, those that there are, as they are."""
        statistics: dict[str, Sequence[str]] = {}
        for version in self._versions.all:
            view = version.view
            phases = self._phases.get(view.name, [(0, view)])
            since, lines = phases[0][0], (reference, whole.watermark_ms, whole.idle_ms)
            if view.is_endless:
                part = windows([view], _between(ledger.with_late, since), *lines)
                yield from ((key, Shown(value, view.statistics)) for key, value in part.items())
            elif version.marks:
                yield from self._incomplete(view, whole, windows([view], _between(ledger.admitted, since), *lines))
            elif len(phases) > 1:
                yield from _phased(phases, ledger.admitted, reference, whole)
            else:
                statistics[view.name] = view.statistics
        yield from ((key, Shown(value, statistics[key[0]])) for key, value in whole.items() if key[0] in statistics)

    def _incomplete(self, view: View, whole: Windows, part: Windows) -> Iterator[tuple[WindowKey, Shown]]:
        """The windows of a version whose past is not computed yet, but for those that were closed when it began."""
        for key, value in whole.items():
            if key[0] != view.name:
                continue
            mark = self._versions.mark(view.name, key[1], value.start)
            if mark is None or value.end <= self._filled_ms[view.name]:
                yield key, Shown(value, view.statistics)
            elif key in part:
                yield key, Shown(part[key], view.statistics, mark)


def _phased(
    phases: Sequence[tuple[int, View]], readings: Readings, reference: Reference, whole: Windows
) -> Iterator[tuple[WindowKey, Shown]]:
    """The windows of a view that had several choices of statistics, one since the first reading, each since so many."""
    ends = [since for since, _ in phases[1:]] + [len(readings.event_ms)]
    of_phase: list[tuple[View, Windows]] = []
    kept: dict[WindowKey, set[str]] = {}
    for (since, view), end in zip(phases, ends, strict=True):
        needs = kept_for(view.statistics)
        lines = whole.watermark_ms, whole.idle_ms
        touched = windows([view], _between(readings, since, end), reference, *lines)
        of_phase.append((view, touched))
        for key in touched:
            kept[key] = kept.get(key, needs) & needs
    shown: dict[WindowKey, Shown] = {}
    for view, touched in of_phase:
        values = windows([view], readings, reference, whole.watermark_ms, whole.idle_ms)
        for key in touched:
            names = [name for name in view.statistics if NEEDS[name] <= kept[key]]
            shown[key] = Shown(values[key], names)
    yield from shown.items()


def _between(readings: Readings, since: int, until: int | None = None) -> Readings:
    part = slice(since, until)
    return replace(
        readings,
        device=readings.device[part],
        event_ms=readings.event_ms[part],
        values={name: column[part] for name, column in readings.values.items()},
        texts={name: column[part] for name, column in readings.texts.items()},
        meets={name: column[part] for name, column in readings.meets.items()},
    )

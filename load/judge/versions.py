"""The versions of views: which windows serve readers under a name, and which are computed beside them. A model, by
docs/data-engineer.md, for the programs that change views; it imports nothing of the service."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from load.judge.expected import View


@dataclass(slots=True)
class Version:
    """A view with one set of columns, length, slide and filter; `view` has its name in keys, `title` is that in the settings.

    `marks` are the event times (ms) from which windows have all readings, by measure. While it `waits`, the former one serves.
    """

    view: View
    title: str
    waits: bool = False
    marks: dict[str, int] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[object, ...]:
        view = self.view
        source = view.source and view.source.name
        return view.by, view.window_ms, view.step_ms, view.where, view.calendar, view.zone_column, source

    @property
    def ends_ms(self) -> int:
        """The event time by which all windows that lack readings have ended; there must be `marks`."""
        mark = max(self.marks.values())
        if self.view.calendar is None:
            return mark + self.view.window_ms
        return (
            self.view.calendar.latest_end(mark - 1) if self.view.zone_column else self.view.calendar.span(mark - 1)[1]
        )


class Versions:
    """`all` is in the order of the settings. A version that still serves precedes the next one."""

    def __init__(self, views: Sequence[View]) -> None:
        self.all = [Version(view, view.name) for view in views]
        self._numbers = Counter(view.name for view in views)

    @property
    def views(self) -> tuple[View, ...]:
        """Return the computed views by their names in keys."""
        return tuple(each.view for each in self.all)

    def of(self, name: str) -> Version | None:
        """The version with this name in keys."""
        return next((each for each in self.all if each.view.name == name), None)

    def mark(self, name: str, measure: str, start: int) -> int | None:
        """The event time from which a version's windows have all readings, of a window that begins before it."""
        version = self.of(name)
        mark = version.marks.get(measure, 0) if version is not None else 0
        return mark if start < mark else None

    def complete(self, names: Collection[str]) -> None:
        """The past of these versions, by name in keys, is computed: they serve."""
        for each in self.all:
            if each.view.name in names:
                each.marks = {}
        self.all = _moved(self.all)

    def change(self, wanted: Sequence[View], newest_ms: int) -> None:
        """The settings have these views now; `newest_ms` is the newest event time that was admitted before, -1 for none."""
        after: list[Version] = []
        named: dict[str, str] = {}
        for view in sorted(wanted, key=_depth):
            if view.source is not None:
                view = replace(view, source=replace(view.source, name=named[view.source.name]))  # noqa: PLW2901
            mine = [each for each in self.all if each.title == view.name]
            serving = [each for each in mine if not each.waits]
            same = next((each for each in mine if each.shape == Version(view, view.name).shape), None)
            if same is None:
                self._numbers[view.name] += 1
                number = self._numbers[view.name]
                name = view.name if number == 1 else f"{view.name}@{number}"
                made = Version(replace(view, name=name), view.name, waits=bool(serving))
                known: set[str] = set()
            else:
                made = Version(replace(view, name=same.view.name), view.name, same.waits)
                made.marks = {name: ms for name, ms in same.marks.items() if name in view.measures}
                known = set(same.view.measures)
            if not view.is_endless and newest_ms >= 0:
                made.marks |= {name: newest_ms + 1 for name in view.measures if name not in known}
            named[view.name] = made.view.name
            after += serving if made.waits else []
            after.append(made)
        places = {view.name: number for number, view in enumerate(wanted)}
        after.sort(key=lambda version: places[version.title])
        after = _fed(after)
        if newest_ms < 0:
            for each in after:
                each.marks = {}
        self.all = _moved(after)


def _depth(view: View) -> int:
    return 0 if view.source is None else 1 + _depth(view.source)


def _source(version: Version) -> str | None:
    return None if version.view.source is None else version.view.source.name


def _fed(versions: Sequence[Version]) -> list[Version]:
    """A former version whose source is gone, or lacks a measure, is gone, too."""
    known = {each.view.name: {*each.view.measures} for each in versions}
    gone = [
        v for v in versions if (name := _source(v)) is not None and not known.get(name, set()) >= {*v.view.measures}
    ]
    if not gone:
        return list(versions)
    titles = {each.title for each in gone}
    return _fed([replace(v, waits=v.waits and v.title not in titles) for v in versions if v not in gone])


def _moved(versions: Sequence[Version]) -> list[Version]:
    """A version without marks serves its name, and the former one is gone, when nothing that stays reads the former one."""
    ready = {each.title for each in versions if each.waits and not each.marks}
    while True:
        read = {_source(each) for each in versions if each.waits or each.title not in ready}
        stays = {each.title for each in versions if each.title in ready and not each.waits and each.view.name in read}
        if not stays:
            break
        ready -= stays
    return [
        replace(each, waits=False) if each.title in ready else each
        for each in versions
        if each.waits or each.title not in ready
    ]

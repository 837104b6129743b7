"""The versions of the views, in the checkpoint beside the log of event time.

    views/N    the views from batch N on, until the next file: {"last": {"device": 2}, "views": [{"name": "device@2", ...}]}

A file is written before its batch runs, so that a replay has the same views. Settings that change do not change a batch that was
begun before.

A version is what windows under one name in keys have in common: columns, length, slide and filter. A view of the settings that
changes in one of these gets a new version, with another name in keys. A view that was removed and is added again does, too:
windows of its former time may lack readings.

A roll-up (`from`) reads one version of another view. When that gets a new version, so does the roll-up, which reads it. Both
former versions serve until both new ones are complete. A former version of which the source is gone does not serve any more: its
windows would lack readings.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from pydantic import PlainSerializer

from service.checkpoint.document import Document, changing
from service.errors import CheckpointError
from service.settings import EVENTS, NO_WINDOW, Settings, View, ViewVersion
from service.spark.files import Folder
from service.units import format_time
from state import calendar

FOLDER = "views"
KEPT = 20
"""Files that are kept: a batch that is replayed is one of the last two."""


class ViewsChangedError(Exception):
    """The query ends before a batch, and starts again with other views."""


def _stated(views: tuple[ViewVersion, ...]) -> list[dict[str, Any]]:
    """Return the views as the file has them: without defaults, but with the window of a view that has none."""
    return [
        {**view.model_dump(exclude_defaults=True, by_alias=True), **({"window": NO_WINDOW} if view.is_endless else {})}
        for view in views
    ]


@dataclass(frozen=True, slots=True)
class Versions:
    """`views` are what a batch computes, in the order of the settings; an older version that still serves precedes the next one.

    `last` has the number of the newest version by name in the settings, also of views that were removed.
    """

    views: Annotated[tuple[ViewVersion, ...], PlainSerializer(_stated)] = ()
    last: Mapping[str, int] = field(default_factory=dict)

    def of(self, title: str, *, is_next: bool) -> ViewVersion | None:
        """Return the version that serves a name, or the next one."""
        return next((view for view in self.views if view.of == title and view.is_next is is_next), None)

    @property
    def incomplete(self) -> tuple[ViewVersion, ...]:
        """The versions whose past is not computed yet."""
        return tuple(view for view in self.views if view.incomplete)


DOCUMENT = Document[Versions](FOLDER, Versions, indent=1)


def applied(settings: Settings, versions: Versions) -> Settings:
    """Return the settings with the versions in place of their views."""
    return settings.model_copy(update={"views": versions.views})


def kept(settings: Settings, versions: Versions) -> Settings:
    """Return the settings with the views that the versions were made of; without those of which the settings have no measure.

    The same settings where no view is left.
    """
    views = tuple(
        view.model_copy(update={"name": view.of})
        for view in versions.views
        if versions.of(view.of, is_next=True) in (None, view) and settings.view_measures(view)
    )
    return settings.model_copy(update={"views": views}) if views else settings


def begun(settings: Settings, meta: str = "") -> Versions:
    """Return the versions of a new checkpoint: the views of the settings, complete, under the names that they have in the text of
    a prefix's `meta`."""
    names, last = {}, dict[str, int]()
    for each in json.loads(meta).get("views", ()) if meta else ():
        name, title = each["name"], each.get("of", each["name"])
        last[title] = max(last.get(title, 0), int(name.partition("@")[2] or 1))
        if not each.get("next"):
            names[title] = name
    views = tuple(
        _version(settings, view, names.get(view.name, view.name), names.get(view.source or "", view.source))
        for view in settings.views
    )
    return Versions(views, {**{view.name: 1 for view in settings.views}, **last})


def changed(versions: Versions, settings: Settings, newest_ms: int) -> Versions:
    """Return the versions after a change to the views of these settings; the same object if nothing changes.

    `newest_ms` is the newest event time that was admitted before the change, -1 for none. Windows that begin after it have all
    readings. A version that is replaced serves until the new one is complete.
    """
    views: list[ViewVersion] = []
    last = dict(versions.last)
    named = dict[str, str]()
    for wanted in _sources_first(settings.views):
        serving, following = (versions.of(wanted.name, is_next=is_next) for is_next in (False, True))
        reads = named.get(wanted.source or "")
        same = next((e for e in (serving, following) if e and (e.identity, e.reads) == (wanted.identity, reads)), None)
        if same is not None:
            measures = _measures(settings, wanted)
            added = [] if wanted.is_endless else [n for n in measures if n not in _measures(settings, same, every=True)]
            incomplete = {name: ms for name, ms in same.incomplete.items() if name in measures}
            incomplete |= dict.fromkeys(added, newest_ms + 1 + (wanted.carry_for_ms or 0))
            if following is same and serving is not None:
                views.append(serving)
            named[wanted.name] = same.name
            version = _version(settings, wanted, same.name, reads, is_next=same.is_next, incomplete=incomplete)
            views.append(version.model_copy(update={"begins_ms": same.begins_ms, "since": same.since}))
            continue
        last[wanted.name] = number = last.get(wanted.name, 0) + 1
        name = wanted.name if number == 1 else f"{wanted.name}@{number}"
        # A view without windows has no past: it says itself since when it has all readings.
        # A window that begins later lacks no reading, not even one that is carried into it.
        whole_from_ms = newest_ms + 1 + (wanted.carry_for_ms or 0)
        incomplete = {} if wanted.is_endless else dict.fromkeys(_measures(settings, wanted), whole_from_ms)
        if serving is not None:
            views.append(serving)
        named[wanted.name] = name
        views.append(_version(settings, wanted, name, reads, is_next=serving is not None, incomplete=incomplete))
    places = {view.name: number for number, view in enumerate(settings.views)}
    views.sort(key=lambda view: places[view.of])
    after = _moved(Versions(_fed(views, settings), last), newest_ms)
    return versions if after == versions else after


def _sources_first(views: Sequence[View]) -> list[View]:
    """Return the views of settings, each roll-up behind the view that it reads."""
    known = {view.name: view for view in views}

    def depth(view: View) -> int:
        return 0 if view.source is None else 1 + depth(known[view.source])

    return sorted(views, key=depth)


def _fed(views: Sequence[ViewVersion], settings: Settings) -> tuple[ViewVersion, ...]:
    """Return the versions without the former ones whose source is gone, or has not all of their measures any more. The new ones
    serve then, and so do those that read nothing of these."""
    while True:
        known = {view.name: _measures(settings, view, every=True) for view in views}
        hungry = [
            view
            for view in views
            if view.reads is not None
            and not set(_measures(settings, view, every=True)).issubset(known.get(view.reads, ()))
        ]
        if not hungry:
            return tuple(views)
        titles = {view.of for view in hungry}
        views = [
            view.model_copy(update={"is_waiting": False}) if view.of in titles else view
            for view in views
            if view not in hungry
        ]


def require_rules(versions: Versions, settings: Settings, newest_ms: int) -> None:
    """Raise CheckpointError if a view stays whose windows began or ended at other times than tzdata has now.

    That matters from the oldest window that is kept up to the one of the newest reading: two windows would have one name in keys,
    or share readings. Later ones follow the new rules.
    """
    for view in versions.views:
        wanted = next((each for each in settings.views if each.name == view.of), None)
        if view.calendar is None or not view.zone_rules or wanted is None or wanted.identity != view.identity:
            continue
        first, last = newest_ms - view.retain_ms - 2 * view.longest_ms, newest_ms + view.longest_ms
        for month in view.calendar.other_months(view.zone_rules):
            begin = np.datetime64(month, "M")
            if first <= _ms(begin + 1) and _ms(begin) <= last:
                rules = f"tzdata {calendar.VERSION} has other rules for {view.calendar.zones} in {begin}"
                what = f"views.{view.of}: {rules} than the windows of the checkpoint follow"
                remedy = (
                    "Give the view another name, which computes its past by these rules, or install the former tzdata"
                )
                raise CheckpointError(what, remedy=remedy)


def _ms(month: np.datetime64) -> int:
    return int(month.astype("datetime64[ms]").astype(np.int64))


@dataclass(frozen=True, slots=True)
class Filled:
    """The past of a version is computed: of the measures that had these `incomplete` times, from `begins_ms` on."""

    incomplete: Mapping[str, int]
    begins_ms: int = 0


def filled(versions: Versions, done: Mapping[str, Filled]) -> Versions:
    """Return the versions after the past of some, by name in keys, is computed; the older versions that they replace are gone."""
    views = tuple(_filled(view, done[view.name]) if view.name in done else view for view in versions.views)
    return _moved(replace(versions, views=views), 0)


def _filled(view: ViewVersion, done: Filled) -> ViewVersion:
    left = {measure: ms for measure, ms in view.incomplete.items() if done.incomplete.get(measure) != ms}
    if left == view.incomplete:
        return view
    return view.model_copy(update={"incomplete": left, "begins_ms": max(view.begins_ms, done.begins_ms)})


def since(batch: int, before: Versions, after: Versions) -> Versions:
    """Return the versions `after`; those that have other statistics than `before` have them since this batch."""
    former = {view.name: _fields(view) for view in before.views}
    views = tuple(
        view.model_copy(update={"since": batch}) if former.get(view.name, _fields(view)) != _fields(view) else view
        for view in after.views
    )
    return replace(after, views=views)


def _fields(view: View) -> tuple[object, ...]:
    """Return what determines the fields of a window."""
    return view.statistics, view.sketches


def _moved(versions: Versions, newest_ms: int) -> Versions:
    """Let a version that is complete serve its name. Before the first reading every version is."""
    views = versions.views
    if newest_ms < 0:
        views = tuple(view.model_copy(update={"incomplete": {}}) for view in views)
    ready = {view.of for view in views if view.is_next and not view.incomplete}
    # What a version that stays reads stays, too.
    while stays := {view.reads for view in views if view.is_next or view.of not in ready} & {
        view.name for view in views if view.of in ready and not view.is_next
    }:
        ready -= {view.of for view in views if view.name in stays}
    kept = tuple(
        view.model_copy(update={"is_waiting": False}) if view.of in ready else view
        for view in views
        if view.is_next or view.of not in ready
    )
    return replace(versions, views=kept)


def _version(
    settings: Settings,
    view: View,
    name: str,
    reads: str | None,
    *,
    is_next: bool = False,
    incomplete: Mapping[str, int] | None = None,
) -> ViewVersion:
    fields = {key: getattr(view, key) for key in View.model_fields if key not in {"name", "measures"}}
    measures = _measures(settings, view)
    return ViewVersion.model_construct(
        **fields,
        name=name,
        measures=() if measures == (EVENTS,) else measures,
        title=view.name,
        is_waiting=is_next,
        source_keys=reads,
        zone_rules="" if view.calendar is None else view.calendar.rules,
        incomplete=incomplete or {},
    )


def _measures(settings: Settings, view: View, *, every: bool = False) -> tuple[str, ...]:
    """Return the measures of a view; with `every`, also those of a version that [input] has no more."""
    return (view.measures or (EVENTS,)) if every and view.measures is not None else settings.view_measures(view)


def described(before: Versions, after: Versions) -> list[str]:
    """Return a sentence for each view that differs."""
    former = {view.name: view for view in before.views}
    lines = []
    for view in after.views:
        shape = f"{view.length} by {', '.join(view.by) or 'nothing'}"
        was = former.pop(view.name, None)
        if was is None:
            text = f"the view {view.of} is new, as {view.name}, {shape}"
            if view.is_next:
                text = f"the view {view.of} gets a new version {view.name}, {shape}; the former one serves until it is complete"
            from_time = format_time(max(view.incomplete.values())) if view.incomplete else "the first one"
            lines.append(f"{text}. Windows from {from_time} on have all readings")
        elif was.is_next and not view.is_next:
            lines.append(f"the view {view.of} is served by its version {view.name}, {shape}")
        elif was.incomplete and not view.incomplete:
            lines.append(f"the past of the view {view.of} is complete")
        elif was.zone_rules != view.zone_rules:
            zones = "its zones" if view.calendar is None else view.calendar.zones
            lines.append(f"windows of the view {view.of} follow the rules of tzdata {calendar.VERSION} for {zones}")
        elif was != view:
            lines.append(f"the view {view.of} has other measures, statistics or another retain")
    return [*lines, *(f"{name} of the view {view.of} is removed. Its keys expire" for name, view in former.items())]


def stored(settings: Settings, files: Folder) -> Settings:
    """Return the settings with the newest views of a checkpoint; the same settings where it has none. Raises CheckpointError."""
    log = Log(files)
    numbers = log.numbers()
    versions = log.at(max(numbers)) if numbers else None
    return settings if versions is None else applied(settings, versions)


@dataclass(slots=True)
class Log:
    """The files of a checkpoint, for the one writer. Raises CheckpointError or SetupError (a full disk)."""

    files: Folder

    def at(self, batch: int) -> Versions | None:
        """Return the versions that a batch has, None where the checkpoint has none for it."""
        numbers = [number for number in self.numbers() if number <= batch]
        return DOCUMENT.required(self.files, f"{FOLDER}/{max(numbers)}") if numbers else None

    def write(self, batch: int, versions: Versions) -> None:
        """Write the versions from a batch on, before it runs."""
        DOCUMENT.write(self.files, versions, f"{FOLDER}/{batch}")
        with changing(self.files, FOLDER):
            for old in sorted(self.numbers())[:-KEPT]:
                self.files.remove(f"{FOLDER}/{old}")

    def numbers(self) -> list[int]:
        """Return the batches from which the files are."""
        return [int(name) for name in self.files.names(FOLDER) if name.isdecimal()]

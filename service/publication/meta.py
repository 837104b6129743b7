"""What a reader has to know of the service: the text of `<prefix>:meta`."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from service.errors import SinkRefusedError
from service.redis.keys import Keys, shards
from service.redis.link import reader
from service.settings import Redis, Settings, View, ViewVersion
from service.units import format_duration
from state import calendar
from state.keyed_calendar import KeyedCalendar
from state.rules import ENDLESS_MS

CONTRACT = 3
"""The version of schemas/redis.md. A service refuses a prefix whose values were written by another one."""


def meta(settings: Settings) -> str:
    """JSON: the contract's version, the number of shards, the views, the sessions and the measures; durations in ms."""
    sessions = settings.sessions
    return json.dumps(
        {
            "contract": CONTRACT,
            "shards": settings.redis.shards,
            **({"tzdata": calendar.VERSION} if any(view.calendar for view in settings.views) else {}),
            "measures": list(settings.measures),
            "views": [
                {
                    "name": view.name,
                    "measures": settings.view_measures(view),
                    "statistics": view.statistics,
                    "retain_ms": ENDLESS_MS if view.is_endless else view.retain_ms,
                    **_times(view),
                    **_units(view),
                    **_update_every(view.update_every_ms),
                    **({"final_after_ms": view.final_after_ms} if view.name in settings.leads else {}),
                    **({"from": view.reads} if view.reads is not None else {}),
                    **_shape(view),
                    **_version(view, settings.view_measures(view)),
                }
                for view in settings.views
            ],
            "sessions": {
                "gap_ms": sessions.gap_ms,
                "max_duration_ms": sessions.max_duration_ms,
                "retain_ms": sessions.retain_ms,
                **({"measure_status": True} if sessions.measure_status else {}),
                **_update_every(sessions.update_every_ms),
                **_order(settings),
            },
        }
    )


def contract_of(text: str) -> int:
    """The version in such a text; 1 without one."""
    return _number(text, "contract")


def require(options: Redis, text: str) -> None:
    """Raise SinkRefusedError when this version, with these settings, must not write where the text of meta was written."""
    remedy = "Choose another prefix, or delete this one's keys: what Kafka and the state still have is published again"
    version, shards_there = contract_of(text), _number(text, "shards")
    if version != CONTRACT:
        what = (
            f"redis.prefix = {options.prefix!r}: its values are of contract {version}, this version writes {CONTRACT}"
        )
        raise SinkRefusedError(what, remedy=remedy)
    if shards_there != options.shards:
        what = f"redis.shards = {options.shards}: the values of prefix {options.prefix!r} are in {shards_there}"
        raise SinkRefusedError(what, remedy=f"Set redis.shards to {shards_there}. {remedy}")


def require_stored(options: Redis) -> None:
    """`require` for what the prefix has, in one shard or in several, whatever the settings say. Raises SinkError, too."""
    several = options.model_copy(update={"shards": 2})
    layouts = {shards(options)[0]}
    if not options.cluster:  # there a prefix can be used in one way only
        layouts |= {Keys(options.prefix), shards(several)[0]}
    for keys in layouts:
        with reader(options, keys, "meta") as (client, budget):
            stored = budget.attempt(partial(client.get, keys.meta))
        if stored is not None:
            require(options, stored.decode("utf-8", "replace"))


def require_types(settings: Settings, stores: Iterable[Keys] | None = None) -> None:
    """Raise SinkRefusedError that names each key under the prefix that has a type of another program; SinkError, too.

    It looks at the keys of the service and its views in these shards, or in all, not at those of windows, sessions and devices.
    """
    foreign = []
    for keys in stores or shards(settings.redis):
        types = {**keys.types, **{f"{keys.prefix}:keys:{view.name}": "zset" for view in settings.views}}
        with reader(settings.redis, keys, "types of keys") as (client, budget):
            for key, expected in types.items():
                stored = budget.attempt(partial(client.type, key)).decode()
                if stored not in {expected, "none"}:
                    foreign.append(f"{key} is a {stored}, Tidemark's is a {expected}")
    if foreign:
        what = f"redis.prefix = {settings.redis.prefix!r} has keys of another program: {'; '.join(foreign)}"
        raise SinkRefusedError(what, remedy="Remove these keys or choose another prefix")


def require_views(settings: Settings, text: str) -> None:
    """Raise SinkRefusedError when a view has the name of one in this text of meta, but another window, slide or columns.

    The windows of both would share keys: a key has the view's name and the window's start, not its end.
    """
    stored = {view["name"]: view for view in json.loads(text).get("views", ())}
    problems = [
        f"views.{view.name} is {_shown(_shape(view))}, its published windows are {_shown(stored[view.name])}"
        for view in settings.views
        if view.name in stored and _identity(stored[view.name]) != _identity(_shape(view))
    ]
    if problems:
        what = f"redis.prefix = {settings.redis.prefix!r}: {'; '.join(problems)}"
        remedy = "Give the changed view another name, or set it back. The old view's windows expire by its retain"
        raise SinkRefusedError(what, remedy=remedy)


def require_topics(settings: Settings, offsets: Mapping[str, object]) -> None:
    """Raise SinkRefusedError when the offsets of the prefix's progress are all of topics that this service does not read."""
    topics = settings.kafka.topics
    if offsets and not set(offsets) & set(topics):
        of = ", ".join(sorted(offsets))
        what = f"redis.prefix = {settings.redis.prefix!r}: its values are of {of}, kafka.topics has {', '.join(topics)}"
        raise SinkRefusedError(
            what, remedy="Each service needs a prefix of its own: choose another one, or delete its keys"
        )


def _version(view: View, measures: Iterable[str]) -> dict[str, Any]:
    """The name that readers use, if it is not that in keys; whether an older version serves it; and what is not complete."""
    marks = [ms for name in measures if (ms := view.complete_from(name)) is not None]
    marks += [view.begins_ms] if isinstance(view, ViewVersion) and view.begins_ms else []
    return {
        **({"of": view.of} if view.of != view.name else {}),
        **({"next": True} if view.is_next else {}),
        **({"complete_from": max(marks)} if marks else {}),
    }


def _shape(view: View) -> dict[str, Any]:
    """What identifies a view's windows, besides its name: columns, and length and slide in ms or the calendar."""
    if view.calendar is None:
        return {"by": list(view.by), "window_ms": view.window_ms, "slide_ms": view.step_ms}
    return {"by": list(view.by), **view.calendar.document}


def _times(view: View) -> dict[str, int]:
    """The longest window and the interval of which all starts are multiples: how readers without calendars find each window."""
    return {} if view.calendar is None else {"window_ms": view.longest_ms, "slide_ms": view.step_ms}


def _units(view: View) -> dict[str, float]:
    """The time to which rates refer (ms), where counters begin again at 0, and how long readings hold (ms), without defaults."""
    known = {
        "per_ms": view.shown.per_ms if view.shown.per_ms != 1_000 else None,
        "wraps_at": view.wraps_at,
        "carry_for_ms": view.carry_for_ms,
    }
    return {name: value for name, value in known.items() if value}


def _order(settings: Settings) -> dict[str, Any]:
    """The statistics of sessions that not all have, if there are any, and the measures that have them."""
    shown = settings.sessions.shown
    if not shown.names:
        return {}
    measures = [measure for measure, ordered in settings.session_statistics.items() if ordered]
    units = {"per_ms": shown.per_ms if shown.per_ms != 1_000 else None, "wraps_at": shown.wraps_at}
    known = {name: value for name, value in units.items() if value}
    return {"statistics": settings.sessions.statistics, "measures": measures, **known}


def _update_every(every_ms: int) -> dict[str, int]:
    """How much older than progress an open value may be, where it may."""
    return {"update_every_ms": every_ms} if every_ms else {}


def _identity(shape: Mapping[str, Any]) -> tuple[Any, ...]:
    calendars = shape.get("calendar"), shape.get("calendars")
    return shape["by"], calendars, (shape["window_ms"], shape["slide_ms"]) if calendars == (None, None) else None


def _shown(shape: Mapping[str, Any]) -> str:
    of = calendar_of(shape)
    if of is not None:
        return f"{of.text}{of.text_of_offset} by {', '.join(shape['by']) or 'nothing'}"
    if shape["window_ms"] == ENDLESS_MS:
        return f"without windows by {', '.join(shape['by']) or 'nothing'}"
    length, slide = (format_duration(shape[name]) for name in ("window_ms", "slide_ms"))
    return f"{length}{'' if slide == length else f' every {slide}'} by {', '.join(shape['by']) or 'nothing'}"


def calendar_of(view: Mapping[str, Any]) -> calendar.Calendar | KeyedCalendar | None:
    """Return the calendar of a view's fields in meta or /status, if it has one."""
    if "calendars" in view:
        return KeyedCalendar.parse(view["calendars"], view["by"])
    return calendar.Calendar(**view["calendar"]) if "calendar" in view else None


def _number(text: str, name: str) -> int:
    try:
        return int(json.loads(text)[name])
    except (ValueError, KeyError, TypeError):
        return 1

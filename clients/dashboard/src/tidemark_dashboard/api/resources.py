"""What may be asked. Every answer is the client's, of a query of `tidemark_client.queries`; no other code reads Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark_client import Device, Meta, Progress, Session, View, Window, queries
from tidemark_client.aggregate import Aggregate
from tidemark_client.choice import STATUSES, Choice
from tidemark_client.queries import BACK
from tidemark_dashboard import fleet
from tidemark_dashboard.api.documents import document
from tidemark_dashboard.api.parameters import Parameter, Values
from tidemark_dashboard.api.problems import ProblemError, wrong
from tidemark_dashboard.fleet import FACT, LAST_SEEN, MEASURE, Filter, Order
from tidemark_dashboard.health import now_ms
from tidemark_dashboard.keys import of_key
from tidemark_dashboard.service import EVERY_S, TIMEOUT_S, Alert
from tidemark_dashboard.sources import Sources, Topic

MOST_KEYS, MOST_PAGE = 10_000, 1_000
FRESH_MS = int(2_000 * EVERY_S)
"""An answer of the service that is older is waited for."""


@dataclass(frozen=True)
class Answer:
    """A document, and the topics that it depends on."""

    document: dict[str, Any]
    topics: frozenset[Topic]


@dataclass(frozen=True)
class Resource:
    """An address below /api/v1. `shape` is the type of the answer, or its members with their types; "?" marks optional ones."""

    name: str
    summary: str
    text: str
    parameters: tuple[Parameter, ...]
    shape: Any
    read: Callable[[Sources, Values], Awaitable[Answer]]
    may_lack: bool = False


VIEW = Parameter("view", "the name of a view", is_required=True, example="site")
KEY = Parameter(
    "key",
    "the key: a value for each column of the view, in their order; none for a view over all devices",
    is_repeated=True,
    example="leeds",
)
MEASURE_OF = Parameter(
    "measure", "a measure of the view; may be left out where the view has one", example="temperature"
)
SINCE = Parameter("since", "windows that end later", "since", is_required=True, example="1h")
UNTIL = Parameter("until", "windows that start earlier; without it, all", "time")
FINAL = Parameter("final", "only windows that are final", "flag", usual=False)
DEVICE = Parameter("device", "the id of a device", is_required=True, example="meter-000017")


async def _meta(sources: Sources, _: Values) -> Answer:
    return _answer(document(await sources.meta()), ("progress",))


async def _progress(sources: Sources, _: Values) -> Answer:
    found = await sources.ask(queries.progress())
    return _value(
        found, "There is no progress", "Ask again when the service has finished its first batch", ("progress",)
    )


async def _keys(sources: Sources, given: Values) -> Answer:
    view = await _view(sources, given)
    found = await sources.ask(queries.keys(view.name, since=given["since"], limit=given["limit"]))
    rows = [{"key": key, "start": start} for key, start in found]
    return _answer({"keys": rows}, ("keys", view.stored), ("progress",))


async def _latest(sources: Sources, given: Values) -> Answer:
    view = await _view(sources, given)
    measure = view.measure(given["measure"])
    progress = await sources.look()
    keys = await sources.keys.of(view, (progress.final if progress else 0) - view.retain_ms - view.window_ms)
    page, _, _, has_more = keys.page("", given["limit"], after=given["after"] or "")
    found = await sources.ask(queries.latest(view.name, page, measure, final=given["final"], back=given["back"]))
    answer: dict[str, Any] = {"windows": document(found)}
    if has_more:
        answer["next"] = page[-1][0]
    topics: list[Topic] = [("progress",), ("keys", view.stored), *(("window", view.stored, key) for key, _ in page)]
    return _answer(answer, *topics)


async def _windows(sources: Sources, given: Values) -> Answer:
    view, key = await _series(sources, given)
    found = await sources.ask(
        queries.windows(view.name, key, since=given["since"], until=given["until"], measure=given["measure"])
    )
    return _answer({"windows": document(found)}, *_of_window(view, key))


async def _window(sources: Sources, given: Values) -> Answer:
    view, key = await _series(sources, given)
    found = await sources.ask(queries.window(view.name, key, given["start"], given["measure"]))
    what = f"View {view.name!r} has no window of {key!r} with readings that starts then"
    return _value(found, what, "It has expired, or starts at another time: ask for windows", *_of_window(view, key))


async def _current(sources: Sources, given: Values) -> Answer:
    view, key = await _series(sources, given)
    query = queries.latest_complete if given["final"] else queries.current
    found = await sources.ask(query(view.name, key, given["measure"]))
    what = f"View {view.name!r} has no {'final ' if given['final'] else ''}window of {key!r}"
    return _value(found, what, "Ask for keys, which has the keys of the view", *_of_window(view, key))


async def _aggregate(sources: Sources, given: Values) -> Answer:
    view, key = await _series(sources, given)
    found = await sources.ask(
        queries.aggregate(view.name, key, since=given["since"], until=given["until"], measure=given["measure"])
    )
    what = f"View {view.name!r} has no window of {key!r} in this span"
    return _value(found, what, "Ask for a longer span", *_of_window(view, key))


async def _device(sources: Sources, given: Values) -> Answer:
    found = await sources.ask(queries.device(given["device"]))
    what = f"There is no device {given['device']!r}"
    return _value(found, what, "It has sent nothing for sessions.retain, or never", ("device", given["device"]))


async def _devices(sources: Sources, given: Values) -> Answer:
    """The order and the filter come from the index in memory, which the client has read; the devices are read again."""
    index = sources.fleet
    sources.want()
    sources.want_fleet()
    await sources.meta()
    if not index.is_complete:
        detail = f"{len(index):,} devices are counted so far"
        raise ProblemError("counting", 503, detail, {"remedy": "Ask again in some seconds"})
    where = dict(given["where"])
    if len(where) < len(given["where"]):
        raise wrong("where", "where names a column several times", "Give each column once")
    choice = Choice(given["status"], where, given["sort"], given["limit"])
    ids = index.survey(Filter(status=given["status"] or "", facts=tuple(where.items())), "").ids
    page = index.page(ids, _order(given["sort"] or "id", index), given["offset"], given["limit"])
    found = await sources.ask_all(queries.device(each) for each in page)
    for each, device in zip(page, found, strict=True):
        index.note(each, device)
    devices = [each for each in found if each is not None and choice.accepts(each)]
    answer = {"devices": document(devices), "matches": len(ids), "waiting": index.waiting}
    return _answer(answer, ("fleet",), *(("device", each) for each in page))


def _order(text: str, index: fleet.Fleet) -> Order:
    """The order of the index that the client's `sort` names. Raises ProblemError for a name that no device has."""
    name = text.removeprefix("-")
    if name not in {fleet.ID, LAST_SEEN}:
        known = [*index.columns, *index.measures]
        if name not in known and index.ids():
            remedy = f"Give id, last_seen or one of {', '.join(known)}, with - before it for the largest first"
            raise wrong("sort", f"sort = {text!r}: devices have no {name!r}", remedy)
        name = (MEASURE if name in index.sent or name not in index.columns else FACT) + name
    return Order(name, text.startswith("-"))


async def _session(sources: Sources, given: Values) -> Answer:
    found = await sources.ask(queries.session(given["device"], given["start"]))
    what = "open session" if given["start"] is None else "session that starts then"
    return _value(found, f"Device {given['device']!r} has no {what}", "Ask for sessions", ("device", given["device"]))


async def _sessions(sources: Sources, given: Values) -> Answer:
    found = await sources.ask(queries.sessions(given["device"], given["since"]))
    return _answer({"sessions": document(found)}, ("device", given["device"]))


async def _status(sources: Sources, _: Values) -> Answer:
    """What the service says, as the pages have it; it is asked over HTTP and not over Redis."""
    await sources.look()
    await _hear(sources)
    service, fresh = sources.service, sources.freshness()
    is_heard = service.is_known and not service.health.is_away and bool(service.status)
    answer = {
        "freshness": {
            "level": fresh.level,
            "text": fresh.text,
            "detail": fresh.detail,
            "as_of_ms": fresh.as_of_ms,
            **({} if fresh.batch is None else {"batch": fresh.batch}),
        },
        **({"service": dict(service.status)} if is_heard else {}),
        **({"conditions": document(service.conditions)} if is_heard else {}),
        **({"service_error": service.health.reason} if service.health.is_away else {}),
    }
    return _answer(answer, ("service",), ("progress",))


async def _hear(sources: Sources) -> None:
    """Wait until the service was asked not long ago."""
    service = sources.service
    if not service.is_known or service.asked_ms > now_ms() - FRESH_MS:
        return
    heard = asyncio.Event()
    sources.subscribe(heard.set, [("service",)])
    sources.want()
    try:
        await asyncio.wait_for(heard.wait(), 2 * TIMEOUT_S)
    except TimeoutError:
        return
    finally:
        sources.subscribe(heard.set, (), [("service",)])


async def _view(sources: Sources, given: Values) -> View:
    return (await sources.meta()).view(given["view"])


async def _series(sources: Sources, given: Values) -> tuple[View, str]:
    """A view and the text of the key. One `key` for several columns is a text of `keys`, in which they are joined."""
    view, given_key = await _view(sources, given), given["key"]
    key = view.key(given_key[0] if len(given_key) == 1 else given_key)
    of_key(view, key)
    return view, key


def _of_window(view: View, key: str) -> tuple[Topic, ...]:
    return ("progress",), ("window", view.stored, key)


def _answer(found: dict[str, Any], *topics: Topic) -> Answer:
    return Answer(found, frozenset(topics))


def _value(found: Any, what: str, remedy: str, *topics: Topic) -> Answer:
    """The answer with a value of the client. Raises ProblemError where Redis does not have it: `what` says so."""
    if found is None:
        raise ProblemError("not_found", 404, what, {"remedy": remedy})
    return _answer(document(found), *topics)


_STATUS: Mapping[str, Any] = {
    "freshness": {"level": str, "text": str, "detail": str, "as_of_ms": int, "batch?": int},
    "service?": dict[str, Any],
    "conditions?": list[Alert],
    "service_error?": str,
}

RESOURCES: Sequence[Resource] = (
    Resource("meta", "Views, measures and lengths", "What the service says of itself.", (), Meta, _meta),
    Resource(
        "progress",
        "What all values include",
        "The batch, the watermark, `final`, offsets.",
        (),
        Progress,
        _progress,
        True,
    ),
    Resource(
        "status",
        "State and conditions of the service",
        "`freshness` says whether values are current: level is live, silent, waiting or old. `service` is what the service's "
        "/status answers, `conditions` are its alerts that fire or wait. Both are left out where the service does not answer.",
        (),
        _STATUS,
        _status,
    ),
    Resource(
        "keys",
        "The keys of a view",
        "Each with the start of its newest window, the newest first.",
        (
            VIEW,
            Parameter("since", "keys whose newest window starts then or later", "since", example="1h"),
            Parameter("limit", "keys at most", "whole", usual=100, least=1, most=MOST_KEYS),
        ),
        {"keys": [{"key": str, "start": int}]},
        _keys,
    ),
    Resource(
        "latest",
        "The newest window of every key",
        "A page of keys in their order; `next`, where there are more, is the next `after`. A key without readings of the measure "
        "in its last `back` windows is left out.",
        (
            VIEW,
            MEASURE_OF,
            FINAL,
            Parameter("back", "windows of each key that are looked at", "whole", usual=BACK, least=1, most=1_000),
            Parameter("after", "keys behind this one"),
            Parameter("limit", "keys at most", "whole", usual=100, least=1, most=MOST_PAGE),
        ),
        {"windows": [Window], "next?": str},
        _latest,
    ),
    Resource(
        "current",
        "The newest window of a key",
        "With `final`, the newest final one.",
        (VIEW, KEY, MEASURE_OF, FINAL),
        Window,
        _current,
        True,
    ),
    Resource(
        "window",
        "One window",
        "The window that starts at a time.",
        (VIEW, KEY, MEASURE_OF, Parameter("start", "its start", "time", is_required=True)),
        Window,
        _window,
        True,
    ),
    Resource(
        "windows",
        "The windows of a key",
        "The oldest first, 10,000 at most.",
        (VIEW, KEY, MEASURE_OF, SINCE, UNTIL),
        {"windows": [Window]},
        _windows,
    ),
    Resource(
        "aggregate",
        "The statistics of a span",
        "Merged from the windows of a key, 10,000 at most.",
        (VIEW, KEY, MEASURE_OF, SINCE, UNTIL),
        Aggregate,
        _aggregate,
        True,
    ),
    Resource("device", "One device", "Status, newest values, attributes.", (DEVICE,), Device, _device, True),
    Resource(
        "devices",
        "Devices by status and attributes, in an order",
        "A page of devices; `matches` is the number of all. Devices that lack what `sort` names are the last. Order and filter "
        "come from an index that follows the change feed: `waiting` devices have changed and are not in it yet.",
        (
            Parameter("status", "devices of this status", choices=STATUSES, example="online"),
            Parameter("where", "column=value of the reference", "pair", is_repeated=True, example="site=leeds"),
            Parameter(
                "sort", "id, last_seen, a column or a measure; - before it: the largest first", example="-temperature"
            ),
            Parameter("limit", "devices at most", "whole", usual=100, least=1, most=MOST_PAGE),
            Parameter("offset", "devices to leave out", "whole", usual=0, least=0, most=10_000_000),
        ),
        {"devices": [Device], "matches": int, "waiting": int},
        _devices,
    ),
    Resource(
        "session",
        "One session of a device",
        "The open one, or the one that starts at a time.",
        (DEVICE, Parameter("start", "its start; without it the open session", "time")),
        Session,
        _session,
        True,
    ),
    Resource(
        "sessions",
        "The sessions of a device",
        "The oldest first, without those that became part of another.",
        (DEVICE, Parameter("since", "sessions that began then or later", "since")),
        {"sessions": [Session]},
        _sessions,
    ),
)
BY_NAME: Mapping[str, Resource] = {each.name: each for each in RESOURCES}

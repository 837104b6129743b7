"""What can be asked, as plain generators: each yields commands for Redis and is sent their replies.

    client.device("d7")                     is the same as  client.ask(queries.device("d7"))
    client.ask_all([...])                   asks many at once: all of them together take as many round trips as one
    client.snapshot([...])                  asks many as of one batch

No query does I/O: client.py and aio.py do it, one with blocking calls, one with asyncio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Callable, TypeVar, cast

from tidemark_client import arguments, layout
from tidemark_client.aggregate import Aggregate, apart, merged
from tidemark_client.errors import ArgumentError, BusyError, TooManyWindowsError
from tidemark_client.feed import changes, end_of_feed
from tidemark_client.names import KeyOf, Names, Place
from tidemark_client.steps import Command, Pause, Query, Steps
from tidemark_client.times import Since, Time
from tidemark_client.values import Device, Meta, Progress, Session, View, Window

__all__ = [
    "Query",
    "Snapshot",
    "aggregate",
    "changes",
    "current",
    "device",
    "end_of_feed",
    "keys",
    "latest",
    "latest_complete",
    "meta",
    "progress",
    "session",
    "sessions",
    "skewed",
    "snapshot",
    "together",
    "value",
    "window",
    "windows",
]

T = TypeVar("T")

MOST_WINDOWS = 10_000
"""Windows in one answer, and windows that are looked at to find the newest one."""
SOME, MORE = 100, 1_000
"""Windows that are looked at in the second round trip, and in each one after it."""
BACK = 30
"""Windows of each key that `latest` looks at: a key that lacks the measure costs as many reads."""
RETRY_S = 0.05
"""Between two attempts of a snapshot."""


def meta() -> Query[Meta]:
    """The service's views, measures and session lengths."""
    return Query(layout.meta)


def progress() -> Query[Progress | None]:
    """What all values include, or None; of several shards what all of them have, see Progress.of_all."""

    def steps(names: Names) -> Steps[Progress | None]:
        stores, meta = names.stores, [("GET", names.shard(0).meta)] if names.shards > 1 else []
        replies = yield [*(("HGETALL", store.progress) for store in stores), *meta]
        for text in replies[len(stores) :]:
            layout.check_meta(names, text)
        found = Progress.of_all(replies[: len(stores)])
        if found is None:
            yield from layout.check(names)
        return found

    return Query(steps)


def window(view: str, key: KeyOf, start: Time, measure: str | None = None) -> Query[Window | None]:
    """One window, or None where it has no readings or has expired."""

    arguments.texts(view=view, measure=measure)
    begin = arguments.time("start", start)

    def steps(names: Names) -> Steps[Window | None]:
        series, store = yield from _series(names, view, key, measure)
        [found] = yield from _read(store, [series.place(begin)])
        return found

    return Query(steps)


def current(view: str, key: KeyOf = (), measure: str | None = None) -> Query[Window | None]:
    """The newest window of a key that has readings, final or not; None where none of the last MOST_WINDOWS has any."""

    arguments.texts(view=view, measure=measure)

    def steps(names: Names) -> Steps[Window | None]:
        series, store = yield from _series(names, view, key, measure)
        last, _ = yield from _last(series, store)
        return None if last is None else (yield from _newest(store, series, last, last, lambda _: True))

    return Query(steps)


def latest_complete(view: str, key: KeyOf = (), measure: str | None = None) -> Query[Window | None]:
    """The newest window of a key that has readings and is final; None where none of the last MOST_WINDOWS is."""

    arguments.texts(view=view, measure=measure)

    def steps(names: Names) -> Steps[Window | None]:
        series, store = yield from _series(names, view, key, measure)
        last, [fields] = yield from _last(series, store, ("HGETALL", store.progress))
        progress = Progress.of(fields)
        if last is None or progress is None:
            return None
        newest, ahead_ms = _final_starts(series.view, progress, last)
        return (yield from _newest(store, series, last, newest, lambda each: each.final, ahead_ms))

    return Query(steps)


def windows(
    view: str, key: KeyOf = (), *, since: Since, until: Time | None = None, measure: str | None = None
) -> Query[list[Window]]:
    """All windows with a reading that end after `since` and start before `until` (or ever), the oldest first.

    Raises TooManyWindowsError above MOST_WINDOWS.
    """

    arguments.texts(view=view, measure=measure)
    begin, limit = arguments.time("since", since, is_ago=True), arguments.some_time("until", until)

    def steps(names: Names) -> Steps[list[Window]]:
        series, store = yield from _series(names, view, key, measure)
        return (yield from _span(series, store, begin, limit))

    return Query(steps)


def aggregate(
    view: str, key: KeyOf = (), *, since: Since, until: Time | None = None, measure: str | None = None
) -> Query[Aggregate | None]:
    """The statistics of all windows of `windows` together; None without one. Windows of a sliding view that overlap a newer one
    are left out, so that no reading counts twice.

    Raises TooManyWindowsError above MOST_WINDOWS, ContractError for a sketch that no service writes.
    """
    arguments.texts(view=view, measure=measure)
    begin, limit = arguments.time("since", since, is_ago=True), arguments.some_time("until", until)

    def steps(names: Names) -> Steps[Aggregate | None]:
        series, store = yield from _series(names, view, key, measure)
        found = apart((yield from _span(series, store, begin, limit)), series.view)
        return merged(found, lambda start: store.window(series.view.stored, series.measure, series.key, start))

    return Query(steps)


def latest(
    view: str,
    keys: Sequence[tuple[str, int]],
    measure: str | None = None,
    *,
    final: bool = False,
    back: int = BACK,
) -> Query[list[Window]]:
    """The newest window of each of these keys, which `keys` or KeyPages have given; with `final`, the newest final one.

    A key without such a window among its last `back` ones, or final ones, is left out. Raises ArgumentError.
    """
    arguments.texts(view=view, measure=measure)
    arguments.counts(back=back)
    if not 1 <= back <= MOST_WINDOWS:
        raise ArgumentError(f"back = {back}: give a number of windows from 1 to {MOST_WINDOWS}")

    def steps(names: Names) -> Steps[list[Window]]:
        meta = (yield from layout.meta(names)).view(view)
        chosen = meta.measure(measure)
        newest_of = _newest_final if final else _newest_any
        questions = [Query(newest_of(_Series(meta, key, chosen), names.store(key), last, back)) for key, last in keys]
        found = yield from together(questions).steps(names)
        return [each for each in found if each is not None]

    return Query(steps)


def _newest_any(series: _Series, store: Names, last: int, back: int) -> Callable[[Names], Steps[Window | None]]:
    def steps(_: Names) -> Steps[Window | None]:
        return (yield from _newest(store, series, last, last, lambda _: True, most=back))

    return steps


def _newest_final(series: _Series, store: Names, last: int, back: int) -> Callable[[Names], Steps[Window | None]]:
    def steps(_: Names) -> Steps[Window | None]:
        [fields] = yield [("HGETALL", store.progress)]
        progress = Progress.of(fields)
        if progress is None:
            return None
        newest, ahead_ms = _final_starts(series.view, progress, last)
        most = back + -(-ahead_ms // series.view.step_ms)
        return (yield from _newest(store, series, last, newest, lambda each: each.final, ahead_ms, most))

    return steps


def _final_starts(view: View, progress: Progress, last: int) -> tuple[int, int]:
    """The latest time at which a final window of a key may start, and how far it is behind that at which all are final.

    All that start by `sure` are final or settled. Those that start after it, up to `newest`, are if silence has closed them.
    """
    until = progress.settled_until(view)
    sure, newest = (view.last_closed(each) for each in (until, max(until, progress.closed_until)))
    newest = min(newest, last)
    return newest, max(0, newest - sure)


def _span(series: _Series, store: Names, since: int, until: int | None) -> Steps[list[Window]]:
    last, _ = yield from _last(series, store)
    ends = [each for each in (last, None if until is None else until - 1) if each is not None]
    if not ends:
        return []
    newest = min(ends)
    starts = series.view.between(since, newest, MOST_WINDOWS)
    if len(starts) > MOST_WINDOWS:
        number = len(starts) if series.view.calendar is None else f"more than {MOST_WINDOWS}"
        msg = (
            f"view {series.view.name!r} has {number} windows from {since} to {newest}; {MOST_WINDOWS} are the most. "
            "Ask for less at once, with `until`"
        )
        raise TooManyWindowsError(msg)
    found = yield from _read(store, [series.place(start) for start in starts])
    return [each for each in found if each is not None]


def keys(view: str, *, since: Since | None = None, limit: int = 100) -> Query[list[tuple[str, int]]]:
    """The keys of a view whose newest window starts at `since` or later, each with that start, the newest first."""

    arguments.texts(view=view)
    arguments.counts(limit=limit)
    begin = arguments.some_time("since", since, is_ago=True)

    def steps(names: Names) -> Steps[list[tuple[str, int]]]:
        stored = (yield from layout.meta(names)).view(view).stored
        replies = yield [
            ("ZREVRANGEBYSCORE", *_newest_first(store.keys(stored), begin, limit)) for store in names.stores
        ]
        return _merged(names, replies, limit)

    return Query(steps)


def skewed(limit: int = 100) -> Query[list[tuple[str, int]]]:
    """Devices that are marked skewed, each with the broker's time of its last early reading, the newest first."""

    arguments.counts(limit=limit)

    def steps(names: Names) -> Steps[list[tuple[str, int]]]:
        replies = yield [("ZREVRANGEBYSCORE", *_newest_first(store.skewed, None, limit)) for store in names.stores]
        if not any(replies):
            yield from layout.check(names)
        return _merged(names, replies, limit)

    return Query(steps)


def device(device_id: str) -> Query[Device | None]:
    """A device, or None where it is unknown or has expired."""

    arguments.texts(device_id=device_id)

    def steps(names: Names) -> Steps[Device | None]:
        [fields] = yield [("HGETALL", names.store(device_id).device(device_id))]
        if not fields:
            yield from layout.check(names)
        return Device.of(device_id, fields) if fields else None

    return Query(steps)


def session(device_id: str, start: Time | None = None) -> Query[Session | None]:
    """A device's session that starts then, or its open one; None where there is none."""

    arguments.texts(device_id=device_id)
    asked = arguments.some_time("start", start)

    def of(store: Names, begin: int) -> Steps[Session | None]:
        [fields] = yield [("HGETALL", store.session(device_id, begin))]
        return Session.of(Place("session", device_id, start=begin), fields) if fields else None

    def steps(names: Names) -> Steps[Session | None]:
        store = names.store(device_id)
        if asked is not None:
            return (yield from of(store, asked))
        # A batch writes sessions before devices: what a device names may be closed by now, or begin earlier.
        named: set[str] = set()
        while True:
            [text] = yield [("HGET", store.device(device_id), "session")]
            if text is None:
                yield from layout.check(names)
            if not text or text in named:
                return None
            named.add(text)
            found = yield from of(store, int(text))
            while found is not None and found.merged_into is not None and found.merged_into < found.start:
                found = yield from of(store, found.merged_into)
            if found is not None and found.state == "open":
                return found

    return Query(steps)


def sessions(device_id: str, since: Since | None = None) -> Query[list[Session]]:
    """A device's sessions that began at `since` or later, the oldest first, without those that became part of another."""

    arguments.texts(device_id=device_id)
    begin = arguments.some_time("since", since, is_ago=True)

    def steps(names: Names) -> Steps[list[Session]]:
        store = names.store(device_id)
        [texts] = yield [("ZRANGEBYSCORE", store.sessions(device_id), "-inf" if begin is None else begin, "+inf")]
        starts = [int(text) for text in texts]
        replies = yield [("HGETALL", store.session(device_id, start)) for start in starts]
        places = [Place("session", device_id, start=start) for start in starts]
        found = [Session.of(place, fields) for place, fields in zip(places, replies) if fields]
        return [session for session in found if session.state != "merged"]

    return Query(steps)


def value(place: Place) -> Query[Window | Session | Device | Progress | None]:
    """What a place of the change feed has now; None where it has expired or was removed."""

    def steps(names: Names) -> Steps[Window | Session | Device | Progress | None]:
        if place.kind == "progress":
            return (yield from progress().steps(names))
        if place.kind == "device":
            return (yield from device(place.key).steps(names))
        if place.kind == "session":
            return (yield from session(place.key, place.start).steps(names))
        [found] = yield from _read(names.store(place.key), [place])
        return found

    return Query(steps)


def together(questions: Iterable[Query[Any]]) -> Query[list[Any]]:
    """Their answers in their order, in as many round trips as the longest of them needs. Equal commands of a round trip are sent
    once.
    """
    asked = list(questions)
    if any(query.pauses for query in asked):
        raise TypeError("a snapshot is not asked together with other queries: give all of them to one snapshot")

    def steps(names: Names) -> Steps[list[Any]]:
        running = {number: query.steps(names) for number, query in enumerate(asked)}
        answers: list[Any] = [None] * len(asked)
        replies: dict[int, list[Any]] = {}
        while running:
            commands: dict[Command, int] = {}
            places: dict[int, list[int]] = {}
            for number, each in list(running.items()):
                try:
                    step = cast("list[Command]", each.send(replies[number]) if number in replies else next(each))
                except StopIteration as end:
                    answers[number] = end.value
                    del running[number]
                    continue
                places[number] = [commands.setdefault(command, len(commands)) for command in step]
            if commands:
                answer = yield list(commands)
                replies = {number: [answer[place] for place in each] for number, each in places.items()}
        return answers

    return Query(steps)


@dataclass(frozen=True)
class Snapshot:
    """`answers` in the order of the questions, all as of the batch of `progress`."""

    progress: Progress
    answers: list[Any]


def snapshot(questions: Iterable[Query[Any]], attempts: int = 50) -> Query[Snapshot]:
    """Their answers as of one batch. Raises BusyError where a batch was being written in each attempt.

    `progress` is what the shards of the answers have.
    """
    arguments.counts(attempts=attempts)
    all_of_them = together(questions)

    def steps(names: Names) -> Steps[Snapshot]:
        for _ in range(attempts):
            found = yield from _as_of_one_batch(names, all_of_them)
            if found is not None:
                return found
            yield Pause(RETRY_S)
        msg = (
            f"prefix {names.prefix!r}: in each of {attempts} attempts a batch was being written, or there was no progress. "
            "Try again, or ask for less at once"
        )
        raise BusyError(msg)

    return Query(steps, pauses=True)


def _as_of_one_batch(names: Names, questions: Query[list[Any]]) -> Steps[Snapshot | None]:
    """One attempt; the progress of a shard is read just before its first value, in the same round trip, and at the end."""
    running, before, replies = questions.steps(names), dict[int, dict[str, str]](), None
    while True:
        try:
            commands = cast("list[Command]", next(running) if replies is None else running.send(replies))
        except StopIteration as end:
            answers: list[Any] = end.value
            break
        # GET is for meta, which belongs to no batch.
        read = {names.number_of(command[1]) for command in commands if command[0] != "GET"}
        new = sorted(each for each in read if each is not None and each not in before)
        replies = yield [*_progress(names, new), *commands]
        before.update(zip(new, replies))
        replies = replies[len(new) :]
        if not _is_one_batch(before):
            return None
    if not before:
        every = list(range(names.shards))
        before = dict(zip(every, (yield _progress(names, every))))
    after = dict(zip(before, (yield _progress(names, list(before)))))
    progress = Progress.of_all(list(after.values()))
    return Snapshot(progress, answers) if progress and before == after and _is_one_batch(after) else None


def _progress(names: Names, shards: Sequence[int]) -> list[Command]:
    return [("HGETALL", names.shard(number).progress) for number in shards]


def _is_one_batch(progress: Mapping[int, Mapping[str, str]]) -> bool:
    """Whether these shards have all of one batch, and nothing of the next one."""
    is_whole = all("offsets" in fields and "writing" not in fields for fields in progress.values())
    return is_whole and len({(fields["epoch"], fields["batch"]) for fields in progress.values()}) <= 1


class _Series:
    """The windows of one view, measure and key."""

    def __init__(self, view: View, key: str, measure: str) -> None:
        self.view, self.key, self.measure = view.of_key(key), key, measure

    def place(self, start: int) -> Place:
        return Place("window", self.key, self.view.stored, self.measure, start)


def _series(names: Names, view: str, key: KeyOf, measure: str | None) -> Steps[tuple[_Series, Names]]:
    """A series, and the names of its shard."""
    found = (yield from layout.meta(names)).view(view)
    series = _Series(found, found.key(key), found.measure(measure))
    return series, names.store(series.key)


def _last(series: _Series, store: Names, *more: Command) -> Steps[tuple[int | None, list[Any]]]:
    """The start of the newest window of a series' key, and the replies to more commands."""
    score, *replies = yield [("ZSCORE", store.keys(series.view.stored), series.key), *more]
    return None if score is None else int(float(score)), replies


def _newest(
    store: Names,
    series: _Series,
    last: int,
    newest: int,
    accepts: Callable[[Window], bool],
    ahead_ms: int = 0,
    most: int = MOST_WINDOWS,
) -> Steps[Window | None]:
    """The newest acceptable window that starts by `newest`, of a key whose newest window, of any measure, starts at `last`.

    The first round trip looks at the windows of `ahead_ms` and one more, all of them together at `most` windows.
    """
    starts, oldest = series.view.backwards(newest), last - series.view.retain_ms - series.view.window_ms
    start, looked, page = newest, 0, min(-(-ahead_ms // series.view.step_ms) + 1, MORE)
    while start >= oldest and looked < most:
        page = min(page, most - looked)
        places = [series.place(start) for start in islice(starts, page)]
        for each in (yield from _read(store, places)):
            if each is not None and accepts(each):
                return each
        start, looked, page = places[-1].start or 0, looked + page, MORE if looked else SOME
    return None


def _read(store: Names, places: Sequence[Place]) -> Steps[list[Window | None]]:
    """Windows, and before them, in the same round trip, the progress that says which are closed."""
    windows = [("HGETALL", store.window(each.view, each.measure, each.key, each.start or 0)) for each in places]
    progress, *replies = yield [("HGETALL", store.progress), *windows]
    return [Window.of(place, fields, progress) if fields else None for place, fields in zip(places, replies)]


def _newest_first(name: str, since: int | None, limit: int) -> Command:
    """The arguments that read a sorted set whose scores are times."""
    return (name, "+inf", "-inf" if since is None else str(since), "WITHSCORES", "LIMIT", 0, limit)


def _merged(names: Names, replies: Sequence[Any], limit: int) -> list[tuple[str, int]]:
    """Members and times of all shards, the newest first."""
    found = [(str(member), int(float(score))) for rows in replies for member, score in _pairs(rows)]
    if names.shards > 1:
        found.sort(key=lambda each: (each[1], each[0]), reverse=True)
    return found if limit < 0 else found[:limit]


def _pairs(rows: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """Members with their scores; redis-py gives them as pairs or, where its protocol 2 has no call of its own, one by one."""
    if rows and not isinstance(rows[0], (list, tuple)):
        return zip(rows[::2], rows[1::2])
    return ((member, score) for member, score in rows)

"""What can be asked, as plain generators: each yields commands for Redis and is sent their replies.

    client.device("d7")                     is the same as  client.ask(queries.device("d7"))
    client.ask_all([...])                   asks many at once: all of them together take as many round trips as one
    client.snapshot([...])                  asks many as of one batch

No query does I/O: client.py and aio.py do it, one with blocking calls, one with asyncio.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar, Union, cast

from tidemark_client.errors import ArgumentError, BusyError, ChangesLostError, TooManyWindowsError
from tidemark_client.names import KeyOf, Names, Place
from tidemark_client.values import Change, Device, Meta, Progress, Session, View, Window

T = TypeVar("T")

Command = tuple[Any, ...]


@dataclass(frozen=True)
class Pause:
    """Asks for a wait before the next step."""

    seconds: float


Step = Union[list[Command], Pause]
"""Commands that are sent together, or a pause. The reply to commands is the list of their replies; to a pause it is []."""

Steps = Generator[Step, list[Any], T]


@dataclass(frozen=True)
class Query(Generic[T]):
    """A question; it can be asked any number of times."""

    steps: Callable[[Names], Steps[T]]
    pauses: bool = False


MOST_WINDOWS = 10_000
"""Windows in one answer, and windows that are looked at to find the newest one."""
SOME, MORE = 100, 1_000
"""Windows that are looked at in the second round trip, and in each one after it."""
ENTRIES = 100
"""Entries of the change feed in one answer."""
RETRY_S = 0.05
"""Between two attempts of a snapshot."""


def meta() -> Query[Meta]:
    """The service's views, measures and session lengths."""
    return Query(_meta)


def progress() -> Query[Progress | None]:
    """What all values include, or None."""

    def steps(names: Names) -> Steps[Progress | None]:
        [fields] = yield [("HGETALL", names.progress)]
        return Progress.of(fields)

    return Query(steps)


def window(view: str, key: KeyOf, start: int, measure: str | None = None) -> Query[Window | None]:
    """One window, or None where it has no readings or has expired."""

    def steps(names: Names) -> Steps[Window | None]:
        series = _Series((yield from _meta(names)).view(view), key, measure)
        [found] = yield from _read(names, [series.place(start)])
        return found

    return Query(steps)


def current(view: str, key: KeyOf = (), measure: str | None = None) -> Query[Window | None]:
    """The newest window of a key that has readings, final or not; None where none of the last MOST_WINDOWS has any."""

    def steps(names: Names) -> Steps[Window | None]:
        series, last, _ = yield from _series(names, view, key, measure)
        return None if last is None else (yield from _newest(names, series, last, last, lambda _: True))

    return Query(steps)


def latest_complete(view: str, key: KeyOf = (), measure: str | None = None) -> Query[Window | None]:
    """The newest window of a key that has readings and is final; None where none of the last MOST_WINDOWS is."""

    def steps(names: Names) -> Steps[Window | None]:
        series, last, [fields] = yield from _series(names, view, key, measure, ("HGETALL", names.progress))
        progress = Progress.of(fields)
        if last is None or progress is None:
            return None
        # All that start by `sure` are final. Those that start after it, up to `newest`, are if silence has closed them.
        sure, newest = (until - series.view.window_ms for until in (progress.final, progress.closed_until))
        newest = min(newest, last)
        return (yield from _newest(names, series, last, newest, lambda each: each.final, max(0, newest - sure)))

    return Query(steps)


def windows(
    view: str, key: KeyOf = (), *, since: int, until: int | None = None, measure: str | None = None
) -> Query[list[Window]]:
    """All windows with a reading that end after `since` and start before `until` (or ever), the oldest first.

    Raises TooManyWindowsError above MOST_WINDOWS.
    """

    def steps(names: Names) -> Steps[list[Window]]:
        series, last, _ = yield from _series(names, view, key, measure)
        ends = [each for each in (last, None if until is None else until - 1) if each is not None]
        if not ends:
            return []
        newest = min(ends)
        starts = range(series.view.starts(since)[-1], newest + 1, series.view.slide_ms)
        if len(starts) > MOST_WINDOWS:
            msg = (
                f"view {view!r} has {len(starts)} windows from {since} to {newest}; {MOST_WINDOWS} are the most. "
                "Ask for less at once, with `until`"
            )
            raise TooManyWindowsError(msg)
        found = yield from _read(names, [series.place(start) for start in starts])
        return [each for each in found if each is not None]

    return Query(steps)


def keys(view: str, *, since: int | None = None, limit: int = 100) -> Query[list[tuple[str, int]]]:
    """The keys of a view whose newest window starts at `since` or later, each with that start, the newest first."""

    def steps(names: Names) -> Steps[list[tuple[str, int]]]:
        (yield from _meta(names)).view(view)
        low = "-inf" if since is None else str(since)
        [rows] = yield [("ZREVRANGEBYSCORE", names.keys(view), "+inf", low, "WITHSCORES", "LIMIT", 0, limit)]
        return [(str(member), int(float(score))) for member, score in _pairs(rows)]

    return Query(steps)


def device(device_id: str) -> Query[Device | None]:
    """A device, or None where it is unknown or has expired."""

    def steps(names: Names) -> Steps[Device | None]:
        [fields] = yield [("HGETALL", names.device(device_id))]
        return Device.of(device_id, fields) if fields else None

    return Query(steps)


def session(device_id: str, start: int | None = None) -> Query[Session | None]:
    """A device's session that starts then, or its open one; None where there is none."""

    def of(names: Names, begin: int) -> Steps[Session | None]:
        [fields] = yield [("HGETALL", names.session(device_id, begin))]
        return Session.of(Place("session", device_id, start=begin), fields) if fields else None

    def steps(names: Names) -> Steps[Session | None]:
        if start is not None:
            return (yield from of(names, start))
        # A batch writes sessions before devices: what a device names may be closed by now, or begin earlier.
        named: set[str] = set()
        while True:
            [text] = yield [("HGET", names.device(device_id), "session")]
            if not text or text in named:
                return None
            named.add(text)
            found = yield from of(names, int(text))
            if found is not None and found.state == "open":
                return found

    return Query(steps)


def sessions(device_id: str, since: int | None = None) -> Query[list[Session]]:
    """A device's sessions that began at `since` or later, the oldest first, without those that became part of another."""

    def steps(names: Names) -> Steps[list[Session]]:
        [texts] = yield [("ZRANGEBYSCORE", names.sessions(device_id), "-inf" if since is None else since, "+inf")]
        starts = [int(text) for text in texts]
        replies = yield [("HGETALL", names.session(device_id, start)) for start in starts]
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
        [found] = yield from _read(names, [place])
        return found

    return Query(steps)


def together(questions: Iterable[Query[Any]]) -> Query[list[Any]]:
    """Their answers in their order, in as many round trips as the longest of them needs."""
    asked = list(questions)
    if any(query.pauses for query in asked):
        msg = "a snapshot is not asked together with other queries: give all of them to one snapshot"
        raise TypeError(msg)

    def steps(names: Names) -> Steps[list[Any]]:
        running = {number: query.steps(names) for number, query in enumerate(asked)}
        answers: list[Any] = [None] * len(asked)
        replies: dict[int, list[Any]] = {}
        while running:
            commands: list[Command] = []
            spans: dict[int, slice] = {}
            for number, each in list(running.items()):
                try:
                    step = cast("list[Command]", each.send(replies[number]) if number in replies else next(each))
                except StopIteration as end:
                    answers[number] = end.value
                    del running[number]
                    continue
                spans[number] = slice(len(commands), len(commands) + len(step))
                commands += step
            if commands:
                answer = yield commands
                replies = {number: answer[span] for number, span in spans.items()}
        return answers

    return Query(steps)


@dataclass(frozen=True)
class Snapshot:
    """`answers` in the order of the questions, all as of the batch of `progress`."""

    progress: Progress
    answers: list[Any]


def snapshot(questions: Iterable[Query[Any]], attempts: int = 50) -> Query[Snapshot]:
    """Their answers as of one batch. Raises BusyError where a batch was being written in each attempt."""
    all_of_them = together(questions)

    def steps(names: Names) -> Steps[Snapshot]:
        for _ in range(attempts):
            [before] = yield [("HGETALL", names.progress)]
            as_of = Progress.of(before)
            if as_of is not None and "writing" not in before:
                answers = yield from all_of_them.steps(names)
                [after] = yield [("HGETALL", names.progress)]
                if before == after:
                    return Snapshot(as_of, answers)
            yield Pause(RETRY_S)
        msg = (
            f"{names.progress}: in each of {attempts} attempts a batch was being written, or there was no progress. "
            "Try again, or ask for less at once"
        )
        raise BusyError(msg)

    return Query(steps, pauses=True)


FIRST = "0-0"
"""Before every entry of the change feed."""


def end_of_feed() -> Query[str]:
    """The id of the newest entry of the change feed."""

    def steps(names: Names) -> Steps[str]:
        [newest] = yield [("XREVRANGE", names.changes, "+", "-", "COUNT", 1)]
        return str(newest[0][0]) if newest else FIRST

    return Query(steps)


def changes(after: str, block_ms: int = 0) -> Query[list[Change]]:
    """The next entries of the change feed, the oldest first; waits so long for one. After FIRST, all that are still there.

    Raises ChangesLostError where entries were trimmed away before they were read, or where Redis is an older copy of itself.
    """
    position = _position(after)

    def steps(names: Names) -> Steps[list[Change]]:
        feed = names.changes
        wait: list[Command] = [("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", feed, after)] if block_ms else []
        # The oldest entry is read after the others: what was answered was not trimmed in between.
        read = ("XRANGE", feed, f"({after}", "+", "COUNT", ENTRIES), ("XRANGE", feed, "-", "+", "COUNT", 1)
        *_, entries, oldest, newest = yield [*wait, *read, ("XREVRANGE", feed, "+", "-", "COUNT", 1)]
        lowest, highest = (_position(each[0][0]) if each else None for each in (oldest, newest))
        is_lost = position > _position(FIRST) and (lowest is None or lowest > position)
        if is_lost or (highest is not None and highest < position):
            msg = (
                f"{feed}: entries after {after} were trimmed away, or Redis has lost them. Read the keys again and follow from "
                "the end; a longer redis.feed_length of the service keeps more"
            )
            raise ChangesLostError(msg)
        return [_change(names, entry_id, fields) for entry_id, fields in entries]

    return Query(steps)


def _change(names: Names, entry_id: str, fields: dict[str, str]) -> Change:
    places = tuple(names.parse(key) for key in json.loads(fields["keys"]))
    return Change(entry_id, fields["kind"], places, int(fields["epoch"]), int(fields["batch"]))


def _position(entry_id: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", entry_id)
    if match is None:
        msg = f"{entry_id!r} is no id of the change feed: give that of an entry, or {FIRST!r} for all that is there"
        raise ArgumentError(msg)
    return int(match[1]), int(match[2] or 0)


class _Series:
    """The windows of one view, measure and key."""

    def __init__(self, view: View, key: KeyOf, measure: str | None) -> None:
        self.view, self.key, self.measure = view, view.key(key), view.measure(measure)

    def place(self, start: int) -> Place:
        return Place("window", self.key, self.view.name, self.measure, start)


def _meta(names: Names) -> Steps[Meta]:
    [text] = yield [("GET", names.meta)]
    return Meta.of(text, names.prefix)


def _series(
    names: Names, view: str, key: KeyOf, measure: str | None, *more: Command
) -> Steps[tuple[_Series, int | None, list[Any]]]:
    """A series, the start of its key's newest window, and the replies to more commands."""
    series = _Series((yield from _meta(names)).view(view), key, measure)
    score, *replies = yield [("ZSCORE", names.keys(view), series.key), *more]
    return series, None if score is None else int(float(score)), replies


def _newest(
    names: Names, series: _Series, last: int, newest: int, accepts: Callable[[Window], bool], ahead_ms: int = 0
) -> Steps[Window | None]:
    """The newest acceptable window that starts by `newest`, of a key whose newest window, of any measure, starts at `last`.

    The first round trip looks at the windows of `ahead_ms` and one more.
    """
    slide = series.view.slide_ms
    start, oldest = newest // slide * slide, last - series.view.retain_ms - series.view.window_ms
    looked, page = 0, min(-(-ahead_ms // slide) + 1, MORE)
    while start >= oldest and looked < MOST_WINDOWS:
        places = [series.place(start - back * slide) for back in range(page)]
        for each in (yield from _read(names, places)):
            if each is not None and accepts(each):
                return each
        start, looked, page = start - page * slide, looked + page, MORE if looked else SOME
    return None


def _read(names: Names, places: Sequence[Place]) -> Steps[list[Window | None]]:
    """Windows, and before them, in the same round trip, the progress that says which are closed."""
    windows = [("HGETALL", names.window(each.view, each.measure, each.key, each.start or 0)) for each in places]
    progress, *replies = yield [("HGETALL", names.progress), *windows]
    return [Window.of(place, fields, progress) if fields else None for place, fields in zip(places, replies)]


def _pairs(rows: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """Members with their scores; redis-py gives them as pairs or, where its protocol 2 has no call of its own, one by one."""
    if rows and not isinstance(rows[0], (list, tuple)):
        return zip(rows[::2], rows[1::2])
    return ((member, score) for member, score in rows)

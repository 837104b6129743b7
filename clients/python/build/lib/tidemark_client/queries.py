"""What can be asked, as plain generators: each yields commands for Redis and is sent their replies.

    client.device("d7")                     is the same as  client.ask(queries.device("d7"))
    client.ask_all([...])                   asks many at once: all of them together take as many round trips as one
    client.snapshot([...])                  asks many as of one batch

No query does I/O: client.py and aio.py do it, one with blocking calls, one with asyncio.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar, Union, cast

from tidemark_client.errors import BusyError, ChangesLostError, TooManyWindowsError
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
"""Windows in one answer."""
PAGE = 100
"""Windows that `latest_complete` looks at in a round trip, and entries of the feed."""
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
        [found] = yield from _read(names, series, [start])
        return found

    return Query(steps)


def current(view: str, key: KeyOf = (), measure: str | None = None) -> Query[Window | None]:
    """The newest window of a key that has readings, final or not."""

    def steps(names: Names) -> Steps[Window | None]:
        series, last, _ = yield from _series(names, view, key, measure)
        if last is None:
            return None
        [found] = yield from _read(names, series, series.view.starts(last)[:1])
        return found

    return Query(steps)


def latest_complete(view: str, key: KeyOf = (), measure: str | None = None) -> Query[Window | None]:
    """The newest window of a key that has readings and is final."""

    def steps(names: Names) -> Steps[Window | None]:
        series, last, watermark = yield from _series(names, view, key, measure)
        if last is None or watermark is None:
            return None
        slide = series.view.slide_ms
        start = min(series.view.starts(last)[0], (watermark - series.view.window_ms) // slide * slide)
        # The first one is nearly always there; the others are for keys that were silent for a while.
        oldest, page = last - series.view.retain_ms - series.view.window_ms, 1
        while start >= oldest:
            starts = [start - back * slide for back in range(page)]
            for each in (yield from _read(names, series, starts)):
                if each is not None and each.final:
                    return each
            start, page = starts[-1] - slide, PAGE
        return None

    return Query(steps)


def windows(
    view: str, key: KeyOf = (), *, since: int, until: int | None = None, measure: str | None = None
) -> Query[list[Window]]:
    """All windows with a reading that end after `since` and start before `until` (or ever), the oldest first.

    Raises TooManyWindowsError above MOST_WINDOWS.
    """

    def steps(names: Names) -> Steps[list[Window]]:
        series, last, _ = yield from _series(names, view, key, measure)
        if last is None:
            return []
        newest = last if until is None else min(last, until - 1)
        starts = range(series.view.starts(since)[-1], newest + 1, series.view.slide_ms)
        if len(starts) > MOST_WINDOWS:
            msg = (
                f"view {view!r} has {len(starts)} windows from {since} to {newest}; {MOST_WINDOWS} are the most. "
                "Ask for less at once, with `until`"
            )
            raise TooManyWindowsError(msg)
        found = yield from _read(names, series, starts)
        return [each for each in found if each is not None]

    return Query(steps)


def keys(view: str, *, since: int | None = None, limit: int = 100) -> Query[list[tuple[str, int]]]:
    """The keys of a view that have readings since then, each with its last event time, the newest first."""

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

    def steps(names: Names) -> Steps[Session | None]:
        begin = start
        if begin is None:
            [text] = yield [("HGET", names.device(device_id), "session")]
            if not text:
                return None
            begin = int(text)
        [fields] = yield [("HGETALL", names.session(device_id, begin))]
        return Session.of(Place("session", device_id, start=begin), fields) if fields else None

    return Query(steps)


def value(place: Place) -> Query[Window | Session | Device | None]:
    """What a place of the change feed has now; None where it has expired or was removed."""

    def steps(names: Names) -> Steps[Window | Session | Device | None]:
        if place.kind == "device":
            return (yield from device(place.key).steps(names))
        if place.kind == "session":
            return (yield from session(place.key, place.start).steps(names))
        [fields] = yield [("HGETALL", names.window(place.view, place.measure, place.key, place.start or 0))]
        return Window.of(place, fields) if fields else None

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
    """The next entries of the change feed, the oldest first; waits so long for one. Raises ChangesLostError."""

    def steps(names: Names) -> Steps[list[Change]]:
        feed = names.changes
        wait: list[Command] = [("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", feed, after)] if block_ms else []
        replies = yield [
            *wait,
            ("XRANGE", feed, f"({after}", "+", "COUNT", PAGE),
            ("XRANGE", feed, "-", "+", "COUNT", 1),
        ]
        # The oldest entry is read last: what was answered before was not trimmed in between.
        entries, oldest = replies[-2:]
        if after != FIRST and (not oldest or _position(oldest[0][0]) > _position(after)):
            msg = (
                f"{feed}: entries after {after} were trimmed away. Read the keys again and follow from the end; "
                "a longer redis.feed_length of the service keeps more"
            )
            raise ChangesLostError(msg)
        return [_change(names, entry_id, fields) for entry_id, fields in entries]

    return Query(steps)


def _change(names: Names, entry_id: str, fields: dict[str, str]) -> Change:
    places = tuple(names.parse(key) for key in json.loads(fields["keys"]))
    return Change(entry_id, places, int(fields["epoch"]), int(fields["batch"]))


def _position(entry_id: str) -> tuple[int, int]:
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number)


class _Series:
    """The windows of one view, measure and key."""

    def __init__(self, view: View, key: KeyOf, measure: str | None) -> None:
        self.view, self.key, self.measure = view, view.key(key), view.measure(measure)


def _meta(names: Names) -> Steps[Meta]:
    [text] = yield [("GET", names.meta)]
    return Meta.of(text, names.prefix)


def _series(names: Names, view: str, key: KeyOf, measure: str | None) -> Steps[tuple[_Series, int | None, int | None]]:
    """A series, the last event time of its key, and the watermark."""
    series = _Series((yield from _meta(names)).view(view), key, measure)
    score, watermark = yield [("ZSCORE", names.keys(view), series.key), ("HGET", names.progress, "watermark")]
    return series, None if score is None else int(float(score)), None if watermark is None else int(watermark)


def _read(names: Names, series: _Series, starts: Sequence[int]) -> Steps[list[Window | None]]:
    places = [Place("window", series.key, series.view.name, series.measure, start) for start in starts]
    replies = yield [("HGETALL", names.window(each.view, each.measure, each.key, each.start or 0)) for each in places]
    return [Window.of(place, fields) if fields else None for place, fields in zip(places, replies)]


def _pairs(rows: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """Members with their scores; redis-py gives them as pairs or, where its protocol 2 has no call of its own, one by one."""
    if rows and not isinstance(rows[0], (list, tuple)):
        return zip(rows[::2], rows[1::2])
    return ((member, score) for member, score in rows)

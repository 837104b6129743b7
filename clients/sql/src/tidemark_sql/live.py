"""The tables of live values, read from Redis by tidemark-client: only the keys that a question's bounds allow, and its columns.

Keys of windows are computed from a view's keys and lengths; only the list of all devices is a walk over the keys of Redis. A
table is read in steps of STEP hashes, while the service writes: rows may be of successive batches. Progress is read before the
windows, so a window that is final in the answer is final.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from service.errors import QuestionError
from tidemark_client import Client
from tidemark_client.devices import DevicePages
from tidemark_client.names import Names
from tidemark_client.steps import Query, Steps
from tidemark_client.values import Meta, View, closed_by
from tidemark_sql import columns
from tidemark_sql.statement import Bounds, Statement

STEP = 2_000
"""Hashes in one round trip."""
SCANNED = 5_000
"""Keys that one call of SCAN looks at."""
MOST = 1_000_000
"""Windows that a question may look for."""
_CLOSING = ("end", "epoch", "batch")
_MARKS = ("final", "closed_by")

Watch = Callable[[int, int], object]
"""Called with the number of hashes that are read, and of all."""


@dataclass(frozen=True)
class Live:
    """The live values of one service, for one question."""

    client: Client
    meta: Meta
    statement: Statement
    attributes: Sequence[str] = ()
    watch: Watch = field(default=lambda _read, _all: None)

    def schema(self, name: str) -> pa.Schema:
        """Return the columns of a table."""
        if name == "windows":
            return columns.windows(self.meta)
        return columns.sessions(self.meta) if name == "sessions" else columns.devices(self.meta, self.attributes)

    def table(self, name: str) -> pa.Table:
        """Return the rows of a table that its uses in the statement may need. Raises QuestionError for too many."""
        uses = self.statement.uses[name]
        return {"windows": self._windows, "sessions": self._sessions, "devices": self._devices}[name](uses)

    def _windows(self, uses: Sequence[Bounds]) -> pa.Table:
        schema = self.schema("windows")
        progress: list[Mapping[str, str]] = self.client.ask(Query(_progress))
        spans: list[_Span] = []
        number = 0
        for span in (span for bounds in uses for span in self._spans(bounds)):
            number += len(span.starts)
            if number <= MOST:  # of more only the number is needed, and there may be millions
                spans.append(span)
        if number > MOST:
            what = f"The question looks for up to {number:,} windows, the limit is {MOST:,}"
            remedy = "Name a view, keys or a time, such as start >= now() - INTERVAL 10 MINUTES"
            raise QuestionError(what, remedy=remedy)
        places = [(span.view, span.measure, span.key, start) for span in spans for start in span.starts]
        if len(uses) > 1:
            places = list(dict.fromkeys(places))
        marks = any(map(self.statement.needs, _MARKS))
        fields = self._fields(
            schema, ("view", "measure", "key", "start", *_MARKS), ("count", *(_CLOSING if marks else ()))
        )

        def commands(names: Names, some: Sequence[tuple[str, str, str, int]]) -> list[Any]:
            return [
                ("HMGET", names.store(key).window(self.meta.views[view].stored, measure, key, start), *fields)
                for view, measure, key, start in some
            ]

        kept, replies = self._read(places, commands)
        values: dict[str, Any] = dict(
            zip(("view", "measure", "key"), _turned([place[:3] for place in kept], 3), strict=True)
        )
        values["start"] = [str(place[3]) for place in kept]
        values |= dict(zip(fields, _turned(replies, len(fields)), strict=True))
        if marks:
            shards = [zlib.crc32(key.encode("utf-8", "backslashreplace")) % len(progress) for key in values["key"]]
            stored = [self.meta.views[name].stored for name in values["view"]]
            rows = zip(stored, shards, *(values[name] for name in _CLOSING), strict=True)
            causes = [
                closed_by(dict(zip(_CLOSING, each, strict=True)), progress[shard], view) for view, shard, *each in rows
            ]
            values |= {"closed_by": causes, "final": [bool(cause) for cause in causes]}
        return columns.table(schema, len(kept), values)

    def _spans(self, bounds: Bounds) -> Iterator["_Span"]:
        """Yield the windows that bounds allow, by view, measure and key."""
        for view in self.meta.views.values():
            measures = [name for name in view.measures if _allows(bounds, "measure", name)]
            if not _allows(bounds, "view", view.name) or not measures:
                continue
            for key, newest in self._keys(view, bounds.texts.get("key")):
                own = view.of_key(key)
                since, until = _starts(bounds, own)
                # Without a time, as far back as a window lasts that was written in time. After a catch-up there may be older
                # ones.
                since = newest - view.retain_ms - view.window_ms if since is None else since
                starts = view_starts(own, since, min(until, newest))
                if starts:
                    yield from (_Span(view.name, measure, key, starts) for measure in measures)

    def _keys(self, view: View, chosen: frozenset[str] | None) -> Iterable[tuple[str, int]]:
        """Return keys of a view, each with the start of its newest window."""
        if chosen is None:
            found: dict[str, int] = {}
            for page in self.client.key_pages(view.name, SCANNED):
                found.update(page)
            return found.items()
        names = sorted(chosen)

        def scores(store: Names) -> Steps[list[Any]]:
            return (yield [("ZSCORE", store.store(key).keys(view.stored), key) for key in names])

        replies = self.client.ask(Query(scores))
        return [(key, int(float(score))) for key, score in zip(names, replies, strict=True) if score is not None]

    def _sessions(self, uses: Sequence[Bounds]) -> pa.Table:
        schema = self.schema("sessions")
        chosen = [self._ids(bounds) for bounds in uses]
        wanted = dict.fromkeys(device for ids in chosen for device in ids)
        since = min(bounds.since.get("start", 0) for bounds in uses)
        until = max(
            (bounds.until.get("start") for bounds in uses), key=lambda each: float("inf") if each is None else each
        )

        def starts(names: Names, some: Sequence[str]) -> list[Any]:
            last = "+inf" if until is None else until
            return [("ZRANGEBYSCORE", names.store(each).sessions(each), since, last) for each in some]

        devices, lists = self._read(list(wanted), starts, is_empty=lambda reply: not reply)
        places = [(device, int(start)) for device, own in zip(devices, lists, strict=True) for start in own]
        fields = self._fields(schema, ("device", "start"), ("count",))

        def commands(names: Names, some: Sequence[tuple[str, int]]) -> list[Any]:
            return [("HMGET", names.store(device).session(device, start), *fields) for device, start in some]

        kept, replies = self._read(places, commands)
        values: dict[str, Any] = {"device": [each[0] for each in kept], "start": [str(each[1]) for each in kept]}
        return columns.table(schema, len(kept), values | dict(zip(fields, _turned(replies, len(fields)), strict=True)))

    def _devices(self, uses: Sequence[Bounds]) -> pa.Table:
        schema = self.schema("devices")
        chosen = [self._ids(bounds) for bounds in uses]
        fields = self._fields(schema, ("device",), ("status",))

        def commands(names: Names, some: Sequence[str]) -> list[Any]:
            return [("HMGET", names.store(device).device(device), *fields) for device in some]

        kept, replies = self._read(list(dict.fromkeys(device for ids in chosen for device in ids)), commands)
        values: dict[str, Any] = {"device": kept, **dict(zip(fields, _turned(replies, len(fields)), strict=True))}
        if "last_seen" in values:  # 0 where no reading was ever admitted
            values["last_seen"] = [None if each == "0" else each for each in values["last_seen"]]
        if "skewed" in values:
            values["skewed"] = [each == "1" for each in values["skewed"]]
        return columns.table(schema, len(kept), values)

    def _ids(self, bounds: Bounds) -> Iterable[str]:
        if "device" in bounds.texts:
            return sorted(bounds.texts["device"])
        found: dict[str, None] = {}
        pages = DevicePages(SCANNED)
        while (page := self.client.ask(pages.ids())) is not None:  # an id may come twice
            found.update(dict.fromkeys(page))
        return found

    def _fields(self, schema: pa.Schema, others: Sequence[str], always: Sequence[str]) -> list[str]:
        """Return the fields to read: of the columns in use, without `others`, and `always` these."""
        used = [name for name in schema.names if self.statement.needs(name) and name not in others]
        return list(dict.fromkeys([*always, *used]))

    def _read(
        self,
        places: Sequence[Any],
        commands: Callable[[Names, Sequence[Any]], list[Any]],
        is_empty: Callable[[Any], bool] = lambda reply: reply[0] is None,
    ) -> tuple[list[Any], list[Any]]:
        """Ask for each place, STEP at a time. Return the places that have something, and the replies."""
        kept, found = [], []
        for first in range(0, len(places), STEP):
            some = places[first : first + STEP]

            def steps(names: Names, some: Sequence[Any] = some) -> Steps[list[Any]]:
                return (yield commands(names, some))

            for place, reply in zip(some, self.client.ask(Query(steps)), strict=True):
                if not is_empty(reply):
                    kept.append(place)
                    found.append(reply)
            self.watch(min(first + STEP, len(places)), len(places))
        return kept, found


@dataclass(frozen=True, slots=True)
class _Span:
    view: str
    measure: str
    key: str
    starts: Sequence[int]


def _progress(names: Names) -> Steps[list[Mapping[str, str]]]:
    return (yield [("HGETALL", store.progress) for store in names.stores])


def _allows(bounds: Bounds, column: str, value: str) -> bool:
    return column not in bounds.texts or value in bounds.texts[column]


def _starts(bounds: Bounds, view: View) -> tuple[int | None, int]:
    """Return the first start (ms) that bounds allow, None for any, and the last one; ends are starts plus the length."""
    longest = {"start": 0, "end": view.window_ms}
    shortest = longest if view.calendar is None else {"start": 0, "end": 0}
    since = [time - longest[name] for name, time in bounds.since.items()]
    until = [time - shortest[name] for name, time in bounds.until.items()]
    return max(since, default=None), min(until, default=1 << 62)


def view_starts(view: View, since: int, until: int) -> Sequence[int]:
    """Return the starts of the view's windows from `since` to `until`, inclusive."""
    if view.calendar is not None:
        return [start for start in view.between(max(since, 0), until) if start >= since]
    return range(-(-max(since, 0) // view.slide_ms) * view.slide_ms, until + 1, view.slide_ms)


def _turned(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]

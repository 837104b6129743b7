"""The client for asyncio: the same methods as tidemark_client.client.Client, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, TypeVar, Union

import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel

from tidemark_client import nonblocking, queries, sentinel
from tidemark_client.aggregate import Aggregate
from tidemark_client.choice import Choice
from tidemark_client.cluster import connect, is_cluster, single
from tidemark_client.connection import (
    BLOCK_S,
    CLOSED,
    FAILURES,
    OPTIONS,
    Outage,
    answered,
    block_ms,
    checked,
    failure,
    layout,
    positive,
)
from tidemark_client.devices import DevicePages, KeyPages, NeverPages
from tidemark_client.errors import ClosedError, UnavailableError
from tidemark_client.names import KeyOf, Place
from tidemark_client.queries import Snapshot
from tidemark_client.sentinel import is_sentinel
from tidemark_client.steps import Query, Step
from tidemark_client.times import Since, Time
from tidemark_client.values import Change, Device, Meta, Progress, Session, View, Window

T = TypeVar("T")
Connection = Union[redis.asyncio.Redis, redis.asyncio.cluster.RedisCluster]


class AsyncClient:
    """As Client, whose methods say what they return and raise."""

    def __init__(self, connection: Connection, prefix: str = "tidemark") -> None:
        """`connection` must decode its answers (decode_responses=True). It stays the caller's: close it yourself."""
        self._redis: Any = checked(connection, is_async=True)
        self._steps = (nonblocking.Cluster if is_cluster(connection) else nonblocking.One)(connection)
        self._layout = layout(connection, prefix)
        self._is_ours, self._is_closed = False, False

    @classmethod
    def from_url(cls, url: str, prefix: str = "tidemark", *, cluster: bool = False, **options: Any) -> AsyncClient:
        """As Client.from_url, but it connects with the first question."""
        options = {**OPTIONS, **options}
        connection: Any
        if cluster:
            connection = connect(url, redis.asyncio.cluster.RedisCluster, redis.asyncio.cluster.ClusterNode, options)
        elif is_sentinel(url):
            connection = sentinel.connect(url, redis.asyncio.sentinel.Sentinel, options)
        else:
            connection = redis.asyncio.Redis.from_url(single(url), **options)
        client = cls(connection, prefix)
        client._is_ours = True
        return client

    async def close(self) -> None:
        self._is_closed = True
        if self._is_ours:
            await self._steps.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def meta(self) -> Meta:
        return await self.ask(queries.meta())

    async def views(self) -> dict[str, View]:
        return dict((await self.meta()).views)

    async def progress(self) -> Progress | None:
        return await self.ask(queries.progress())

    async def window(self, view: str, key: KeyOf, start: Time, measure: str | None = None) -> Window | None:
        return await self.ask(queries.window(view, key, start, measure))

    async def current(self, view: str, key: KeyOf = (), measure: str | None = None) -> Window | None:
        return await self.ask(queries.current(view, key, measure))

    async def latest_complete(self, view: str, key: KeyOf = (), measure: str | None = None) -> Window | None:
        return await self.ask(queries.latest_complete(view, key, measure))

    async def windows(
        self, view: str, key: KeyOf = (), *, since: Since, until: Time | None = None, measure: str | None = None
    ) -> list[Window]:
        return await self.ask(queries.windows(view, key, since=since, until=until, measure=measure))

    async def aggregate(
        self, view: str, key: KeyOf = (), *, since: Since, until: Time | None = None, measure: str | None = None
    ) -> Aggregate | None:
        return await self.ask(queries.aggregate(view, key, since=since, until=until, measure=measure))

    async def latest(
        self,
        view: str,
        measure: str | None = None,
        *,
        final: bool = False,
        page: int = 1000,
        back: int = queries.BACK,
    ) -> dict[str, Window]:
        found: dict[str, Window] = {}
        async for keys in self.key_pages(view, page):
            windows = await self.ask(queries.latest(view, keys, measure, final=final, back=back))
            found.update({each.key: each for each in windows})
        return found

    async def keys(self, view: str, *, since: Since | None = None, limit: int = 100) -> list[tuple[str, int]]:
        return await self.ask(queries.keys(view, since=since, limit=limit))

    async def all_keys(self, view: str, page: int = 1000) -> AsyncIterator[tuple[str, int]]:
        async for keys in self.key_pages(view, page):
            for each in keys:
                yield each

    async def key_pages(self, view: str, page: int = 1000) -> AsyncIterator[list[tuple[str, int]]]:
        pages = KeyPages(view, positive("page", page))
        while (found := await self.ask(pages.next())) is not None:
            yield found

    async def skewed(self, limit: int = 100) -> list[tuple[str, int]]:
        return await self.ask(queries.skewed(limit))

    async def device(self, device_id: str) -> Device | None:
        return await self.ask(queries.device(device_id))

    async def devices(
        self,
        page: int = 500,
        *,
        status: str | None = None,
        where: Mapping[str, str] | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Device]:
        choice, given = Choice(status, where or {}, sort, limit), 0
        if choice.is_bounded:
            found = [device async for devices in self._pages(page, status) for device in devices]
            for device in choice.first(found):
                yield device
            return
        async for devices in self._pages(page, status):
            for device in filter(choice.accepts, devices):
                if limit is not None and given >= limit:
                    return
                given += 1
                yield device

    async def _pages(self, page: int, status: str | None) -> AsyncIterator[list[Device]]:
        pages = NeverPages(positive("page", page)) if status == "never" else DevicePages(positive("page", page))
        while (found := await self.ask(pages.next())) is not None:
            yield found

    def device_pages(self, page: int = 500) -> AsyncIterator[list[Device]]:
        return self._pages(page, None)

    async def session(self, device_id: str, start: Time | None = None) -> Session | None:
        return await self.ask(queries.session(device_id, start))

    async def sessions(self, device_id: str, since: Since | None = None) -> list[Session]:
        return await self.ask(queries.sessions(device_id, since))

    async def value(self, place: Place) -> Window | Session | Device | Progress | None:
        return await self.ask(queries.value(place))

    async def ask(self, query: Query[T]) -> T:
        steps, replies = self._layout.ask(query), None
        while True:
            try:
                step = next(steps) if replies is None else steps.send(replies)
            except StopIteration as end:
                answer: T = end.value
                return answer
            replies = await self._take(step)

    async def ask_all(self, questions: Iterable[Query[Any]]) -> list[Any]:
        return await self.ask(queries.together(questions))

    async def snapshot(self, questions: Iterable[Query[Any]], attempts: int = 50) -> Snapshot:
        return await self.ask(queries.snapshot(questions, attempts))

    async def changes(self, after: str, block_s: float = 0.0) -> list[Change]:
        return await self.ask(queries.changes(after, block_ms(self._redis, block_s)))

    async def end_of_feed(self) -> str:
        return await self.ask(queries.end_of_feed())

    async def follow(self, after: str | None = None, *, retry_for_s: float = 60.0) -> AsyncIterator[Change]:
        outage, last = Outage(retry_for_s), after
        while not self._is_closed:
            try:
                if last is None:
                    last = await self.end_of_feed()
                changes = await self.changes(last, BLOCK_S)
            except ClosedError:
                return
            except UnavailableError as error:
                await asyncio.sleep(outage.pause(error))
                continue
            outage.is_over()
            for change in changes:
                last = change.id
                yield change

    async def _take(self, step: Step) -> list[Any]:
        if self._is_closed:
            raise ClosedError(CLOSED)
        try:
            replies = await self._steps.take(step)
        except Exception as error:
            # When another task closes the client meanwhile, redis-py fails with errors of any class.
            if self._is_closed:
                raise ClosedError(CLOSED) from error
            if not isinstance(error, FAILURES):
                raise
            raise failure(self._redis, error) from error
        finally:
            # redis-py may have connected once more.
            if self._is_closed and self._is_ours:
                await self._steps.close()
        return answered(self._redis, replies)

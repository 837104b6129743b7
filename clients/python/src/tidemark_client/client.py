"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, Union

import redis
import redis.cluster
import redis.sentinel

from tidemark_client import blocking, queries, sentinel
from tidemark_client.aggregate import Aggregate
from tidemark_client.choice import Choice
from tidemark_client.cluster import connect, is_cluster, single, where
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
    failure_at,
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
Connection = Union[redis.Redis, redis.cluster.RedisCluster]


class Client:
    """Reads what a service of Tidemark keeps in Redis, or in a Redis Cluster, under a prefix. It never writes.

    Times are event times: in answers in ms, and as a datetime in properties such as `Window.start_time`; as an argument ms or a
    datetime with a zone, and `since` may be a timedelta before now. `view` is a view's name; `key` is a text for a view of one
    column, a sequence of values for a view of several, and is left out for a view over all devices. `measure` may be left out
    where the view has only one.

    The number of shards is found with the first question, and kept. Every method raises UnavailableError, RefusedError, and
    ContractError where the prefix has another version or another number of shards; those that take a view raise ContractError
    without a meta, UnknownViewError and KeyTextError, too. A cluster without a meta is a ContractError everywhere.
    """

    def __init__(self, connection: Connection, prefix: str = "tidemark") -> None:
        """`connection` must decode its answers (decode_responses=True). It stays the caller's: close it yourself."""
        self._redis: Any = checked(connection, is_async=False)
        self._steps = (blocking.Cluster if is_cluster(connection) else blocking.One)(connection)
        self._layout = layout(connection, prefix)
        self._is_ours, self._is_closed = False, False

    @classmethod
    def from_url(cls, url: str, prefix: str = "tidemark", *, cluster: bool = False, **options: Any) -> Client:
        """A client of redis://, rediss:// or unix://; `options` are redis-py's, such as password or ssl_ca_certs.

        With `cluster`, the URL names nodes of a Redis Cluster, any of them: redis://user:password@host:port,host:port. It
        connects at once: raises UnavailableError, RefusedError, ArgumentError. Where sentinels watch the primary, the URL is
        redis+sentinel://user:password@host1:26379,host2:26379/mymaster/0; `sentinel_kwargs` are options for the sentinels.
        """
        options = {**OPTIONS, **options}
        connection: Any
        if cluster:
            try:
                connection = connect(url, redis.cluster.RedisCluster, redis.cluster.ClusterNode, options)
            except FAILURES as error:
                raise failure_at(where(url), error) from error
        elif is_sentinel(url):
            connection = sentinel.connect(url, redis.sentinel.Sentinel, options)
        else:
            connection = redis.Redis.from_url(single(url), **options)
        client = cls(connection, prefix)
        client._is_ours = True
        return client

    def close(self) -> None:
        """End what `follow` gives, and close the connection of `from_url`. Then nothing can be asked any more.

        In a cluster, a question that another thread has asked ends first: `follow` after about 0.1 s, if the nodes answer.
        """
        self._is_closed = True
        if self._is_ours:
            self._steps.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def meta(self) -> Meta:
        """The service's views, measures and session lengths."""
        return self.ask(queries.meta())

    def views(self) -> dict[str, View]:
        """The service's views by name."""
        return dict(self.meta().views)

    def progress(self) -> Progress | None:
        """What all values include, and which windows are final; None before the first batch, and after a loss of data.

        Of several shards it is what all of them have, see Progress.of_all: a shard may be one batch ahead of it.
        """
        return self.ask(queries.progress())

    def window(self, view: str, key: KeyOf, start: Time, measure: str | None = None) -> Window | None:
        """One window, or None where it has no readings or has expired."""
        return self.ask(queries.window(view, key, start, measure))

    def current(self, view: str, key: KeyOf = (), measure: str | None = None) -> Window | None:
        """The newest window of a key that has readings, final or not."""
        return self.ask(queries.current(view, key, measure))

    def latest_complete(self, view: str, key: KeyOf = (), measure: str | None = None) -> Window | None:
        """The newest window of a key that is final."""
        return self.ask(queries.latest_complete(view, key, measure))

    def windows(
        self, view: str, key: KeyOf = (), *, since: Since, until: Time | None = None, measure: str | None = None
    ) -> list[Window]:
        """All windows with readings that end after `since` and start before `until`, the oldest first.

        Raises TooManyWindowsError above 10,000.
        """
        return self.ask(queries.windows(view, key, since=since, until=until, measure=measure))

    def aggregate(
        self, view: str, key: KeyOf = (), *, since: Since, until: Time | None = None, measure: str | None = None
    ) -> Aggregate | None:
        """The statistics of a key's windows from `since` on, merged: count, mean, stddev and others; None without a window."""
        return self.ask(queries.aggregate(view, key, since=since, until=until, measure=measure))

    def latest(
        self,
        view: str,
        measure: str | None = None,
        *,
        final: bool = False,
        page: int = 1000,
        back: int = queries.BACK,
    ) -> dict[str, Window]:
        """The newest window with readings of each key, or with `final` the newest final one, by the text of the key.

        A key that has none among its last `back` windows is left out.
        """
        found: dict[str, Window] = {}
        for keys in self.key_pages(view, page):
            windows = self.ask(queries.latest(view, keys, measure, final=final, back=back))
            found.update({each.key: each for each in windows})
        return found

    def keys(self, view: str, *, since: Since | None = None, limit: int = 100) -> list[tuple[str, int]]:
        """The keys of a view whose newest window starts at `since` or later, each with that start, the newest first."""
        return self.ask(queries.keys(view, since=since, limit=limit))

    def all_keys(self, view: str, page: int = 1000) -> Iterator[tuple[str, int]]:
        """All keys of a view, each with the start of its newest window, in no order; a key may come twice.

        It walks over the view's sorted set (ZSCAN), of which no command reads more than a page or so.
        """
        for keys in self.key_pages(view, page):
            yield from keys

    def key_pages(self, view: str, page: int = 1000) -> Iterator[list[tuple[str, int]]]:
        """The keys of `all_keys`, about a page at a time."""
        pages = KeyPages(view, positive("page", page))
        while (found := self.ask(pages.next())) is not None:
            yield found

    def skewed(self, limit: int = 100) -> list[tuple[str, int]]:
        """Devices that are marked skewed, each with the broker's time of its last early reading, the newest first."""
        return self.ask(queries.skewed(limit))

    def device(self, device_id: str) -> Device | None:
        """A device, or None where it is unknown or has expired."""
        return self.ask(queries.device(device_id))

    def devices(
        self,
        page: int = 500,
        *,
        status: str | None = None,
        where: Mapping[str, str] | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Device]:
        """All devices, or those with a status and attributes, such as where={"site": "leeds"}.

        Without `sort` they come in no order, a page at a time, and a device may come twice. With `sort` ("id", "last_seen", an
        attribute or a measure, "-" before it for the largest first) each comes once, after all are read. Raises ArgumentError.

        It walks over all keys of the Redis, or of the cluster (SCAN): where a view by device serves, `keys` costs less. With the
        status "never" it reads only those devices.
        """
        choice, given = Choice(status, where or {}, sort, limit), 0
        if choice.is_bounded:
            pages = self._pages(page, status)
            yield from choice.first(device for devices in pages for device in devices)
            return
        for devices in self._pages(page, status):
            for device in filter(choice.accepts, devices):
                if limit is not None and given >= limit:
                    return
                given += 1
                yield device

    def _pages(self, page: int, status: str | None) -> Iterator[list[Device]]:
        pages = NeverPages(positive("page", page)) if status == "never" else DevicePages(positive("page", page))
        while (found := self.ask(pages.next())) is not None:
            yield found

    def device_pages(self, page: int = 500) -> Iterator[list[Device]]:
        """The devices of `devices`, a page at a time."""
        return self._pages(page, None)

    def session(self, device_id: str, start: Time | None = None) -> Session | None:
        """A device's session that starts then, or its open one; None where there is none."""
        return self.ask(queries.session(device_id, start))

    def sessions(self, device_id: str, since: Since | None = None) -> list[Session]:
        """A device's sessions that began at `since` or later, the oldest first, without those that became part of another."""
        return self.ask(queries.sessions(device_id, since))

    def value(self, place: Place) -> Window | Session | Device | Progress | None:
        """What a place of the change feed has now; None where it has expired or was removed."""
        return self.ask(queries.value(place))

    def ask(self, query: Query[T]) -> T:
        """The answer to a query of `tidemark_client.queries`."""
        steps, replies = self._layout.ask(query), None
        while True:
            try:
                step = next(steps) if replies is None else steps.send(replies)
            except StopIteration as end:
                answer: T = end.value
                return answer
            replies = self._take(step)

    def ask_all(self, questions: Iterable[Query[Any]]) -> list[Any]:
        """The answers in the order of the questions, together in as few round trips as one of them needs."""
        return self.ask(queries.together(questions))

    def snapshot(self, questions: Iterable[Query[Any]], attempts: int = 50) -> Snapshot:
        """The answers as of one batch. Raises BusyError where a batch was being written in each attempt."""
        return self.ask(queries.snapshot(questions, attempts))

    def changes(self, after: str, block_s: float = 0.0) -> list[Change]:
        """The next entries of the change feed, the oldest first; waits so long for one, but half of `socket_timeout` at most.

        After "0-0", all that are still there. Each shard has a feed of its own: there is no order between two of them. Raises
        ChangesLostError where entries after that one were not read and are gone, in any feed.
        """
        return self.ask(queries.changes(after, block_ms(self._redis, block_s)))

    def end_of_feed(self) -> str:
        """The id of the newest entry of the change feed, to follow from; with several shards the ids of all, joined by commas."""
        return self.ask(queries.end_of_feed())

    def follow(self, after: str | None = None, *, retry_for_s: float = 60.0) -> Iterator[Change]:
        """Yield, for ever, each entry of the change feed after that one, or from now on.

        Store the `id` of an entry when its places are processed, and go on after it next time: an entry may then come twice, but
        none is left out. An outage of Redis is waited for; UnavailableError is raised after `retry_for_s` of it. Raises
        ChangesLostError where entries were trimmed away before they were read.
        """
        outage, last = Outage(retry_for_s), after
        while not self._is_closed:
            try:
                if last is None:
                    last = self.end_of_feed()
                changes = self.changes(last, BLOCK_S)
            except ClosedError:
                return
            except UnavailableError as error:
                time.sleep(outage.pause(error))
                continue
            outage.is_over()
            for change in changes:
                last = change.id
                yield change

    def _take(self, step: Step) -> list[Any]:
        if self._is_closed:
            raise ClosedError(CLOSED)
        try:
            replies = self._steps.take(step)
        except Exception as error:
            # When another thread closes the client meanwhile, redis-py fails with errors of any class.
            if self._is_closed:
                raise ClosedError(CLOSED) from error
            if not isinstance(error, FAILURES):
                raise
            raise failure(self._redis, error) from error
        return answered(self._redis, replies)

"""Call one script over one connection to Redis: several calls in flight, retried in order.

    Redis is slow, away, loading, read-only or out of memory    retried with back-off, then SinkError
    the script is not in Redis's cache (NOSCRIPT)               retried on a new connection, which loads it
    the keys are on another node of the cluster, or on their    retried on a new connection to the node that has them
    way there (MOVED, ASK, TRYAGAIN, CLUSTERDOWN)
    the epoch in Redis is newer than the writer's (FENCED)      FencedError, at once
    the epoch in Redis is missing or older (EPOCHLOST)          EpochLostError, at once
    progress in Redis is missing or older (WRITESLOST)          WritesLostError, at once
    a correction may not write now (REFUSED)                    SinkError, at once
    the password is wrong (WRONGPASS, NOAUTH)                   SinkLoginError, at once
    any other error reply                                       SinkRefusedError, at once

A call without a reply is made again, and every later call after it, in order: the script must allow repeats.
"""

import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha1
from typing import Any, TypeVar

from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError
from redis.sentinel import MasterNotFoundError

from service import clock, settings
from service.errors import FencedError, SinkError, SinkLoginError, SinkRefusedError
from service.micro_batch import Offsets, at, parse_offsets
from service.redis import client as redis_client
from service.redis.keys import Keys, shards

ANSWERS_S = 1.0
"""Within which a Redis connects and answers PING for a command that only reads."""
IN_FLIGHT = 3
"""Calls without a reply: Redis runs one, another waits in the socket, and the next one is packed."""

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 2.0
_TEMPORARY: tuple[str, ...] = ("NOSCRIPT", "OOM", "READONLY", "LOADING", "MISCONF", "MASTERDOWN", "NOREPLICAS", "BUSY")
_TEMPORARY += "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"
_HALF_MOVED = "non local key"
"""In Redis's message when a script has come to a key that has moved already; what it wrote before that is repeated later."""
_NO_DATABASE = "DB index is out of range"
_CODES = re.compile(rf"\b({'|'.join(_TEMPORARY)}|WRONGTYPE|NOCLUSTER|{_NO_DATABASE})\b")
_REMEDIES = {
    "OOM": "Raise Redis's maxmemory, or lower the views' retain or redis.feed_length; keep maxmemory-policy noeviction",
    "READONLY": "redis.url names a replica: point it at the primary",
    "LOADING": "Redis was still reading its data: raise redis.retry_for",
    "MISCONF": "Redis cannot save to its disk: see its log",
    "WRONGTYPE": "Another program wrote a key under redis.prefix: remove the key or choose another prefix",
    "MOVED": "Set redis.cluster = true if redis.url names a node of a Redis Cluster; else raise redis.retry_for",
    _NO_DATABASE: "redis.url ends with a database that this Redis does not have: see `databases` in its configuration",
    "NOCLUSTER": "Set redis.cluster = false: redis.url names a Redis that is no cluster",
    "CLUSTERDOWN": "The cluster lacks a primary: see its nodes' logs; raise redis.retry_for if a failover takes longer",
    "NOREPLICAS": "Redis waits for replicas (min-replicas-to-write): bring them back",
}
_UNREACHABLE = "Check that Redis runs and can be reached from here; the batch is replayed from the checkpoint"
_SECTIONS = "server", "replication"
_INFORMATION = re.compile(r"^(\w+):(.*?)\r?$", re.MULTILINE)
_random = random.SystemRandom()

Reply = list[int | bytes]
T = TypeVar("T")


class WritesLostError(SinkError, code="SINK_WRITES_LOST"):
    """Redis has lost data that it had acknowledged; the call wrote nothing.

    To recover, acquire the lease again with `at_least=<the epoch so far>`, republish the lost values
    (service/recompute/republish.py), and replay the batch under the new epoch.
    """


class EpochLostError(WritesLostError, code="SINK_EPOCH_LOST"):
    """Redis has no epoch, or an older one than the writer (FLUSHALL, an empty restart, an old backup)."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place that an error message names, without a secret: `what` is the action, such as "batch 17 of epoch 3"."""

    address: str
    what: str

    def __str__(self) -> str:
        return f"Redis at {self.address}, {self.what}"


class Budget:
    """Limits the time that failures of a batch may take in all, and waits between attempts.

    `retries` counts the attempts that failed. Time counts from a failure until the next success.
    """

    def __init__(self, limit_ms: int, place: Place) -> None:
        self.limit_s = limit_ms / 1000
        self.place = place
        self.retries = 0
        self._spent_s = 0.0
        self._since: float | None = None
        self._wait_s = _FIRST_WAIT_S

    def failed(self, error: Exception) -> None:
        """Wait before the next attempt. Raise SinkError if the budget is used up or the error is permanent."""
        now = clock.monotonic_s()
        self._since = now if self._since is None else self._since
        spent = self._spent_s + now - self._since
        if not _is_temporary(error) or spent >= self.limit_s:
            raise _sink_error(error, self.place, self.retries, spent) from error
        self.retries += 1
        time.sleep(min(self._wait_s * _random.uniform(0.5, 1.0), max(self.limit_s - spent, 0.001)))
        self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)

    def succeeded(self) -> None:
        """Note a reply: the waits after the next failure are short again, within the rest of the budget."""
        if self._since is not None:
            self._spent_s += clock.monotonic_s() - self._since
            self._since, self._wait_s = None, _FIRST_WAIT_S

    def attempt(self, action: Callable[[], T]) -> T:
        """Return the result of `action`, which is retried within the budget."""
        while True:
            try:
                result = action()
            except (RedisError, OSError) as error:
                raise_refusal(error, self.place)
                self.failed(error)
            else:
                self.succeeded()
                return result


@contextmanager
def reader(options: settings.Redis, keys: Keys, what: str) -> Iterator[tuple[Any, Budget]]:
    """A client of a shard for plain commands, and the budget for their retries, which names `what` they are for."""
    with redis_client.client(options, keys) as client:
        yield client, Budget(options.retry_for_ms, Place(redis_client.address(options, keys), what))


def scan(client: Any, budget: Budget, pattern: str, count: int, **options: Any) -> Iterator[list[bytes]]:
    """Yield the keys that SCAN finds, by pages; a key may occur twice. `options` go to redis-py. Raises SinkError."""
    cursor: int | None = None
    while cursor != 0:
        cursor, names = budget.attempt(partial(client.scan, cursor or 0, match=pattern, count=count, **options))
        yield names


def require_answer(options: settings.Redis) -> None:
    """Raise SinkError if a shard does not answer within ANSWERS_S: a command that only reads need not wait for retry_for."""
    for keys in shards(options)[: None if options.cluster else 1]:
        limits = {"socket_timeout": ANSWERS_S, "socket_connect_timeout": ANSWERS_S}
        try:
            with redis_client.client(options, keys, **limits) as client:
                client.ping()
        except (RedisError, OSError) as error:
            if not _is_temporary(error):
                raise _sink_error(error, Place(redis_client.address(options, keys), "PING"), 0, 0.0) from error
            what = f"Redis at {redis_client.address(options, keys)} does not answer: {' '.join(str(error).split())}"
            raise SinkError(what, remedy="Check that it runs and can be reached from here") from error


def progress(options: settings.Redis, name: str) -> list[bytes | None]:
    """Return a field of progress of each shard, None when it has published nothing. Raises SinkError."""
    values = []
    for keys in shards(options):
        with reader(options, keys, "the progress") as (client, budget):
            values.append(budget.attempt(partial(client.hget, keys.progress, name)))
    return values


def published(options: settings.Redis) -> Offsets:
    """Return the offsets up to which every value of a prefix is published, {} before the first batch. Raises SinkError."""
    texts = progress(options, "offsets")
    every = [parse_offsets(text.decode()) for text in texts if text is not None]
    if len(every) < len(texts):
        return {}
    return {
        topic: {partition: min(at(each, topic, partition, 0) for each in every) for partition in partitions}
        for topic, partitions in every[0].items()
    }


def server_id(client: Any, keys: Keys) -> str:
    """Return the id that Link.server has, by a client for plain commands; an error while the shard moves to another Redis."""
    client.exists(keys.absent)
    return _id({name: value for section in _SECTIONS for name, value in client.info(section).items()})


def _id(information: Mapping[str, str]) -> str:
    """Of a run of Redis, from these sections of INFO.

    The run id changes with a restart. A primary that was failed over and is primary again has the same run id, and has lost
    what it had not sent to the other: the replication id changes whenever a replica becomes a primary.
    """
    return f"{information.get('run_id')} {information.get('master_replid')}"


def _code(error: Exception) -> str:
    """Return Redis's code for the error, "" if it has none. An error inside a script has its code within other text."""
    status = getattr(error, "status_code", None) or ""
    match = _CODES.search(status) or _CODES.search(str(error))
    return match[1] if match else str(status)


def _is_temporary(error: Exception) -> bool:
    if isinstance(error, AuthenticationError | AuthorizationError):
        return False
    return not isinstance(error, ResponseError) or _code(error) in _TEMPORARY or _HALF_MOVED in str(error)


def _sink_error(error: Exception, place: Place, retries: int, spent_s: float) -> SinkError:
    code = _code(error)
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        remedy = "Check redis.url's user, redis.password_file and Redis's ACL"
    elif code in _REMEDIES:
        remedy = _REMEDIES[code]
    elif code in _TEMPORARY:
        remedy = "See Redis's log; raise redis.retry_for if it needs longer"
    elif isinstance(error, MasterNotFoundError):
        remedy = "Check the sentinels and the name in redis.url; raise redis.retry_for if a failover takes longer"
    elif isinstance(error, ResponseError):
        remedy = "Redis 6.2 or later with Lua is needed"
    else:
        remedy = _UNREACHABLE
    text = f"{code} {error}" if code and code not in str(error) else str(error) or type(error).__name__
    attempts = f", given up after {retries} retries in {spent_s:.1f} s" if retries else ""
    family = SinkError if _is_temporary(error) else SinkRefusedError
    if isinstance(error, AuthenticationError):
        family = SinkLoginError
    return family(f"{place}: {text.rstrip('.')}{attempts}", remedy=remedy)


def raise_refusal(error: Exception, place: Place) -> None:
    """Raise FencedError, EpochLostError, WritesLostError or SinkError if `error` is a refusal of the script."""
    if not isinstance(error, ResponseError):
        return
    kind, _, reason = str(error).partition(" ")
    if kind == "FENCED":
        msg = f"{place}: refused, {reason}"
        raise FencedError(msg, remedy="Another writer has taken over: this process must end") from error
    if kind == "REFUSED":
        raise SinkError(f"{place}: refused, {reason}", remedy="Nothing is lost: run it again") from error
    if kind in {"EPOCHLOST", "WRITESLOST"}:
        family = EpochLostError if kind == "EPOCHLOST" else WritesLostError
        msg = f"{place}: refused, {reason}: Redis has lost data"
        raise family(msg, remedy="Acquire the lease again, then replay the batch") from error


class Link:
    """One connection to a shard for one script. Threads may share it; one at a time uses it."""

    def __init__(self, options: settings.Redis, shard: Keys, script: bytes, keys: tuple[str, ...]) -> None:
        self.options = options
        self.script = script
        self._shard = shard
        self._keys = keys
        self._sha = sha1(script, usedforsecurity=False).hexdigest()
        self._turn = threading.Lock()
        # Any: redis-py types its connections only in part.
        self._connection: Any = None

    def run(self, calls: Iterable[tuple[str, bytes]], budget: Budget, server: str = "") -> list[Reply]:
        """Return the script's replies to calls (step, arguments), in order. Each call is taken when it can be sent.

        With `server`, the calls are only made to that run of Redis. Raises SinkError, WritesLostError or FencedError, or what
        `calls` raise; then Redis may have run some of the calls.
        """
        with self._turn:
            return self._run(_made(calls), budget, server)

    def server(self, budget: Budget) -> str:
        """Return an id of the Redis that answers, which changes with each restart and fail-over. Raises SinkError."""
        with self._turn:
            return budget.attempt(self._server)

    def _server(self) -> str:
        try:
            connection = self._connected()
            for section in _SECTIONS:
                connection.send_command("INFO", section)
            answers = [connection.read_response().decode("utf-8", "replace") for _ in _SECTIONS]
            return _id(dict(_INFORMATION.findall("".join(answers))))
        except BaseException:
            self.close()
            raise

    def _run(self, source: Iterator[tuple[str, bytes]], budget: Budget, server: str) -> list[Reply]:
        replies: list[Reply] = []
        waiting: deque[tuple[str, bytes]] = deque()  # calls without a reply, oldest first
        done = False
        while True:
            with self._recovering(budget):
                if server and (now := self._server()) != server:
                    what = "Redis was restarted or failed over, or the shard has moved"
                    msg = f"{budget.place}: {what} (it was {server}, is {now})"
                    raise SinkError(msg, remedy="Redis may have lost values: the next attempt writes them again")
                connection = self._connected()
                sent = 0
                while True:
                    while sent < len(waiting):
                        self._send(connection, *waiting[sent])
                        sent += 1
                    while not done and len(waiting) < IN_FLIGHT:
                        call = next(source, None)
                        if call is None:
                            done = True
                        else:
                            waiting.append(call)
                            self._send(connection, *call)
                            sent += 1
                    if not waiting:
                        return replies
                    replies.append(connection.read_response())
                    waiting.popleft()
                    sent -= 1
                    budget.succeeded()

    def close(self) -> None:
        """Close the connection; the next call of `run` opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(RedisError, OSError):
                connection.disconnect()

    @contextmanager
    def _recovering(self, budget: Budget) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            self.close()
            raise_refusal(error, budget.place)
            budget.failed(error)
        except BaseException:
            self.close()  # the socket may have unread replies
            raise

    def _connected(self) -> Any:
        if self._connection is None:
            connection = redis_client.connection(self.options, self._shard)
            try:
                connection.connect()
                connection.send_command("SCRIPT", "LOAD", self.script)
                connection.read_response()
            except BaseException:
                connection.disconnect()
                raise
            self._connection = connection
        return self._connection

    def _send(self, connection: Any, step: str, arguments: bytes) -> None:
        connection.send_command("EVALSHA", self._sha, len(self._keys), *self._keys, step, arguments, check_health=False)


def _made(calls: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the calls. An OSError of theirs, as of a file, is none of Redis's: a retry would go on without those behind it."""
    try:
        yield from calls
    except (RedisError, OSError) as error:
        msg = f"A call for Redis cannot be made: {error}"
        raise RuntimeError(msg) from error


_links: dict[tuple[object, ...], Link] = {}


def link(options: settings.Redis, shard: Keys, script: bytes, keys: tuple[str, ...]) -> Link:
    """Return this process's connection to a shard for these settings and this script. It stays open between batches."""
    # With the process id, because a forked worker must not use its parent's socket.
    identity = (os.getpid(), options.url.get_secret_value(), options.password_file, options.timeout_ms, keys, script)
    if identity not in _links:
        _links[identity] = Link(options, shard, script, keys)
    return _links[identity]

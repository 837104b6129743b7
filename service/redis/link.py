"""One connection to Redis that survives what Redis does: calls of one script, several in flight, repeated in order.

    Redis is slow, away, loading, read-only or out of memory    tried again with back-off, then SinkError
    the script is not in Redis's cache (NOSCRIPT)               tried again on a new connection, which loads it
    the epoch in Redis is newer than ours (FENCED)              FencedError, at once
    the epoch in Redis is missing or older than ours            EpochLostError, at once
    progress in Redis is missing or older than ours             WritesLostError, at once
    anything else Redis answers                                 SinkRefusedError, at once

A call whose answer was lost is made again, and with it every later one, in order: the script must bear that.
"""

import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, TypeVar

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from service import clock, settings
from service.errors import FencedError, SinkError, SinkRefusedError
from service.redis import client as redis_client
from service.redis.keys import Keys

IN_FLIGHT = 3
"""Calls sent and not yet answered: Redis works on one while the next is packed and another waits in the socket."""

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 2.0
_TEMPORARY = ("NOSCRIPT", "OOM", "READONLY", "LOADING", "MISCONF", "MASTERDOWN", "NOREPLICAS", "BUSY", "TRYAGAIN")
_CODES = re.compile(rf"\b({'|'.join(_TEMPORARY)}|WRONGTYPE)\b")
_REMEDIES = {
    "OOM": "Raise Redis's maxmemory, or lower the views' retain or redis.feed_length; keep maxmemory-policy noeviction",
    "READONLY": "redis.url names a replica: point it at the primary",
    "LOADING": "Redis was still reading its data: raise redis.retry_for",
    "MISCONF": "Redis cannot save to its disk: see its log",
    "WRONGTYPE": "A key under redis.prefix is somebody else's: remove it or choose another prefix",
    "NOREPLICAS": "Redis waits for replicas (min-replicas-to-write): bring them back",
}
_UNREACHABLE = "Check that Redis runs and can be reached from here; the batch is replayed from the checkpoint"
_RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)
_random = random.SystemRandom()

Reply = list[int | bytes]
T = TypeVar("T")


class WritesLostError(SinkError):
    """Redis has lost data that it had acknowledged; the call wrote nothing.

    Nobody else writes either, so it is recoverable: acquire the lease again with `at_least=<the epoch so far>`, publish
    again what was lost (service/recompute/republish.py), and go on with the batch under the new epoch.
    """

    code = "SINK_WRITES_LOST"


class EpochLostError(WritesLostError):
    """Redis has no epoch, or one older than ours (FLUSHALL, an empty restart, an old backup)."""

    code = "SINK_EPOCH_LOST"


@dataclass(frozen=True, slots=True)
class Place:
    """What an error message says about where: never with a secret."""

    address: str
    what: str
    """What was being done, such as "batch 17 of epoch 3"."""

    def __str__(self) -> str:
        return f"Redis at {self.address}, {self.what}"


class Budget:
    """The time that failures may cost in all, and the waiting between attempts.

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
        """Wait before the next attempt, or raise SinkError: the budget is used up, or trying again is of no use."""
        now = clock.monotonic_s()
        self._since = now if self._since is None else self._since
        spent = self._spent_s + now - self._since
        if not _is_temporary(error) or spent >= self.limit_s:
            raise _sink_error(error, self.place, self.retries, spent) from error
        self.retries += 1
        time.sleep(min(self._wait_s * _random.uniform(0.5, 1.0), max(self.limit_s - spent, 0.001)))
        self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)

    def succeeded(self) -> None:
        """Redis answered: the next failure begins anew with short waits, on what is left of the budget."""
        if self._since is not None:
            self._spent_s += clock.monotonic_s() - self._since
            self._since, self._wait_s = None, _FIRST_WAIT_S

    def attempt(self, action: Callable[[], T]) -> T:
        """The action's result; it is made again as long as the budget lasts."""
        while True:
            try:
                result = action()
            except (RedisError, OSError) as error:
                raise_refusal(error, self.place)
                self.failed(error)
            else:
                self.succeeded()
                return result


def progress(settings: settings.Settings, name: str) -> bytes | None:
    """A field of the progress that Redis has of the last published batch; None where nothing is published. Raises SinkError."""
    place = Place(redis_client.address(settings.redis), "the progress")
    with redis_client.client(settings.redis) as client:
        budget = Budget(settings.redis.retry_for_ms, place)
        value: bytes | None = budget.attempt(lambda: client.hget(Keys(settings.redis.prefix).progress, name))
    return value


def _code(error: Exception) -> str:
    """Redis's word for the error, "" when it has none. Inside a script errors come wrapped in text of their own."""
    said = getattr(error, "status_code", None) or ""
    found = _CODES.search(said) or _CODES.search(str(error))
    return found[1] if found else str(said)


def _is_temporary(error: Exception) -> bool:
    if isinstance(error, AuthenticationError | AuthorizationError):
        return False
    return not isinstance(error, ResponseError) or _code(error) in _TEMPORARY


def _sink_error(error: Exception, place: Place, retries: int, spent_s: float) -> SinkError:
    code = _code(error)
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        remedy = "Check redis.url's user, redis.password_file and Redis's ACL"
    elif code in _REMEDIES:
        remedy = _REMEDIES[code]
    elif code in _TEMPORARY:
        remedy = "See Redis's log; raise redis.retry_for if it needs longer"
    elif isinstance(error, ResponseError):
        remedy = "Redis 6.2 or later with Lua is needed"
    else:
        remedy = _UNREACHABLE
    said = f"{code} {error}" if code and code not in str(error) else str(error) or type(error).__name__
    tried = f", given up after {retries} retries in {spent_s:.1f} s" if retries else ""
    family = SinkError if _is_temporary(error) else SinkRefusedError
    return family(f"{place}: {said.rstrip('.')}{tried}", remedy=remedy)


def raise_refusal(error: Exception, place: Place) -> None:
    """Raise FencedError, EpochLostError or WritesLostError when that is what the script answered."""
    if not isinstance(error, ResponseError):
        return
    kind, _, said = str(error).partition(" ")
    if kind == "FENCED":
        msg = f"{place}: refused, {said}"
        raise FencedError(msg, remedy="Another writer has taken over: this one must end") from error
    if kind in {"EPOCHLOST", "WRITESLOST"}:
        family = EpochLostError if kind == "EPOCHLOST" else WritesLostError
        msg = f"{place}: refused, {said}: Redis has lost data"
        raise family(msg, remedy="Acquire the lease again, then replay the batch") from error


class Link:
    """One connection and one script; threads take turns."""

    def __init__(self, options: settings.Redis, script: bytes, keys: tuple[str, ...]) -> None:
        self.options = options
        self.script = script
        self._keys = keys
        self._sha = sha1(script, usedforsecurity=False).hexdigest()
        self._turn = threading.Lock()
        # Any: redis-py types its connections only in part.
        self._connection: Any = None

    def run(self, calls: Iterable[tuple[str, bytes]], budget: Budget, server: str = "") -> list[Reply]:
        """The script's replies to calls (step, arguments), in order. A call is only asked for when it can be sent.

        With `server`, the calls are only made to that run of Redis. Raises SinkError, WritesLostError or FencedError;
        then some of the calls may have been carried out.
        """
        with self._turn:
            return self._run(iter(calls), budget, server)

    def server(self, budget: Budget) -> str:
        """Which run of Redis answers: another one after each restart and fail-over. Raises SinkError."""
        with self._turn:
            return budget.attempt(self._server)

    def _server(self) -> str:
        try:
            connection = self._connected()
            connection.send_command("INFO", "server")
            found = _RUN_ID.search(connection.read_response())
        except BaseException:
            self.close()
            raise
        return found[1].decode() if found else ""

    def _run(self, source: Iterator[tuple[str, bytes]], budget: Budget, server: str) -> list[Reply]:
        replies: list[Reply] = []
        waiting: deque[tuple[str, bytes]] = deque()  # not answered yet, oldest first
        done = False
        while True:
            with self._recovering(budget):
                if server and (now := self._server()) != server:
                    msg = f"{budget.place}: Redis was restarted or failed over meanwhile (it was {server}, is {now})"
                    raise SinkError(
                        msg, remedy="It may have lost what was written: that is written again by the next attempt"
                    )
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
        """Drop the connection; the next run makes a new one."""
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
            self.close()  # answers are left in the socket
            raise

    def _connected(self) -> Any:
        if self._connection is None:
            connection = redis_client.connection(self.options)
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


_links: dict[tuple[object, ...], Link] = {}


def link(options: settings.Redis, script: bytes, keys: tuple[str, ...]) -> Link:
    """This process's connection for these settings and this script; it stays open between batches."""
    # The process id: a forked worker must not speak on its parent's socket.
    identity = (os.getpid(), options.url.get_secret_value(), options.password_file, options.timeout_ms, keys, script)
    if identity not in _links:
        _links[identity] = Link(options, script, keys)
    return _links[identity]

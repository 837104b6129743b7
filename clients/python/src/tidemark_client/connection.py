"""What both clients know of redis-py: its options and its errors."""

from __future__ import annotations

import inspect
import re
import time
from typing import Any, TypeVar

import redis

from tidemark_client import arguments
from tidemark_client.cluster import REPLICAS, is_cluster
from tidemark_client.errors import ArgumentError, RefusedError, TidemarkClientError, UnavailableError
from tidemark_client.layout import Layout
from tidemark_client.names import Names

C = TypeVar("C")
_SENTINEL = re.compile(r"<redis\.[^<]*<[^<]*<.*?host=([^,]*),port=(\d+).*?\)>\)>\)>")
"""How redis-py's errors name a sentinel: with all options of its connections (8.1.0)."""
FAILURES = (redis.RedisError, redis.exceptions.RedisClusterException, UnicodeError)
"""What redis-py raises."""

OPTIONS = {
    "decode_responses": True,
    "encoding_errors": "backslashreplace",
    "socket_timeout": 10.0,
    "socket_connect_timeout": 5.0,
}
CLOSED = "this client was closed"
BLOCK_S = 1.0
"""How long a request for changes waits for one."""
_AWAY = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.InvalidResponse,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.RedisClusterException,
)
_FULL: Any = getattr(redis.exceptions, "MaxConnectionsError", ())
_NO_CLUSTER = "luster mode is not enabled"
_LONGEST_PAUSE_S = 5.0


def checked(connection: C, *, is_async: bool) -> C:
    """The connection, if it is of the right kind and decodes its answers. Raises TypeError."""
    made: Any = connection
    if inspect.iscoroutinefunction(made.execute_command) != is_async:
        raise TypeError("Client takes a connection of redis, AsyncClient one of redis.asyncio")
    if not made.get_encoder().decode_responses:
        raise TypeError("the connection answers with bytes: make it with decode_responses=True, or use from_url")
    if getattr(made, "read_from_replicas", False) or getattr(made, "load_balancing_strategy", None) is not None:
        raise TypeError(REPLICAS)
    return connection


def layout(connection: Any, prefix: str) -> Layout:
    """The layout of a prefix, with texts encoded as the connection sends them. Raises ArgumentError."""
    arguments.texts(prefix=prefix)
    return Layout(Names(prefix, in_cluster=is_cluster(connection), encode=connection.get_encoder().encode))


def positive(name: str, value: int) -> int:
    """The value of an argument. Raises ArgumentError."""
    arguments.counts(**{name: value})
    if value < 1:
        raise ArgumentError(f"{name} = {value!r}: give 1 or more")
    return value


def block_ms(connection: Any, block_s: float) -> int:
    """How long one request may wait for changes: half of the time after which the connection gives up. Raises ArgumentError."""
    if not isinstance(block_s, (int, float)) or not 0 <= block_s < float("inf"):
        raise ArgumentError(f"block_s = {block_s!r}: give seconds, 0 or more")
    timeout_s = connection.get_connection_kwargs().get("socket_timeout")
    waits_s = block_s if timeout_s is None else min(block_s, timeout_s / 2)
    return max(1, int(waits_s * 1000)) if block_s else 0


def failure(connection: Any, error: Exception) -> TidemarkClientError:
    """An error of redis-py as one of ours, with the place."""
    return failure_at(_where(connection), error)


def failure_at(where: str, error: Exception) -> TidemarkClientError:
    """An error of redis-py as one of ours. Where no node of a cluster serves, the cause is the last node's error."""
    cause = error.__cause__ if isinstance(error, redis.exceptions.RedisClusterException) else None
    if isinstance(cause, Exception):
        return failure_at(where, cause)
    if isinstance(error, UnicodeError):
        return ArgumentError(f"a text cannot be sent to Redis ({where}), or is not UTF-8 there: {error}")
    if _FULL and isinstance(error, _FULL):
        return UnavailableError(f"all connections of this client are in use: {error}. Give it a larger max_connections")
    # A server that is busy with a script answers with an error that has no class of its own.
    is_away = isinstance(error, _AWAY) or "BUSY " in str(error)
    if is_away and not isinstance(error, redis.AuthenticationError) and _NO_CLUSTER not in str(error):
        text = _SENTINEL.sub(r"\1:\2", str(error))
        return UnavailableError(
            f"Redis ({where}) does not answer: {text}. Check the address and the server, then ask again"
        )
    remedy = "Reading takes a user with +@read +@connection, in a cluster +cluster too, and the keys of the prefix"
    if str(error).startswith(("MOVED ", "ASK ")) or isinstance(
        error, redis.exceptions.AskError
    ):  # by the text up to 5.0
        remedy = "It is a node of a Redis Cluster: use from_url with cluster=True"
    if _NO_CLUSTER in str(error):
        remedy = "It is no node of a Redis Cluster: leave out cluster=True"
    return RefusedError(f"Redis ({where}) refuses: {error}. {remedy}")


def _where(connection: Any) -> str:
    if is_cluster(connection):
        nodes = sorted(connection.nodes_manager.startup_nodes)
        return f"cluster {', '.join(nodes[:3])}{', ...' if len(nodes) > 3 else ''}"
    options = connection.get_connection_kwargs()
    if hasattr(connection.connection_pool, "service_name"):
        options = {"primary": connection.connection_pool.service_name, **options}
    names = ("primary", "host", "port", "path", "db")
    return ", ".join(f"{name} {options[name]}" for name in names if name in options)


def answered(connection: Any, replies: list[Any]) -> list[Any]:
    """The replies of a pipeline, if none is an error. redis-py's own text for one loses what Redis said (asyncio, 7.0.1)."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise failure(connection, reply) from reply
    return replies


class Outage:
    """How long Redis has been away, and how long to wait before the next try."""

    def __init__(self, retry_for_s: float) -> None:
        self._retry_for_s = retry_for_s
        self.is_over()

    def is_over(self) -> None:
        self._since: float | None = None
        self._pause_s = 0.05

    def pause(self, error: UnavailableError) -> float:
        """Seconds until the next try; raises the error when Redis has been away for too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._retry_for_s:
            raise error
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return self._pause_s

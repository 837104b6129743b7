"""What both clients know of redis-py: its options and its errors."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import redis

from tidemark_client.errors import RefusedError, TidemarkClientError, UnavailableError

C = TypeVar("C")

OPTIONS = {
    "decode_responses": True,
    "encoding_errors": "backslashreplace",
    "socket_timeout": 10.0,
    "socket_connect_timeout": 5.0,
}
BLOCK_S = 1.0
"""How long a request for changes waits for one; less than the timeout of a connection."""
_AWAY = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError)
_LONGEST_PAUSE_S = 5.0


def checked(connection: C) -> C:
    """The connection, if it decodes its answers. Raises TypeError."""
    made: Any = connection
    if not made.get_encoder().decode_responses:
        msg = "the connection answers with bytes: make it with decode_responses=True, or use Client.from_url"
        raise TypeError(msg)
    return connection


def failure(connection: Any, error: redis.RedisError) -> TidemarkClientError:
    """An error of redis-py as one of ours, with the place."""
    place = {
        name: value
        for name, value in connection.get_connection_kwargs().items()
        if name in ("host", "port", "path", "db")
    }
    where = ", ".join(f"{name} {value}" for name, value in place.items())
    if isinstance(error, _AWAY) and not isinstance(error, redis.AuthenticationError):
        return UnavailableError(
            f"Redis ({where}) does not answer: {error}. Check the address and the server, then ask again"
        )
    return RefusedError(
        f"Redis ({where}) refuses: {error}. Reading takes a user with +@read +@connection and the keys of the prefix"
    )


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

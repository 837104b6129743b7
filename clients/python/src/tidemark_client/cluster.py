"""Redis Cluster: the nodes in a URL, and what both clients do the same with redis-py."""

from __future__ import annotations

from typing import Any, Callable
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit

import redis

from tidemark_client.errors import ArgumentError
from tidemark_client.steps import Command

OPTIONS = {"require_full_coverage": False}
"""A shard can be read while the slots of others are not covered, if the cluster allows it."""
REPLICAS = (
    "the connection reads from replicas, which may be behind: a value could go back, or be called final too early"
)
_PORT = 6379
_ESCAPES = "In user and password write %2F for /, %23 for #, %3F for ?, %40 for @"
_ELSEWHERE = (
    redis.exceptions.AskError,  # also MovedError
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    redis.ConnectionError,
    redis.TimeoutError,
)
_CLOSED = (AttributeError, OSError, RuntimeError, ValueError)


def connect(url: str, made_by: Any, node: Callable[[str, int], Any], options: dict[str, Any]) -> Any:
    """A RedisCluster, of that class, from a URL like redis://user:password@host:port,host:port/0.

    Raises ArgumentError; TypeError for an option to read from replicas.
    """
    if options.get("read_from_replicas") or options.get("load_balancing_strategy"):
        raise TypeError(REPLICAS)
    parts = split(url)
    login, at, hosts = parts.netloc.rpartition("@")
    options = {**OPTIONS, **options}
    databases = {parts.path.strip("/"), str(options.pop("db", 0)), *parse_qs(parts.query).get("db", [])}
    if parts.scheme not in {"redis", "rediss"} or databases - {"", "0"}:
        msg = (
            "the URL of a cluster is redis:// or rediss:// with host:port,host:port; a cluster has the database 0 alone"
        )
        raise ArgumentError(msg)
    first, *others = split_hosts(hosts)
    nodes = [node(name.strip("[]"), port) for name, port in others]
    first_url = urlunsplit((parts.scheme, f"{login}{at}{first[0]}:{first[1]}", parts.path, parts.query, ""))
    return made_by.from_url(first_url, startup_nodes=nodes, **options)


def single(url: str) -> str:
    """A URL that names one Redis. Raises ArgumentError, without the URL: it may have a password."""
    parts = split(url)
    if parts.scheme not in {"redis", "rediss", "unix"}:
        msg = "the URL has no scheme of Redis: redis://, rediss:// for TLS, unix://, or redis+sentinel:// for sentinels"
        raise ArgumentError(msg)
    if "," in parts.netloc.rpartition("@")[2]:
        raise ArgumentError("the URL names several nodes: give cluster=True if they are those of a Redis Cluster")
    return url


def split(url: str) -> SplitResult:
    """The parts of a URL with a port that is a number. Raises ArgumentError."""
    if not isinstance(url, str):
        raise ArgumentError(f"url is of the type {type(url).__name__}: give text, a str")
    try:
        parts = urlsplit(url)
        if "," not in parts.netloc:
            _ = parts.port
    except ValueError:  # its text may have a part of the password
        msg = f"the URL cannot be read: write redis://user:password@host:6379/0, and an IPv6 address in brackets. {_ESCAPES}"
        raise ArgumentError(msg) from None
    return parts


def where(url: str) -> str:
    """The nodes of a URL, without the password."""
    return f"cluster {urlsplit(url).netloc.rpartition('@')[2]}"


def is_cluster(connection: Any) -> bool:
    """Whether this is a connection of redis-py to a cluster."""
    return isinstance(connection, (redis.cluster.RedisCluster, redis.asyncio.RedisCluster))


def key_of(command: Command) -> Any:
    """The key that says which node executes a command."""
    return command[command.index("STREAMS") + 1] if command[0] == "XREAD" else command[1]


def is_elsewhere(reply: Any) -> bool:
    """Whether a reply says to ask another node, or that the node did not answer."""
    return isinstance(reply, _ELSEWHERE) or (isinstance(reply, Exception) and is_closed_by_others(reply))


def is_closed_by_others(error: Exception) -> bool:
    """Whether a request failed in the way of a connection that redis-py has closed for another thread or task.

    When a node fails, redis-py closes connections that are in use (8.1.0).
    """
    return isinstance(error, _CLOSED) and not isinstance(error, UnicodeError)


def closed(error: Exception) -> redis.ConnectionError:
    """The error for such a request."""
    msg = f"the connection was closed: {error!r}"
    return redis.ConnectionError(msg)


def scanned(reply: Any) -> list[Any]:
    """The next cursor and the keys of a SCAN; that of a cluster has a cursor for each node, here of one node."""
    cursor, keys = reply
    return [next(iter(cursor.values())) if isinstance(cursor, dict) else cursor, keys]


def split_hosts(text: str, port: int = _PORT) -> list[tuple[str, int]]:
    """Hosts and ports of host:port,host:port; an IPv6 address is in brackets. Raises ArgumentError."""
    return [_host(each, port) for each in text.split(",")]


def _host(text: str, default: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        name, port = parts.hostname, parts.port
    except ValueError:
        name, port = None, None
    if not name:
        raise ArgumentError(f"the URL has no host, or a port that is none: give host:port. {_ESCAPES}")
    return f"[{name}]" if ":" in name else name, port or default

"""Redis Sentinel: the sentinels in a URL, and a connection to the primary that they name."""

from __future__ import annotations

from typing import Any
from urllib.parse import SplitResult

from redis.connection import parse_url

from tidemark_client.cluster import split, split_hosts
from tidemark_client.errors import ArgumentError

_SUFFIX = "+sentinel"
_PORT = 26379
_ANSWER_S = 1.0
"""Limit of one sentinel's answer: they are asked one after the other, and those of a lost host are silent."""


def is_sentinel(url: str) -> bool:
    """Whether a URL names sentinels: redis+sentinel:// or, with TLS, rediss+sentinel://."""
    return isinstance(url, str) and url.partition("://")[0] in {f"redis{_SUFFIX}", f"rediss{_SUFFIX}"}


def connect(url: str, made_by: Any, options: dict[str, Any]) -> Any:
    """A client of the primary, by a class Sentinel of redis-py.

    The URL is like redis+sentinel://user:password@host1:26379,host2:26379/mymaster/0, with user and password of the primary.
    `sentinel_kwargs` among the options are for connections to the sentinels, such as their password. Raises ArgumentError.
    """
    parts = split(url)
    name, _, database = parts.path.strip("/").partition("/")
    if not name or not (database or "0").isdigit():
        msg = (
            "the URL of sentinels ends with the name of the primary: redis+sentinel://host1:26379,host2:26379/mymaster"
        )
        raise ArgumentError(msg)
    is_encrypted = parts.scheme.startswith("rediss")
    own = {"ssl": True} if is_encrypted else {}
    encryption = {key: value for key, value in options.items() if key.startswith("ssl_")}
    of_sentinels = {
        "protocol": 2,
        "socket_timeout": _ANSWER_S,
        "socket_connect_timeout": _ANSWER_S,
        **own,
        **encryption,
    }
    of_sentinels.update(options.get("sentinel_kwargs") or {})
    login = {key: value for key, value in _options(parts, database).items() if key not in {"host", "port"}}
    rest = {key: value for key, value in options.items() if key != "sentinel_kwargs"}
    places = [(host.strip("[]"), port) for host, port in split_hosts(parts.netloc.rpartition("@")[2], _PORT)]
    return made_by(places, sentinel_kwargs=of_sentinels).master_for(name, **{**login, **own, **rest})


def opened(connection: Any) -> list[Any]:
    """The clients to close: the connection, and those of its sentinels if it has some."""
    pool = getattr(connection, "connection_pool", None)  # a client of a cluster has several
    manager = getattr(pool, "sentinel_manager", None)
    return [connection, *(manager.sentinels if manager else ())]


def _options(parts: SplitResult, database: str) -> dict[str, Any]:
    """What redis-py makes of the login, the database and the query of the URL."""
    login, at, _ = parts.netloc.rpartition("@")
    query = f"?{parts.query}" if parts.query else ""
    parsed: Any = parse_url  # not typed
    return dict(parsed(f"redis://{login}{at}localhost/{database or 0}{query}"))

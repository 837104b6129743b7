"""Clients of Redis: the address, the password and the options of every connection.

In a Redis Cluster each client and each connection reaches one shard. It asks the cluster for the primary of the shard whenever
it connects, and it connects again after a reply that says that the shard is elsewhere. It does not follow ASK, which redirects
one command while a slot is moved: a script would write keys at the new node that are still to come from the old one. Such a
command fails, and its caller repeats it until the slot has moved.
"""

from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.credentials import CredentialProvider
from redis.exceptions import AskError, ClusterDownError, ReadOnlyError, RedisClusterException
from redis.retry import Retry

from service.redis.keys import Keys
from service.settings import Redis
from service.settings.section import read_secret

_ELSEWHERE = AskError, ClusterDownError, ReadOnlyError  # MovedError is an AskError
_NO_CLUSTER = "not enabled"  # in redis-py's message
_nodes: dict[str, frozenset[tuple[str, int]]] = {}
"""The nodes of a cluster by the settings' URL, as seen last: those in the URL may be gone."""


def client(settings: Redis, keys: Keys, **options: Any) -> Any:
    """A client of a shard with a pool of its own; close it. It connects on its first command. `options` are redis-py's.

    Any: redis-py types its replies for clients that may be asynchronous.
    """
    return redis.Redis.from_pool(_pool(settings, keys, options))


def connection(settings: Redis, keys: Keys) -> Any:
    """One connection to a shard that is not connected yet. Any: redis-py types its connections only in part."""
    return _pool(settings, keys, {}).make_connection()


def address(settings: Redis, keys: Keys | None = None) -> str:
    """host:port/db of the settings' URL, without user and password; of several shards also which one."""
    url = urlsplit(settings.url.get_secret_value())
    if url.scheme == "unix":
        place = url.path
    else:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in _hosts(url))
        place = f"{hosts}{url.path if url.path not in {'', '/'} else '/0'}"
    return place if keys is None or keys.prefix == settings.prefix else f"{place}, shard {keys.prefix}"


def _hosts(url: SplitResult) -> list[tuple[str, int]]:
    parts = [urlsplit(f"//{host}") for host in url.netloc.rpartition("@")[2].split(",")]
    return [(part.hostname or "localhost", part.port or 6379) for part in parts]


def _pool(settings: Redis, keys: Keys, options: dict[str, Any]) -> redis.ConnectionPool:
    text, seconds = settings.url.get_secret_value(), settings.timeout_ms / 1000
    fixed: dict[str, Any] = {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": Retry(NoBackoff(), 0),  # service/redis/link.py retries, with one budget for a batch
        "protocol": 2,
        "client_name": "tidemark",
    }
    if settings.ca_file is not None and text.startswith("rediss:"):
        fixed["ssl_ca_certs"] = str(settings.ca_file)
    url = urlsplit(text)
    user, at, hosts = url.netloc.rpartition("@")
    first = url._replace(netloc=user + at + hosts.split(",")[0]) if settings.cluster else url
    pool = redis.ConnectionPool.from_url(first.geturl(), **{**fixed, **options})
    if settings.password_file is not None:  # replaces the URL's password
        pool.connection_kwargs.pop("password", None)
        user = pool.connection_kwargs.pop("username", None)
        pool.connection_kwargs["credential_provider"] = _PasswordFile(user, settings.password_file)
    if settings.cluster:
        _nodes.setdefault(text, frozenset(_hosts(url)))
        is_encrypted = url.scheme == "rediss"
        how = {name: value for name, value in pool.connection_kwargs.items() if name not in {"host", "port", "db"}}
        how["ssl"] = is_encrypted
        pool.connection_kwargs |= {"key": keys.epoch, "url": text, "how": how}
        pool.connection_class = _OfShardEncrypted if is_encrypted else _OfShard
    return pool


_Connection: Any = redis.Connection  # redis-py types its connections only in part


class _OfShard(_Connection):  # type: ignore[misc]
    """A connection to the primary that has `key`. `how` are redis-py's options of a connection to the nodes of `url`."""

    def __init__(self, *, key: str, url: str, how: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self._key, self._url, self._how = key, url, how

    def _connect(self) -> Any:
        self.host, self.port = self._primary()
        return super()._connect()

    def _primary(self) -> tuple[str, int]:
        node: Any = ClusterNode
        nodes = [node(*place) for place in sorted(_nodes[self._url])]
        try:
            with RedisCluster(startup_nodes=nodes, **self._how) as cluster:
                primary = cluster.get_node_from_key(self._key)
                known = {(str(node.host), int(node.port)) for node in cluster.get_nodes()}
        except RedisClusterException as error:  # not a RedisError
            if isinstance(error.__cause__, redis.AuthenticationError | redis.exceptions.ResponseError):
                raise error.__cause__ from None
            if _NO_CLUSTER in str(error):
                msg = "NOCLUSTER redis.cluster = true, but this Redis is no node of a cluster"
                raise redis.ResponseError(msg) from error
            raise redis.ConnectionError(str(error)) from error
        _nodes[self._url] = frozenset(known)
        return str(primary.host), int(primary.port)

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)
        except _ELSEWHERE:
            self.disconnect()
            raise


class _OfShardEncrypted(_OfShard, redis.SSLConnection):
    """The same over TLS."""


class _PasswordFile(CredentialProvider):
    """Reads the file for each new connection, so that a changed password needs no restart."""

    def __init__(self, user: str | None, path: Path) -> None:
        self._user, self._path = user, path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = read_secret(self._path)
        except OSError as error:
            msg = f"redis.password_file: {self._path} cannot be read ({error.strerror})"
            raise redis.ConnectionError(msg) from error
        return (password,) if self._user is None else (self._user, password)

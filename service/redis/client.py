"""Clients of Redis: the address, the password and the options of every connection.

In a Redis Cluster each client and each connection reaches one shard. It asks the cluster for the primary of the shard whenever
it connects, and it connects again after a reply that says that the shard is elsewhere. It does not follow ASK, which redirects
one command while a slot is moved: a script would write keys at the new node that are still to come from the old one. Such a
command fails, and its caller repeats it until the slot has moved.

Where Redis Sentinel watches the primary, each connection asks the sentinels for it whenever it connects.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.credentials import CredentialProvider
from redis.exceptions import AskError, ClusterDownError, ReadOnlyError, RedisClusterException
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from service.redis.keys import Keys
from service.settings import Redis
from service.settings.section import read_secret

_ELSEWHERE = AskError, ClusterDownError, ReadOnlyError  # MovedError is an AskError
_NO_CLUSTER = "not enabled"  # in redis-py's message
_SENTINEL_PORT = 26379
_SENTINEL_S = 1.0
"""Limit of one sentinel's answer: the sentinels are asked one after the other, and those of a lost host are silent."""
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
    elif settings.has_sentinels:
        watched = Watched.of(url)
        place = f"{watched.name}/{watched.database} of the sentinels {_text(watched.sentinels)}"
    else:
        place = f"{_text(_hosts(url))}{url.path if url.path not in {'', '/'} else '/0'}"
    return place if keys is None or keys.prefix == settings.prefix else f"{place}, shard {keys.prefix}"


@dataclass(frozen=True, slots=True)
class Watched:
    """What a URL of sentinels names: the sentinels, and name and database of the primary that they watch."""

    sentinels: tuple[tuple[str, int], ...]
    name: str
    database: int

    @classmethod
    def of(cls, url: SplitResult) -> Self:
        """Parse redis+sentinel://host1:26379,host2:26379/mymaster/0."""
        name, _, database = url.path.strip("/").partition("/")
        return cls(tuple(_hosts(url, _SENTINEL_PORT)), name, int(database or 0))


def _hosts(url: SplitResult, port: int = 6379) -> list[tuple[str, int]]:
    parts = [urlsplit(f"//{host}") for host in url.netloc.rpartition("@")[2].split(",")]
    return [(part.hostname or "localhost", part.port or port) for part in parts]


def _text(hosts: Iterable[tuple[str, int]]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts)


def _pool(settings: Redis, keys: Keys, options: dict[str, Any]) -> redis.ConnectionPool:
    text, seconds = settings.url.get_secret_value(), settings.timeout_ms / 1000
    fixed: dict[str, Any] = {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": Retry(NoBackoff(), 0),  # service/redis/link.py retries, with one budget for a batch
        "protocol": 2,
        "client_name": "tidemark",
    }
    if settings.ca_file is not None and text.startswith("rediss"):
        fixed["ssl_ca_certs"] = str(settings.ca_file)
    url = urlsplit(text)
    user, at, hosts = url.netloc.rpartition("@")
    path = f"/{Watched.of(url).database}" if settings.has_sentinels else url.path
    # geturl() would leave out the two slashes of a URL without a host, unix:///path.
    first = f"{url.scheme.removesuffix('+sentinel')}://{user}{at}{hosts.partition(',')[0]}{path}?{url.query}"
    pool = redis.ConnectionPool.from_url(first, **{**fixed, **options})
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
    return _of_primary(settings, Watched.of(url), pool) if settings.has_sentinels else pool


def _of_primary(settings: Redis, watched: Watched, pool: redis.ConnectionPool) -> redis.ConnectionPool:
    """A pool of connections as those of `pool`, to the primary that the sentinels name whenever one connects."""
    options = {name: value for name, value in pool.connection_kwargs.items() if name not in {"host", "port"}}
    is_encrypted = issubclass(pool.connection_class, redis.SSLConnection)
    of_sentinels = {
        name: value for name, value in options.items() if name.startswith(("socket_", "ssl_")) or name == "retry"
    }
    of_sentinels |= {
        "ssl": is_encrypted,
        "protocol": 2,
        "socket_connect_timeout": _SENTINEL_S,
        "socket_timeout": _SENTINEL_S,
    }
    if settings.sentinel_password_file is not None:
        file = _PasswordFile(None, settings.sentinel_password_file, "sentinel_password_file")
        of_sentinels["credential_provider"] = file
    pool_of: Any = SentinelConnectionPool  # not typed
    asked = _Sentinels(watched.sentinels, sentinel_kwargs=of_sentinels)
    watching: redis.ConnectionPool = pool_of(watched.name, asked, ssl=is_encrypted, **options)
    return watching


_Sentinel: Any = Sentinel  # not typed


class _Sentinels(_Sentinel):  # type: ignore[misc]
    """Sentinels whose error says what each of them has answered, in one line."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        answers = []
        for sentinel in self.sentinels:
            place = sentinel.connection_pool.connection_kwargs
            try:
                state = sentinel.sentinel_masters().get(service_name)
                answer = "calls it down" if state else "does not know it"
                if state and self.check_master_state(state, service_name):
                    return str(state["ip"]), int(state["port"])
            except redis.RedisError as error:
                answer = str(error).rstrip(".") or type(error).__name__
            answers.append(f"{_text([(place['host'], place['port'])])}: {answer}")
        raise MasterNotFoundError(f"no sentinel names the primary of {service_name}: {'; '.join(answers)}")


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
            # All nodes may have other addresses now, where every pod was replaced: the next attempt asks those of the URL, too.
            _nodes[self._url] |= frozenset(_hosts(urlsplit(self._url)))
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

    def __init__(self, user: str | None, path: Path, setting: str = "password_file") -> None:
        self._user, self._path, self._setting = user, path, setting

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = read_secret(self._path)
        except OSError as error:
            msg = f"redis.{self._setting}: {self._path} cannot be read ({error.strerror})"
            raise redis.ConnectionError(msg) from error
        return (password,) if self._user is None else (self._user, password)

"""Clients of Redis: the address, the password and the options of every connection."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from service.settings import Redis


def client(settings: Redis, **options: Any) -> Any:
    """A client with a pool of its own; close it. It connects on its first command. `options` are redis-py's.

    Any: redis-py types its replies for clients that may be asynchronous.
    """
    return redis.Redis.from_pool(_pool(settings, options))


def connection(settings: Redis) -> Any:
    """One connection that is not connected yet. Any: redis-py types its connections only in part."""
    return _pool(settings, {}).make_connection()


def address(settings: Redis) -> str:
    """host:port/db of the settings' URL, without user and password."""
    url = urlsplit(settings.url.get_secret_value())
    if url.scheme == "unix":
        return url.path
    return f"{url.hostname or 'localhost'}:{url.port or 6379}{url.path if url.path not in {'', '/'} else '/0'}"


def _pool(settings: Redis, options: dict[str, Any]) -> redis.ConnectionPool:
    url, seconds = settings.url.get_secret_value(), settings.timeout_ms / 1000
    fixed: dict[str, Any] = {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": Retry(NoBackoff(), 0),  # service/redis/link.py retries, with one budget for a batch
        "protocol": 2,
        "client_name": "tidemark",
    }
    if settings.ca_file is not None and url.startswith("rediss:"):
        fixed["ssl_ca_certs"] = str(settings.ca_file)
    pool = redis.ConnectionPool.from_url(url, **{**fixed, **options})
    if settings.password_file is not None:  # replaces the URL's password
        pool.connection_kwargs.pop("password", None)
        user = pool.connection_kwargs.pop("username", None)
        pool.connection_kwargs["credential_provider"] = _PasswordFile(user, settings.password_file)
    return pool


class _PasswordFile(CredentialProvider):
    """Reads the file for each new connection, so that a changed password needs no restart."""

    def __init__(self, user: str | None, path: Path) -> None:
        self._user, self._path = user, path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = self._path.read_text(encoding="utf-8").strip()
        except OSError as error:
            msg = f"redis.password_file: {self._path} cannot be read ({error.strerror})"
            raise redis.ConnectionError(msg) from error
        return (password,) if self._user is None else (self._user, password)

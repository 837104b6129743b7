"""Redis as a child process on loopback."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from load.servers.packages import redis_server
from load.servers.server_process import HOST, ServerProcess


class Redis(ServerProcess):
    """Redis or Valkey, from the PATH or from a package (load/servers/packages.py).

    Nothing is kept on disk unless `appendonly`; `settings` are further redis.conf settings (`{"maxmemory": "64mb"}`).
    """

    name = "redis"

    def __init__(
        self, folder: Path | str, port: int = 0, *, appendonly: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, port)
        self.settings = {"appendonly": "yes" if appendonly else "no", **(settings or {})}
        self.program = ""
        """Another program than `redis_server`, from the next start on."""

    @property
    def url(self) -> str:
        """redis://host:port/0"""
        return f"redis://{self.address}/0"

    def client(self, **options: Any) -> redis.Redis:
        """A new client; answers are `str` unless `decode_responses=False` is given."""
        return redis.Redis.from_url(self.url, **{"decode_responses": True, **options})

    def _command(self) -> Sequence[str]:
        fixed = {"port": str(self.port), "bind": HOST, "save": "", "daemonize": "no", "dir": str(self.folder)}
        pairs = {**fixed, **self.settings}.items()
        return [self.program or redis_server(), *(text for name, value in pairs for text in (f"--{name}", value))]

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError), self.client(socket_timeout=1.0) as client:
            return bool(client.ping())  # BusyLoadingError while it reads its data
        return False

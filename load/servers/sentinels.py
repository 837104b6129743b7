"""A primary and a replica of Redis, watched by three sentinels, on loopback.

    with Sentinels(folder) as watched:
        with watched.client() as client:
            client.set("a", "1")
        watched.primary.kill()
        watched.wait_failed_over()    # the replica is promoted after down_after_ms and about a second

Nothing is kept on disk: what the replica lacks when the primary is killed is lost.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel as Finder

from load.servers.packages import redis_server
from load.servers.redis import Redis
from load.servers.server_process import HOST, PATIENCE, ServerProcess, Started, until
from service.errors import SetupError

NAME = "telemetry"
_QUORUM, _SENTINELS = 2, 3
_WAIT_S = 60.0 * PATIENCE


class Sentinel(ServerProcess):
    """One sentinel. It keeps what it learns in its configuration, and goes on with that after `stop` or `kill`."""

    name = "sentinel"

    def __init__(self, folder: Path | str, configuration: str) -> None:
        super().__init__(folder)
        self._configuration = configuration

    def _command(self) -> Sequence[str]:
        path = self.folder / "sentinel.conf"
        if not path.exists():
            path.write_text(
                f"port {self.port}\nbind {HOST}\ndir {self.folder}\n{self._configuration}", encoding="utf-8"
            )
        return [redis_server(), str(path), "--sentinel"]

    def _answers(self) -> bool:
        with (
            contextlib.suppress(redis.RedisError),
            redis.Redis(HOST, self.port, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)) as client,
        ):
            try:
                return bool(client.ping())
            except redis.AuthenticationError:  # it wants a password, and so it answers
                return True
        return False


class Sentinels(Started):
    """`nodes` are the first primary and its replica. With `password`, the sentinels want one; `settings` are of both nodes."""

    def __init__(
        self,
        folder: Path | str,
        *,
        down_after_ms: int = round(1_000 * PATIENCE),
        password: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = Path(folder) / "sentinels"
        self._password, self._down_after_ms = password, down_after_ms
        own = {"repl-ping-replica-period": "1", "repl-diskless-sync-delay": "0", **(settings or {})}
        first = Redis(self._folder / "first", settings=own)
        second = Redis(self._folder / "second", settings=own)
        self.nodes = (first, second)
        self.sentinels = tuple(
            Sentinel(self._folder / str(number), self._configuration()) for number in range(_SENTINELS)
        )
        self.primary = first

    def _configuration(self) -> str:
        lines = [
            f"sentinel monitor {NAME} {HOST} {self.nodes[0].port} {_QUORUM}",
            f"sentinel down-after-milliseconds {NAME} {self._down_after_ms}",
            f"sentinel failover-timeout {NAME} {6 * self._down_after_ms}",
        ]
        own = [f"requirepass {self._password}", f"sentinel sentinel-pass {self._password}"] if self._password else []
        return "\n".join([*lines, *own]) + "\n"

    @property
    def url(self) -> str:
        """redis+sentinel://host:port,host:port,host:port/name/0"""
        return f"redis+sentinel://{','.join(each.address for each in self.sentinels)}/{NAME}/0"

    @property
    def replica(self) -> Redis:
        """The node that is not the primary."""
        return next(node for node in self.nodes if node is not self.primary)

    def client(self, **options: Any) -> Any:
        """A new client of the primary that the sentinels name; answers are `str` unless `decode_responses=False` is given."""
        made_by: Any = Finder  # not typed
        finder = made_by([(HOST, each.port) for each in self.sentinels], sentinel_kwargs=self._of_sentinels())
        return finder.master_for(NAME, **{"decode_responses": True, **options})

    def _of_sentinels(self) -> dict[str, Any]:
        return {"socket_timeout": 2.0, **({"password": self._password} if self._password else {})}

    def start(self) -> "Sentinels":
        """Start all, and wait until the replica has what the primary has and the sentinels know each other."""
        for node in self.nodes:
            node.start()
        with self.replica.client() as client:
            client.replicaof(HOST, self.primary.port)
        for each in self.sentinels:
            each.start()
        self.wait_whole()
        return self

    def wait_whole(self) -> None:
        """Wait until the replica has what the primary has, and all sentinels know both and each other."""
        self._wait("the replica and the sentinels", self._is_whole)

    def _is_whole(self) -> bool:
        with self.primary.client() as client:
            state: Any = client.info("replication")
        return (
            state["connected_slaves"] == 1
            and state["slave0"]["state"] == "online"
            and all(map(self._knows, self.sentinels))
        )

    def _knows(self, sentinel: Sentinel) -> bool:
        with redis.Redis(HOST, sentinel.port, decode_responses=True, **self._of_sentinels()) as client:
            state: Any = client.sentinel_master(NAME)
        return bool(state["num-slaves"] == 1 and state["num-other-sentinels"] == _SENTINELS - 1)

    def freeze_replica(self) -> Redis:
        """Pause the replica, which has all writes until now and gets no others before it is resumed. Returns it."""
        with self.primary.client() as client:
            if not client.wait(1, round(1000 * _WAIT_S)):
                raise SetupError(f"The replica {self.replica.address} lacks writes after {_WAIT_S:.0f} s")
            self.replica.pause()
            # What is sent to a paused process waits in its socket.
            client.client_kill_filter(_type="replica")
        return self.replica

    def wait_failed_over(self) -> None:
        """Wait until the replica is the primary. Then `primary` is that node."""
        promoted = self.replica
        self._wait("a failover", lambda: self.is_failed_over(promoted))
        self.primary = promoted

    def is_failed_over(self, promoted: Redis) -> bool:
        """Whether this node is a primary, and all sentinels that run name it."""
        with contextlib.suppress(redis.RedisError), promoted.client() as client:
            state: Any = client.info("replication")
            names = (self._named(each) == promoted.port for each in self.sentinels if each.is_running())
            return state["role"] == "master" and all(names)
        return False

    def _named(self, sentinel: Sentinel) -> int:
        """The port of the primary that a sentinel names."""
        with redis.Redis(HOST, sentinel.port, decode_responses=True, **self._of_sentinels()) as client:
            place: Any = client.sentinel_get_master_addr_by_name(NAME)
        return -1 if place is None else int(place[1])

    def _wait(self, what: str, is_done: Any) -> None:
        def is_there() -> bool:
            with contextlib.suppress(redis.RedisError):
                return bool(is_done())
            return False

        until(is_there, _WAIT_S, what, lambda: f"see the logs below {self._folder}")

    def close(self) -> None:
        """End all."""
        for each in (*self.sentinels, *self.nodes):
            each.close()

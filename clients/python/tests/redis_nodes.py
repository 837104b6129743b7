"""A Redis Cluster of its own: three primaries, each with one replica where a test kills nodes."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
import redis.cluster
from conftest import Server
from redis.crc import key_slot

PATIENCE = float(os.environ.get("TIDEMARK_PATIENCE", "1"))
"""How many times longer tests wait on a busy machine."""
SLOTS = 16_384
PRIMARIES = 3


class Nodes:
    """To be used as a context. `servers` are the primaries, then their replicas."""

    def __init__(self, folder: Path, *, replicas: bool = False) -> None:
        self.servers = []
        for number in range(PRIMARIES * (1 + replicas)):
            (folder / str(number)).mkdir()
            words = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--appendonly", "no"]
            words += ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]
            self.servers.append(Server(folder / str(number), *words))

    @property
    def url(self) -> str:
        return f"redis://{','.join(f'127.0.0.1:{server.port}' for server in self.servers)}/0"

    def __enter__(self) -> "Nodes":
        with ThreadPoolExecutor() as threads:
            list(threads.map(Server.start, self.servers))
        self._form()
        nodes = [redis.cluster.ClusterNode("127.0.0.1", server.port) for server in self.servers]
        self.redis: Any = redis.cluster.RedisCluster(startup_nodes=nodes, decode_responses=True)
        return self

    def __exit__(
        self, kind: "type[BaseException] | None", error: "BaseException | None", at: "TracebackType | None"
    ) -> None:
        self.redis.close()
        self.redis.disconnect_connection_pools()
        for server in self.servers:
            server.redis.close()
            if server.process.poll() is None:
                server.stop()

    def flushall(self) -> None:
        for server in self.servers:
            if server.redis.info("replication")["role"] == "master":
                server.redis.flushall()

    def primary_of(self, key: str) -> Server:
        """The one that says so itself, of those that run."""
        slot = key_slot(key.encode())
        for server in self.servers:
            if server.process.poll() is None:
                for first, last, (_, port, *_), *_ in self._slots(server):
                    if first <= slot <= last and port == server.port:
                        return server
        raise LookupError(key)

    def kill_primary_of(self, key: str) -> Server:
        """Kill it when its replica has all writes; the replica is elected after two seconds or three.

        WAIT does not serve here: it waits for the writes of its own connection only.
        """
        server = self.primary_of(key)
        end = server.redis.info("replication")["master_repl_offset"]

        def replicated() -> bool:
            replica = server.redis.info("replication").get("slave0", {})
            return bool(replica) and replica["offset"] >= end

        until(replicated, "the replica lacks writes")
        server.process.kill()
        server.process.wait(60)
        return server

    def revive(self) -> None:
        """Start the nodes that were killed, as replicas of those that took their place."""
        for server in self.servers:
            if not self._runs(server):
                server.start()
        self.wait_until_ok()

    def wait_until_ok(self) -> None:
        alive = [server for server in self.servers if server.process.poll() is None]
        until(lambda: all(self._is_ok(server, len(alive)) for server in alive), "the cluster is not ok")

    def begin_to_move(self, key: str, *keys: str) -> None:
        """Mark the slot of a key as moving to another primary, and move some of its keys."""
        slot, source = key_slot(key.encode()), self.primary_of(key)
        target = next(server for server in self.servers[:PRIMARIES] if server is not source)
        names = [str(server.redis.execute_command("CLUSTER MYID")) for server in (source, target)]
        target.redis.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
        source.redis.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
        if keys:
            source.redis.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)

    def end_move(self, key: str) -> None:
        """Move the other keys, too, and give the slot to the other primary."""
        slot, source = key_slot(key.encode()), self.primary_of(key)
        target = next(server for server in self.servers[:PRIMARIES] if server is not source)
        if keys := source.redis.execute_command("CLUSTER GETKEYSINSLOT", slot, 10_000):
            source.redis.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
        name = str(target.redis.execute_command("CLUSTER MYID"))
        for server in (target, source, *self.servers):
            with suppress(redis.ResponseError):  # a replica does not take it
                server.redis.execute_command("CLUSTER SETSLOT", slot, "NODE", name)

    def _form(self) -> None:
        for number, server in enumerate(self.servers[:PRIMARIES]):
            own = range(SLOTS * number // PRIMARIES, SLOTS * (number + 1) // PRIMARIES)
            server.redis.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            server.redis.execute_command("CLUSTER ADDSLOTS", *own)
        for number, server in enumerate(self.servers):
            for other in self.servers[number + 1 :]:
                server.redis.execute_command("CLUSTER MEET", "127.0.0.1", other.port)
        until(lambda: all(self._knows_all(server) for server in self.servers), "the nodes have not met")
        for number, server in enumerate(self.servers[PRIMARIES:]):
            name = self.servers[number].redis.execute_command("CLUSTER MYID")
            server.redis.execute_command("CLUSTER REPLICATE", name)
        self.wait_until_ok()

    def _knows_all(self, server: Server) -> bool:
        nodes = server.redis.execute_command("CLUSTER NODES").values()
        return len(nodes) == len(self.servers) and not any("handshake" in each["flags"] for each in nodes)

    def _is_ok(self, server: Server, alive: int) -> bool:
        """All slots are with nodes that run, and this node's replicas, or its primary, are connected."""
        try:
            state = server.redis.execute_command("CLUSTER INFO")["cluster_state"]
            ports = {port for _, _, (_, port, *_), *_ in self._slots(server)}
            link = server.redis.info("replication").get("master_link_status", "up")
            replicas = sum(
                int(each.redis.info("replication")["connected_slaves"]) for each in self.servers if self._runs(each)
            )
        except redis.RedisError:
            return False
        running = {each.port for each in self.servers if self._runs(each)}
        return bool(state == "ok" and ports <= running and len(ports) == PRIMARIES and link == "up") and (
            replicas == alive - PRIMARIES
        )

    def _runs(self, server: Server) -> bool:
        return server.process.poll() is None

    def _slots(self, server: Server) -> Any:
        return server.redis.execute_command("CLUSTER SLOTS")


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)

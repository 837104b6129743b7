"""A Redis Cluster on loopback: three primaries with replicas, each node a child process as in load/servers/kafka.py.

    with RedisCluster(folder) as cluster:
        with cluster.client() as client:
            client.set("{a}:b", "1")
        cluster.kill_primary("{a}:b")   # when its replica has all writes
        cluster.wait_ok()               # the replica is elected after node_timeout_ms and about a second
        for node in cluster.nodes:
            node.start()                # starts the killed node; nothing happens to the others

Three things are under control here that a real cluster leaves to chance: which acknowledged writes a failover loses
(`freeze_replica` and `promote`), when a slot moves, and what is written while it moves (`move_slot`).

A node keeps no data on disk unless `appendonly`. A primary that is killed and started again before its replica is elected is
empty then, and its replica copies that. A cluster whose nodes have all been stopped starts with the same slots.
"""

import contextlib
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import psutil
import redis
import redis.cluster
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from load.servers.redis import Redis
from load.servers.server_process import HOST, PATIENCE, PORTS, Started, port_is_free, reserve, until
from service.errors import SetupError

PRIMARIES = 3
SLOTS = 16_384
_BUS = 10_000  # the bus port is the port + 10,000; 6.2 has no setting for it
_AWAY = frozenset({"fail", "fail?", "handshake", "noaddr"})
_WAIT_S = 40.0 * PATIENCE
_ANSWER_S = 2.0 * PATIENCE


class ClusterNode(Redis):
    """One server of a RedisCluster, with its process controls: `kill`, `pause`, `resume`, `start`, `restart`.

    From its next start on, the cluster tells its clients `announced_port`, such as that of a proxy, where it is not 0.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, _port_with_bus(), settings=settings)
        self.announced_port = 0

    def _command(self) -> Sequence[str]:
        return [*super()._command(), "--cluster-announce-port", str(self.announced_port)]

    @cached_property
    def node_id(self) -> str:
        """The id of the node in the cluster, which it keeps for ever; it must be awake when it is first asked."""
        with self.control() as client:
            return str(client.execute_command("CLUSTER MYID"))

    @property
    def is_awake(self) -> bool:
        """Whether the process runs and is not paused."""
        with contextlib.suppress(psutil.NoSuchProcess, SetupError):
            return psutil.Process(self.pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
        return False

    def restart(self) -> Self:
        """SIGKILL it if it runs, and start it; see the module about the data of a primary."""
        self.kill()
        return self.start()

    def control(self, **options: Any) -> Any:
        """A new client of this node alone that does not retry and waits for 2 s at most."""
        limits = {"socket_timeout": _ANSWER_S, "socket_connect_timeout": _ANSWER_S, "retry": Retry(NoBackoff(), 0)}
        return self.client(**{**limits, **options})


@dataclass(frozen=True, slots=True)
class _Seen:
    """A node of the cluster as another node sees it; `primary` is an id, "" for a primary."""

    node_id: str
    flags: frozenset[str]
    primary: str
    epoch: int
    slots: tuple[tuple[int, int], ...]

    def owns(self, slot: int) -> bool:
        return any(first <= slot <= last for first, last in self.slots)


class RedisCluster(Started):
    """Three primaries with `replicas` replicas each. `nodes` are the primaries of the first start, then their replicas.

    A node without an answer for `node_timeout_ms` has failed. `settings` are further redis.conf settings of every node. Replicas
    do not move to another primary, so that a node's place follows from the calls.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        replicas: int = 1,
        appendonly: bool = False,
        node_timeout_ms: int = round(2_000 * PATIENCE),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(folder).absolute() / "redis-cluster"
        self.node_timeout_ms = node_timeout_ms
        node_settings = {
            "appendonly": "yes" if appendonly else "no",
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": str(node_timeout_ms),
            "cluster-allow-replica-migration": "no",
            "repl-diskless-sync": "yes",
            "repl-diskless-sync-delay": "0",
            **(settings or {}),
        }
        self.nodes = tuple(
            ClusterNode(self.folder / f"node{number}", node_settings) for number in range(PRIMARIES * (1 + replicas))
        )

    @property
    def url(self) -> str:
        """redis://host:port,host:port,.../0 with all nodes."""
        return f"redis://{','.join(node.address for node in self.nodes)}/0"

    def client(self, **options: Any) -> Any:
        """A new redis.cluster.RedisCluster; answers are `str` unless `decode_responses=False` is given."""
        cluster: Any = redis.cluster  # it is not typed
        start = [cluster.ClusterNode(HOST, node.port) for node in self.nodes]
        return cluster.RedisCluster(startup_nodes=start, **{"decode_responses": True, **options})

    # Start and end.

    def start(self) -> Self:
        """Start every node that is down, form the cluster at the first start, and wait until it is whole."""
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(ClusterNode.start, self.nodes))
        with self.nodes[0].control() as client:
            is_formed = int(client.execute_command("CLUSTER INFO")["cluster_known_nodes"]) > 1
        if not is_formed:
            self._form()
        self.wait_ok()
        return self

    def close(self) -> None:
        """End all nodes, also paused ones; the data stays in the folder."""
        for node in self.nodes:
            node.close()

    def _form(self) -> None:
        primaries = self.nodes[:PRIMARIES]
        for number, node in enumerate(primaries):
            with node.control() as client:
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                own = range(SLOTS * number // PRIMARIES, SLOTS * (number + 1) // PRIMARIES)
                client.execute_command("CLUSTER ADDSLOTS", *own)
        # Every pair meets: to wait until gossip has spread the addresses takes seconds.
        for number, node in enumerate(self.nodes):
            with node.control() as client:
                for other in self.nodes[number + 1 :]:
                    client.execute_command("CLUSTER MEET", HOST, other.port)
        ids = {node.node_id for node in self.nodes}
        until(lambda: all(set(seen) == ids for seen in self._views().values()), _WAIT_S, "all nodes to have met")
        for number, node in enumerate(self.nodes[PRIMARIES:]):
            with node.control() as client:
                client.execute_command("CLUSTER REPLICATE", primaries[number % PRIMARIES].node_id)

    # What the nodes say.

    def primary_of(self, key: str) -> ClusterNode:
        """The node that serves the key's slot: of all that an awake node takes for it, the one with the newest claim.

        That is a primary that was killed until its replica is elected.
        """
        slot = key_slot(key.encode())
        seen = [each for view in self._views().values() for each in view.values() if each.owns(slot)]
        if not seen:
            raise SetupError(f"No node of the Redis Cluster serves slot {slot}", remedy="Start its nodes.")
        return self._node(max(seen, key=lambda each: each.epoch).node_id)

    def replica_of(self, primary: ClusterNode) -> ClusterNode:
        """An awake replica of this primary; raises SetupError when there is none."""
        for node, view in self._views().items():
            if view[node.node_id].primary == primary.node_id:
                return node
        raise SetupError(f"No replica of {primary.address} is awake", remedy="Start or resume one, and wait_ok().")

    def wait_ok(self) -> None:
        """Wait until all awake nodes agree that awake primaries serve all slots, and every awake replica follows its primary."""
        until(lambda: not self._trouble(), _WAIT_S, "the Redis Cluster to be ok", self._trouble)

    def _trouble(self) -> str:
        """Return the reason why the cluster is not ok; "" if it is."""
        awake, views = [node for node in self.nodes if node.is_awake], self._views()
        if len(views) < len(awake):
            return f"no answer from {', '.join(node.address for node in awake if node not in views)}"
        owners = {
            frozenset((each.node_id, each.slots) for each in view.values() if each.slots) for view in views.values()
        }
        if len(owners) != 1:
            return "the nodes do not agree on the slots"
        ids = {node.node_id for node in awake}
        down = [self._node(owner).address for owner, _ in next(iter(owners)) if owner not in ids]
        if down:
            return f"{', '.join(down)} is down and has slots"
        return next(filter(None, (self._trouble_of(node, view, ids) for node, view in views.items())), "")

    def _trouble_of(self, node: ClusterNode, view: Mapping[str, _Seen], awake: Collection[str]) -> str:
        lost = [self._node(each).address for each in awake if each not in view or view[each].flags & _AWAY]
        if lost:
            return f"{node.address} does not reach {', '.join(lost)}"
        try:
            with node.control() as client:
                state = client.execute_command("CLUSTER INFO")["cluster_state"]
                link = client.info("replication").get("master_link_status", "none")
        except redis.RedisError as problem:
            return f"{node.address}: {problem}"
        is_linked = link == ("up" if view[node.node_id].primary else "none")
        return (
            ""
            if state == "ok" and is_linked
            else f"{node.address} has cluster_state:{state}, master_link_status:{link}"
        )

    def _views(self) -> dict[ClusterNode, dict[str, _Seen]]:
        """CLUSTER NODES of each awake node that answers, by id."""
        views = {}
        for node in self.nodes:
            if node.is_awake:
                with contextlib.suppress(redis.RedisError), node.control() as client:
                    lines = client.execute_command("CLUSTER NODES").values()
                    views[node] = {each["node_id"]: _seen(each) for each in lines}
        return views

    def _node(self, node_id: str) -> ClusterNode:
        return next(node for node in self.nodes if node.node_id == node_id)

    # What goes wrong, and what moves.

    def kill_primary(self, key: str) -> ClusterNode:
        """Kill the primary of the key's slot when a replica has all its writes, and return it. The nodes elect the replica."""
        primary = self.primary_of(key)
        self._replicated(primary)
        primary.kill()
        return primary

    def _replicated(self, primary: ClusterNode) -> ClusterNode:
        """Wait until an awake replica of the primary has all writes before this call, and return it."""
        replica = self.replica_of(primary)
        with primary.control() as client, replica.control() as its:
            end = client.info("replication")["master_repl_offset"]

            def has_all() -> bool:
                return bool(its.info("replication").get("slave_repl_offset", -1) >= end)

            until(has_all, _WAIT_S, f"{replica.address} to catch up")
        return replica

    def freeze_replica(self, primary: ClusterNode) -> ClusterNode:
        """Cut a replica of this primary off and return it: it has all writes before this call, and none after it returns.

        The primary goes on to acknowledge writes. `promote` makes the replica the primary, `resume` lets it catch up.
        """
        replica = self._replicated(primary)
        with primary.control() as client:
            replica.pause()
            # Else the kernel takes more writes for the paused replica, which reads them when it is resumed: with 6.2, no write
            # was lost in 25 failovers. With this line, all 25 lost their writes.
            client.execute_command("CLIENT KILL TYPE replica")
        return replica

    def promote(self, replica: ClusterNode) -> ClusterNode:
        """Kill the replica's primary, make the replica the primary, and return the killed node when all nodes agree.

        What the replica has not got is lost. The killed node becomes a replica of the new primary when it is started.
        """
        views = self._views().values()
        primary = self._node(next(view[replica.node_id].primary for view in views if view[replica.node_id].primary))
        primary.kill()
        replica.resume()
        with replica.control() as client:
            client.execute_command("CLUSTER FAILOVER TAKEOVER")  # needs no vote and no comparison of offsets
        self.wait_ok()
        return primary

    def fail_over(self, key: str, losing: Callable[[], object] = lambda: None) -> ClusterNode:
        """Make a replica the primary of the key's slot, without the writes to that primary that `losing` does.

        They are acknowledged. Returns the killed node; see `promote`.
        """
        replica = self.freeze_replica(self.primary_of(key))
        losing()
        return self.promote(replica)

    def move_slot(
        self,
        key: str,
        to: ClusterNode | None = None,
        *,
        page: int = 100,
        between: Callable[[int], object] = lambda _: None,
    ) -> ClusterNode:
        """Move the key's slot to another primary, as redis-cli does, `page` keys at a time; return that primary.

        `between(n)` is called when n pages have moved, from 0, when the slot is marked and all its keys are at the source, to the
        number of all pages. If it raises, the slot stays as it is then, between the two.
        """
        slot, source = key_slot(key.encode()), self.primary_of(key)
        primaries = [node for node, view in self._views().items() if view[node.node_id].slots]
        target = to or primaries[(primaries.index(source) + 1) % len(primaries)]
        with source.control(decode_responses=False) as old, target.control() as new:
            new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.node_id)
            old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target.node_id)
            pages = 0
            between(pages)
            while keys := old.execute_command("CLUSTER GETKEYSINSLOT", slot, page):
                timeout_ms = round(_ANSWER_S * 1000)
                old.execute_command("MIGRATE", HOST, target.port, "", 0, timeout_ms, "KEYS", *keys)
                pages += 1
                between(pages)
        # The target first: until it has the slot, nobody else sends it there without ASK.
        for node in (target, source, *(each for each in primaries if each not in (source, target))):
            with node.control() as client:
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", target.node_id)
        self.wait_ok()
        return target


def _seen(line: Mapping[str, Any]) -> _Seen:
    """One line of CLUSTER NODES as redis-py parses it."""
    return _Seen(
        node_id=line["node_id"],
        flags=frozenset(line["flags"].split(",")),
        primary=line["master_id"].strip("-"),
        epoch=int(line["epoch"]),
        slots=tuple((int(part[0]), int(part[-1])) for part in line["slots"]),
    )


def _port_with_bus() -> int:
    """As load.servers.server_process.free_port, of a port whose bus port is free and below the ephemeral range, too."""
    for port in random.SystemRandom().sample(range(PORTS.start, PORTS.stop - _BUS), 200):
        if port_is_free(port) and port_is_free(port + _BUS) and reserve(port) and reserve(port + _BUS):
            return port
    raise SetupError(f"None of 200 ports tried has a free bus port {_BUS} above it", remedy="Stop what holds them.")

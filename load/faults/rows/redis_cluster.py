"""Row `cluster`: F2 to F5 on a Redis Cluster, with one of its three primaries as the victim, and slots that move.

A primary acknowledges a write before its replica has it. SIGKILL between the two loses the write, but that takes microseconds on
loopback: here only `_fails_over_with_loss` loses writes, and the rules take every other value that goes back for a violation.
"""

import signal
import time

from redis.crc import key_slot
from redis.exceptions import RedisError

from load.faults.failover import LACKING, Loss, Primary, judged, since, wait_failed_over
from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from load.instance import send, tree
from load.servers.redis_cluster import ClusterNode
from load.testbed import total
from schemas import contract
from service.errors import SetupError

SHARDS = 6
PAGES = 10
"""Of the keys of a slot that moves, about."""
MOVES_S, MOVES_SLOWLY_S = 8.0, 45.0
"""How long a slot moves: through several triggers, and for longer than redis.retry_for."""
BROKER_BACK_S = 120.0
"""As F4 allows."""
ENDS_S = 60.0
ROUNDS = 3
"""A frozen writer may have been between two batches; then it is frozen again, until Redis has refused a write of it."""

_FENCED = 7
_RETRIES = "tidemark_redis_retries_total"


@row(
    "cluster",
    "a primary of a Redis Cluster goes away, and slots move",
    rate=1_000,
    devices=1_000,
    testbed={"cluster_shards": SHARDS},
)
def redis_cluster(run: Run) -> Figures:
    """Short: a failover that loses writes, and slots that move."""
    faults: dict[str, Figures] = {}
    run.begin()
    if not run.short:
        faults["primary_killed"] = _primary(run).killed()
        faults["primary_paused"] = _primary(run).paused()
    faults["failover_with_loss"] = _fails_over_with_loss(run)
    moved = run.nemesis.shuffled(range(SHARDS))[: 1 if run.short else 3]
    for shard in moved:
        faults[f"shard_{shard}_moved"], faults[f"shard_{shard}_moved_back"] = _there_and_back(run, shard)
    if not run.short:
        faults["slow_move"] = _moved(run, run.nemesis.pick(moved), MOVES_SLOWLY_S)
        faults["driver_killed"] = _primary(run).killed_with_driver()
        faults |= _second_instance(run)
        faults["broker_killed"] = _broker_killed(run)
    return {
        "by_fault": faults,
        "lag_back_s_by_fault": {name: each["lag_back_s"] for name, each in faults.items()},
        "republications": sum(each["republications"] for each in faults.values()),
    }


# As F5.


def _fails_over_with_loss(run: Run) -> Figures:
    """The promoted replica lacks some batches: how long until that is noticed, and until all that was final is there again."""
    cluster = run.testbed.redis_cluster
    victim = run.nemesis.pick(list(_primaries(run)))
    primary = _primary(run, victim)
    shards = primary.facts["shards"]
    replica = cluster.freeze_replica(victim)
    run.steady(LACKING)
    loss = Loss(run, f"a failover that lost {LACKING} batches of the shards {shards}")
    with judged(run, "failover with loss", shards=shards) as figures:
        for shard in shards:
            run.note("redis_lost", shard=shard)
        cluster.promote(replica)
        figures.update(loss.wait())
        primary.come_back()
    return figures


# Slots move.


def _there_and_back(run: Run, shard: int) -> tuple[Figures, Figures]:
    home = run.testbed.redis_cluster.primary_of(_key(run, shard))
    there = _moved(run, shard, MOVES_S)
    return there, _moved(run, shard, MOVES_S, home)


def _moved(run: Run, shard: int, seconds: float, to: ClusterNode | None = None) -> Figures:
    """Move a shard's slot to this primary, or to any other one, in about so many seconds, while batches write to it."""
    cluster, key = run.testbed.redis_cluster, _key(run, shard)
    source = cluster.primary_of(key)
    target = to or run.nemesis.pick([node for node in _primaries(run) if node is not source])
    with source.control() as client:
        keys = int(client.execute_command("CLUSTER COUNTKEYSINSLOT", key_slot(key.encode())))
    before = run.metrics()
    began = run.observer.progress
    with judged(run, "slot moved", shard=shard, seconds=seconds) as figures:
        try:
            page = max(1, keys // PAGES)
            cluster.move_slot(key, target, page=page, between=lambda _: run.run_on(seconds / PAGES))
        except RedisError as problem:
            what = f"The slot of shard {shard} does not move from {source.address} to {target.address}: {problem}"
            raise SetupError(what) from problem
    after = run.metrics()
    met = {name: total(after, name) - total(before, name) for name in (_RETRIES, "tidemark_query_restarts_total")}
    if not any(met.values()):
        run.violation("observed", f"no batch met the move of shard {shard} after {began}: nothing is proven")
    return {**figures, "keys": keys, **met}


# As F3 and F4.


def _second_instance(run: Run) -> dict[str, Figures]:
    """The writer is frozen, the second instance takes over, the primary with the lease fails over, and the writer wakes up."""
    other = run.instance("second")
    faults: dict[str, Figures] = {}
    refused = rounds = 0
    while not refused and rounds < ROUNDS:
        rounds += 1
        other.start()
        run.wait(other.is_waiting, STARTS_S, "the second instance to wait for the lease")
        begun = run.count_refused()
        zombie = _zombie(run)
        # A primary that has restarted counts from 0 again: the count is a lower bound.
        refused = max(0, run.count_refused() - begun)
        run.wait(
            lambda: "holds the lease" in run.testbed.get("/readyz")[1], STARTS_S, "the first to wait for the lease"
        )
        with judged(run, "second instance stopped", restarts=True) as stopped:
            run.end(other)
        faults[f"writer_frozen_{rounds}"] = {**zombie, "stale_writes_refused": refused}
        faults[f"second_stopped_{rounds}"] = stopped
    if not refused:
        run.violation("P5", f"Redis refused no stale write in {ROUNDS} rounds: nothing is proven")
    return faults


def _zombie(run: Run) -> Figures:
    epoch = run.observer.epoch
    primary = _primary(run, run.testbed.redis_cluster.primary_of(_key(run, 0)))  # it has the lease
    processes = tree([run.testbed.service_pid])
    with judged(run, "writer frozen", restarts=True) as figures:
        run.wait_in_a_batch()
        send(signal.SIGSTOP, processes)
        began = time.monotonic()
        run.until(lambda: run.observer.progress[0] > epoch, STARTS_S, "a batch of the second instance")
        figures["taken_over_s"] = since(began)
        primary.server.kill()
        figures.update(primary.fails_over())
        primary.come_back()
        send(signal.SIGCONT, processes)
        woken = time.monotonic()
        run.until(lambda: run.testbed.exit_status is not None, ENDS_S, "the frozen writer to end")
        figures["zombie_ends_s"] = since(woken)
        words = run.testbed.last_words()
        if run.testbed.exit_status != _FENCED or "tidemark: FENCED" not in words:
            run.violation("P5", f"the frozen writer ended with status {run.testbed.exit_status}: {words}")
        run.start_again()  # as its supervisor would
    return figures


def _broker_killed(run: Run) -> Figures:
    primary, broker = _primary(run), run.testbed.broker
    with judged(run, "broker killed while a primary fails over", BROKER_BACK_S, **primary.facts) as figures:
        primary.server.kill()
        broker.kill()
        figures.update(primary.fails_over())
        broker.start()
        primary.come_back()
    return figures


# What they share.


def _primary(run: Run, victim: ClusterNode | None = None) -> Primary:
    """This primary, or any that has shards."""
    cluster, primaries = run.testbed.redis_cluster, _primaries(run)
    victim = victim or run.nemesis.pick(list(primaries))
    shards, what = primaries[victim], f"a replica of {victim.address} was elected"
    key = _key(run, shards[0])

    def fails_over() -> Figures:
        return {"elected_s": wait_failed_over(run, lambda: cluster.primary_of(key) is not victim, what)}

    return Primary(run, victim, fails_over, cluster.wait_ok, {"shards": shards})


def _primaries(run: Run) -> dict[ClusterNode, list[int]]:
    """The shards of each primary that has some, in the order of the shards."""
    shards_of: dict[ClusterNode, list[int]] = {}
    for shard in range(run.shards):
        shards_of.setdefault(run.testbed.redis_cluster.primary_of(_key(run, shard)), []).append(shard)
    return shards_of


def _key(run: Run, shard: int) -> str:
    return f"{contract.prefixes('tidemark', run.shards)[shard]}:progress"

"""F5: Redis goes away, refuses, hangs, or comes back without its data or with older data.

Redis keeps an append-only file here, written before it answers (`appendfsync always`): a kill loses nothing that was
acknowledged, so what comes back from it must be all of it. What is lost is lost on purpose.
"""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from load.faults.by_hand import ask, asked, between
from load.faults.failover import Loss
from load.faults.row import row
from load.faults.run import Figures, Run

HUNG_S = 30.0
REFUSING_S = 15.0
COMMITTED_S = 3.0
"""So long may the commit of a batch take that was acknowledged before."""


@row(
    "F5",
    "Redis goes away",
    rate=1_000,
    devices=1_000,
    testbed={"redis": {"appendonly": "yes", "appendfsync": "always"}},
)
def redis_away(run: Run) -> Figures:
    """Short: SIGKILL, and FLUSHALL."""
    redis = run.testbed.redis
    run.begin()
    _outage(run, "Redis SIGKILL", 5.0, between(redis.kill, redis.start))
    if not run.short:
        _outage(run, "Redis hangs", HUNG_S, between(redis.pause, redis.resume))
        _outage(run, "Redis READONLY", REFUSING_S, asked(redis, "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"))
        memory = asked(redis, "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0")
        _outage(run, "Redis out of memory", REFUSING_S, memory)
    lost = {"flushall": _lost(run, "Redis FLUSHALL", lambda: ask(redis, "FLUSHALL"))}
    if not run.short:
        backup = run.folder / "redis-backup"
        shutil.copytree(redis.folder, backup, ignore=shutil.ignore_patterns("*.log"))
        run.steady()
        lost["older_data"] = _lost(run, "Redis back with older data", lambda: _put_back(run, backup))
    seen = run.testbed.metrics()
    names = ("tidemark_redis_data_lost", "tidemark_republished", "tidemark_redis_retries", "tidemark_query_restarts")
    return {"lost": lost, "counted": {name: value for name, value in seen.items() if name.startswith(names) and value}}


def _outage(run: Run, name: str, seconds: float, outage: AbstractContextManager[None]) -> None:
    """Nothing can be written for a while: a batch that is committed meanwhile was not acknowledged."""
    with run.fault(name), outage:
        run.run_on(COMMITTED_S)
        before = run.newest_commit()
        run.run_on(seconds)
        committed = run.newest_commit()
    if committed > before:
        run.violation("P1", f"{name}: batch {committed} was committed, though nothing was written since {before}")
    run.recover()


def _lost(run: Run, name: str, lose: Callable[[], object]) -> Figures:
    """Redis loses data: how long until it is noticed, and until all that was final is there again."""
    loss, batch = Loss(run, name), run.observer.progress[1]
    with run.fault(name):
        run.note("redis_lost")
        lose()
        figures = loss.wait()
    run.recover()
    return {**figures, "batches_until_lag_was_back": run.observer.progress[1] - batch}


def _put_back(run: Run, backup: Path) -> None:
    redis = run.testbed.redis
    redis.kill()
    shutil.copytree(backup, redis.folder, dirs_exist_ok=True)
    redis.start()

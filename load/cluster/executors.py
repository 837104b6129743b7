"""Executors that come, go and are killed, one play each."""

import os
import signal
import time

from load.cluster.scene import MOVED_S, Scene, options, play
from load.faults.run import Figures
from load.servers.server_process import is_alive

KILLS_EVERY_S = 60.0
MOST_EXECUTORS, TASKS = 3, 24
"""So many tasks are more than one executor does in a second, whatever the load."""
BREATHING = options(
    f"cores.max={MOST_EXECUTORS}",
    "dynamicAllocation.enabled=true",
    "dynamicAllocation.minExecutors=1",
    f"dynamicAllocation.maxExecutors={MOST_EXECUTORS}",
    "dynamicAllocation.executorIdleTimeout=10s",
    "dynamicAllocation.shuffleTracking.timeout=10s",
    "locality.wait=500ms",
    f"sql.shuffle.partitions={TASKS}",
)
"""Executors come when tasks have waited for a second, and go after ten seconds without one."""


@play("an executor is killed each minute")
def executors_killed(scene: Scene) -> Figures:
    """The query goes on under the same epoch."""
    run, rack, epoch = scene.run, scene.rack, scene.run.observer.epoch
    seconds: list[float] = []
    for _ in range(run.times(3, short=1)):
        with run.fault("executor killed"):
            began = time.monotonic()
            os.kill(run.nemesis.pick(rack.executor_pids()), signal.SIGKILL)
            seconds.append(scene.next_batch(began))
        scene.recover()
        run.let_pass(KILLS_EVERY_S, began)
    scene.require_same_term(epoch, "executors were killed")
    return {"first_batch_s": max(seconds), "killed": len(seconds)}


@play(
    "executors come with the load, one is killed each minute, and they go with it",
    options=BREATHING,
    buckets=TASKS,
    executors=1,
)
def executors_breathe(scene: Scene) -> Figures:
    """The query goes on under the same epoch while it has one executor, three, and one again."""
    run, rack, epoch = scene.run, scene.rack, scene.run.observer.epoch
    [load] = run.loads
    run.unload(load)
    released = [_released(scene)]
    needed, killed_s = [], []
    for _ in range(run.times(2, short=1)):
        load = run.load()
        needed.append(_needed(scene))
        with run.fault("executor killed"):
            began = time.monotonic()
            os.kill(run.nemesis.pick(rack.executor_pids()), signal.SIGKILL)
            killed_s.append(scene.next_batch(began))
        scene.recover()
        run.let_pass(KILLS_EVERY_S / 3 if run.short else KILLS_EVERY_S, began)
        run.unload(load)
        released.append(_released(scene))
    run.load()
    run.steady()
    scene.require_same_term(epoch, "executors came and went")
    scene.require_no_restart("executors came and went")
    return {"first_batch_s": max(killed_s), "killed": len(killed_s), "need_to_use_s": needed, "released_s": released}


def _needed(scene: Scene) -> float:
    """Return the seconds until all executors are there and each runs Python, which it starts with its first task."""
    began = time.monotonic()
    scene.rack.until(lambda: scene.rack.working_executors() >= MOST_EXECUTORS, MOVED_S, "more executors at work")
    return round(time.monotonic() - began, 1)


def _released(scene: Scene) -> float:
    """Return the seconds until one executor is left."""
    began = time.monotonic()
    scene.rack.until(lambda: len(scene.rack.executor_pids()) == 1, MOVED_S, "executors to be released")
    return round(time.monotonic() - began, 1)


@play("a worker is decommissioned, and its host is turned off when no executor is left")
def worker_drained(scene: Scene) -> Figures:
    """Its tasks end, its executors go, and the other worker has new ones; no batch fails."""
    run, rack, epoch, host = scene.run, scene.rack, scene.run.observer.epoch, scene.executors_host()
    before = len(rack.executor_pids(host))
    with run.fault("worker decommissioned", host=host):
        began = time.monotonic()
        worker = rack.drain_worker(host)
        rack.until(lambda: not rack.executor_pids(host), MOVED_S, "its executors to end")
        drained_s = round(time.monotonic() - began, 1)
        if not is_alive(worker):
            run.violation("worker_drained", f"the worker on {host} ended at the signal, and its executors with it")
        rack.hosts[host].power_off()
        batch_s = scene.next_batch(began)
    scene.recover()
    scene.require_same_term(epoch, "a worker was decommissioned")
    scene.require_no_restart("a worker was decommissioned")
    rack.turn_on(host)
    return {"first_batch_s": batch_s, "drained_s": drained_s, "executors_there": before}

"""F2: an executor dies, a Python worker dies, and a writer is frozen while another one takes over: a zombie."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from load.instance import send, tree
from service.errors import SetupError

FROZEN_S = 60.0
ENDS_S = 60.0
ROUNDS = 3
"""A frozen writer may have been between two batches; then it is frozen again, until Redis has refused a write of it."""


@row("F2", "an executor, a Python worker and a frozen writer", testbed={"supervised": True})
def worker_killed(run: Run) -> Figures:
    """Short: one of each, and a writer frozen for 20 s."""
    run.begin()
    times = run.times(2, short=1)
    for _ in range(times):
        with run.fault("executor killed"):
            os.kill(run.nemesis.pick(run.testbed.cluster.executor_pids()), signal.SIGKILL)
        run.recover()
        with run.fault("Python worker killed"):
            run.nemesis.pick(python_workers(run.testbed.cluster.executor_pids())).kill()
        run.recover()
    return {"executors_killed": times, "python_workers_killed": times, **_zombie(run)}


def python_workers(jvms: Sequence[int]) -> list[psutil.Process]:
    """Return the Python processes below these JVMs that do tasks: the daemon that forks and its workers."""
    workers = []
    for each in tree(jvms):
        with contextlib.suppress(psutil.NoSuchProcess):  # also one that has ended a moment ago
            if "python" in each.name() and "daemon.py" not in " ".join(each.cmdline()):
                workers.append(each)
    if not workers:
        raise SetupError(f"No JVM has a Python worker: {tree(jvms)}")
    return workers


def _zombie(run: Run) -> Figures:
    """Freeze the supervised writer, let another instance take over, and let the frozen one go on."""
    other = run.instance("second")
    frozen_s = FROZEN_S / 3 if run.short else FROZEN_S
    ends: list[float] = []
    while not run.count_refused() and len(ends) < ROUNDS:
        other.start()
        run.wait(other.is_waiting, STARTS_S, "the second instance to wait for the lease")
        ends.append(_freeze(run, frozen_s))
        run.recover()
        with run.fault("second instance stopped"):
            run.end(other)
        run.recover()
    if not run.stale_refused:
        run.violation("P5", f"Redis refused no stale write in {ROUNDS} rounds: nothing is proven")
    return {"zombie_ends_s": ends, "frozen_s": frozen_s}


def _freeze(run: Run, seconds: float) -> float:
    """One round; returns how long the zombie lived after it woke up."""
    log, epoch = run.testbed.log, run.observer.epoch
    fenced_before = _fenced(log)
    with run.fault("writer frozen", seconds=seconds):
        processes = tree([*run.driver_pids(), *run.testbed.cluster.executor_pids()])
        run.wait_in_a_batch()
        send(signal.SIGSTOP, processes)
        frozen = time.monotonic()
        run.until(lambda: run.observer.progress[0] > epoch, STARTS_S, "a batch of the second instance")
        run.let_pass(seconds, frozen)
    send(signal.SIGCONT, processes)
    woken = time.monotonic()
    # The supervisor starts it again, and it waits for the lease as the other did.
    run.until(lambda: _fenced(log) > fenced_before, ENDS_S, "the zombie to end by its name")
    return round(time.monotonic() - woken, 1)


def _fenced(log: Path) -> int:
    """How often a driver has ended for being fenced."""
    return log.read_text(errors="replace").count("tidemark: FENCED")

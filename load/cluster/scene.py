"""The stage of a play: a run with its hosts, and what several plays do on them."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from load.cluster.rack import WORKERS, Rack
from load.faults.run import STARTS_S, Figures, Run
from load.servers.server_process import PATIENCE

AWAY_S = 60.0
"""How long ZooKeeper is away and a cut lasts; a third of it in short plays."""
MOVED_S = 120.0 * PATIENCE
_SIZES = ("executor.cores=1", "executor.memory=1g", "driver.memory=1500m")


def options(*settings: str) -> tuple[str, ...]:
    """Return options of deploy/submit: the sizes of driver and executors, and these settings of Spark."""
    return tuple(word for setting in (*_SIZES, *settings) for word in ("--conf", f"spark.{setting}"))


OPTIONS = options("cores.max=2")


@dataclass(frozen=True, slots=True)
class Scene:
    """A run with its hosts, and what has been measured on it."""

    run: Run
    rack: Rack
    writers: dict[int, str]

    @property
    def away_s(self) -> float:
        return AWAY_S / 3 if self.run.short else AWAY_S

    def note_writer(self) -> str:
        """Note who holds the lease under which epoch; return the name of its host."""
        with self.run.testbed.redis.client() as client:
            holder, epoch = str(client.get("tidemark:lease")), int(str(client.get("tidemark:epoch")))
        host = holder.partition(":")[0]
        if self.writers.get(epoch) != host:
            self.writers[epoch] = host
            self.run.note("writer", epoch=epoch, host=host)
        return host

    def next_batch(self, began: float, *, within_s: float = MOVED_S) -> float:
        """Wait for two more batches, of which the first may be the one that was running; return the seconds since `began`."""
        batch = self.run.observer.progress[1] + 2
        self.run.until(lambda: self.run.observer.progress[1] >= batch, within_s, "the next batches")
        return round(time.monotonic() - began, 1)

    def next_term(self, began: float, epoch: int, *, within_s: float = MOVED_S) -> float:
        """Wait for a batch of an epoch after `epoch`; return the seconds since `began`."""
        self.run.until(lambda: self.run.observer.progress[0] > epoch, within_s, f"a batch after epoch {epoch}")
        self.note_writer()
        return round(time.monotonic() - began, 1)

    def recover(self, within_s: float = 2 * MOVED_S) -> None:
        """Until the lag is back; a driver may be on its way to another host."""
        self.run.until(lambda: not self.run.is_recovering, within_s, "the lag to be back")
        self.note_writer()

    def kill_driver(self) -> float:
        """Kill the driver alone, which the master starts again; return the seconds to the first batch of the new epoch."""
        epoch = self.run.observer.epoch
        with self.run.fault("driver killed", restarts=True):
            began = time.monotonic()
            os.kill(self.rack.driver_pids()[0], signal.SIGKILL)
        restarted_s = self.next_term(began, epoch)
        self.recover()
        return restarted_s

    def require_same_term(self, epoch: int, what: str) -> None:
        """A fault that the driver survives starts no term."""
        if self.run.observer.epoch != epoch:
            self.run.violation("P5", f"{what}: the epoch went from {epoch} to {self.run.observer.epoch}")

    def require_no_restart(self, what: str) -> None:
        """A batch that fails starts the query again, within the term."""
        restarts = sum(v for name, v in self.run.metrics().items() if name.startswith("tidemark_query_restarts_total"))
        if restarts:
            self.run.violation("P8", f"{what}: the query started again {restarts:.0f} times")

    def executors_host(self) -> str:
        """Wait for an executor on the worker without the driver, whose loss proves nothing without one; return its host."""
        host = self.rack.other_worker(self.rack.driver_host())
        self.rack.until(lambda: self.rack.executor_pids(host), MOVED_S, f"an executor on {host}")
        return host

    def whole(self, executors: int) -> None:
        """Wait until both workers are there again and so many executors run."""
        self.rack.until(lambda: self.rack.alive_workers() == len(WORKERS), STARTS_S, "both workers to be back")
        self.rack.until(lambda: len(self.rack.executor_pids()) >= executors, STARTS_S, "executors to be back")


Function = Callable[[Scene], Figures]


@dataclass(frozen=True, slots=True)
class Play:
    """A play. `options` go to deploy/submit, `buckets` is the number of the state's buckets, `executors` run at the end."""

    title: str
    function: Function
    options: tuple[str, ...]
    buckets: int | None
    executors: int


PLAYS: dict[str, Play] = {}
"""By name, in the order in which their modules are imported."""


def play(
    title: str, *, options: tuple[str, ...] = OPTIONS, buckets: int | None = None, executors: int = len(WORKERS)
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        PLAYS[function.__name__] = Play(title, function, options, buckets, executors)
        return function

    return register

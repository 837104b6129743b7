"""What goes wrong on the hosts, one play each; load/faults judges it, and a play adds what no rule can see."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from load.cluster.rack import WORKERS, Rack
from load.demo import SECTIONS
from load.faults.row import Row
from load.faults.run import STARTS_S, Figures, Run, Setup
from load.servers.server_process import PATIENCE

AWAY_S = 60.0
"""How long ZooKeeper is away and a cut lasts; a third of it in short plays."""
KILLS_EVERY_S = 60.0
RATE, DEVICES = 300.0, 200
MOVED_S = 120.0 * PATIENCE
_FENCED = "tidemark: FENCED"
_SIZES = ("cores.max=2", "executor.cores=1", "executor.memory=1g", "driver.memory=1500m")
OPTIONS = tuple(word for size in _SIZES for word in ("--conf", f"spark.{size}"))


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

    def pass_time(self, began: float, seconds: float) -> None:
        """Let the load go on until `seconds` after `began`."""
        self.run.until(lambda: time.monotonic() - began > seconds, seconds + 1, "time to pass")

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

    def whole(self) -> None:
        """Wait until both workers are there again and an executor runs on each of two cores."""
        self.rack.until(lambda: self.rack.alive_workers() == len(WORKERS), STARTS_S, "both workers to be back")
        self.rack.until(lambda: len(self.rack.executor_pids()) >= len(WORKERS), STARTS_S, "both executors to be back")


Play = Callable[[Scene], Figures]

_plays: dict[str, tuple[str, Play]] = {}


def play(title: str) -> Callable[[Play], Play]:
    """Register the decorated function under its name."""

    def register(function: Play) -> Play:
        _plays[function.__name__] = title, function
        return function

    return register


def rows() -> dict[str, Row]:
    """Return all plays as rows of the fault runner, in the order of this file."""
    sections = {
        **SECTIONS,
        "metrics": {"address": "0.0.0.0"},  # noqa: S104 - of a host that only this run reaches
        "reference": {"timeout": "1 m"},
    }
    testbed = {
        "supervisor": Rack,
        "sections": sections,
        "submit_options": OPTIONS,
        "redis": {"protected-mode": "no"},
    }
    return {
        name: Row(Setup(name, title, RATE, DEVICES, testbed), partial(_played, function))
        for name, (title, function) in _plays.items()
    }


def _played(function: Play, run: Run) -> Figures:
    rack = run.testbed.supervisor
    assert isinstance(rack, Rack)  # noqa: S101
    scene = Scene(run, rack, {})
    run.start()
    run.load()
    run.steady()
    scene.note_writer()
    figures = function(scene)
    scene.whole()
    return {**figures, "writers": {str(epoch): host for epoch, host in scene.writers.items()}}


@play("the leading master's host is lost")
def master_failover(scene: Scene) -> Figures:
    """The other master takes over without a new term, and then supervises."""
    run, rack, epoch = scene.run, scene.rack, scene.run.observer.epoch
    first = rack.leader()
    with run.fault("leading master off"):
        began = time.monotonic()
        rack.hosts[first].power_off(silently=True)
        batch_s = scene.next_batch(began)
        rack.until(lambda: rack.leader() not in {"", first}, MOVED_S, "the other master to lead")
        leads_s = round(time.monotonic() - began, 1)
        rack.until(lambda: rack.alive_workers() == len(WORKERS), MOVED_S, "both workers to follow")
    scene.recover()
    scene.require_same_term(epoch, "the leading master was lost")
    restarted_s = scene.kill_driver()
    rack.turn_on(first)
    return {"first_batch_s": batch_s, "leads_s": leads_s, "driver_killed_first_batch_s": restarted_s}


@play("the worker with the driver is killed, then its host is lost")
def driver_moved(scene: Scene) -> Figures:
    """The driver starts on the other worker and goes on."""
    seconds = []
    for silently in (False, True)[: 1 if scene.run.short else 2]:
        run, rack, epoch, host = scene.run, scene.rack, scene.run.observer.epoch, scene.rack.driver_host()
        with run.fault("host lost" if silently else "worker killed", restarts=True, host=host):
            began = time.monotonic()
            rack.hosts[host].power_off(silently=silently)
        seconds.append(scene.next_term(began, epoch))
        if scene.note_writer() != rack.other_worker(host):
            run.violation("driver_moved", f"the writer is on {scene.note_writer()}, the driver was on {host}")
        scene.recover()
        rack.turn_on(host)
        scene.whole()
    return {"first_batch_s": seconds[0], "first_batch_after_a_lost_host_s": seconds[-1]}


@play("a worker without the driver is lost while executors run on it")
def worker_lost(scene: Scene) -> Figures:
    """The query goes on under the same epoch."""
    run, rack, epoch = scene.run, scene.rack, scene.run.observer.epoch
    host = rack.other_worker(rack.driver_host())
    with run.fault("worker's host lost", host=host):
        began = time.monotonic()
        rack.hosts[host].power_off(silently=True)
        batch_s = scene.next_batch(began)
    scene.recover()
    scene.require_same_term(epoch, "a worker without the driver was lost")
    rack.turn_on(host)
    return {"first_batch_s": batch_s}


@play("ZooKeeper is away for a minute")
def zookeeper_away(scene: Scene) -> Figures:
    """No master leads meanwhile; batches go on. Afterwards one leads and supervises."""
    run, rack, epoch = scene.run, scene.rack, scene.run.observer.epoch
    with run.fault("ZooKeeper away"):
        began = time.monotonic()
        rack.zookeeper.kill()
        batch_s = scene.next_batch(began)
        scene.pass_time(began, scene.away_s)
        before = run.observer.progress[1]
        scene.next_batch(began)
        rack.zookeeper.start()
        back = time.monotonic()
        rack.until(lambda: rack.alive_workers() == len(WORKERS), 2 * MOVED_S, "a master to lead both workers")
        leads_s = round(time.monotonic() - back, 1)
    scene.recover()
    scene.require_same_term(epoch, "ZooKeeper was away")
    restarted_s = scene.kill_driver()
    return {
        "first_batch_s": batch_s,
        "leads_s": leads_s,
        "batches_when_back": before,
        "driver_killed_first_batch_s": restarted_s,
    }


@play("the network between the driver and the masters, then between it and Redis, is cut")
def cut_off(scene: Scene) -> Figures:
    """A driver that is cut off from the masters gets a rival, which waits for the lease as long as the first one writes."""
    run, rack, epoch, host = scene.run, scene.rack, scene.run.observer.epoch, scene.rack.driver_host()
    redis_port = run.testbed.redis.port
    with run.fault("driver cut off from Redis", host=host):
        began = time.monotonic()
        rack.cut_from_port(host, redis_port)
        scene.pass_time(began, scene.away_s / 3)
        rack.network.heal()
        healed = time.monotonic()
        batch_s = scene.next_batch(healed)
    scene.recover()
    epoch, host = run.observer.epoch, rack.driver_host()
    with run.fault("driver cut off from the masters", restarts=True, host=host):
        rack.cut_from_masters(host)
        rack.until(lambda: len(rack.driver_hosts()) > 1, MOVED_S, "a second driver")
        began = time.monotonic()
        scene.pass_time(began, scene.away_s / 2)
        scene.require_same_term(epoch, "the first driver could write all the time")
        scene.next_batch(began)
        rack.network.heal()
        healed = time.monotonic()
        run.until(lambda: len(rack.driver_hosts()) == 1, MOVED_S, "one of the drivers to end")
        moved_s = scene.next_term(healed, epoch)
    scene.recover()
    return {"first_batch_s": batch_s, "first_batch_after_two_drivers_s": moved_s}


@play("two drivers are alive after a cut, and the one that writes is cut off from Redis, too")
def two_drivers(scene: Scene) -> Figures:
    """The rival takes the lease; the first one comes back, is refused and ends."""
    run, rack, epoch, host = scene.run, scene.rack, scene.run.observer.epoch, scene.rack.driver_host()
    old, log = rack.driver_pids(host), run.testbed.log
    with run.fault("driver cut off from the masters and Redis", restarts=True, host=host):
        rack.cut_from_masters(host)
        rack.until(lambda: len(rack.driver_hosts()) > 1, MOVED_S, "a second driver")
        began = time.monotonic()
        rack.cut_from_port(host, run.testbed.redis.port)
        taken_s = scene.next_term(began, epoch)
        if old[0] not in rack.driver_pids(host):
            run.violation("two_drivers", f"the driver on {host} ended before it was back: nothing is proven")
        rack.network.heal()
        healed = time.monotonic()
        run.until(
            lambda: _FENCED in log.read_text(errors="replace") or len(rack.driver_hosts()) == 1, MOVED_S, "its end"
        )
        ended_s = round(time.monotonic() - healed, 1)
        run.until(lambda: len(rack.driver_hosts()) == 1, MOVED_S, "one driver to be left")
    scene.recover()
    return {
        "first_batch_s": taken_s,
        "old_driver_ends_s": ended_s,
        "fenced": _FENCED in log.read_text(errors="replace"),
    }


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
        scene.pass_time(began, KILLS_EVERY_S)
    scene.require_same_term(epoch, "executors were killed")
    return {"first_batch_s": max(seconds), "killed": len(seconds)}

"""What goes wrong on the hosts, one play each; load/faults judges it, and a play adds what no rule can see."""

import time

from load.cluster.rack import WORKERS
from load.cluster.scene import MOVED_S, Scene, play
from load.faults.run import Figures

_FENCED = "tidemark: FENCED"


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
        scene.whole(len(WORKERS))
    return {"first_batch_s": seconds[0], "first_batch_after_a_lost_host_s": seconds[-1]}


@play("a worker without the driver is lost while executors run on it")
def worker_lost(scene: Scene) -> Figures:
    """The query goes on under the same epoch."""
    run, rack, epoch, host = scene.run, scene.rack, scene.run.observer.epoch, scene.executors_host()
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
        run.let_pass(scene.away_s, began)
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
        run.let_pass(scene.away_s / 3, began)
        rack.network.heal()
        healed = time.monotonic()
        batch_s = scene.next_batch(healed)
    scene.recover()
    epoch, host = run.observer.epoch, rack.driver_host()
    with run.fault("driver cut off from the masters", restarts=True, host=host):
        rack.cut_from_masters(host)
        rack.until(lambda: len(rack.driver_hosts()) > 1, MOVED_S, "a second driver")
        began = time.monotonic()
        run.let_pass(scene.away_s / 2, began)
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
    """The rival takes the lease; the first one comes back, writes nothing and ends: Redis refuses it, or the master ends it."""
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

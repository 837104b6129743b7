"""Row `sentinel`: the primary that sentinels watch goes away, alone and together with the driver.

The replica has every write some microseconds after the primary has acknowledged it: only `_fails_over_with_loss` loses writes.
The rules take every other value that goes back for a violation.
"""

from load.faults.by_hand import start_again
from load.faults.failover import LACKING, PAUSED_S, Loss, judged, wait_failed_over
from load.faults.row import row
from load.faults.run import Figures, Run
from load.servers.redis import Redis


@row("sentinel", "the primary that sentinels watch goes away", rate=1_000, devices=1_000, testbed={"sentinels": True})
def sentinel(run: Run) -> Figures:
    """Short: a failover that loses writes."""
    faults: dict[str, Figures] = {}
    run.begin()
    if not run.short:
        faults["primary_killed"] = _primary_killed(run)
        faults["primary_paused"] = _primary_paused(run)
    faults["failover_with_loss"] = _fails_over_with_loss(run)
    if not run.short:
        faults["sentinel_killed"] = _sentinel_killed(run)
        faults["driver_killed"] = _driver_killed(run)
    return {
        "by_fault": faults,
        "lag_back_s_by_fault": {name: each["lag_back_s"] for name, each in faults.items()},
        "republications": sum(each["republications"] for each in faults.values()),
    }


def _primary_killed(run: Run) -> Figures:
    with judged(run, "primary killed") as figures:
        victim = run.testbed.sentinels.primary
        victim.kill()
        _fail_over(run, figures)
        _come_back(run, victim)
    return figures


def _primary_paused(run: Run) -> Figures:
    """It wakes up as the primary that it was, with calls to run that the service has given up, until a sentinel demotes it."""
    with judged(run, "primary paused") as figures:
        victim = run.testbed.sentinels.primary
        victim.pause()
        _fail_over(run, figures)
        run.run_on(PAUSED_S)
        victim.resume()
        run.testbed.sentinels.wait_whole()
    return figures


def _fails_over_with_loss(run: Run) -> Figures:
    """The promoted replica lacks some batches: how long until that is noticed, and until all that was final is there again."""
    watched = run.testbed.sentinels
    victim, replica = watched.primary, watched.replica
    watched.freeze_replica()
    run.steady(LACKING)
    loss = Loss(run, f"a failover that lost {LACKING} batches")
    with judged(run, "failover with loss") as figures:
        run.note("redis_lost")
        victim.kill()
        replica.resume()
        _fail_over(run, figures)
        figures.update(loss.wait())
        _come_back(run, victim)
    return figures


def _sentinel_killed(run: Run) -> Figures:
    """One of three sentinels is away while the primary fails."""
    with judged(run, "primary and a sentinel killed") as figures:
        watched = run.testbed.sentinels
        victim, other = watched.primary, watched.sentinels[0]
        other.kill()
        victim.kill()
        _fail_over(run, figures)
        other.start()
        _come_back(run, victim)
    return figures


def _driver_killed(run: Run) -> Figures:
    with judged(run, "driver killed while the primary is down", restarts=True) as figures:
        victim = run.testbed.sentinels.primary
        victim.kill()
        run.let_pass(run.nemesis.between(0.2, 1.5))
        run.kill_driver(run.nemesis.pick((0, 1)))
        _fail_over(run, figures)
        figures["starts_again"] = start_again(run)
        _come_back(run, victim)
    return figures


def _fail_over(run: Run, figures: Figures) -> None:
    watched, promoted = run.testbed.sentinels, run.testbed.sentinels.replica
    figures["promoted_s"] = wait_failed_over(run, lambda: watched.is_failed_over(promoted), "the replica was promoted")
    watched.primary = promoted


def _come_back(run: Run, victim: Redis) -> None:
    """The killed node becomes a replica."""
    victim.start()
    run.testbed.sentinels.wait_whole()

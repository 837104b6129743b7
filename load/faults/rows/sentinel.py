"""Row `sentinel`: the primary that sentinels watch goes away, alone and together with the driver.

The replica has every write some microseconds after the primary has acknowledged it: only `_fails_over_with_loss` loses writes.
The rules take every other value that goes back for a violation.
"""

from load.faults.failover import LACKING, Loss, Primary, judged, wait_failed_over
from load.faults.row import row
from load.faults.run import Figures, Run


@row("sentinel", "the primary that sentinels watch goes away", rate=1_000, devices=1_000, testbed={"sentinels": True})
def sentinel(run: Run) -> Figures:
    """Short: a failover that loses writes."""
    faults: dict[str, Figures] = {}
    run.begin()
    if not run.short:
        faults["primary_killed"] = _primary(run).killed()
        faults["primary_paused"] = _primary(run).paused()
    faults["failover_with_loss"] = _fails_over_with_loss(run)
    if not run.short:
        faults["sentinel_killed"] = _sentinel_killed(run)
        faults["driver_killed"] = _primary(run).killed_with_driver()
    return {
        "by_fault": faults,
        "lag_back_s_by_fault": {name: each["lag_back_s"] for name, each in faults.items()},
        "republications": sum(each["republications"] for each in faults.values()),
    }


def _fails_over_with_loss(run: Run) -> Figures:
    """The promoted replica lacks some batches: how long until that is noticed, and until all that was final is there again."""
    watched, primary = run.testbed.sentinels, _primary(run)
    replica = watched.replica
    watched.freeze_replica()
    run.steady(LACKING)
    loss = Loss(run, f"a failover that lost {LACKING} batches")
    with judged(run, "failover with loss") as figures:
        run.note("redis_lost")
        primary.server.kill()
        replica.resume()
        figures.update(primary.fails_over())
        figures.update(loss.wait())
        primary.come_back()
    return figures


def _sentinel_killed(run: Run) -> Figures:
    """One of three sentinels is away while the primary fails."""
    primary, other = _primary(run), run.testbed.sentinels.sentinels[0]
    with judged(run, "primary and a sentinel killed") as figures:
        other.kill()
        primary.server.kill()
        figures.update(primary.fails_over())
        other.start()
        primary.come_back()
    return figures


def _primary(run: Run) -> Primary:
    watched, promoted = run.testbed.sentinels, run.testbed.sentinels.replica

    def fails_over() -> Figures:
        seconds = wait_failed_over(run, lambda: watched.is_failed_over(promoted), "the replica was promoted")
        watched.primary = promoted
        return {"promoted_s": seconds}

    return Primary(run, watched.primary, fails_over, watched.wait_whole)

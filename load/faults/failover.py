"""What rows about a failover of Redis share: a fault that is judged, and how long what it has lost stays away."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from load.faults.by_hand import start_again
from load.faults.recovery import BACK_S
from load.faults.run import STARTS_S, Figures, Run
from load.servers.redis import Redis
from load.servers.server_process import PATIENCE

LACKING = 3
"""Batches that the promoted replica lacks."""
PAUSED_S = 10.0
"""For so long a paused primary stays paused after its replica was promoted."""
REPUBLISHED_S = 60.0 * PATIENCE
"""By then every final value must be there again."""

_LOST = "tidemark_redis_data_lost_total"


@contextmanager
def judged(run: Run, name: str, within_s: float = 2 * BACK_S, **facts: object) -> Iterator[Figures]:
    """A fault, and what is measured of each; the block may add figures. Returns when the lag is back."""
    before, began = run.metrics().get(_LOST, 0.0), time.monotonic()
    figures: Figures = {}
    with run.fault(name, **facts):
        yield figures
    ended = time.monotonic()
    run.recover(within_s)
    after = run.metrics().get(_LOST, 0.0)
    figures["fault_s"], figures["lag_back_s"] = round(ended - began, 1), since(ended)
    figures["republications"] = int(after - before if after >= before else after)  # a new process counts from 0


@dataclass(frozen=True, slots=True)
class Primary:
    """A primary that goes away. `fails_over` waits until a replica has its place, `wait_whole` until it has a replica again."""

    run: Run
    server: Redis
    fails_over: Callable[[], Figures]
    wait_whole: Callable[[], object]
    facts: Figures = field(default_factory=dict)

    def killed(self) -> Figures:
        with judged(self.run, "primary killed", **self.facts) as figures:
            self.server.kill()
            figures.update(self.fails_over())
            self.come_back()
        return figures

    def paused(self) -> Figures:
        """It wakes up as the primary that it was, with calls to run that the service has given up."""
        with judged(self.run, "primary paused", **self.facts) as figures:
            self.server.pause()
            figures.update(self.fails_over())
            self.run.run_on(PAUSED_S)
            self.server.resume()
            self.wait_whole()
        return figures

    def killed_with_driver(self) -> Figures:
        run = self.run
        with judged(run, "driver killed while a primary is down", restarts=True, **self.facts) as figures:
            self.server.kill()
            run.let_pass(run.nemesis.between(0.2, 1.5))
            run.kill_driver(run.nemesis.pick((0, 1)))
            figures.update(self.fails_over())
            figures["starts_again"] = start_again(run)
            self.come_back()
        return figures

    def come_back(self) -> None:
        """The killed node becomes a replica."""
        self.server.start()
        self.wait_whole()


def wait_failed_over(run: Run, is_over: Callable[[], bool], what: str) -> float:
    """Wait until a replica has taken over; the seconds. What is committed before that was not acknowledged.

    One batch may be: the primary had acknowledged it before.
    """
    began, before = time.monotonic(), run.newest_commit()
    committed = before

    def has_taken_over() -> bool:
        nonlocal committed
        newest = run.newest_commit()
        if is_over():
            return True
        committed = newest
        return False

    run.until(has_taken_over, STARTS_S, what)
    if committed > before + 1:
        run.violation("P1", f"batch {committed} was committed before {what}, and no write was possible since {before}")
    return since(began)


class Loss:
    """Final values that Redis is to lose: make it before the loss, and wait after that."""

    def __init__(self, run: Run, what: str) -> None:
        self._run, self._what = run, what
        self._finals, self._before = run.finals(), run.metrics().get(_LOST, 0.0)
        if not self._finals:
            run.violation("observed", f"no value was final before {what}: nothing is proven")

    def wait(self) -> Figures:
        """Wait until the loss is noticed and all final values are there again, or note a violation."""
        run, began = self._run, time.monotonic()
        noticed_s = None
        missing, lacked = len(self._finals), 0
        while (missing or noticed_s is None) and time.monotonic() - began < REPUBLISHED_S:
            run.run_on(0.2)
            if noticed_s is None and run.metrics().get(_LOST, 0.0) > self._before:
                noticed_s = since(began)
            there = run.finals()
            missing = sum(there.get(key) != count for key, count in self._finals.items())
            lacked = max(lacked, missing)
        republished_s = since(began)
        if noticed_s is None:
            run.violation("P1", f"{self._what} was not noticed")
        if missing:
            what = f"{missing} of {len(self._finals)} final values are missing after {republished_s} s"
            run.violation("P1", what)
        finals = {"finals": len(self._finals), "finals_lacked": lacked, "finals_missing": missing}
        return {"republished_s": republished_s, "noticed_s": noticed_s, **finals}


def since(began: float) -> float:
    """Seconds since a time of the monotonic clock, to a tenth."""
    return round(time.monotonic() - began, 1)

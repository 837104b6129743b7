"""Ten minutes of readings wait when the service starts: no batch may be long, and the service must soon be steady again."""

import json
import os
import time
from typing import Any

from load.faults.row import row
from load.faults.run import Figures, Run
from load.servers.server_process import PATIENCE

RATE, AWAY_S = 10_000.0, 600.0
FLOOD = 100_000.0
"""Records a second at which the readings of the ten minutes are produced, in addition to the load."""
LONGEST_S = 10.0
STEADY_S = 60.0
GROWTH = 1.5
"""Peak memory of a catch-up over the steady one before it."""
OK = 200
_DELAY = "tidemark_schedule_delay_seconds"


@row("backlog", "ten minutes of readings wait at the start", rate=RATE, devices=10_000)
def backlog(run: Run) -> Figures:
    """About six minutes on two cores: six million records are read, judged and compared."""
    run.begin()
    before_mb = run.peak_mb()
    away_s = AWAY_S / 5 if run.short else AWAY_S
    with run.fault("away", restarts=True):
        run.testbed.kill_service()
        flood = run.load(FLOOD)
        run.let_pass(away_s * RATE / FLOOD)
        run.unload(flood)
        waiting = run.observer.lag or 0
        run.start_again()
    began = time.monotonic()
    batches: dict[int, dict[str, Any]] = {}
    deadline = began + 2 * STEADY_S * PATIENCE
    while run.is_recovering and time.monotonic() < deadline:
        batches |= _batches(run)
        run.let_pass(0.5)
    batches |= _batches(run)
    steady_s = time.monotonic() - began
    delay_s = _delay(run)
    run.steady()
    batches |= _batches(run)
    longest = max(batches.values(), key=_seconds, default=None)
    longest_s = _seconds(longest) if longest is not None else 0.0
    if longest_s > LONGEST_S * PATIENCE:
        run.violation("bounded", f"a batch took {longest_s:.1f} s, the limit is {LONGEST_S:.0f}: {longest}")
    if steady_s > STEADY_S * PATIENCE:
        run.violation("P8", f"the service was steady after {steady_s:.0f} s, the limit is {STEADY_S:.0f}")
    peak_mb = run.peak_mb()
    run.drain()
    run.stop()
    run.compare(processes=os.cpu_count() or 1)
    if peak_mb > GROWTH * before_mb:
        run.violation("bounded", f"the service took {peak_mb:.0f} MB, and {before_mb:.0f} before the backlog")
    return {
        "waiting": waiting,
        "longest_batch_s": round(longest_s, 1),
        "steady_after_s": round(steady_s, 1),
        "largest_batch": max((each["rows"] for each in batches.values()), default=0),
        "limits": [batches[number]["limit"] for number in sorted(batches)][:40],
        "schedule_delay_s": delay_s,
        "memory_before_mb": before_mb,
        "memory_peak_mb": peak_mb,
    }


def _batches(run: Run) -> dict[int, dict[str, Any]]:
    """Return the last batches of the running service by number, without batches from before the restart."""
    code, text = run.testbed.get("/status")
    return {each["batch"]: each for each in json.loads(text)["batches"]} if code == OK else {}


def _seconds(batch: dict[str, Any]) -> float:
    return float(sum(batch["phases"].values()))


def _delay(run: Run) -> float | None:
    """Return the mean scheduling delay of the new process, in seconds."""
    samples = run.metrics()
    count = samples.get(f"{_DELAY}_count", 0.0)
    return round(samples[f"{_DELAY}_sum"] / count, 3) if count else None

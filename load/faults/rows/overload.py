"""F14: a tenfold burst, a slow sink, and a soak with kills; memory and state must stay bounded."""

import time

from load.faults.row import Figures, row
from load.faults.run import Run

MINUTES = 10.0
BURST = 10
SLOW_MS = 200.0
MEMORY_MB = 6_000
"""What the stage's worker has for driver and executors."""


@row("F14", "a tenfold burst, a slow sink, a soak with kills", stage={"supervised": True}, proxy=True)
def overload(run: Run) -> Figures:
    """Ten minutes, or three when short: the parts keep their share."""
    whole_s = (3.0 if run.short else MINUTES) * 60
    began = time.monotonic()
    run.start()
    run.load()
    run.steady()
    run.run_on(whole_s * 0.08)
    before = _state_rows(run)
    with run.fault("burst", times=BURST):
        extra = run.load(run.row.rate * (BURST - 1))
        run.run_on(whole_s * 0.2)
        run.unload(extra)
    run.recover()
    assert run.proxy is not None  # noqa: S101 - the row asks for it
    with run.fault("sink slowed", delay_ms=SLOW_MS):
        run.proxy.delay_ms = SLOW_MS
        run.run_on(whole_s * 0.15)
        run.proxy.delay_ms = 0.0
    run.recover()
    kills = run.times(4, short=2)
    for pause in run.nemesis.pauses(kills, whole_s * 0.05):
        run.run_on(pause)
        run.kill_driver()
    run.recover()
    run.run_on(max(10.0, whole_s - (time.monotonic() - began)))
    after = _state_rows(run)
    if after > 2 * before:
        run.violation("bounded", f"state has {after:.0f} windows, it had {before:.0f} before the burst")
    return {"kills": kills, "windows_in_state_before": before, "windows_in_state_after": after}


def _state_rows(run: Run) -> float:
    return run.stage.metrics().get('tidemark_state_rows{operator="windows"}', 0.0)

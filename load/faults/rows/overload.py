"""F14: a tenfold burst, a slow sink, and a soak with kills; memory and state must stay bounded."""

import time

from load.faults.row import row
from load.faults.run import Figures, Run

MINUTES = 10.0
BURST = 10
SLOW_MS = 200.0
MEMORY_MB = 6_000
"""What the testbed's worker has for driver and executors."""
OPEN = 3
"""Windows of a device and measure that may be open at once: they last a minute, and the watermark is 10 s behind."""
OTHERS = 1_000
"""Windows of sites, types and of all devices together: a few hundred."""


@row("F14", "a tenfold burst, a slow sink, a soak with kills", testbed={"supervised": True}, proxy=True)
def overload(run: Run) -> Figures:
    """Ten minutes, or three when short: the parts keep their share."""
    whole_s = (3.0 if run.short else MINUTES) * 60
    began = time.monotonic()
    run.begin()
    run.run_on(whole_s * 0.08)
    with run.fault("burst", times=BURST):
        extra = run.load(run.setup.rate * (BURST - 1))
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
    run.run_on(10.0)
    run.run_on(whole_s, began)
    return {"kills": kills, **_bounded(run)}


def _bounded(run: Run) -> Figures:
    """Windows in state at the end, and the memory's peak, against what they may be."""
    windows = run.metrics().get('tidemark_state_rows{kind="windows"}', 0.0)
    limit = OPEN * run.setup.devices * len(run.testbed.settings["input"]["measures"]) + OTHERS
    if windows > limit:
        run.violation("bounded", f"state has {windows:.0f} windows, {limit} may be open at once")
    peak = run.peak_mb()
    if peak > MEMORY_MB:
        run.violation("bounded", f"the service took {peak:.0f} MB, it was given {MEMORY_MB}")
    return {"windows_in_state": windows, "windows_in_state_limit": limit}

"""F13: one partition is behind the others, in three ways.

unread   it has many records of one short time, more than a batch takes: the watermark waits for it, and nothing is late
brief    its producer is held back for less than the delay that is allowed: nothing is late
long     its producer is held back for longer. Its records keep the time at which they were first written, as a mirror of another
         cluster's topic does when it falls behind in one partition, and nobody can know that they will come: they are late,
         every one of them can be found, and nothing else changes
"""

import time

from load.demo import SECTIONS
from load.faults.history import read
from load.faults.row import row
from load.faults.run import Figures, Run
from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.generator import Generator
from load.servers.kafka import CREATE_TIME

DELAYED_PARTITION = 3
MAX_DELAY_S, MAX_AHEAD_S, WINDOW_S = 8, 2, 5
BRIEF_S, LONG_S, AWAY_S = 4.0, 90.0, 15.0
LATE_S = 15.0
RATE, FLOOD = 500.0, 20_000.0
MAX_PER_BATCH = 25_000
VIEWS = (
    {"name": "device", "by": ["device"], "window": f"{WINDOW_S} s", "retain": "1 d"},
    {"name": "site", "by": ["site"], "window": f"{4 * WINDOW_S} s", "slide": f"{WINDOW_S} s", "retain": "1 d"},
    {"name": "all", "window": f"{2 * WINDOW_S} s", "retain": "1 d"},
)
_SECTIONS = {
    **SECTIONS,
    "admission": {**SECTIONS["admission"], "max_delay": f"{MAX_DELAY_S} s", "max_ahead": f"{MAX_AHEAD_S} s"},
    "kafka": {**SECTIONS.get("kafka", {}), "max_per_batch": MAX_PER_BATCH},
}
_BEHIND = "tidemark_readings_behind_total"
_SPREAD = "tidemark_event_spread_seconds"
_HOLD = "tidemark_watermark_held_seconds"


@row(
    "F13",
    "one partition held back and released",
    testbed={"views": VIEWS, "sections": _SECTIONS, "topic_config": CREATE_TIME},
)
def partition_behind(run: Run) -> Figures:
    """About four minutes."""
    run.start()
    for partition in range(DELAYED_PARTITION):
        run.load(run.setup.rate / DELAYED_PARTITION, ("--partitions-by", str(partition)))
    run.steady()
    away_s = AWAY_S / 3 if run.short else AWAY_S
    with run.fault("away", restarts=True):
        run.testbed.kill_service()
        delayed = _DelayedPartition(run)
        run.let_pass(away_s)
        delayed.flood(away_s / 10)
        delayed.release()
        run.start_again()
    run.recover()
    run.steady()
    unread, waited_s = _behind(run), _most(run, _HOLD)
    if waited_s < MAX_DELAY_S:
        run.violation("observed", f"the watermark waited for {waited_s:.1f} s at most: too short to judge by")
    delayed.begin()
    run.run_on(BRIEF_S)
    delayed.release()
    run.steady()
    brief = _behind(run) - unread
    delayed.begin()
    run.run_on(LONG_S / 3 if run.short else LONG_S)
    delay_s = delayed.release()
    delayed.send_late(LATE_S)
    run.steady()
    spread_s = run.metrics().get(_SPREAD, 0.0)  # the most of the last minute
    run.drain()
    behind = _behind(run)
    run.stop()
    verdict = run.compare(may_be_refused=True)
    if unread or brief:
        run.violation("policy", f"{unread:.0f} readings of unread records and {brief:.0f} of {BRIEF_S} s were late")
    if not behind or verdict.refused != behind:
        run.violation(
            "P4", f"{behind:.0f} readings were counted as behind the watermark, {verdict.refused} can be found"
        )
    # The spread is one of admitted readings. At half the delay an alert says that readings are about to be late.
    if spread_s < (MAX_DELAY_S + MAX_AHEAD_S) / 2:
        run.violation("P7", f"a partition was {delay_s:.0f} s behind, {_SPREAD} said {spread_s:.1f}")
    return {
        "dropped": unread + brief,
        "behind": behind,
        "waited_s": round(waited_s, 1),
        "held_s": round(delay_s, 1),
        "spread_s": round(spread_s, 1),
    }


class _DelayedPartition:
    """The readings that a small fleet writes to the delayed partition of each topic, with the times they were due at."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._fleet = self._of(RATE)
        self.begin()

    def begin(self) -> None:
        """Begin the delay."""
        self._since = time.time()

    def flood(self, seconds: float) -> None:
        """Send many readings of the first seconds of the delay."""
        self._send(self._of(FLOOD), seconds, int(self._since * 1000))

    def release(self) -> float:
        """Send all of them at once; return the length of the delay in seconds."""
        seconds = time.time() - self._since
        self._send(self._fleet, seconds, int(self._since * 1000))
        return seconds

    def send_late(self, seconds: float) -> None:
        """Readings that were written when they were due, of devices whose clocks are behind by more than is allowed."""
        self._fleet.skew_ms[:] = -2 * MAX_DELAY_S * 1000
        self._send(self._fleet, seconds, int((time.time() - seconds) * 1000))

    def _of(self, rate: float) -> Fleet:
        devices = self._run.testbed.fleet.settings.devices
        return Fleet(self._run.seed, FleetSettings(devices=devices, rate=rate, shares={}, dropout_share=0.0))

    def _send(self, fleet: Fleet, seconds: float, start_ms: int) -> None:
        for each in self._run.traffic:
            made = Generator(
                self._run.testbed.broker.bootstrap,
                each.topic,
                fleet,
                value_format=each.value_format,
                array=each.array,
                partitions_by=str(DELAYED_PARTITION),
                simulate_ms=start_ms,
            )
            summary = made.run(seconds)
            self._run.note("released", topic=each.topic, records=summary.sent)
            self._run.sent += summary.sent


def _behind(run: Run) -> float:
    return run.metrics().get(_BEHIND, 0.0)


def _most(run: Run, name: str) -> float:
    """The most that a gauge has shown."""
    looks = (each["samples"].get(name, 0.0) for each in read(run.history.path) if each["what"] == "metrics")
    return float(max(looks))

"""F13: one partition is held back, for less than the delay that is allowed and for more, and then released.

Its records keep the time at which they were first written, as a mirror of another cluster's topic does when it falls behind
in one partition: admission finds nothing wrong with them, and the watermark has moved on with the others.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from load.compare import compare
from load.demo import SECTIONS
from load.faults.history import read
from load.faults.row import Figures, row
from load.faults.run import Run
from load.fleet import Fleet, FleetSettings
from load.generator import Generator
from load.oracle import Ledger, expected, records
from load.parts import CREATE_TIME
from load.rules import read_reference, read_rules
from load.stage import TOPIC
from schemas import contract

HELD = 3
MAX_DELAY_S, MAX_AHEAD_S, WINDOW_S = 8, 2, 5
BRIEF_S, LONG_S = 4.0, 60.0
LATE_S = 15.0
RATE = 500.0
VIEWS = (
    {"name": "device", "by": ["device"], "window": f"{WINDOW_S} s", "retain": "1 d"},
    {"name": "site", "by": ["site"], "window": f"{4 * WINDOW_S} s", "slide": f"{WINDOW_S} s", "retain": "1 d"},
    {"name": "all", "window": f"{2 * WINDOW_S} s", "retain": "1 d"},
)
_SECTIONS = {
    **SECTIONS,
    "admission": {**SECTIONS["admission"], "max_delay": f"{MAX_DELAY_S} s", "max_ahead": f"{MAX_AHEAD_S} s"},
}
_DROPPED = "tidemark_window_values_dropped_total"
_READINGS = "tidemark_readings_dropped_total"
_LATE = 'tidemark_rejects_total{reason="late"}'
_SPREAD = "tidemark_event_spread_seconds"


@row(
    "F13",
    "one partition held back and released",
    stage={"views": VIEWS, "sections": _SECTIONS, "topic_config": CREATE_TIME},
)
def partition_behind(run: Run) -> Figures:
    """About two and a half minutes."""
    run.start()
    for partition in range(HELD):
        run.load(run.row.rate / HELD, ("--partitions-by", str(partition)))
    run.steady()
    held = _Held(run)
    run.run_on(BRIEF_S)
    held.release()
    run.steady()
    brief = _dropped(run)
    if any(brief.values()):
        run.violation("policy", f"held back for {BRIEF_S} s, the watermark is {MAX_DELAY_S} s behind: {brief} dropped")
    held.begin()
    run.run_on(LONG_S / 3 if run.short else LONG_S)
    held_s = held.release()
    held.send_late(LATE_S)
    run.steady()
    run.drain()
    counted, said = _dropped(run), run.metrics()
    run.stop()
    figures = _judge(run, counted, said)
    spread_s = max(each["samples"].get(_SPREAD, 0.0) for each in read(run.history.path) if each["what"] == "metrics")
    if spread_s < held_s - WINDOW_S:
        run.violation("P7", f"a partition was {held_s:.0f} s behind, {_SPREAD} said {spread_s:.0f} at most")
    return {**figures, "held_s": round(held_s, 1), "spread_max_s": round(spread_s, 1), "brief_dropped": brief}


class _Held:
    """What is written to the held partition and comes later: a small fleet's readings, with the times they were written at."""

    def __init__(self, run: Run) -> None:
        self._run = run
        fleet = run.stage.fleet.settings
        self._fleet = Fleet(run.seed, FleetSettings(devices=fleet.devices, rate=RATE, shares={}, dropout_share=0.0))
        self.begin()

    def begin(self) -> None:
        """From now on it is held back."""
        self._since = time.time()

    def release(self) -> float:
        """All of it comes at once; for how long it was held back."""
        seconds = time.time() - self._since
        self._send(seconds, int(self._since * 1000))
        return seconds

    def send_late(self, seconds: float) -> None:
        """Readings that were written when they were due, of devices whose clocks are behind by more than is allowed."""
        self._fleet.skew_ms[:] = -2 * MAX_DELAY_S * 1000
        self._send(seconds, int((time.time() - seconds) * 1000))

    def _send(self, seconds: float, start_ms: int) -> None:
        broker = self._run.stage.broker.bootstrap
        made = Generator(broker, TOPIC, self._fleet, partitions_by=str(HELD), simulate_ms=start_ms)
        summary = made.run(seconds)
        self._run.note("released", records=summary.sent)
        self._run.sent += summary.sent


def _dropped(run: Run) -> dict[str, float]:
    found = run.metrics()
    return {str(view["name"]): found.get(f'{_DROPPED}{{view="{view["name"]}"}}', math.nan) for view in VIEWS}


def _judge(run: Run, counted: Mapping[str, float], said: Mapping[str, float]) -> Figures:
    """What lacks in Redis is what was counted, to the last value, and all of it came from the held partition."""
    rules, readings = read_rules(run.stage.config), said.get(_READINGS, 0.0)
    watermark_ms = int(run.stage.progress()["watermark"])
    whole = expected(run.stage.config, watermark_ms=watermark_ms)
    others = Ledger(rules, read_reference(rules))
    for record in records(rules, rules.topics):
        if record.partition != HELD:
            others.take(record)
    fine = others.close(watermark_ms)
    lacking: Counter[str] = Counter()
    with run.stage.redis.client(encoding_errors="surrogateescape") as client:
        names = list(whole.windows)
        pipe = client.pipeline(transaction=False)
        for view, measure, key, start in names:
            pipe.hget(f"{rules.prefix}:window:{view}:{measure}:{key}:{start}", "count")
        found: list[Any] = pipe.execute()
        sessions: Any = client.scan_iter(f"{rules.prefix}:session:*", count=5_000)
        pipe = client.pipeline(transaction=False)
        for key in sessions:
            pipe.hmget(key, "state", "count")
        in_sessions = sum(int(count) for state, count in pipe.execute() if state != "merged")
    for name, count in zip(names, found, strict=True):
        all_of_it, least = whole.windows[name].count, fine.windows[name].count if name in fine.windows else 0
        lacking[name[0]] += all_of_it - int(count or 0)
        if not least <= int(count or 0) <= all_of_it:
            run.violation("policy", f"{name} has {count} readings: {least} came in time, {all_of_it} were admitted")
    if dict(lacking) != {view: int(values) for view, values in counted.items()}:
        run.violation("P7", f"the windows lack {dict(lacking)} values, {dict(counted)} were counted")
    admitted = sum(each.admitted for each in whole.partitions.values())
    if admitted - in_sessions != readings:
        run.violation("P7", f"sessions lack {admitted - in_sessions} readings, {readings:.0f} were counted")
    if not all(lacking.values()) or not readings:
        run.violation(
            "observed", f"the engine dropped {dict(lacking)} and {readings:.0f} readings: too few to judge by"
        )
    late, said_late = Counter(whole.rejects.values())["late"], said.get(_LATE, 0.0)
    if late != said_late or not late:
        run.violation("P7", f"the oracle finds {late} late readings, {said_late:.0f} were counted")
    _compare_rest(run)
    return {"dropped_values": dict(lacking), "dropped_readings": readings, "late": late}


def _compare_rest(run: Run) -> None:
    """What dropped readings cannot change: rejects, partitions' sums, and that there is no window of no reading."""
    found = compare(run.stage.config)
    kinds = {
        kind: count for kind, count in found.kinds.items() if kind.startswith(("reject.", "partition.", "window.extra"))
    }
    with run.stage.redis.client() as client:
        contract_says = contract.check(client, "tidemark")[:20]
    examples = [each for each in found.examples if each.startswith(tuple(kinds))] if kinds else []
    run.note("verdict", ok=not kinds, kinds=kinds, examples=examples, compared=found.compared, contract=contract_says)

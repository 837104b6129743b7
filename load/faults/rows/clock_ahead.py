"""F11: devices at +1 day, in 2099 and in 1970, and a fleet that is two minutes ahead, among devices that are right.

The control run reads the same topic with a service whose filter of early readings was taken out, and must lose readings.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from load.demo import SECTIONS
from load.faults.history import read
from load.faults.raw import Reading, send_readings
from load.faults.row import row
from load.faults.run import Figures, Run
from load.fleet.encode import YEAR_2099_MS
from load.fleet.fleet import DAY_MS
from load.judge.oracle import Expected, expected
from load.mutations import MUTATIONS, teeth
from load.testbed import ROOT, TOPIC, output_of, to_toml

MAX_AHEAD_MS = 2_000
FLEET = 50
SKEW_MS = 120_000
ROUNDS, EVERY_S = 8, 3.0
AHEAD = ("clock-a-day-ahead", "clock-in-2099", *(f"fleet-{number:03d}" for number in range(FLEET)))
BEHIND = "clock-in-1970"
CONTROL = "control"
_EARLY, _LATE, _SKEWED = (
    'tidemark_rejects_total{reason="early"}',
    'tidemark_rejects_total{reason="late"}',
    "tidemark_skewed_devices",
)


# These devices are in no reference: rejected as unknown, they would have no early readings.
_SECTIONS = {**SECTIONS, "admission": {**SECTIONS["admission"], "unknown_device": "keep"}}


@row("F11", "clocks that are ahead or behind", testbed={"sections": _SECTIONS})
def clock_ahead(run: Run) -> Figures:
    """About two and a half minutes, the control run included."""
    run.begin()
    injected: Counter[str] = Counter()
    for _ in range(ROUNDS):
        now_ms = time.time_ns() // 1_000_000
        wrong = [
            Reading(AHEAD[0], now_ms + DAY_MS),
            Reading(AHEAD[1], YEAR_2099_MS),
            *(Reading(device, now_ms + SKEW_MS) for device in AHEAD[2:]),
        ]
        injected["early"] += send_readings(run, wrong)
        injected["late"] += send_readings(run, [Reading(BEHIND, 0)])
        run.run_on(EVERY_S)
    run.drain()
    metrics = run.metrics()
    listed = _listed(run)
    run.stop()
    run.compare()
    watermark_ms = int(run.testbed.progress()["watermark"])
    whole = expected(run.testbed.config, watermark_ms=watermark_ms)
    _judge_counts(run, injected, whole, metrics)
    _judge_marks(run, listed, metrics)
    lead_ms = max(each["watermark"] - each["at"] for each in read(run.history.path) if each["what"] == "progress")
    if lead_ms > MAX_AHEAD_MS:
        run.violation("P6", f"the watermark was {lead_ms} ms ahead of the clock, {MAX_AHEAD_MS} ms are allowed")
    return {"injected": dict(injected), "watermark_lead_ms": lead_ms, "skewed": len(listed), **_control(run, whole)}


def _listed(run: Run) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(output_of(run.testbed.command("devices", "--skewed", "--json")))
    return listed


def _judge_counts(run: Run, injected: Counter[str], whole: Expected, metrics: Mapping[str, float]) -> None:
    """Injected = the oracle's = the service's; the generators' own outsiders are in their summaries."""
    reasons = Counter(whole.rejects.values())
    sent = [each["readings"] for each in read(run.history.path) if each["what"] == "sent"]
    outsiders = {
        "early": sum(each["ahead"] + each["year_2099"] for each in sent),
        "late": sum(each["late"] for each in sent),
    }
    for reason, name in (("early", _EARLY), ("late", _LATE)):
        right = injected[reason] + outsiders[reason]
        if not right == reasons[reason] == metrics.get(name):
            text = f"{right} {reason} readings were sent, the oracle finds {reasons[reason]}, counted were {metrics.get(name)}"
            run.violation("P7", text)


def _judge_marks(run: Run, listed: list[dict[str, Any]], metrics: Mapping[str, float]) -> None:
    names = {each["device"] for each in listed}
    if names != set(AHEAD) or metrics.get(_SKEWED) != len(AHEAD):
        run.violation("skewed", f"listed are {sorted(names)}, {_SKEWED} says {metrics.get(_SKEWED)}; they are {AHEAD}")
    counts = {each["early"] for each in listed}
    with run.testbed.redis.client() as client:
        marks = {client.hget(f"tidemark:device:{device}", "skewed") for device in AHEAD}
    if counts != {ROUNDS} or marks != {"1"}:
        run.violation("skewed", f"each of them sent {ROUNDS} early readings: {counts} were counted, marks are {marks}")


def _control(run: Run, whole: Expected) -> Figures:
    """The same topic, without the filter: how many values the windows lack, and where the watermark went."""
    mutation = next(each for each in MUTATIONS if each.id == "early-filter-off")
    tree = teeth.copy(ROOT, run.folder / CONTROL)
    teeth.apply(mutation, tree)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    settings = {**run.testbed.settings, "redis": {**run.testbed.settings["redis"], "prefix": CONTROL}}
    settings["kafka"] = {**settings["kafka"], "max_per_batch": 20_000}
    config = run.folder / f"{CONTROL}.toml"
    config.write_text(to_toml(settings), encoding="utf-8")
    without = run.instance(CONTROL, f"{CONTROL}-checkpoint", config, tree)
    without.start()
    with run.testbed.redis.client() as client:

        def progress() -> Any:
            return client.hgetall(f"{CONTROL}:progress")

        def offsets() -> Mapping[str, int]:
            return dict(json.loads(progress().get("offsets", "{}")).get(TOPIC, {}))

        run.wait_level(offsets, "the control run to read all")
        without.stop()
        names = list(whole.windows)
        pipe = client.pipeline(transaction=False)
        for view, measure, key, start in names:
            pipe.hget(f"{CONTROL}:window:{view}:{measure}:{key}:{start}", "count")
        counts = [int(count or 0) for count in pipe.execute()]
        lead_ms = int(progress()["watermark"]) - time.time_ns() // 1_000_000
    all_of_them = sum(whole.windows[name].count for name in names)
    lost = sum(max(0, whole.windows[name].count - count) for name, count in zip(names, counts, strict=True))
    if not lost:
        run.violation("observed", "the control run without the filter lost nothing: the row proves nothing")
    return {
        "control_values": all_of_them,
        "control_values_lost": lost,
        "control_watermark_lead_days": round(lead_ms / DAY_MS, 1),
    }

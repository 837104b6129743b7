"""rebuild: a second service makes a checkpoint beside the service under load; the service goes on from it, and back."""

import os
import time
from pathlib import Path

from load.faults.row import row
from load.faults.run import STARTS_S, Figures, Run
from load.instance import Instance
from load.testbed import TOPIC, output_of, to_toml
from service.micro_batch import parse_offsets

SECOND = "tidemark-second"
DONE_S = 240.0


@row(
    "rebuild",
    "a checkpoint is made beside the service under load, and the service goes on from it, and back",
    rate=1_000,
    devices=300,
)
def rebuilt(run: Run) -> Figures:
    """The second service is killed once while it catches up; with --times 2 also back and forth again; short: one switch."""
    first = run.instance("first")
    first.start()
    run.load()
    run.until(lambda: run.observer.progress[1] >= 0, STARTS_S, "the first batch")
    second = run.instance("second", "second", _settings(run))
    second.start()
    if not run.short:
        _reaches(run, 1)
        second.kill()
        second.start()
    _reaches(run, sum(run.observer.ends(TOPIC).values()))
    run.end(second)
    pauses_s = [_switch(run, first, "checkpoint", "second")]
    writer = run.instance("on-second", "second")
    pauses_s[0] += _goes_on(run, writer)
    for number in range(run.times(1, short=1) - 1):
        for used, other in (("second", "checkpoint"), ("checkpoint", "second")):
            pause_s = _switch(run, writer, used, other)
            writer = run.instance(f"on-{other}-{number}", other)
            pauses_s.append(pause_s + _goes_on(run, writer))
    run.recover(STARTS_S)
    run.drain()
    run.end(writer)
    run.compare()
    return {"switches": len(pauses_s), "pauses_s": [round(each, 1) for each in pauses_s]}


def _settings(run: Run) -> Path:
    """The settings of a second service: everything of its own but the topics and what it computes."""
    given = run.testbed.settings
    own = {
        "service": {**given["service"], "name": "second"},
        "kafka": {**given["kafka"], "group": SECOND, "rejects": "{topic}.second-rejects"},
        "redis": {**given["redis"], "prefix": SECOND},
    }
    path = run.folder / "second.toml"
    path.write_text(to_toml({**given, **own}), encoding="utf-8")
    return path


def _reaches(run: Run, records: int) -> None:
    """Wait until the second service has published so many records."""
    with run.testbed.redis_client() as client:

        def has_published() -> bool:
            text = client.hget(f"{SECOND}:progress", "offsets")
            offsets = parse_offsets(text) if text is not None else {}
            return sum(offset for each in offsets.values() for offset in each.values()) >= records

        run.until(has_published, DONE_S, f"the second service to publish {records} records")


def _switch(run: Run, writer: Instance, used: str, other: str) -> float:
    """Stop the service and switch it to another checkpoint; how long that took, in seconds."""
    run.recover(STARTS_S)
    run.end(writer)
    began = time.monotonic()
    environ = {**os.environ, "TIDEMARK_SERVICE__CHECKPOINT": str(run.folder / used)}
    output_of(run.testbed.command("checkpoint", "switch", str(run.folder / other)), environ=environ)
    return time.monotonic() - began


def _goes_on(run: Run, writer: Instance) -> float:
    """Start the service on the other checkpoint; how long until its first batch, in seconds."""
    began, epoch = time.monotonic(), run.observer.epoch
    run.note("rebuild")
    run.note("republish")
    with run.fault("another checkpoint", restarts=True):
        writer.start()
        run.until(lambda: run.observer.progress[0] > epoch, STARTS_S, "the first batch after the switch")
    return time.monotonic() - began

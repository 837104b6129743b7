"""F8: writers' schemas change: compatible ones are read, others rejected; and code that does not fit a checkpoint is refused."""

import io
import json
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any

import fastavro

from load.faults import raw
from load.faults.by_hand import start_damaged
from load.faults.row import row
from load.faults.run import Figures, Run
from load.fleet.encode import SCHEMAS
from load.servers.schema_registry import Registry
from load.testbed import TOPIC
from service.clock import now_ms

COUNT = 1_000
USED_S = 30.0
"""Within that the records of a new schema must be published."""
CHECKPOINT_STATUS = 8
_SUBJECT = f"{TOPIC}-value"
_UNKNOWN = 999


@row("F8", "schemas change", rate=500, devices=1_000)
def schema_changes(run: Run) -> Figures:
    """One after the other, each for the same hundred devices, of which the reference knows."""
    with Registry() as registry:
        first, second = (json.loads((SCHEMAS / f"{number}.avsc").read_text()) for number in (1, 2))
        for schema in (first, second):
            registry.register(_SUBJECT, schema)
        run.testbed.first_input["reader_schema"] = 2
        run.testbed.settings["registry"] = {"url": registry.url}
        run.testbed.write_settings()
        run.begin()
        process, epoch = run.testbed.service_pid, run.observer.epoch
        fields = second["fields"]
        added = {**second, "fields": [{"name": "room", "type": "string", "default": "hall"}, *fields]}
        removed = {**second, "fields": [field for field in fields if field["name"] != "temperature"]}
        changed = {
            **second,
            "fields": [{**f, "type": "string", "default": ""} if f["name"] == "temperature" else f for f in fields],
        }
        seconds = {}
        for name, schema, value in (("added", added, 20.0), ("removed", removed, 20.0), ("changed", changed, "warm")):
            number = registry.register(_SUBJECT, schema)
            with run.fault(f"schema: {name}"):
                seconds[name] = _write(run, number, schema, value)
            run.recover()
        with run.fault("schema: unknown"):
            seconds["unknown"] = _write(run, _UNKNOWN, added, 20.0)
        run.recover()
        with run.fault("registry down"):
            registry.stop()
            seconds["known, registry down"] = _write(run, 3, added, 21.0)
            seconds["unknown, registry down"] = _write(run, _UNKNOWN + 1, added, 20.0)
            registry.start()
        run.recover()
        seen = run.testbed.metrics()
        run.require_same_query(process, epoch, "new schemas")
        refusal = _new_code(run)
        run.drain()
        run.stop()
        verdict = run.compare()
    late = {name: each for name, each in seconds.items() if each > USED_S}
    if late:
        run.violation("P8", f"published after more than {USED_S:.0f} s: {late}")
    return {
        "published_after_s": seconds,
        "refusal": refusal,
        "wrong_values": verdict.mismatches,
        "lookups": {name: value for name, value in seen.items() if name.startswith("tidemark_schema_lookups_total")},
    }


def _new_code(run: Run) -> str:
    """Another reader's schema goes on with the checkpoint; state of another layout is refused."""
    run.drain()
    run.stop()
    manifest = run.folder / "checkpoint" / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_text(json.dumps({**json.loads(content), "state_layout": 99, "application": "9.9.9"}))
    (checksum := manifest.with_name(f".{manifest.name}.crc")).unlink(missing_ok=True)
    refusal = start_damaged(run)
    if refusal is None or refusal.status != CHECKPOINT_STATUS or "9.9.9" not in refusal.text:
        run.violation("P1", f"state of another layout was not refused: {refusal}")
    manifest.write_bytes(content)
    checksum.unlink(missing_ok=True)
    run.testbed.first_input["reader_schema"] = 3
    run.testbed.write_settings()
    run.load()
    with run.fault("another reader's schema", restarts=True):
        run.start()
    run.recover()
    run.steady()
    return str(refusal)


def _write(run: Run, number: int, schema: Mapping[str, Any], value: float | str) -> float:
    """Records by a writer of that schema; seconds until they are published, or rejected."""
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    names = run.testbed.fleet.names[:100]

    def messages() -> Iterator[raw.Message]:
        for each in range(COUNT):
            out = io.BytesIO()
            reading = {"device_id": names[each % len(names)], "event_time": now_ms()}
            fastavro.schemaless_writer(out, parsed, {**reading, "temperature": value})
            yield {"value": b"\0" + struct.pack(">I", number) + out.getvalue()}

    began = time.monotonic()
    raw.send(run.testbed.broker.bootstrap, messages())
    run.wait_level(lambda: run.testbed.progress()["offsets"][TOPIC], f"the records of schema {number}")
    return round(time.monotonic() - began, 1)

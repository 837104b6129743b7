"""An hour of the stream, and backfills of the same hour from Kafka and from Parquet, value by value.

The service reads an hour of simulated time, with late and bad records, into Redis and two outlets. Then, for each source, its
closed values are removed from Redis, the outlets are given other folders, and `tidemark backfill` runs beside the service. What
the watermark had closed must be in Redis and in the new folders as before, but for the fields that name the writer, and nothing
else.
"""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.generator import Generator
from load.judge.oracle import records
from load.judge.rules import read_rules
from load.parity import values
from load.parity.values import Values
from load.servers.kafka import CREATE_TIME, LOG_APPEND_TIME
from load.testbed import ROOT, TOPIC, VIEWS, Testbed
from service.errors import SetupError

FOLDER = ROOT / ".build" / "parity"
SPAN_S = 3_600
START_MS = 1_790_000_000_000
GAP_MS = 30_000
OUTLETS = {"windows": ("view", "measure", "key", "start"), "sessions": ("device", "start")}
"""The outlets, and the key of their rows."""
RATE = 20_000
"""Records a second of the backfills: it makes several parts of the hour."""
SHOWN = 3
_WITHIN_S = 300.0
_TAKEN_WITHIN_S = 180.0
_RECORD = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


def report(seed: int, devices: int, readings: int) -> dict[str, Any]:
    """Return the report: for each source what is missing, there twice, and different; and the sums of these."""
    fleet = Fleet(seed, FleetSettings(devices=devices, rate=readings / SPAN_S))
    sections = {
        "outlets": _outlets("stream"),
        "service": {"fill_rate": RATE},
        "sessions": {"gap": f"{GAP_MS} ms", "max_duration": "10 m"},
    }
    with Testbed(FOLDER, fleet, views=VIEWS, sections=sections, topic_config=CREATE_TIME) as testbed:
        generator = Generator(testbed.broker.bootstrap, TOPIC, fleet, simulate_ms=START_MS)
        ends = {partition: end for partition, (_, end) in generator.send(readings).offsets.items()}
        testbed.start_service()
        testbed.wait_published(ends, _WITHIN_S)
        testbed.stop_service()
        watermark_ms = int(testbed.progress()["watermark"])
        before = _closed(testbed, "stream", watermark_ms)
        # From now on the broker sets the times, so that the hour is read in parts; those of its records ascend already.
        testbed.broker.configure_topic(TOPIC, LOG_APPEND_TIME)
        sources: Mapping[str, Callable[[], Sequence[str]]] = {
            "kafka": tuple,
            "parquet": lambda: ("--source", "parquet", str(_archive(testbed))),
        }
        rounds = {
            name: _round(testbed, generator, name, source, before, watermark_ms) for name, source in sources.items()
        }
    nothing = sum(not each for each in before.values())  # an empty set of values is no proof
    sums = {
        name: sum(each[name] for each in rounds.values()) + nothing for name in ("missing", "duplicates", "differences")
    }
    return {"readings": readings, "compared": {name: len(each) for name, each in before.items()}, **rounds, **sums}


def _round(
    testbed: Testbed,
    generator: Generator,
    name: str,
    source: Callable[[], Sequence[str]],
    before: Mapping[str, Values],
    watermark_ms: int,
) -> dict[str, Any]:
    """Remove the values from Redis, compute them again while the service runs, and compare."""
    with testbed.redis_client() as client:
        for (key,) in before["redis"]:
            client.delete(key)
    testbed.settings["outlets"] = _outlets(name)
    testbed.write_settings()
    testbed.start_service()
    _send(testbed, generator)  # a service is ready after its first batch
    testbed.wait_ready()
    options = source()
    began = time.monotonic()
    says = backfill(testbed, START_MS - SPAN_S * 1000, watermark_ms, options)
    seconds = time.monotonic() - began
    _wait_taken(testbed, generator)
    testbed.stop_service()
    after = _closed(testbed, name, watermark_ms)
    found = {
        what: [f"{where}: {text}" for where in before for text in compared(before[where], after[where])]
        for what, compared in (
            ("missing", values.missing),
            ("duplicates", values.duplicates),
            ("differences", values.differences),
        )
    }
    counts = {what: len(texts) for what, texts in found.items()}
    print(f"{name}: {seconds:.1f} s, {counts}", flush=True)
    examples = [text for texts in found.values() for text in texts[:SHOWN]]
    return {"seconds": round(seconds, 1), "says": says, **counts, "examples": examples}


def _outlets(name: str) -> list[dict[str, Any]]:
    return [
        {"name": each, "kind": "parquet", "path": str(FOLDER / name / each), "sessions": each == "sessions"}
        for each in OUTLETS
    ]


def _closed(testbed: Testbed, name: str, watermark_ms: int) -> dict[str, Values]:
    """Return what a watermark has closed, in Redis and in the outlets of a round."""
    files = {each: values.in_files(FOLDER / name / each, key, watermark_ms, GAP_MS) for each, key in OUTLETS.items()}
    return {"redis": values.in_redis(testbed, watermark_ms, GAP_MS), **files}


def _archive(testbed: Testbed) -> Path:
    """Write the records of the topic to a file of Parquet, as they are."""
    rows = [dict(zip(_RECORD.names, each, strict=False)) for each in records(read_rules(testbed.config), [TOPIC])]
    path = FOLDER / "archive.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=_RECORD), path)
    return path


def backfill(testbed: Testbed, since_ms: int, until_ms: int, options: Sequence[str] = ()) -> list[str]:
    """Run the command; return its output."""
    span = ["--from", str(since_ms), "--to", str(until_ms)]
    command = testbed.command("backfill", *span, *options)
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    print(ran.stdout, flush=True)
    if ran.returncode:
        what = f"tidemark backfill ended with status {ran.returncode}: {ran.stderr.strip()[-2000:]}"
        raise SetupError(what, remedy=f"Read {testbed.log}")
    return ran.stdout.splitlines()


def _wait_taken(testbed: Testbed, generator: Generator) -> None:
    """Send records, because the service takes entries between two batches, until it has taken all."""
    folder = FOLDER / "checkpoint" / "outlets"
    deadline = time.monotonic() + _TAKEN_WITHIN_S
    while any(folder.glob("corrected-*")):
        if time.monotonic() > deadline:
            what = f"The service has not taken the entries in {folder} within {_TAKEN_WITHIN_S:.0f} s"
            raise SetupError(what, remedy=f"Read {testbed.log}")
        _send(testbed, generator)


def _send(testbed: Testbed, generator: Generator) -> None:
    ends = {partition: end for partition, (_, end) in generator.send(50).offsets.items()}
    testbed.wait_published(ends, _WITHIN_S)

"""What the formats of records cost: the same readings as Avro, JSON, JSON with numbers in texts, gzip'd arrays, and Protobuf.

    python -m load.bench.formats FOLDER

A batch of `READINGS` readings is admitted `TIMES` times in each format, in turn, and thrown away. The medians of the CPU seconds
of all processes count: what else the machine does changes them least. Arrays and Protobuf go through Python
(docs/decisions/0038-protobuf-by-google-protobuf.md, 0040-arrays-are-cut-before-admission.md).
"""

import gzip
import json
import os
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from load.bench.cpu import seconds_of_tree
from load.bench.references import REPORT, reported_by
from load.fleet.encode import SCHEMAS, encoder_of
from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.protobuf import schema
from load.servers.kafka import KAFKA
from load.servers.schema_registry import Registry
from service.admission import readings
from service.settings import Settings, parse
from service.spark import session

READINGS, TIMES, ARRAY = 200_000, 5, 100
START_MS = 1_790_000_000_000
_TOPIC = "readings"
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "avro": {"schemas": str(SCHEMAS), "event_time_unit": "logical"},
    "json": {"format": "json"},
    "text": {"format": "json", "text_numbers": True},
    "arrays": {"format": "json", "array": True},
    "protobuf": {"format": "protobuf"},
}
RATIOS = (("protobuf", "avro"), ("arrays", "json"), ("text", "json"), ("json", "avro"))


def measure(folder: Path) -> dict[str, float]:
    """By a process of its own: microseconds of CPU a reading in each format, and ratios to Avro and JSON."""
    figures: dict[str, float] = reported_by(folder, __name__, str(folder))
    return figures


def _measured(folder: Path) -> dict[str, float]:
    with Registry(first_id=3) as registry:
        registry.register(f"{_TOPIC}-value", schema(), kind="PROTOBUF")
        settings = {name: _settings(folder, form, registry.url) for name, form in FORMATS.items()}
        spark = session.build(settings["avro"], master="local[2]")
        try:
            frames = {name: _frame(spark, values) for name, values in _values().items()}
            times: dict[str, list[float]] = {name: [] for name in FORMATS}
            for _ in range(TIMES + 1):
                for name, each in times.items():
                    each.append(_batch_us(frames[name], settings[name]))
        finally:
            spark.stop()
    us = {name: statistics.median(each[1:]) for name, each in times.items()}  # the first ones compile
    ratios = {f"{name}_to_{of}": us[name] / us[of] for name, of in RATIOS}
    shown = {f"{name}_us": round(each, 2) for name, each in us.items()}
    return {**shown, **{name: round(ratio, 2) for name, ratio in ratios.items()}}


def _settings(folder: Path, form: Mapping[str, Any], registry: str) -> Settings:
    document = {
        "service": {"checkpoint": str(folder / "checkpoint")},
        "kafka": {"bootstrap": "127.0.0.1:1", "topics": [_TOPIC]},
        "input": {**form, "measures": {"temperature": "temperature", "power": "power"}},
        "views": [{"name": "device", "by": ["device"], "window": "1 m"}],
        "redis": {"url": "redis://127.0.0.1:1"},
    }
    return parse({**document, **({"registry": {"url": registry}} if form.get("format") == "protobuf" else {})})


def _values() -> dict[str, Sequence[bytes]]:
    fleet = Fleet(7, FleetSettings(devices=1_000, rate=READINGS / 60, shares={}))
    made = fleet.readings(0, 60_000, START_MS)
    event_ms = START_MS + made.due_ms.astype("int64")
    values = {name: encoder_of(fleet, name).ordinary(made, event_ms) for name in ("avro", "json", "protobuf")}
    plain = values["json"]
    arrays = [gzip.compress(b"[" + b",".join(plain[n : n + ARRAY]) + b"]", 1) for n in range(0, len(plain), ARRAY)]
    text = [re.sub(rb'("(?:temperature|power)": ?)([-+.\dEe]+)', rb'\1"\2"', each) for each in plain]
    return {**values, "text": text, "arrays": arrays}


def _frame(spark: SparkSession, values: Sequence[bytes]) -> DataFrame:
    at = datetime.fromtimestamp(START_MS / 1000, UTC)
    rows = [(None, value, _TOPIC, 0, number, at, None) for number, value in enumerate(values)]
    frame = spark.createDataFrame(rows, KAFKA).repartition(2).persist()
    frame.count()
    return frame


def _batch_us(frame: DataFrame, settings: Settings) -> float:
    admitted = readings.admit(frame, settings)
    before = seconds_of_tree(os.getpid())
    admitted.write.format("noop").mode("append").save()
    return (seconds_of_tree(os.getpid()) - before) / READINGS * 1e6


if __name__ == "__main__":
    print(REPORT + json.dumps(_measured(Path(sys.argv[1]))))

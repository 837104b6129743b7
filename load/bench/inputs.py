"""What a second input costs: the same records admitted as one input of two topics, and as two inputs, a topic each.

    python -m load.bench.inputs FOLDER

A batch of `RECORDS` Avro records, half of each topic, is admitted `PAIRS` times each way, in turn, and thrown away. The medians
count. The process has a JVM of its own.
"""

import json
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from load.bench.process import figures_of
from load.bench.references import REPORT
from load.fleet.encode import SCHEMAS, AvroEncoder
from load.fleet.fleet import Fleet, FleetSettings
from load.transcripts.builders import KAFKA
from service.admission import readings
from service.settings import Settings, parse
from service.spark import session

RECORDS, PAIRS = 400_000, 5
TOPICS = ("climate", "power")
START_MS = 1_790_000_000_000
SHAPE = {"schemas": str(SCHEMAS), "event_time_unit": "logical"}


def measure(folder: Path) -> dict[str, float]:
    """By a process of its own: ms of the batch with one and with two inputs, and their ratio `batch_to_one`."""
    return figures_of(__name__, folder)


def _measured(folder: Path) -> dict[str, float]:
    one = {"input": {**SHAPE, "measures": {"temperature": "temperature", "power": "power"}}}
    measures = {TOPICS[0]: {"temperature": "temperature"}, TOPICS[1]: {"power": "power"}}
    two = {"inputs": [{**SHAPE, "name": name, "topics": [name], "measures": each} for name, each in measures.items()]}
    spark = session.build(_settings(folder, one), master="local[2]")
    try:
        frame = _records(spark)
        times: dict[str, list[float]] = {"one": [], "two": []}
        for _ in range(PAIRS + 1):
            for name, sections in (("one", one), ("two", two)):
                times[name].append(_batch_ms(frame, _settings(folder, sections)))
    finally:
        spark.stop()
    medians = {name: statistics.median(each[1:]) for name, each in times.items()}  # the first ones compile
    shown = {f"{name}_ms": round(ms, 1) for name, ms in medians.items()}
    return {**shown, "batch_to_one": round(medians["two"] / medians["one"], 3)}


def _settings(folder: Path, sections: dict[str, Any]) -> Settings:
    kafka = {"bootstrap": "127.0.0.1:1", **({"topics": list(TOPICS)} if "input" in sections else {})}
    return parse(
        {
            "service": {"checkpoint": str(folder / "checkpoint")},
            "kafka": kafka,
            **sections,
            "views": [{"name": "device", "by": ["device"], "window": "1 m"}],
            "redis": {"url": "redis://127.0.0.1:1"},
        }
    )


def _records(spark: SparkSession) -> DataFrame:
    fleet = Fleet(7, FleetSettings(devices=1_000, rate=RECORDS / 60, shares={}))
    made = fleet.readings(0, 60_000, START_MS)
    event_ms = START_MS + made.due_ms.astype("int64")
    values = AvroEncoder(fleet).ordinary(made, event_ms)
    at = datetime.fromtimestamp(START_MS / 1000, UTC)
    rows = [(None, value, TOPICS[n % 2], 0, n, at, None) for n, value in enumerate(values)]
    frame = spark.createDataFrame(rows, KAFKA).repartition(2).persist()
    frame.count()
    return frame


def _batch_ms(frame: DataFrame, settings: Settings) -> float:
    admitted = readings.admit(frame, settings)
    began = time.perf_counter()
    admitted.write.format("noop").mode("append").save()
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    print(REPORT + json.dumps(_measured(Path(sys.argv[1]))))

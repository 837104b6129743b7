"""References that the benchmark compares with: each is measured by a process of its own, with a JVM of its own."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from load.servers.child_process import spawn
from load.testbed import ROOT, TOPIC, Testbed
from service import settings
from service.admission import decode
from service.admission.schema_sources import load_set
from service.errors import TidemarkError
from service.kafka import source
from service.spark import session

REPORT = "REPORT "
"""Marks the line in which a reference's process reports."""
BARE_S = 40


def reference(testbed: Testbed, name: str) -> Any:
    """Return the measurement of a reference on the testbed's topic."""
    return reported_by(testbed.folder, __name__, name, str(testbed.config))


def reported_by(folder: Path, module: str, *arguments: str) -> Any:
    """Run a module in a process with a JVM of its own, and return what it reports. Raises TidemarkError if it reports nothing."""
    log = folder / f"{'-'.join((module, *arguments[:-1]))}.log"
    environ = {**os.environ, "SPARK_LOCAL_DIRS": str(folder / "tmp")}
    status = spawn([sys.executable, "-m", module, *arguments], cwd=ROOT, log=log, environ=environ).wait(600)
    lines = [line for line in log.read_text().splitlines() if line.startswith(REPORT)]
    if status or not lines:
        raise TidemarkError(f"{module} could not be measured (status {status}); see {log}")
    return json.loads(lines[-1].removeprefix(REPORT))


def measure_bare(config: Path) -> dict[str, float]:
    """Mean ms of the later half of the batches of a query that only counts, and of their planning."""

    def discard(frame: DataFrame, _batch: int) -> None:
        frame.write.format("noop").mode("append").save()

    chosen = settings.load(config)
    spark = session.build(chosen)
    spark.sparkContext.setLogLevel("ERROR")
    records = source.stream(spark, chosen.kafka)
    counted = records.groupBy(F.pmod(F.xxhash64("value"), F.lit(10))).count()
    writer = counted.writeStream.outputMode("update").option("checkpointLocation", str(config.parent / "bare"))
    query = writer.foreachBatch(discard).trigger(processingTime="0 seconds").start()
    query.awaitTermination(BARE_S)
    batches = [each.durationMs for each in query.recentProgress if "addBatch" in each.durationMs]
    query.stop()
    spark.stop()
    later = batches[len(batches) // 2 :]
    means = {name: sum(each[name] for each in later) / len(later) for name in ("triggerExecution", "queryPlanning")}
    return {"batch_ms": round(means["triggerExecution"], 1), "planning_ms": round(means["queryPlanning"], 1)}


def measure_floor(config: Path) -> list[float]:
    """In a process with a JVM of its own: read the topic as a batch, decode it, throw it away."""

    chosen = settings.load(config)
    spark = session.build(chosen)
    spark.sparkContext.setLogLevel("ERROR")
    options = {f"kafka.{k}": v for k, v in source.CONSUMER_OPTIONS.items()}
    rates = []
    for _ in range(3):
        began = time.monotonic()
        records = (
            spark.read.format("kafka")
            .options(**options)
            .option("kafka.bootstrap.servers", chosen.kafka.bootstrap)
            .option("subscribe", TOPIC)
            .load()
        )
        decoder = decode.Decoder(chosen.form, chosen.admission.max_bytes, load_set(chosen))
        record = records.select(decoder.record().alias("record"))
        row = record.agg(F.count("record.device_id").alias("n"), F.sum("record.temperature").alias("t")).collect()[0]
        rates.append(round(row["n"] / (time.monotonic() - began)))
    spark.stop()
    return rates


if __name__ == "__main__":
    measured = {"bare": measure_bare, "floor": measure_floor}[sys.argv[1]](Path(sys.argv[2]))
    print(REPORT + json.dumps(measured))

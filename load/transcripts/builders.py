"""The second executor: the service's own builders under Spark, on a memory of batches instead of Kafka; no Redis.

Each step is one file of records, and so one batch, and what it leads to. The output frame is what publish would get.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from load.transcripts.profile import MEASURES
from load.transcripts.transcript import Output, Record, Transcript
from service import frames, pipeline
from service.aggregation import moments
from service.reference import lookup
from service.reference.attributes import Index
from service.settings import Settings
from state import codec

_HEADER = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
KAFKA = t.StructType(
    [
        t.StructField("key", t.BinaryType()),
        t.StructField("value", t.BinaryType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField("headers", t.ArrayType(_HEADER)),
    ]
)
"""The columns of Spark's Kafka source."""


class Builders:
    """One query for a whole run. `sites` is device -> site; ends with `close`."""

    name = "builders"

    def __init__(self, spark: SparkSession, settings: Settings, folder: Path, sites: Mapping[str, str]) -> None:
        self._settings = settings
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        self._schema = to_arrow_schema(KAFKA)
        self._steps = self._offset = self._begins = 0
        self._output: dict[str, dict[str, Any]] = {}
        self._ends: dict[str, int] = {}
        self.watermark_ms = 0
        known = spark.createDataFrame(list(sites.items()), "device string, site string")
        records = spark.readStream.schema(KAFKA).parquet(str(self._input))
        look_up = lookup.Joined(known, lookup.bounds(settings))
        output = pipeline.build(records, settings, Index(known.toArrow()), 2, look_up)
        self._query = (
            output.writeStream.outputMode("update")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .foreachBatch(self._take)
            .start()
        )

    def close(self) -> None:
        """Stop the query."""
        self._query.stop()

    def begin(self, _transcript: Transcript) -> None:
        """Rejects are numbered from here."""
        self._begins = self._offset
        self._output = {item: fields for item, fields in self._output.items() if not item.startswith("reject ")}

    def step(self, _transcript: Transcript, records: tuple[Record, ...]) -> Output:
        """Everything there is after these records, of all transcripts."""
        rows = []
        for record in records:
            at = datetime.fromtimestamp(record.at_ms / 1000, UTC)
            rows.append((None, record.value, "readings", 0, self._offset, at, None))
            self._offset += 1
        columns = [
            pa.array(column, each.type) for column, each in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        part = self._input / f".{self._steps:06d}"
        pq.write_table(pa.Table.from_arrays(columns, schema=self._schema), part)
        part.rename(self._input / f"{self._steps:06d}.parquet")
        self._steps += 1
        self._query.processAllAvailable()
        times = [each.eventTime.get("watermark") for each in self._query.recentProgress]
        marks = [datetime.fromisoformat(text) for text in times if text]
        self.watermark_ms = max([self.watermark_ms, *(round(mark.timestamp() * 1000) for mark in marks)])
        for item, end in self._ends.items():
            self._output[item]["final"] = end <= self.watermark_ms
        return {item: dict(fields) for item, fields in self._output.items()}

    def _take(self, frame: DataFrame, _batch: int) -> None:
        for row in frame.toArrow().to_pylist():
            if row["kind"] == frames.WINDOW:
                arrays = [pa.array([row[name]]).to_numpy() for name in ("count", *frames.MOMENTS)]
                _, mean, stddev = moments.finish(*arrays)
                item = f"window {row['view']}/{row['measure']}/{row['key']}/{row['start']}"
                shown = {"count": row["count"], "mean": float(mean[0]), "min": row["min"], "max": row["max"]}
                self._output[item] = {**shown, "stddev": float(stddev[0]), "final": False}
                self._ends[item] = row["end"]
            elif row["kind"] == frames.SESSIONS:
                self._take_changes(row["payload"])
            elif row["kind"] == frames.REJECT:
                number = row["reject"]["offset"] - self._begins + 1
                self._output[f"reject {number}"] = {"reason": row["reject"]["reason"]}

    def _take_changes(self, payload: bytes) -> None:
        changes = codec.unpack_changes(payload)
        for each in changes.sessions.to_pylist():
            item = f"session {each['device']}/{each['start']}"
            if each["state"] == "merged":
                self._output.pop(item, None)
            else:
                self._output[item] = {name: each[name] for name in ("state", "count", "last", "reason")}
        for each in changes.devices.to_pylist():
            values = {name: each[f"{name}.value"] for name in MEASURES if each[f"{name}.value"] is not None}
            self._output[f"device {each['device']}"] = {
                "status": each["status"],
                "last_seen": each["last_seen"],
                **values,
            }

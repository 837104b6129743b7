"""Records from an archive of the topics in place of Kafka: files with the columns of Spark's Kafka source.

    topic string, partition int, offset bigint, timestamp timestamp (the broker's), key binary (may be absent), value binary

    spark.read.format("kafka")...load().write.parquet(path)      writes one; .format("avro") and .json(path) as well

In JSON lines bytes are base64, and times ISO 8601. A record that is there twice counts once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from service.checkpoint import skips
from service.errors import SettingsError
from service.kafka import topics
from service.micro_batch import MicroBatch, ranges
from service.recompute.decisions import Decisions
from service.recompute.engine import Recomputation, Span
from service.recompute.sources import KafkaRecords, Part, Reach, halves, without
from service.settings import Settings
from service.spark.files import Files

KINDS = {"parquet": "parquet", "avro": "avro", "jsonl": "json"}
"""Spark's names of the formats."""
COLUMNS = {"topic": "string", "partition": "int", "offset": "bigint", "timestamp": "timestamp", "value": "binary"}
_PLACE = ["topic", "partition", "offset"]
_RANGE = pa.schema(
    [("its_topic", pa.string()), ("its_partition", pa.int32()), ("its_begin", pa.int64()), ("its_end", pa.int64())]
)
_HEADERS = "array<struct<key: string, value: binary>>"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an archive is: its format, of KINDS, and the path of a file or folder."""

    kind: str
    path: str

    def __str__(self) -> str:
        return f"--source {self.kind} {self.path}"


@dataclass(frozen=True, slots=True)
class Archive:
    """The records of an archive, by spans of event time.

    `frame` has the columns of the Kafka source. `covers` is the broker time from which and up to which it has the records of
    every partition; 0 if it has the first records that the checkpoint has read, None if the last ones.
    """

    place: Place
    frame: DataFrame
    covers: tuple[int, int | None]
    settings: Settings
    reach: Reach

    def parts(self, span: Span, rate: int, *, oldest_first: bool) -> Iterator[Span]:
        """Cut a span as `KafkaRecords.parts` does."""
        return halves(
            span, self.reach.after_ms, rate, lambda part: self._within(part).count(), oldest_first=oldest_first
        )

    def read(self, run: Recomputation, span: Span, decided: Decisions) -> Part:
        """Return the admitted readings of values that begin in a span."""
        read, begin_ms, from_ms = self._within(span).dropDuplicates(_PLACE), self._begin_ms(span), self.covers[0]
        ahead_ms = self.settings.admission.max_ahead_ms
        whole_from_ms = begin_ms + ahead_ms if begin_ms >= from_ms else from_ms + ahead_ms + 1
        records, lacking = self._holes(read)
        admitted = decided.admit(run, without(read, self.settings, decided.refused), whole_from_ms)
        return Part(*admitted, records, lacking)

    def ends_ms(self) -> int | None:
        """Return the event time before which values begin that lack no later record; None if all do."""
        return None if self.covers[1] is None else self.covers[1] - self.reach.after_ms

    def _holes(self, read: DataFrame) -> tuple[int, tuple[str, ...]]:
        """Return the number of records, and the offsets between them that the archive lacks, for people."""
        counts = read.groupBy("topic", "partition").agg(
            F.count("*").alias("records"), F.min("offset").alias("first"), F.max("offset").alias("last")
        )
        rows = sorted(counts.collect())
        lacking = []
        if topics.have_broker_times(self.settings.kafka):  # else the records of a span of time are not neighbours
            for topic, partition, records, first, last in rows:
                if many := last - first + 1 - records:
                    place = f"{topic}[{partition}]@{first} to {last}"
                    lacking.append(
                        f"{many} offsets of {place}: they have no record, were skipped, or lack in {self.place.path}"
                    )
        return sum(row["records"] for row in rows), tuple(lacking)

    def _begin_ms(self, span: Span) -> int:
        return max(0, span[0] - self.reach.before_ms)

    def _within(self, span: Span) -> DataFrame:
        begin, until = (F.timestamp_millis(F.lit(ms)) for ms in (self._begin_ms(span), span[1] + self.reach.after_ms))
        return self.frame.where((F.col("timestamp") >= begin) & (F.col("timestamp") < until))


Records: TypeAlias = KafkaRecords | Archive
"""Where the records of the past are."""


def frame(spark: SparkSession, settings: Settings, committed: MicroBatch, place: Place) -> DataFrame:
    """Return the records of an archive that the checkpoint has read, without skipped ones. Raises SettingsError."""
    reader = spark.read.format(KINDS[place.kind])
    if place.kind == "jsonl":
        headers = {"headers": _HEADERS} if settings.needs_headers else {}
        schema = ", ".join(f"{name} {kind}" for name, kind in {**COLUMNS, "key": "binary", **headers}.items())
        reader = reader.schema(schema).option("mode", "FAILFAST")
    try:
        found = reader.load(place.path)
    except AnalysisException as error:
        what = f"{place}: {str(error).splitlines()[0]}"
        raise SettingsError(what, remedy=f"Name a file or folder of {place.kind}") from error
    if lacking := [name for name in COLUMNS if name not in found.columns]:
        what = f"{place}: the column {lacking[0]} is lacking"
        raise SettingsError(what, remedy=f"An archive has the columns {', '.join(COLUMNS)}, and perhaps key")
    if settings.needs_headers and "headers" not in found.columns:
        what = f"{place}: the column headers is lacking, and a value of the settings comes from a header"
        raise SettingsError(what, remedy=f"Write the archive with headers, as {_HEADERS}")
    key = F.col("key").cast("binary") if "key" in found.columns else F.lit(None).cast("binary")
    columns = [F.col(name).cast(kind).alias(name) for name, kind in COLUMNS.items()]
    if settings.needs_headers:
        columns.append(F.col("headers").cast(_HEADERS).alias("headers"))
    found = found.select(*columns, key.alias("key"))
    if nameless := found.where(F.greatest(*[F.col(name).isNull() for name in (*_PLACE, "timestamp")])).count():
        what = f"{place}: {nameless} records lack topic, partition, offset or timestamp"
        raise SettingsError(what, remedy=f"Write the archive with the columns {', '.join(COLUMNS)}")
    spans = skips.read(Files(spark, settings.service.checkpoint))
    return _read(found, committed, spans)


def _read(records: DataFrame, committed: MicroBatch, spans: Sequence[skips.Span]) -> DataFrame:
    """Return the records that the checkpoint has read.

    By a join: a predicate would nest a term for each partition, of which there may be thousands.
    """
    stretches = skips.stretches(committed.start, committed.end, skips.pending(committed.start, spans))
    rows = [dict(zip(_RANGE.names, each, strict=True)) for begin, end, _ in stretches for each in ranges(begin, end)]
    read = F.broadcast(records.sparkSession.createDataFrame(pa.Table.from_pylist(rows, _RANGE)))
    is_place = (F.col("topic") == F.col("its_topic")) & (F.col("partition") == F.col("its_partition"))
    is_in = (F.col("offset") >= F.col("its_begin")) & (F.col("offset") < F.col("its_end"))
    return records.join(read, is_place & is_in, "left_semi")


def covered(frame: DataFrame, committed: MicroBatch, place: Place) -> tuple[int, int | None]:
    """Return the broker time from which and up to which an archive has every partition that the checkpoint has read.

    Raises SettingsError if it lacks a partition.
    """
    ms = F.unix_millis("timestamp")
    rows = frame.groupBy("topic", "partition").agg(
        F.min("offset").alias("first"), F.max("offset").alias("last"), F.min(ms).alias("from"), F.max(ms).alias("to")
    )
    found: dict[tuple[str, int], Row] = {(row["topic"], row["partition"]): row for row in rows.collect()}
    begins, ends = [0], list[int]()
    for topic, partition, start, end in ranges(committed.start, committed.end):
        if start >= end:
            continue
        if (topic, partition) not in found:
            what = f"{place}: has no record of {topic}[{partition}]"
            raise SettingsError(what, remedy="Name an archive of all partitions that the service reads")
        row = found[topic, partition]
        if row["first"] > start:
            begins.append(int(row["from"]))
        if row["last"] + 1 < end:
            ends.append(int(row["to"]))
    return max(begins), min(ends, default=None)

"""Rebuild: what had been published, as rows of frames.OUTPUT once more, from where it still is.

    open windows, open sessions, devices    the state of the last committed batch
    final windows, closed sessions          Kafka, by a batch run of the stream's own builders up to that batch's offsets

Admission depends on the record and the broker's time for it, so the run decides as the stream did. It differs from the
stream in three ways. Attributes are those of the reference in use now. Readings that the stream dropped because their
partition was far behind its peers are counted in. And of what Kafka has deleted nothing can be told: see `Source`.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from service import pipeline
from service.admission import readings
from service.admission.schemas import Known
from service.aggregation import sessions, windows
from service.cut import Cut, Offsets
from service.errors import CheckpointError, SourceError
from service.frames import MOMENTS, RUNS, SESSIONS, WINDOW
from service.kafka import clients
from service.kafka.clients import TIMEOUT_S
from service.kafka.source import with_options
from service.reference.attributes import Attributes
from service.reference.lookup import LookUp
from service.settings import Settings
from state import codec, history, reader
from state.layout import Changes, status_schema
from state.rules import Rules
from state.table import present

_AGGREGATION = "stateStoreSave"
# The windows' state behind its key; its own names repeat (Spark calls every sum "sum"), its order is windows.aggregate's.
_SUMS = ", ".join(f"{name}: double" for name in MOMENTS)
_STATE = f"struct<count: bigint, {_SUMS}, min: double, max: double, first: bigint, last: bigint>"


def open_values(spark: SparkSession, settings: Settings, batch: int) -> DataFrame:
    """Open windows and sessions, and the devices, as the checkpoint's state has them after `batch`.

    Raises CheckpointError when the checkpoint has not the operators that this service makes.
    """
    checkpoint = settings.service.checkpoint
    found = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "operatorName").distinct()
    ids = [row.operatorId for row in found.collect() if row.operatorName == _AGGREGATION]
    if len(ids) != 1:
        what = f"{checkpoint} has {len(ids)} aggregations, not one"
        raise CheckpointError(what, remedy="The checkpoint is another program's: name an empty folder")
    source = spark.read.format("statestore").option("operatorId", ids[0]).option("batchId", batch)
    rows = source.load(checkpoint).select("key.*", F.col("value").cast(_STATE).alias("value"))
    opened = windows.published(rows, "value.*")
    # A view that was removed, or was of another length, stays in the state until the watermark has passed it.
    wanted = [
        (F.col("view") == view.name)
        & F.col("measure").isin(*settings.view_measures(view))
        & (F.col("end") - F.col("start") == view.window_ms)
        for view in settings.views
    ]
    buckets = reader.buckets(spark, checkpoint, batch)
    states = buckets.select("state").mapInArrow(_Present(sessions.rules(settings)), "payload binary")
    return pipeline.widen(opened.where(reduce(lambda a, b: a | b, wanted))).union(
        pipeline.widen(states.select(F.lit(SESSIONS).cast("tinyint").alias("kind"), "payload"))
    )


@dataclass(frozen=True, slots=True)
class Source:
    """The part of the topics from which closed values can be told.

    `begin` and `end` are offsets by topic and partition, half open. Every admitted reading with an event time from
    `whole_from_ms` on is in them, so that windows and sessions that begin later are whole; 0 when nothing is lacking.
    `lacking` names what is gone, for people.
    """

    begin: Offsets
    end: Offsets
    whole_from_ms: int
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """What Kafka says of a partition: the oldest offset it has and the broker's time for it (None: it has no record),
    and the first offset whose time is not below the one asked for (None: all are)."""

    oldest: int
    oldest_ms: int | None
    reached: int | None


def needed_from_ms(settings: Settings, watermark_ms: int) -> int:
    """The broker's time from which on records can matter to a closed value that has not expired."""
    parts = settings.sessions
    oldest = [view.retain_ms + view.window_ms for view in settings.views]
    # A session lives for `retain` after it closed, `gap` after its last reading; the gap before it must be seen, too.
    oldest.append(parts.retain_ms + parts.max_duration_ms + 2 * parts.gap_ms)
    return max(0, watermark_ms - max(oldest) - settings.admission.max_ahead_ms)


def source(committed: Cut, found: dict[tuple[str, int], Partition], from_ms: int, max_ahead_ms: int) -> Source:
    """What to read of each partition of `committed` (whose start is the checkpoint's), and from when on it is whole.

    Records before the checkpoint's start were never published. Those that Kafka has deleted are not younger than the
    oldest one that is left (LogAppendTime), nor are those skipped for being below `from_ms`; an admitted reading is at
    most `max_ahead_ms` ahead of its record's time.
    """
    begin: dict[str, dict[int, int]] = {}
    whole_from_ms, lacking = 0, []
    for topic, ends in committed.end.items():
        for partition, end in ends.items():
            kafka = found[topic, partition]
            first = committed.start.get(topic, {}).get(partition, 0)
            chosen = first
            if kafka.oldest > first:
                chosen = kafka.oldest
                lacking.append(f"{topic}[{partition}]@{first} to {kafka.oldest}")
                # Of a partition without a record nobody knows how young the deleted ones were.
                gone_ms = committed.watermark_ms if kafka.oldest_ms is None else kafka.oldest_ms
                whole_from_ms = max(whole_from_ms, gone_ms + max_ahead_ms + 1)
            reached = end if kafka.reached is None else kafka.reached
            if reached > chosen:
                chosen = reached
                whole_from_ms = max(whole_from_ms, from_ms + max_ahead_ms)
            begin.setdefault(topic, {})[partition] = min(chosen, end)
    return Source(begin, committed.end, whole_from_ms, tuple(lacking))


def ask(settings: Settings, committed: Cut, from_ms: int) -> dict[tuple[str, int], Partition]:
    """What `source` has to know of the partitions; raises SourceError when Kafka does not answer."""
    consumer = clients.consumer(settings.kafka, small=True)
    try:
        return {
            (topic, partition): _ask(consumer, TopicPartition(topic, partition), from_ms)
            for topic, partitions in committed.end.items()
            for partition in partitions
        }
    except KafkaException as error:
        raise clients.unreachable(settings.kafka, error) from error
    finally:
        consumer.close()


def _ask(consumer: Consumer, place: TopicPartition, from_ms: int) -> Partition:
    oldest, end = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
    [at] = consumer.offsets_for_times([TopicPartition(place.topic, place.partition, from_ms)], timeout=TIMEOUT_S)
    if at.error is not None:
        raise KafkaException(at.error)
    oldest_ms = None
    if 0 < oldest < end:
        consumer.assign([TopicPartition(place.topic, place.partition, oldest)])
        message = consumer.poll(TIMEOUT_S)
        consumer.unassign()
        error = message.error() if message is not None else None
        if message is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
            what = f"{place.topic}[{place.partition}]@{oldest} could not be read within {TIMEOUT_S:.0f} s"
            raise SourceError(what, remedy="It is tried again; check the brokers")
        if error is None:  # else there are only offsets without a record
            oldest_ms = int(message.timestamp()[1])
    return Partition(oldest, oldest_ms, at.offset if 0 <= at.offset < end else None)


def records(
    spark: SparkSession, settings: Settings, chosen: Source, options: Mapping[str, str] | None = None
) -> DataFrame:
    """The chosen part of the topics, as `source.stream` gives it to the stream; `options` are more of the reader's."""
    places = {topic: sorted(partitions) for topic, partitions in chosen.end.items()}
    return (
        with_options(spark.read.format("kafka"), settings.kafka)
        .option("failOnDataLoss", "true")  # whatever the stream accepts: a value that lacks readings is not told
        .option("assign", json.dumps(places))
        .option("startingOffsets", _json(chosen.begin))
        .option("endingOffsets", _json(chosen.end))
        .options(**(options or {}))
        .load()
    )


@dataclass(frozen=True, slots=True)
class Closed:
    """`frame` has the rows; once they have been computed, `untold` is how many windows and sessions could not be told."""

    frame: DataFrame
    _untold: tuple[Observation, Observation]

    @property
    def untold(self) -> tuple[int, int]:
        windows, sessions = (int(each.get["untold"] or 0) for each in self._untold)
        return windows, sessions


def closed_values(
    found: DataFrame,
    settings: Settings,
    attributes: Attributes | None,
    look_up: LookUp | None,
    watermark_ms: int,
    whole_from_ms: int,
    tasks: int,
    late: DataFrame | None = None,
    schemas: Known | None = None,
) -> Closed:
    """Final windows and closed sessions, those that have not expired, of Kafka records; `tasks` run at a time at most.

    `attributes`, `look_up` and `schemas` are as for `pipeline.build`, `watermark_ms` says what is closed, `whole_from_ms` what
    can be told.
    `late` are rows of `readings.admit` that were rejected as late, and that values have all the same: see corrections.
    """
    admitted = readings.admit(found, settings, look_up, schemas=schemas).where("reject is null")
    if late is not None:
        admitted = admitted.unionByName(late)
    admitted = admitted.coalesce(tasks)
    folded = pipeline.fold(admitted, settings, attributes).repartition(tasks, "bucket")
    # The count names every column, so that both branches read the same shuffle: see service/pipeline.py.
    shared = pipeline.observe(folded)
    alive = [(F.col("view") == view.name) & (F.col("last") > watermark_ms - view.retain_ms) for view in settings.views]
    final = (
        windows.aggregate(shared.where(F.col("kind") == WINDOW), settings)
        .where(F.col("end") <= watermark_ms)
        .where(reduce(lambda a, b: a | b, alive))
    )
    whole = F.col("start") >= whole_from_ms
    lacking = Observation(), Observation()
    told = final.observe(lacking[0], F.count_if(~whole).alias("untold")).where(whole)
    step = _Closed(sessions.rules(settings), watermark_ms, whole_from_ms)
    runs = shared.where(F.col("kind") == RUNS).select("bucket", "first", "payload")
    ended = runs.sortWithinPartitions("bucket", "first").mapInArrow(step, "count bigint, payload binary")
    counted = ended.observe(lacking[1], F.sum("count").alias("untold"))
    frame = pipeline.widen(told).union(
        pipeline.widen(counted.select(F.lit(SESSIONS).cast("tinyint").alias("kind"), "payload"))
    )
    return Closed(frame.coalesce(tasks), lacking)


@dataclass(frozen=True, slots=True)
class _Present:
    """States in, everything in them as changes out."""

    rules: Rules

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for state in batch["state"].to_pylist():
                yield _payloads([codec.pack_changes(present(codec.decode(state), self.rules))])


@dataclass(frozen=True, slots=True)
class _Closed:
    """(bucket, first, payload of runs), sorted by the first two, in; closed sessions, and how many are untold, out."""

    rules: Rules
    watermark_ms: int
    whole_from_ms: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch), strict=True))
        for _, group in itertools.groupby(rows, key=lambda row: row[0]):
            tables = ((first, codec.unpack_runs(payload)) for _, first, payload in group)
            found, untold = history.closed(tables, self.watermark_ms, self.whole_from_ms, self.rules)
            changes = Changes(found, status_schema(self.rules.measures).empty_table(), 0)
            yield _payloads([codec.pack_changes(changes)], count=[untold])


def _payloads(payloads: list[bytes], **counts: list[int]) -> pa.RecordBatch:
    columns: dict[str, Any] = {name: pa.array(values, pa.int64()) for name, values in counts.items()}
    return pa.RecordBatch.from_pydict({**columns, "payload": pa.array(payloads, pa.binary())})


def _json(offsets: Offsets) -> str:
    return json.dumps({t: {str(p): o for p, o in partitions.items()} for t, partitions in offsets.items()})

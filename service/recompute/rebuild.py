"""Rebuild: what had been published, as rows of row_schemas.OUTPUT once more, from where it still is.

    open windows, open sessions, devices    the state of the last committed batch
    final windows, closed sessions          Kafka, by a batch run of the stream's own builders up to that batch's offsets

Admission depends on the record and the broker's time for it, so the run decides as the stream did. It differs from the
stream in three ways. Attributes are those of the reference in use now. Readings that the stream rejected for being behind the
watermark are counted in, unless the caller names them. And of what Kafka has deleted nothing can be told: see `Source`.
"""

import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from service.admission import readings
from service.admission.schema_sources import SchemaSet
from service.aggregation import sessions
from service.checkpoint import skips
from service.errors import SourceError
from service.kafka import clients
from service.kafka.clients import TIMEOUT_S
from service.kafka.source import ONE_AT_A_TIME, with_options
from service.micro_batch import MicroBatch, Offsets
from service.pipeline import builder
from service.reference.attributes import Attributes
from service.reference.lookup import LookUp
from service.rejects.reject_log import Coordinates
from service.row_schemas import CHANGES, OUTPUT, PARTS, RUNS
from service.settings import Settings
from service.spark.files import Files
from state import codec, history, reader, windows
from state.columns import ints
from state.history import Payload
from state.layout import Changes, status_schema
from state.rules import Rules
from state.store import restore
from state.table import present


def open_values(spark: SparkSession, settings: Settings, committed: MicroBatch) -> DataFrame:
    """Open windows and sessions, and the devices, as the checkpoint's state has them after a batch: row_schemas.OUTPUT."""
    states = reader.buckets(spark, settings.service.checkpoint, committed.batch).select("stored")
    # A view that was removed, or was of another length, stays in the state until the watermark has passed it.
    wanted = {
        (view.name, measure): view.window_ms for view in settings.views for measure in settings.view_measures(view)
    }
    return states.mapInArrow(_Present(sessions.rules(settings), wanted), OUTPUT)


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


def source(committed: MicroBatch, found: dict[tuple[str, int], Partition], from_ms: int, max_ahead_ms: int) -> Source:
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


def ask(settings: Settings, committed: MicroBatch, from_ms: int) -> dict[tuple[str, int], Partition]:
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
    spark: SparkSession,
    settings: Settings,
    chosen: Source,
    options: Mapping[str, str] | None = None,
    refused: Collection[Coordinates] = (),
) -> DataFrame:
    """The chosen part of the topics, as `source.stream` gives it to the stream, without those `refused` (late.Log), and without
    what was skipped; `options` are more of the reader's."""
    places = {topic: sorted(partitions) for topic, partitions in chosen.end.items()}
    spans = skips.pending(chosen.begin, skips.read(Files(spark, settings.service.checkpoint)))

    def between(begin: Offsets, end: Offsets, careful: bool) -> DataFrame:
        return (
            with_options(spark.read.format("kafka"), settings.kafka)
            .option("failOnDataLoss", "true")  # whatever the stream accepts: a value that lacks readings is not told
            .option("assign", json.dumps(places))
            .option("startingOffsets", _json(begin))
            .option("endingOffsets", _json(end))
            .options(**(options or {}), **(ONE_AT_A_TIME if careful else {}))
            .load()
        )

    parts = [between(*part) for part in skips.stretches(chosen.begin, chosen.end, spans)]
    read = reduce(DataFrame.union, parts)
    if not refused:
        return read
    names = ["topic", "partition", "offset"]
    columns = zip(*((place.topic, place.partition, place.offset) for place in refused), strict=True)
    types = pa.string(), pa.int32(), pa.int64()
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return read.join(F.broadcast(spark.createDataFrame(pa.Table.from_arrays(arrays, names=names))), names, "left_anti")


@dataclass(frozen=True, slots=True)
class Closed:
    """`frame` has rows of row_schemas.OUTPUT. Once they have been computed, `unrecoverable` is how many windows and sessions
    could not be told."""

    frame: DataFrame
    _unrecoverable: Observation

    @property
    def unrecoverable(self) -> tuple[int, int]:
        return int(self._unrecoverable.get["windows"] or 0), int(self._unrecoverable.get["sessions"] or 0)


def closed_values(
    found: DataFrame,
    settings: Settings,
    attributes: Attributes | None,
    look_up: LookUp | None,
    watermark_ms: int,
    whole_from_ms: int,
    tasks: int,
    late: DataFrame | None = None,
    schemas: SchemaSet | None = None,
) -> Closed:
    """Final windows and closed sessions, those that have not expired, of Kafka records; `tasks` run at a time at most.

    `attributes`, `look_up` and `schemas` are as for `pipeline.build`, `watermark_ms` says what is closed, `whole_from_ms` what
    can be told.
    `late` are rows of `readings.admit` that were rejected as late, and that values have all the same: see corrections.
    """
    admitted = readings.admit(found, settings, look_up, schemas=schemas)
    if late is not None:
        admitted = admitted.unionByName(late)
    folded = builder.fold(admitted.coalesce(tasks), settings, attributes)
    kept = folded.where(F.col("kind").isin(PARTS, RUNS)).select("bucket", "first", "kind", "payload")
    sorted_rows = kept.repartition(tasks, "bucket").sortWithinPartitions("bucket", "first", "kind", "payload")
    alive = {view.name: watermark_ms - view.retain_ms for view in settings.views}
    step = _Closed(sessions.rules(settings), watermark_ms, whole_from_ms, alive)
    unrecoverable = Observation()
    told = sorted_rows.mapInArrow(step, "windows bigint, sessions bigint, kind tinyint, payload binary")
    counted = told.observe(unrecoverable, F.sum("windows").alias("windows"), F.sum("sessions").alias("sessions"))
    return Closed(counted.select("kind", "payload"), unrecoverable)


@dataclass(frozen=True, slots=True)
class _Present:
    """States in, everything in them as changes out; of the windows those of `wanted`, their length by view and measure."""

    rules: Rules
    wanted: Mapping[tuple[str, str], int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for stored in batch["stored"]:
                changes = present(restore(stored.as_py()), self.rules)
                yield _changes(replace(changes, windows=self._served(changes.windows)))

    def _served(self, found: pa.Table) -> pa.Table:
        names = zip(found["view"].to_pylist(), found["measure"].to_pylist(), strict=True)
        length = np.array([self.wanted.get(pair, -1) for pair in names], np.int64)
        chosen = ints(found, "end") - ints(found, "start") == length
        return windows.compact(found.filter(pa.array(chosen)))


@dataclass(frozen=True, slots=True)
class _Closed:
    """(bucket, first, kind, payload), sorted by all of them, in; what is closed, and how much is unrecoverable, out.

    Windows of a view whose last reading is not above `alive` have expired.
    """

    rules: Rules
    watermark_ms: int
    whole_from_ms: int
    alive: Mapping[str, int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch), strict=True))
        for _, group in itertools.groupby(rows, key=lambda row: row[0]):
            payloads = (_payload(first, kind, payload) for _, first, kind, payload in group)
            for each in history.closed(payloads, self.watermark_ms, self.whole_from_ms, self.rules):
                floor = np.array([self.alive[view] for view in each.windows["view"].to_pylist()], np.int64)
                living = each.windows.filter(pa.array(ints(each.windows, "last") > floor))
                told = windows.compact(living.filter(pa.array(ints(living, "start") >= self.whole_from_ms)))
                changes = Changes(each.sessions, status_schema(()).empty_table(), told)
                yield _changes(changes, windows=living.num_rows - told.num_rows, sessions=each.unrecoverable)


def _payload(first_ms: int, kind: int, payload: bytes) -> Payload:
    if kind == PARTS:
        return Payload(first_ms, parts=codec.unpack(b"W", payload))
    return Payload(first_ms, runs=codec.unpack(b"R", payload))


def _changes(changes: Changes, **counts: int) -> pa.RecordBatch:
    columns: dict[str, Any] = {name: pa.array([count], pa.int64()) for name, count in counts.items()}
    columns |= {"kind": pa.array([CHANGES], pa.int8()), "payload": pa.array([codec.pack_changes(changes)], pa.binary())}
    return pa.RecordBatch.from_pydict(columns)


def _json(offsets: Offsets) -> str:
    return json.dumps({t: {str(p): o for p, o in partitions.items()} for t, partitions in offsets.items()})

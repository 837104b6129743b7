"""Compute published values again, as rows of row_schemas.OUTPUT.

    open windows, open sessions, devices    from the state of the last committed batch
    final windows, closed sessions          from Kafka, by a batch run of the stream's own steps up to that batch's offsets

Admission depends only on the record, its broker time and the attributes that its device had (service/reference/history.py). So
the batch run admits what the stream admitted, with two exceptions. Readings that the stream rejected for being behind the
watermark are admitted, unless the caller names them. Records that Kafka has deleted are missing: see `Source`.
"""

import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from service.admission import expansion, readings
from service.admission.arrays import NO_INDEX
from service.admission.column_values import Known
from service.admission.schema_sources import SchemaSets
from service.aggregation import sessions
from service.checkpoint import skips, topic_log
from service.errors import SourceError
from service.kafka import clients
from service.kafka.clients import TIMEOUT_S
from service.kafka.source import ONE_AT_A_TIME, with_options
from service.micro_batch import MicroBatch, Offsets, format_offsets
from service.pipeline import builder
from service.reference.attributes import Attributes
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
    """Return open windows, open sessions and devices of the checkpoint's state after a batch, as row_schemas.OUTPUT."""
    states = reader.buckets(spark, settings.service.checkpoint, committed.batch).select("stored")
    # Windows of a removed view, or of its former length, stay in the state until the watermark passes them.
    lengths_ms = {
        (view.name, measure): view.window_ms for view in settings.views for measure in settings.view_measures(view)
    }
    return states.mapInArrow(_Present(sessions.rules(settings), lengths_ms), OUTPUT)


_INDEX = "refused_index"

Span = tuple[int, int]
"""Event time in ms, half open."""


@dataclass(frozen=True, slots=True)
class Source:
    """The offsets from which closed values are computed.

    `begin` and `end` are offsets by topic and partition, half open. They contain every admitted reading with an event time
    from `whole_from_ms` on, so windows and sessions that begin later lack no reading; 0 when Kafka has all records.
    `lacking` describes deleted offsets and topics that are not read any more, for people.
    """

    begin: Offsets
    end: Offsets
    whole_from_ms: int
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition in Kafka: its oldest offset, the broker time of that record (None: no record), and the first offset whose
    broker time is not below the requested time (None: no such offset)."""

    oldest: int
    oldest_ms: int | None
    reached: int | None


def needed_from_ms(settings: Settings, watermark_ms: int) -> int:
    """The earliest broker time of a record that can belong to a closed value that has not expired."""
    rules = settings.sessions
    ages = [view.retain_ms + view.window_ms for view in settings.closing_views]
    # A session closes `gap` after its last reading and is kept for `retain`. The gap before it must be readable, too.
    ages.append(rules.retain_ms + rules.max_duration_ms + 2 * sessions.longest_gap_ms(settings))
    return max(0, watermark_ms - max(ages) - settings.admission.max_ahead_ms)


def source(
    committed: MicroBatch,
    partitions: Mapping[tuple[str, int], Partition],
    from_ms: int,
    max_ahead_ms: int,
    left: Mapping[str, int] | None = None,
) -> Source:
    """The offsets to read for values from `from_ms` on; the start of `committed` is the checkpoint's.

    `left` are topics that are not read any more, with the newest event time of their readings.

    Records before the checkpoint's start were never published. Records that Kafka has deleted are not younger than the
    oldest remaining one (LogAppendTime). Skipped records are below `from_ms`. An admitted reading is at most `max_ahead_ms`
    ahead of its record's time.
    """
    begin: dict[str, dict[int, int]] = {}
    left = left or {}
    whole_from_ms = max((newest_ms + 1 for newest_ms in left.values()), default=0)
    lacking = [f"{topic}, which the settings no longer have" for topic in left]
    for topic, ends in committed.end.items():
        for partition, end in ends.items():
            kafka = partitions[topic, partition]
            first = committed.start.get(topic, {}).get(partition, 0)
            if kafka.oldest > first:
                lacking.append(f"{topic}[{partition}]@{first} to {kafka.oldest}, which Kafka has deleted")
                first = kafka.oldest
                # Without a remaining record the age of the deleted ones is unknown.
                deleted_ms = committed.watermark_ms if kafka.oldest_ms is None else kafka.oldest_ms
                whole_from_ms = max(whole_from_ms, deleted_ms + max_ahead_ms + 1)
            reached = end if kafka.reached is None else kafka.reached
            if reached > first:
                first = reached
                whole_from_ms = max(whole_from_ms, from_ms + max_ahead_ms)
            begin.setdefault(topic, {})[partition] = min(first, end)
    return Source(begin, committed.end, whole_from_ms, tuple(lacking))


def readable(
    spark: SparkSession, settings: Settings, committed: MicroBatch, from_ms: int, until_ms: int | None = None
) -> Source:
    """`source` for the partitions as they are in Kafka now; raises SourceError when Kafka does not answer, CheckpointError.

    With `until_ms`, without the records whose broker time is not below it. The brokers must set that time (LogAppendTime).
    """
    left = topic_log.read(Files(spark, settings.service.checkpoint)).missing_until_ms(committed.end)
    consumer = clients.consumer(settings.kafka, small=True)
    try:
        partitions = {
            (topic, partition): _partition(consumer, TopicPartition(topic, partition), from_ms)
            for topic, ends in committed.end.items()
            for partition in ends
        }
        if until_ms is not None:
            committed = replace(committed, end=_ends(consumer, committed.end, until_ms))
    except KafkaException as error:
        raise clients.unreachable(settings.kafka, error, consumer) from error
    finally:
        consumer.close()
    return source(committed, partitions, from_ms, settings.admission.max_ahead_ms, left)


def _ends(consumer: Consumer, ends: Offsets, until_ms: int) -> dict[str, dict[int, int]]:
    """Ends that are not behind the first record with this broker time."""
    asked = [TopicPartition(topic, partition, until_ms) for topic, each in ends.items() for partition in each]
    result: dict[str, dict[int, int]] = {topic: dict(each) for topic, each in ends.items()}
    for at in consumer.offsets_for_times(asked, timeout=TIMEOUT_S):
        if at.error is not None:
            raise KafkaException(at.error)
        if at.offset >= 0:  # else all records are older
            result[at.topic][at.partition] = min(result[at.topic][at.partition], at.offset)
    return result


def _partition(consumer: Consumer, place: TopicPartition, from_ms: int) -> Partition:
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
        if error is None:  # else the partition has offsets without records only
            oldest_ms = int(message.timestamp()[1])
    return Partition(oldest, oldest_ms, at.offset if 0 <= at.offset < end else None)


def records(
    spark: SparkSession,
    settings: Settings,
    chosen: Source,
    options: Mapping[str, str] | None = None,
    refused: Collection[Coordinates] = (),
) -> DataFrame:
    """The chosen records in the columns of `source.stream`, without skipped and `refused` (late.Log) ones.

    Records that are arrays are readings already (expansion.expand) if there are refused ones. `options` are of the reader.
    """
    places = {topic: sorted(partitions) for topic, partitions in chosen.end.items()}
    spans = skips.pending(chosen.begin, skips.read(Files(spark, settings.service.checkpoint)))

    def between(begin: Offsets, end: Offsets, careful: bool) -> DataFrame:
        return (
            with_options(spark.read.format("kafka"), settings.kafka)
            .option("failOnDataLoss", "true")  # always: a value that lacks readings must not be published
            .option("assign", json.dumps(places))
            .option("startingOffsets", format_offsets(begin))
            .option("endingOffsets", format_offsets(end))
            .options(**(options or {}), **(ONE_AT_A_TIME if careful else {}))
            .load()
        )

    parts = [between(*part) for part in skips.stretches(chosen.begin, chosen.end, spans)]
    return without(reduce(DataFrame.union, parts), settings, [place for place in refused if _is_in(chosen, place)])


def _is_in(chosen: Source, place: Coordinates) -> bool:
    begin, end = (each.get(place.topic, {}).get(place.partition, 0) for each in (chosen.begin, chosen.end))
    return begin <= place.offset < end


def without(records: DataFrame, settings: Settings, refused: Collection[Coordinates]) -> DataFrame:
    """Return records without those at some places; of an array of readings without those readings."""
    names = ["topic", "partition", "offset"]
    types = [pa.string(), pa.int32(), pa.int64()]
    if settings.has_arrays:
        # What was refused as a record may be an array for today's settings.
        complete = [place for place in refused if place.index == NO_INDEX]
        refused = [place for place in refused if place.index != NO_INDEX]
        records = _without(records, complete, names, types)
    if not refused:
        return records
    if settings.has_arrays:
        # A reading of an array is refused alone, so the records become readings first. Nulls would not be equal in the join.
        names, types = [*names, _INDEX], [*types, pa.int32()]
        records = expansion.expand(records, settings).withColumn(_INDEX, F.coalesce(expansion.INDEX, F.lit(NO_INDEX)))
    left = _without(records, refused, names, types)
    return left.drop(_INDEX) if settings.has_arrays else left


def _without(
    records: DataFrame, refused: Collection[Coordinates], names: Sequence[str], types: Sequence[pa.DataType]
) -> DataFrame:
    if not refused:
        return records
    columns = zip(*((place.topic, place.partition, place.offset, place.index) for place in refused), strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=False)]  # without arrays, no index
    unwanted = F.broadcast(records.sparkSession.createDataFrame(pa.Table.from_arrays(arrays, names=list(names))))
    return records.join(unwanted, list(names), "left_anti")


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The stream's admission and fold, for batch runs over the past.

    `attributes` is the reference of then, None where there is none. `schemas` are what is decoded: all that their source has, if
    None. `values` are the checkpoint's decisions on the values of the record's columns.
    """

    spark: SparkSession
    settings: Settings
    attributes: Attributes | None = None
    schemas: SchemaSets | None = None
    values: Known = field(default_factory=Known)

    @property
    def tasks(self) -> int:
        """The number of tasks that run at a time: half of the cores, because a stream may run on the same ones."""
        return max(1, self.spark.sparkContext.defaultParallelism // 2)

    def admit(self, records: DataFrame, late: pa.Table | None = None) -> DataFrame:
        """Return rows of `readings.admit` for Kafka records, and `late`, rows that were rejected as late and corrected since."""
        admitted = readings.admit(records, self.settings, self.attributes, schemas=self.schemas)
        return (
            admitted.unionByName(self.spark.createDataFrame(late)) if late is not None and late.num_rows else admitted
        )

    def partials(self, admitted: DataFrame) -> DataFrame:
        """The rows of row_schemas.FOLDED of kind PARTS and RUNS; the rows of a bucket are in one task."""
        folded = builder.fold(admitted.coalesce(self.tasks), self.settings, self.attributes, self.values)
        return folded.where(F.col("kind").isin(PARTS, RUNS)).repartition(self.tasks, "bucket")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The windows of each view and measure whose start is in a span, and the sessions whose start is in one, if there is one.

    With `expired` also windows that have expired. `known` is as for state.history.closed.
    """

    windows: Mapping[tuple[str, str], Span]
    sessions: Span | None = None
    expired: bool = False
    known: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Closed:
    """`frame` has rows of row_schemas.OUTPUT. After evaluation, `unrecoverable` counts the windows and sessions it lacks."""

    frame: DataFrame
    _unrecoverable: Observation

    @property
    def unrecoverable(self) -> tuple[int, int]:
        return int(self._unrecoverable.get["windows"] or 0), int(self._unrecoverable.get["sessions"] or 0)


def closed_values(
    run: Recomputation,
    admitted: DataFrame,
    watermark_ms: int,
    whole_from_ms: int,
    only: Chosen | None = None,
) -> Closed:
    """The final windows and closed sessions of admitted readings that have not expired at `watermark_ms`, or those of `only`.

    Windows and sessions that may have readings before `whole_from_ms` are unrecoverable.
    """
    partials = run.partials(admitted).select("bucket", "first", "kind", "payload")
    if only is not None and (only.sessions is None or not only.windows):
        partials = partials.where(F.col("kind") == (PARTS if only.sessions is None else RUNS))
    alive = {view.name: watermark_ms - view.retain_ms for view in run.settings.closing_views}
    step = _Closed(sessions.rules(run.settings), watermark_ms, whole_from_ms, alive, only)
    unrecoverable = Observation()
    changes = partials.sortWithinPartitions("bucket", "first", "kind", "payload").mapInArrow(
        step, "windows bigint, sessions bigint, kind tinyint, payload binary"
    )
    counted = changes.observe(unrecoverable, F.sum("windows").alias("windows"), F.sum("sessions").alias("sessions"))
    return Closed(counted.select("kind", "payload"), unrecoverable)


@dataclass(frozen=True, slots=True)
class _Present:
    """Convert stored states into changes. `lengths_ms` has the window length by view and measure; other windows are left out."""

    rules: Rules
    lengths_ms: Mapping[tuple[str, str], int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for stored in batch["stored"]:
                changes = present(restore(stored.as_py()), self.rules)
                yield _changes(replace(changes, windows=self._served(changes.windows)))

    def _served(self, table: pa.Table) -> pa.Table:
        names = zip(table["view"].to_pylist(), table["measure"].to_pylist(), strict=True)
        length = np.array([self.lengths_ms.get(pair, -1) for pair in names], np.int64)
        is_served = ints(table, "end") - ints(table, "start") == length
        return windows.compact(table.filter(pa.array(is_served)))


@dataclass(frozen=True, slots=True)
class _Closed:
    """Convert rows (bucket, first, kind, payload), sorted by all four, into closed values and counts of unrecoverable ones.

    A window of a view has expired when its end is not above the view's `alive` time.
    """

    rules: Rules
    watermark_ms: int
    whole_from_ms: int
    alive: Mapping[str, int]
    only: Chosen | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch), strict=True))
        only = self.only or Chosen({})
        span, known = only.sessions, only.known
        for _, group in itertools.groupby(rows, key=lambda row: row[0]):
            payloads = (_payload(first, kind, payload) for _, first, kind, payload in group)
            for each in history.closed(payloads, self.watermark_ms, self.whole_from_ms, self.rules, span, known):
                living = self._chosen(each.windows)
                whole = windows.compact(living.filter(pa.array(ints(living, "start") >= self.whole_from_ms)))
                changes = Changes(each.sessions, status_schema(()).empty_table(), whole)
                yield _changes(changes, windows=living.num_rows - whole.num_rows, sessions=each.unrecoverable)

    def _chosen(self, table: pa.Table) -> pa.Table:
        if self.only is None or not self.only.expired:
            floor = np.array([self.alive[view] for view in table["view"].to_pylist()], np.int64)
            table = table.filter(pa.array(ints(table, "end") > floor))
        if self.only is None:
            return table
        of = zip(table["view"].to_pylist(), table["measure"].to_pylist(), strict=True)
        spans = np.array([self.only.windows.get(each, (0, 0)) for each in of], np.int64).reshape(-1, 2)
        start = ints(table, "start")
        return table.filter(pa.array((start >= spans[:, 0]) & (start < spans[:, 1])))


def _payload(first_ms: int, kind: int, payload: bytes) -> Payload:
    if kind == PARTS:
        return Payload(first_ms, parts=codec.unpack(b"W", payload))
    return Payload(first_ms, runs=codec.unpack(b"R", payload))


def _changes(changes: Changes, **counts: int) -> pa.RecordBatch:
    columns: dict[str, Any] = {name: pa.array([count], pa.int64()) for name, count in counts.items()}
    columns |= {"kind": pa.array([CHANGES], pa.int8()), "payload": pa.array([codec.pack_changes(changes)], pa.binary())}
    return pa.RecordBatch.from_pydict(columns)

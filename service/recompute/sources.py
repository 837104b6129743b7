"""Where the records of the past are: in Kafka, from an offset of each partition on, and in parts of a span of event time.

service/recompute/archive.py has the records of an archive, in the same parts.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from service.admission import expansion
from service.admission.arrays import NO_INDEX
from service.aggregation.sessions import longest_gap_ms
from service.checkpoint import skips, topic_log
from service.errors import SourceError
from service.kafka import clients, topics
from service.kafka.clients import TIMEOUT_S
from service.kafka.offsets import at_time, edges_of, written_at
from service.kafka.source import ONE_AT_A_TIME, with_options
from service.micro_batch import MicroBatch, Offsets, at, each, format_offsets, ranges
from service.recompute.decisions import Decisions
from service.recompute.engine import Recomputation, Span
from service.rejects.reject_log import Coordinates
from service.settings import Settings
from service.spark.files import Files

PART_S = 5
"""Of work, at the rate, in one part."""

_INDEX = "refused_index"


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

    @property
    def size(self) -> int:
        """The number of offsets."""
        return sum(end - begin for *_, begin, end in ranges(self.begin, self.end))


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
    ages = [view.retain_ms + view.longest_ms + (view.carry_for_ms or 0) for view in settings.closing_views]
    # A session closes `gap` after its last reading and is kept for `retain`. The gap before it must be readable, too.
    ages.append(rules.retain_ms + rules.max_duration_ms + 2 * longest_gap_ms(settings))
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
    for topic, partition, first, end in ranges(committed.start, committed.end):
        kafka = partitions[topic, partition]
        begins = max(first, kafka.oldest)
        if begins > first:
            lacking.append(f"{topic}[{partition}]@{first} to {kafka.oldest}, which Kafka has deleted")
            # Without a remaining record the age of the deleted ones is unknown.
            deleted_ms = committed.watermark_ms if kafka.oldest_ms is None else kafka.oldest_ms
            whole_from_ms = max(whole_from_ms, deleted_ms + max_ahead_ms + 1)
        reached = end if kafka.reached is None else kafka.reached
        if reached > begins:
            begins = reached
            whole_from_ms = max(whole_from_ms, from_ms + max_ahead_ms)
        begin.setdefault(topic, {})[partition] = min(begins, end)
    return Source(begin, committed.end, whole_from_ms, tuple(lacking))


def readable(
    spark: SparkSession, settings: Settings, committed: MicroBatch, from_ms: int, until_ms: int | None = None
) -> Source:
    """`source` for the partitions as they are in Kafka now; raises SourceError when Kafka does not answer, CheckpointError.

    With `until_ms`, without the records whose broker time is not below it. The brokers must set that time (LogAppendTime).
    """
    left = topic_log.read(Files(spark, settings.service.checkpoint)).missing_until_ms(committed.end)
    with clients.reading(settings.kafka) as consumer:
        places = [(topic, partition) for topic, partition, _ in each(committed.end)]
        partitions = _partitions(consumer, places, from_ms)
        if until_ms is not None:
            committed = replace(committed, end=_until(committed.end, at_time(consumer, places, until_ms)))
    return source(committed, partitions, from_ms, settings.admission.max_ahead_ms, left)


def _until(ends: Offsets, first: Mapping[tuple[str, int], int]) -> Offsets:
    """Return ends that are not behind the first record of a broker time, -1 where all are older."""
    return {
        topic: {p: end if first[topic, p] < 0 else min(end, first[topic, p]) for p, end in partitions.items()}
        for topic, partitions in ends.items()
    }


def _partitions(
    consumer: Consumer, places: Sequence[tuple[str, int]], from_ms: int
) -> Mapping[tuple[str, int], Partition]:
    """Return each partition, by a number of requests that does not grow with them; raises KafkaException, SourceError."""
    edges, reached = edges_of(consumer, places), at_time(consumer, places, from_ms)
    cut = {place: oldest for place, (oldest, end) in edges.items() if 0 < oldest < end}
    oldest_ms, left = dict[tuple[str, int], int](), set(cut)
    while left:
        found, silent = written_at(consumer, [TopicPartition(*place, cut[place]) for place in sorted(left)])
        if len(silent) == len(left):
            topic, partition = min(silent)
            what = f"{topic}[{partition}]@{cut[topic, partition]} could not be read within {TIMEOUT_S:.0f} s"
            raise SourceError(what, remedy="It is tried again; check the brokers")
        oldest_ms, left = oldest_ms | {**found}, {*silent}
    return {
        place: Partition(oldest, oldest_ms.get(place), reached[place] if 0 <= reached[place] < end else None)
        for place, (oldest, end) in edges.items()
    }


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
            .option("includeHeaders", str(settings.needs_headers).lower())
            .options(**(options or {}), **(ONE_AT_A_TIME if careful else {}))
            .load()
        )

    parts = [between(*part) for part in skips.stretches(chosen.begin, chosen.end, spans)]
    return without(reduce(DataFrame.union, parts), settings, [place for place in refused if _is_in(chosen, place)])


def _is_in(chosen: Source, place: Coordinates) -> bool:
    begin, end = (at(offsets, place.topic, place.partition, 0) for offsets in (chosen.begin, chosen.end))
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
class Part:
    """The rows of `readings.admit` of a span, the event time (ms) from which they lack no reading, the number of records, and
    what is lacking, for people."""

    admitted: DataFrame
    whole_from_ms: int
    records: int
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reach:
    """Values that begin in a span have readings that reached the broker at most `before_ms` before the span and `after_ms` behind
    its end."""

    before_ms: int
    after_ms: int

    @classmethod
    def of_windows(cls, settings: Settings) -> "Reach":
        longest_ms = max((view.longest_ms for view in settings.closing_views), default=0)
        carried_ms = max((view.carry_for_ms or 0 for view in settings.closing_views), default=0)
        return cls(settings.admission.max_ahead_ms + carried_ms, longest_ms + settings.admission.max_delay_ms + 1)

    @classmethod
    def of_sessions(cls, settings: Settings) -> "Reach":
        """A session that has begun before a span is read from its start on, and one that begins in it to its end."""
        before_ms, after_ms = settings.admission.max_ahead_ms, settings.admission.max_delay_ms + 1
        longest_ms = settings.sessions.max_duration_ms + 2 * longest_gap_ms(settings)
        return cls(before_ms + longest_ms, longest_ms + after_ms)


@dataclass(frozen=True, slots=True)
class KafkaRecords:
    """The records that a committed batch and those before it have read, by spans of event time.

    The span that ends at `open_ms` is read up to the batch.
    """

    spark: SparkSession
    settings: Settings
    committed: MicroBatch
    reach: Reach
    open_ms: int | None

    def _source(self, span: Span) -> Source:
        until_ms = None if span[1] == self.open_ms else span[1] + self.reach.after_ms
        return readable(self.spark, self.settings, self.committed, max(0, span[0] - self.reach.before_ms), until_ms)

    def parts(self, span: Span, rate: int, *, oldest_first: bool) -> Iterator[Span]:
        """Cut a span into parts. Each is read with what is around it, so a part is not much shorter than that."""
        if not topics.have_broker_times(self.settings.kafka):
            return iter([span])
        return halves(span, self.reach.after_ms, rate, lambda part: self._source(part).size, oldest_first=oldest_first)

    def read(self, run: Recomputation, span: Span, decided: Decisions) -> Part:
        """Return the admitted readings of values that begin in a span. Raises SourceError, CheckpointError.

        `run` has the admission, `decided` the decisions that admission does not repeat.
        """
        return admitted(run, self._source(span), decided)

    def ends_ms(self) -> int | None:
        """Return None: Kafka has every record that the batch has read."""
        return None


def admitted(run: Recomputation, source: Source, decided: Decisions) -> Part:
    """Return the rows of `readings.admit` of a range of offsets, with corrected readings. Raises CheckpointError."""
    found = records(run.spark, run.settings, source, refused=decided.refused)
    return Part(*decided.admit(run, found, source.whole_from_ms), source.size, source.lacking)


def halves(
    span: Span, after_ms: int, rate: int, records: Callable[[Span], int], *, oldest_first: bool
) -> Iterator[Span]:
    """Cut a span in halves while they are more than some seconds of work and not much shorter than what is read behind them."""
    waiting = [span]
    while waiting:
        begin_ms, end_ms = waiting.pop()
        many = records((begin_ms, end_ms))
        if many > PART_S * rate and end_ms - begin_ms > 2 * after_ms:
            middle_ms = (begin_ms + end_ms) // 2
            both = [(begin_ms, middle_ms), (middle_ms, end_ms)]
            waiting += reversed(both) if oldest_first else both
        elif begin_ms < end_ms:
            yield begin_ms, end_ms

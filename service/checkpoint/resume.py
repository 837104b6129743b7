"""Check, before every start, that the query can continue from its checkpoint, in this order:

0  a change of its shape that was interrupted is finished                   service/checkpoint/shape.py
1  the checkpoint's logs are complete and undamaged                         service/checkpoint/logs.py
2  its manifest fits this version, these settings and these topics          service/checkpoint/manifest.py
   the offset log has the topics of the settings                            service/checkpoint/topics.py
   a new checkpoint can read everything again that its predecessor has read
3  skipped offsets are outside of the next batch                            service/checkpoint/narrow.py
4  Kafka still has every record from the query's position on

A failed check raises CheckpointError or DataLossError before anything is written. State files are not read here: Spark reads
those it needs before the first batch writes, and names the files that it cannot read.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from service.checkpoint import logs, manifest, narrow, shape
from service.checkpoint import topics as checkpoint_topics
from service.checkpoint.manifest import Manifest
from service.errors import CheckpointError, DataLossError
from service.kafka import clients, starting, topics
from service.kafka.offsets import Edges, committed, edges
from service.micro_batch import MicroBatch, Offsets, at, each, parse_offsets, ranges, total
from service.redis import link as redis_link
from service.redis.keys import shards
from service.settings import Kafka, Settings
from service.spark.files import RESTORE, Files, unusable
from service.spark.internals import offset_log

CONTINUE = "continue"
_PARTITIONS = "spark.sql.shuffle.partitions"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that the query has not read and that Kafka has deleted: `start <= offset < end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return (
            f"{self.topic}[{self.partition}]: committed offset {self.start}, earliest available {self.end}: "
            f"{self.records} records are lost"
        )


def prepare(
    spark: SparkSession, settings: Settings, on_skip: Callable[[int], object] = lambda _: None
) -> Sequence[Gap]:
    """Check that the query can continue. Returns the gaps that are accepted (kafka.on_data_loss = "continue").

    Writes the manifest of a new checkpoint, and sets the session's shuffle partitions to those of an old one. `on_skip` gets the
    number of offsets that the query has skipped since the last time.
    Raises CheckpointError, DataLossError; SourceError and SinkError when Kafka or Redis does not answer.
    """
    files = files_of(spark, settings)
    with _readable(files):
        shape.finish(files)
        logs.require_whole(files)
        current = manifest.read(files)
        position = offset_log.position(files)
        expected = _wanted(spark, settings)
        if current is not None:
            manifest.require(str(files), current, expected)
            checkpoint_topics.apply(files, settings.kafka, current, expected)
            position = offset_log.position(files)
            _take_partitions(spark, current)
        elif position is not None:
            what = f"{files} has batches up to {position.batch - 1} and no {manifest.NAME}, the record of its settings"
            raise CheckpointError(
                what, remedy=f"Restore that file. If these are the settings it was made with, {_INIT} writes it"
            )
        # A checkpoint with a manifest and without a batch counts as new: its logs and state may have been deleted.
        if position is None:
            starting.require(settings.kafka)
        if position is None and not (current is not None and current.by_hand):
            _require_all_of_it(settings)
        if current is None:
            files.create(manifest.NAME, expected.encode())
        skipped = narrow.apply(files, settings.kafka)
        if skipped:
            on_skip(skipped)
            position = offset_log.position(files)
    return require_records(settings.kafka, position.offsets) if position is not None else []


def with_buckets(spark: SparkSession, settings: Settings) -> Settings:
    """Return the settings with the number of buckets that the checkpoint has, or that a new one begins with. An interrupted
    change of that number is finished first.

    A new checkpoint begins with one for each shuffle partition where the settings have no number. Raises CheckpointError.
    """
    files = files_of(spark, settings)
    with _readable(files):
        shape.finish(files)
        return settings.with_buckets(manifest.buckets(settings, manifest.read(files), _partitions(spark)))


_INIT = "`tidemark checkpoint init`"


def init(spark: SparkSession, settings: Settings, *, dry: bool = False) -> Manifest:
    """Write the manifest by hand: for a new checkpoint that is to take an old one's place, or for one that has none.

    Raises CheckpointError when there is a manifest, or when the checkpoint does not fit the settings.
    """
    files = files_of(spark, settings)
    with _readable(files):
        if manifest.read(files) is not None:
            what = f"{files}/{manifest.NAME} is there"
            raise CheckpointError(what, remedy="Name a new folder in service.checkpoint, or leave it as it is")
        position = offset_log.position(files)
        if position is not None and set(position.offsets) != set(settings.kafka.topics):
            what = f"{files} reads the topics {', '.join(sorted(position.offsets))}, the settings name others"
            raise CheckpointError(what, remedy="Mend kafka.topics or service.checkpoint")
        if position is not None and settings.sessions.buckets is None:
            what = f"{files} has batches and no {manifest.NAME}: the number of its buckets is not known"
            raise CheckpointError(what, remedy="Set sessions.buckets to the number that it was made with")
        numbered = settings.with_buckets(manifest.buckets(settings, None, _partitions(spark)))
        expected = _wanted(spark, numbered).model_copy(update={"by_hand": True})
        if position is not None:
            expected = expected.model_copy(update={"shuffle_partitions": offset_log.partitions(files)})
        if not dry:
            files.create(manifest.NAME, expected.encode())
    return expected


def position(spark: SparkSession, settings: Settings) -> offset_log.Position | None:
    """Return the position at which the next query starts; None if no batch was begun. Raises CheckpointError."""
    files = files_of(spark, settings)
    with _readable(files):
        return offset_log.position(files)


def files_of(spark: SparkSession, settings: Settings) -> Files:
    """Return the checkpoint's folder through the JVM. Raises CheckpointError."""
    try:
        return Files(spark, settings.service.checkpoint)
    except OSError as error:
        raise CheckpointError(str(error), remedy="Mend service.checkpoint, or bring its file system back") from error


def _wanted(spark: SparkSession, settings: Settings) -> Manifest:
    return Manifest.of(settings, topics.ids(settings.kafka), _partitions(spark))


def _partitions(spark: SparkSession) -> int:
    return int(spark.conf.get(_PARTITIONS) or 2)


def _take_partitions(spark: SparkSession, current: Manifest) -> None:
    """Set the session's shuffle partitions to those of the state: for another number Spark adds a second shuffle."""
    if spark.conf.get(_PARTITIONS) != str(current.shuffle_partitions):
        _log.info("%d shuffle partitions, as the checkpoint has", current.shuffle_partitions)
        spark.conf.set(_PARTITIONS, str(current.shuffle_partitions))


# A new checkpoint after an old one


def _require_all_of_it(settings: Settings) -> None:
    """Raise CheckpointError for a new checkpoint if not all records of its predecessor can be read again.

    A predecessor has left progress in Redis, or offsets of the consumer group in Kafka. Reading all of its records again gives
    the same values. Reading a part of them would silently give windows and sessions that lack the rest.
    """
    kafka = settings.kafka
    with clients.reading(kafka, uncommitted=True) as consumer:
        source = f"Redis, key {shards(settings.redis)[0].progress},"
        # Of the newest batch: a writer that was killed may have left shards a batch apart.
        texts = [stored.decode() for stored in redis_link.progress(settings.redis, "offsets") if stored]
        of_shards = [parse_offsets(text) for text in texts]
        before = max(of_shards, key=total, default={})
        if not before:
            source, before = f"Kafka's consumer group {kafka.group}", committed(consumer, kafka)
        if not before:
            return
        ends = edges(consumer, kafka)
        begins = starting.offsets(consumer, kafka, ends)
    missing = []
    for topic, partition, offset in each(before):
        begin, end = at(ends, topic, partition, (0, 0))
        if offset and topic not in ends:
            missing.append(f"{topic}[{partition}] is not read (kafka.topics)")
        elif offset > end:
            missing.append(f"{topic}[{partition}] ends at {end}: it is another topic")
        elif kafka.starting == "latest" and offset < end:
            missing.append(f'{topic}[{partition}] would continue at {end} (kafka.starting = "latest")')
        elif kafka.starting != "latest" and at(begins, topic, partition, begin) > begin:
            missing.append(f"{topic}[{partition}] would begin at {begins[topic][partition]} (kafka.starting)")
        elif begin > 0:
            missing.append(f"{topic}[{partition}] begins at {begin}")
    shown = ", ".join(f"{topic}[{partition}] {offset}" for topic, partition, offset in each(before))
    if missing:
        what = (
            f"{settings.service.checkpoint} is new, but {source} has batches up to {shown}, and not all of their records "
            f"can be read again: {'; '.join(missing)}"
        )
        raise CheckpointError(
            what,
            remedy="Restore the checkpoint, or name the right one. To begin again with what Kafka has, "
            f"{_INIT}, after reading docs/operator/procedures.md#rebuild-from-kafka",
        )
    _log.warning(
        "%s is new, but %s has batches up to %s. The topic is read again from its beginning",
        settings.service.checkpoint,
        source,
        shown,
    )


# Records that Kafka has deleted meanwhile


def require_records(kafka: Kafka, offsets: Offsets) -> Sequence[Gap]:
    """Return the records from some offsets on that Kafka has deleted, which the settings accept.

    Raises DataLossError for others, and SourceError.
    """
    with clients.reading(kafka, uncommitted=True) as consumer:
        ends = edges(consumer, kafka)
    beyond = [
        f"{topic}[{partition}]: committed offset {offset}, the end is {ends[topic][partition][1]}"
        for topic, partition, offset in each(offsets)
        if offset > at(ends, topic, partition, (0, offset))[1]
    ]
    _require_none(beyond)
    gaps = gaps_of(offsets, ends)
    if gaps and kafka.on_data_loss != CONTINUE:
        what = f"Records were deleted before they were read: {'; '.join(map(str, gaps))}"
        raise DataLossError(
            what,
            remedy='Restore them; or go on without them with kafka.on_data_loss = "continue": '
            "docs/operator/procedures.md#records-were-deleted-before-they-were-read",
        )
    return gaps


def require_growing(micro_batch: MicroBatch) -> None:
    """Raise DataLossError for a batch that ends before it begins: Spark's source plans one with `on_data_loss = "continue"`."""
    _require_none(
        [
            f"{topic}[{partition}]: committed offset {start}, the end is {end}"
            for topic, partition, start, end in ranges(micro_batch.start, micro_batch.end)
            if end < start
        ]
    )


def _require_none(beyond: Sequence[str]) -> None:
    if beyond:
        what = f"Kafka has lost records that were read: {'; '.join(beyond)}"
        raise DataLossError(
            what,
            remedy="The topic was deleted and created again, or a broker came back without its data, or a replica that lagged "
            f"became leader. What was lost is in the results, and new records have its offsets: {manifest.REBUILD}",
        )


def gaps_of(offsets: Offsets, ends: Edges) -> Sequence[Gap]:
    """The records between the offsets at which a query continues and the partitions' first offsets."""
    gaps = []
    for topic, partition, offset in each(offsets):
        begin, _ = at(ends, topic, partition, (0, 0))
        if begin > offset:
            gaps.append(Gap(topic, partition, offset, begin))
    return gaps


@contextmanager
def _readable(files: Files) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unusable(f"{files}: {error}", remedy=RESTORE) from error

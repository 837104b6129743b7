"""What must hold before the query goes on from its checkpoint. Tried before every start of it, in this order:

1  the checkpoint's logs are whole                                          service/checkpoint/logs.py
2  its manifest fits this version, these settings and these topics          service/checkpoint/manifest.py
   a new checkpoint does not take the place of one whose work is in Redis already
3  skipped offsets are outside of the next batch                            service/checkpoint/narrow.py
4  Kafka still has every record from where the query goes on

What does not hold is a CheckpointError or a DataLossError, and nothing has been written by then. The state's files are not
read here: Spark reads those it needs before the first batch writes, and names what it cannot read.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from service.checkpoint import logs, manifest, narrow
from service.checkpoint.manifest import Manifest
from service.errors import CheckpointError, DataLossError
from service.kafka import clients, topics
from service.kafka.offsets import Edges, committed, edges
from service.micro_batch import Offsets, parse_offsets
from service.redis import link as redis_link
from service.redis.keys import Keys
from service.settings import Kafka, Settings
from service.spark.files import RESTORE, Files, unusable

CONTINUE = "continue"
_PARTITIONS = "spark.sql.shuffle.partitions"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that the checkpoint goes on with and that are not in Kafka any more: `start <= offset < end`."""

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
    """Make sure that the query can go on. The gaps are what is lost and accepted (kafka.on_data_loss = "continue").

    Writes the manifest of a new checkpoint, and sets the session's shuffle partitions to those of an old one. `on_skip` gets the
    number of offsets that the query has skipped since the last time.
    Raises CheckpointError, DataLossError; SourceError and SinkError when Kafka or Redis cannot be asked.
    """
    files = _files(spark, settings)
    with _readable(files):
        logs.require_whole(files)
        found = manifest.read(files)
        position = logs.position(files)
        wanted = _wanted(spark, settings)
        if found is not None:
            manifest.require(str(files), found, wanted)
            _take_partitions(spark, found)
        elif position is not None:
            what = f"{files} has batches up to {position.batch - 1} and no {manifest.NAME}: nobody knows what made it"
            raise CheckpointError(
                what, remedy=f"Restore that file. If these are the settings it was made with, {_INIT} writes it"
            )
        # Until its first batch a checkpoint is new, with a manifest, too: its logs and state may have been deleted alone.
        if position is None and not (found is not None and found.by_hand):
            _require_all_of_it(settings)
        if found is None:
            files.create(manifest.NAME, wanted.encode())
        skipped = narrow.apply(files, settings.kafka)
        if skipped:
            on_skip(skipped)
            position = logs.position(files)
    return _gaps(settings.kafka, position.offsets) if position is not None else []


_INIT = "`tidemark checkpoint init --config FILE`"


def init(spark: SparkSession, settings: Settings, *, dry: bool = False) -> Manifest:
    """Write the manifest by hand: for a new checkpoint that is to take an old one's place, or for one that has none.

    Raises CheckpointError when there is a manifest, or when what the checkpoint says of itself does not fit.
    """
    files = _files(spark, settings)
    with _readable(files):
        if manifest.read(files) is not None:
            what = f"{files}/{manifest.NAME} is there"
            raise CheckpointError(what, remedy="Name a new folder in service.checkpoint, or leave it as it is")
        position = logs.position(files)
        if position is not None and set(position.offsets) != set(settings.kafka.topics):
            what = f"{files} reads the topics {', '.join(sorted(position.offsets))}, the settings name others"
            raise CheckpointError(what, remedy="Mend kafka.topics or service.checkpoint")
        wanted = _wanted(spark, settings).model_copy(update={"by_hand": True})
        if position is not None:
            wanted = wanted.model_copy(update={"shuffle_partitions": logs.partitions(files)})
        if not dry:
            files.create(manifest.NAME, wanted.encode())
    return wanted


def position(spark: SparkSession, settings: Settings) -> logs.Position | None:
    """Where the query goes on; None where no batch was begun. Raises CheckpointError."""
    files = _files(spark, settings)
    with _readable(files):
        return logs.position(files)


def show(spark: SparkSession, settings: Settings) -> Manifest:
    """The manifest that is there; CheckpointError when there is none."""
    files = _files(spark, settings)
    found = manifest.read(files)
    if found is None:
        what = f"{files} has no {manifest.NAME}"
        raise CheckpointError(what, remedy=f"It is new, or not a checkpoint of this service's; {_INIT} writes one")
    return found


def _files(spark: SparkSession, settings: Settings) -> Files:
    try:
        return Files(spark, settings.service.checkpoint)
    except OSError as error:
        raise CheckpointError(str(error), remedy="Mend service.checkpoint, or bring its file system back") from error


def _wanted(spark: SparkSession, settings: Settings) -> Manifest:
    return Manifest.of(settings, topics.ids(settings.kafka), int(spark.conf.get(_PARTITIONS) or 2))


def _take_partitions(spark: SparkSession, found: Manifest) -> None:
    """The state is divided by them. Spark would do so anyway, behind a second shuffle after the one that we ask for."""
    if spark.conf.get(_PARTITIONS) != str(found.shuffle_partitions):
        _log.info("%d shuffle partitions, as the checkpoint has", found.shuffle_partitions)
        spark.conf.set(_PARTITIONS, str(found.shuffle_partitions))


# A new checkpoint where an old one has been


def _require_all_of_it(settings: Settings) -> None:
    """A new checkpoint reads what its predecessor has read, too, or it is refused.

    That there was a predecessor, Redis knows (the progress key) and else Kafka (the group's offsets). Reading all of it
    again gives the same values. Reading a part of it would give windows and sessions that lack the rest, silently.
    """
    kafka = settings.kafka
    with _consumer(kafka) as consumer:
        source, stored = f"Redis, key {Keys(settings.redis.prefix).progress},", redis_link.progress(settings, "offsets")
        before = parse_offsets(stored.decode()) if stored else {}
        if not before:
            source, before = f"Kafka's consumer group {kafka.group}", committed(consumer, kafka)
        if not before:
            return
        ends = edges(consumer, kafka)
    missing = []
    for topic, partitions in before.items():
        for partition, offset in partitions.items():
            begin, end = ends.get(topic, {}).get(partition, (0, 0))
            if offset > end:
                missing.append(f"{topic}[{partition}] ends at {end}: it is another topic")
            elif kafka.starting == "latest" and offset < end:
                missing.append(f'{topic}[{partition}] would go on at {end} (kafka.starting = "latest")')
            elif begin > 0:
                missing.append(f"{topic}[{partition}] begins at {begin}")
    shown = ", ".join(f"{t}[{p}] {o}" for t, partitions in before.items() for p, o in partitions.items())
    if missing:
        what = (
            f"{settings.service.checkpoint} is new, but {source} knows of batches up to {shown}, and not all of that "
            f"can be read again: {'; '.join(missing)}"
        )
        raise CheckpointError(
            what,
            remedy="Restore the checkpoint, or name the right one. To begin again with what Kafka has, "
            f"{_INIT}, after reading docs/operator.md#rebuild-from-kafka",
        )
    _log.warning(
        "%s is new, but %s knows of batches up to %s: the topic is read again from its beginning",
        settings.service.checkpoint,
        source,
        shown,
    )


# What Kafka has deleted meanwhile


def _gaps(kafka: Kafka, offsets: Offsets) -> Sequence[Gap]:
    with _consumer(kafka) as consumer:
        ends = edges(consumer, kafka)
    beyond = [
        f"{topic}[{partition}]: committed offset {offset}, the end is {ends[topic][partition][1]}"
        for topic, partition, offset in _each(offsets)
        if offset > ends.get(topic, {}).get(partition, (0, offset))[1]
    ]
    if beyond:
        what = f"Kafka has lost records that were read: {'; '.join(beyond)}"
        raise DataLossError(
            what,
            remedy="A broker came back without its data, or a replica that lagged became leader. What it lost is in the "
            f"results, and new records have its offsets: {manifest.REBUILD}",
        )
    gaps = gaps_of(offsets, ends)
    if gaps and kafka.on_data_loss != CONTINUE:
        what = f"Records were deleted before they were read: {'; '.join(map(str, gaps))}"
        raise DataLossError(
            what,
            remedy='Restore them; or go on without them with kafka.on_data_loss = "continue": '
            "docs/operator.md#records-were-deleted-before-they-were-read",
        )
    return gaps


def gaps_of(offsets: Offsets, ends: Edges) -> Sequence[Gap]:
    """What lies between where a query goes on and where the partitions begin."""
    found = []
    for topic, partition, offset in _each(offsets):
        begin = ends.get(topic, {}).get(partition, (0, 0))[0]
        if begin > offset:
            found.append(Gap(topic, partition, offset, begin))
    return found


def _each(offsets: Mapping[str, Mapping[int, int]]) -> Iterator[tuple[str, int, int]]:
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            yield topic, partition, offset


@contextmanager
def _consumer(kafka: Kafka) -> Iterator[Any]:
    consumer = clients.consumer(kafka, small=True, uncommitted=True)
    try:
        yield consumer
    except KafkaException as error:
        raise clients.unreachable(kafka, error) from error
    finally:
        consumer.close()


@contextmanager
def _readable(files: Files) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"{files}: {error}"
        raise unusable(what, remedy=RESTORE) from error

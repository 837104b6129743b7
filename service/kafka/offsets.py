"""Offsets of the input topics, asked of a consumer: where partitions begin and end, what the group shows, how old records are."""

import math
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from service import clock
from service.kafka import clients
from service.kafka.clients import TIMEOUT_S
from service.micro_batch import MicroBatch, Offsets
from service.settings import Kafka

Edges = Mapping[str, Mapping[int, tuple[int, int]]]
"""Topic -> partition -> (first offset there is, offset of the next record to come)."""
Headrooms = Mapping[str, Mapping[int, float]]
"""Topic -> partition -> seconds; infinite where nothing is ever deleted."""

_SOON = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}


def edges(consumer: Consumer, kafka: Kafka) -> Edges:
    """Where each partition of the input topics begins and ends; raises KafkaException.

    To a consumer that reads committed records only, a partition ends where its oldest open transaction begins.
    """
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for each in _partitions(consumer, kafka.topics):
        found.setdefault(each.topic, {})[each.partition] = consumer.get_watermark_offsets(each, timeout=TIMEOUT_S)
    return found


def edges_now(kafka: Kafka, *, uncommitted: bool = False) -> Edges:
    """`edges`, asked by a consumer of its own; with `uncommitted`, of all records there are. Raises SourceError."""
    consumer = clients.consumer(kafka, small=True, uncommitted=uncommitted)
    try:
        return edges(consumer, kafka)
    except KafkaException as error:
        raise clients.unreachable(kafka, error) from error
    finally:
        consumer.close()


def committed(consumer: Consumer, kafka: Kafka) -> Offsets:
    """The offsets of finished batches in the group `kafka.group`; empty when it has none. Raises KafkaException."""
    places = _partitions(consumer, kafka.topics)
    until_s = clock.monotonic_s() + TIMEOUT_S
    while True:
        try:
            answer = consumer.committed(places, timeout=TIMEOUT_S)
            break
        except KafkaException as error:
            # A cluster that has never had a group makes the topic for their offsets now.
            if error.args[0].code() not in _SOON or clock.monotonic_s() > until_s:
                raise
            time.sleep(0.1)
    found: dict[str, dict[int, int]] = {}
    for p in answer:
        if p.error is None and p.offset >= 0:
            found.setdefault(p.topic, {})[p.partition] = p.offset
    return found


def unavailable(kafka: Kafka, micro_batch: MicroBatch) -> int:
    """How many offsets of the batch Kafka does not have (any more), with or without a record. Raises SourceError."""
    there = edges_now(kafka, uncommitted=True)
    offsets = 0
    for topic, partitions in micro_batch.end.items():
        for partition, end in partitions.items():
            start = micro_batch.start.get(topic, {}).get(partition, 0)
            oldest, newest = there.get(topic, {}).get(partition, (0, 0))
            offsets += (end - start) - max(0, min(end, newest) - max(start, oldest))
    return offsets


def headrooms(
    consumer: Consumer, found: Edges, reached: Offsets, retention_ms: Mapping[str, int], now_ms: int | None = None
) -> Headrooms:
    """How long until the record at each offset `reached` may be deleted because of its age; raises KafkaException.

    A partition without unread records has all of its retention; 0 means that records are lost already. Segments are
    deleted whole, so a record may live longer, never shorter. What `retention.bytes` deletes is not foreseen. Topics
    without an entry in `retention_ms` and records that do not come within 5 s are left out.
    """
    now_ms = clock.now_ms() if now_ms is None else now_ms
    rooms: dict[str, dict[int, float]] = {}
    unread = []
    for topic, partitions in found.items():
        keep_ms = retention_ms.get(topic)
        if keep_ms is None:
            continue
        for partition, (begin, end) in partitions.items():
            offset = reached[topic][partition]
            if keep_ms < 0:
                room = math.inf
            elif offset >= end:
                room = keep_ms / 1000
            elif offset < begin:
                room = 0.0
            else:
                unread.append(TopicPartition(topic, partition, offset))
                continue
            rooms.setdefault(topic, {})[partition] = room
    for (topic, partition), written_ms in _written(consumer, unread).items():
        rooms.setdefault(topic, {})[partition] = (written_ms + retention_ms[topic] - now_ms) / 1000
    return rooms


def _written(consumer: Consumer, places: Sequence[TopicPartition]) -> Mapping[tuple[str, int], int]:
    """The time in ms of the record at each place, of those that are delivered in time."""
    written: dict[tuple[str, int], int] = {}
    waiting = {(place.topic, place.partition) for place in places}
    if not places:
        return written
    consumer.assign(list(places))
    try:
        until_s = clock.monotonic_s() + TIMEOUT_S
        while waiting and clock.monotonic_s() < until_s:
            message = consumer.poll(0.5)
            place = place_of(message) if message is not None else None
            if message is None or place not in waiting:
                continue
            error = message.error()
            if error is None:
                written[place] = message.timestamp()[1]
            elif error.code() != KafkaError._PARTITION_EOF:
                continue
            waiting.remove(place)
            consumer.pause([TopicPartition(*place)])
    finally:
        consumer.unassign()
    return written


def place_of(message: Message) -> tuple[str, int]:
    """A message's topic and partition."""
    return str(message.topic()), int(message.partition() or 0)


def _partitions(consumer: Consumer, topics: tuple[str, ...]) -> list[TopicPartition]:
    found = []
    for topic in topics:
        metadata = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        found += [TopicPartition(topic, partition) for partition in metadata.partitions]
    return found

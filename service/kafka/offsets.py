"""Read offsets of the input topics: begin and end of partitions, the group's offsets, and the time until records expire."""

import math
import time
from collections.abc import Container, Mapping, Sequence, Set
from functools import partial

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from service import clock
from service.kafka import clients
from service.kafka.clients import TIMEOUT_S, Kept
from service.micro_batch import MicroBatch, Offsets, at, ranges
from service.settings import Kafka

Edges = Mapping[str, Mapping[int, tuple[int, int]]]
"""Topic -> partition -> (first offset, offset of the next record)."""
Headrooms = Mapping[str, Mapping[int, float]]
"""Topic -> partition -> seconds; infinite if records never expire."""

_FEW_TOPICS = 10
"""Of more topics the metadata comes with those of all topics, in one request."""
_SOON = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}


def edges(consumer: Consumer, kafka: Kafka) -> Edges:
    """Return begin and end of each partition of the input topics; raises KafkaException.

    If the consumer reads committed records only, a partition ends where its oldest open transaction begins.
    """
    ends: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, partition), edge in edges_of(consumer, _partitions(consumer, kafka.topics)).items():
        ends.setdefault(topic, {})[partition] = edge
    return ends


def edges_of(consumer: Consumer, places: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], tuple[int, int]]:
    """Return begin and end of partitions as `edges`, by two requests to each broker; raises KafkaException."""
    begins = at_time(consumer, places, OFFSET_BEGINNING)
    ends = at_time(consumer, places, OFFSET_END)
    return {place: (begins[place], ends[place]) for place in places}


def at_time(consumer: Consumer, places: Sequence[tuple[str, int]], time_ms: int) -> Mapping[tuple[str, int], int]:
    """Return the offset of each partition's first record of a time or later, -1 without one; raises KafkaException.

    In Kafka's protocol, OFFSET_BEGINNING and OFFSET_END are times, too: of the begin and of the end.
    """
    asked = [TopicPartition(*place, time_ms) for place in places]
    offsets = {}
    for found in consumer.offsets_for_times(asked, timeout=TIMEOUT_S) if asked else ():
        if found.error is not None:
            raise KafkaException(found.error)
        offsets[found.topic, found.partition] = found.offset
    return offsets


def marked(consumer: Consumer, kafka: Kafka, there: Container[str]) -> int:
    """Return how many entries the topics of marks have: one or two a corrected or replayed reject; raises KafkaException.

    `there` are the topics that exist.
    """
    places = [(name, 0) for name in map(kafka.marks_topic, kafka.topics) if name in there]
    return sum(end - begin for begin, end in edges_of(consumer, places).values())


def edges_now(kafka: Kafka, *, uncommitted: bool = False) -> Edges:
    """`edges` with a new consumer; with `uncommitted`, also of records that are not committed. Raises SourceError."""
    with clients.reading(kafka, uncommitted=uncommitted) as consumer:
        return edges(consumer, kafka)


class EdgeReader:
    """`edges_now` for one batch after the other, with consumers that stay until `close`. Use it from one thread at a time.

    A consumer for each batch connects and logs in again: 20 ms and more, of each batch of a backlog.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._kept = {
            uncommitted: Kept(
                kafka, partial(clients.consumer, kafka, small=True, uncommitted=uncommitted), Consumer.close
            )
            for uncommitted in (False, True)
        }

    def __call__(self, *, uncommitted: bool = False) -> Edges:
        """Return the edges, with `uncommitted` also of records that are not committed. Raises SourceError."""
        kept = self._kept[uncommitted]
        consumer = kept.get()
        try:
            return edges(consumer, self._kafka)
        except KafkaException as error:
            problem = clients.unreachable(self._kafka, error, consumer)
            kept.close()
            raise problem from error

    def close(self) -> None:
        """Close the consumers."""
        for kept in self._kept.values():
            kept.close()


def committed(consumer: Consumer, kafka: Kafka) -> Offsets:
    """Return the committed offsets of the group `kafka.group`; empty when it has none. Raises KafkaException."""
    places = [TopicPartition(*place) for place in _partitions(consumer, kafka.topics)]
    until_s = clock.monotonic_s() + TIMEOUT_S
    while True:
        try:
            answer = consumer.committed(places, timeout=TIMEOUT_S)
            break
        except KafkaException as error:
            # A new cluster creates the topic for groups' offsets on the first request.
            if error.args[0].code() not in _SOON or clock.monotonic_s() > until_s:
                raise
            time.sleep(0.1)
    offsets: dict[str, dict[int, int]] = {}
    for p in answer:
        if p.error is None and p.offset >= 0:
            offsets.setdefault(p.topic, {})[p.partition] = p.offset
    return offsets


def unavailable(available: Edges, micro_batch: MicroBatch) -> int:
    """Return how many offsets of the batch Kafka does not have, or has deleted, by the edges of all records."""
    offsets = 0
    for topic, partition, start, end in ranges(micro_batch.start, micro_batch.end):
        oldest, newest = at(available, topic, partition, (0, 0))
        offsets += (end - start) - max(0, min(end, newest) - max(start, oldest))
    return offsets


def headrooms(
    consumer: Consumer, ends: Edges, reached: Offsets, retention_ms: Mapping[str, int], now_ms: int | None = None
) -> Headrooms:
    """Return the seconds until retention may delete the record at each offset `reached`; raises KafkaException.

    A partition without unread records has all of its retention; 0 means that Kafka has deleted records, or may at any time.
    Kafka deletes whole segments, so a record may live longer, never shorter. Deletion because of `retention.bytes` is not
    predicted. The result lacks topics without an entry in `retention_ms`, and partitions whose record does not arrive within 5 s.
    """
    now_ms = clock.now_ms() if now_ms is None else now_ms
    rooms: dict[str, dict[int, float]] = {}
    unread = []
    for topic, partitions in ends.items():
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
    for (topic, partition), written_ms in written_at(consumer, unread)[0].items():
        rooms.setdefault(topic, {})[partition] = max(0.0, (written_ms + retention_ms[topic] - now_ms) / 1000)
    return rooms


def written(kafka: Kafka, starts: Mapping[tuple[str, int], int]) -> Mapping[tuple[str, int], int]:
    """Return the broker's time in ms of the first record from each offset on, without partitions that give none in time.

    Raises SourceError.
    """
    with clients.reading(kafka) as consumer:
        return written_at(consumer, [TopicPartition(*place, offset) for place, offset in starts.items()])[0]


def written_at(
    consumer: Consumer, places: Sequence[TopicPartition]
) -> tuple[Mapping[tuple[str, int], int], Set[tuple[str, int]]]:
    """Return the time in ms of the first record from each place on, and the partitions that do not answer within TIMEOUT_S.

    A partition with no record from its place on is in neither. Raises KafkaException.
    """
    written: dict[tuple[str, int], int] = {}
    waiting = {(place.topic, place.partition) for place in places}
    if not places:
        return written, waiting
    consumer.assign(list(places))
    # A partition that was paused stays paused when it is assigned again (librdkafka 2.16).
    consumer.resume(list(places))
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
    return written, waiting


def place_of(message: Message) -> tuple[str, int]:
    """Return a message's topic and partition."""
    return str(message.topic()), int(message.partition() or 0)


def _partitions(consumer: Consumer, topics: Sequence[str]) -> Sequence[tuple[str, int]]:
    listed = consumer.list_topics(timeout=TIMEOUT_S).topics if len(topics) > _FEW_TOPICS else {}
    partitions: list[tuple[str, int]] = []
    for topic in topics:
        # The list has no topic that is missing or not to be seen: the request for it says which.
        metadata = listed.get(topic) or consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        partitions += [(topic, partition) for partition in metadata.partitions]
    return partitions

"""How far behind the topics the service is, how long that may last, and its offsets where Kafka's own tools look for them.

Spark commits nothing to Kafka, and its progress reads 0 behind when it is not (Spark 4.1.1). The true lag is the end of
a partition minus the end of the last *committed* batch. The headroom is how long the service may stop: the time until
retention may delete the oldest record that no batch has committed. All requests go to the broker from one thread of our
own, so that an unreachable broker delays no batch; a failure is counted and tried again, and the last figures stand.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from service import clock
from service.cut import Offsets
from service.settings import Kafka

EVERY_S = 2.0
HEADROOM_EVERY_S = 30.0
TIMEOUT_S = 5.0

Edges = Mapping[str, Mapping[int, tuple[int, int]]]
"""Topic -> partition -> (first offset there is, offset of the next record to come)."""
Headrooms = Mapping[str, Mapping[int, float]]
"""Topic -> partition -> seconds; infinite where nothing is ever deleted."""

_SOON = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
_log = logging.getLogger(__name__)


class Lag(threading.Thread):
    """Asks every two seconds; `publish` gets the lags, `failed` is called once per failed round.

    `level` gets the time in ms just before Kafka was asked, and the ends of the topics when nothing is left to read, else None.
    `headrooms` gets the time until records are lost, every half a minute, for the topics in `retention_ms` (-1: for ever).
    """

    def __init__(
        self,
        kafka: Kafka,
        publish: Callable[[Offsets], None],
        failed: Callable[[], None],
        *,
        retention_ms: Mapping[str, int] | None = None,
        headrooms: Callable[[Headrooms], None] = lambda _: None,
        level: Callable[[int, Offsets | None], None] = lambda _ms, _ends: None,
    ) -> None:
        super().__init__(name="tidemark-lag", daemon=True)
        self._kafka = kafka
        self._publish = publish
        self._failed = failed
        self._retention_ms = retention_ms or {}
        self._headrooms = headrooms
        self._level = level
        self._next_headroom_s = 0.0
        self._wake = threading.Event()
        self._closing = False
        self._lock = threading.Lock()
        self._done: dict[str, dict[int, int]] = {}
        self._to_commit: dict[str, dict[int, int]] = {}
        # A consumer that joins nothing and reads nothing. The admin client's calls for groups and offsets would do, too,
        # but asked for a group that does not exist yet they crash the process now and then (confluent-kafka 2.16.0).
        self._consumer: Consumer | None = None

    def committed(self, end: Offsets) -> None:
        """A batch that ends there is committed. Returns at once; the group's offsets follow within two seconds."""
        with self._lock:
            for mine in (self._done, self._to_commit):
                for topic, partitions in end.items():
                    mine.setdefault(topic, {}).update(partitions)

    def close(self) -> None:
        """Commit what is left and end; waits no longer than two requests to an unreachable broker take."""
        self._closing = True
        self._wake.set()
        self.join(2 * TIMEOUT_S + 1)

    def run(self) -> None:
        failing = False
        while True:
            try:
                if self._consumer is None:
                    self._consumer = consumer_of(self._kafka)
                    self._resume(self._consumer)
                self._commit(self._consumer)
                if not self._closing:
                    self._show(self._consumer)
                failing = False
            except KafkaException as error:
                self._failed()
                if not failing:
                    _log.warning("The lag is not known, and offsets are not shown in the group: %s", text(error))
                failing = True
            if self._closing:
                if self._consumer is not None:
                    self._consumer.close()
                return
            self._wake.wait(EVERY_S)

    def _show(self, consumer: Consumer) -> None:
        """Raises KafkaException."""
        asked_ms = clock.now_ms()
        found = edges(consumer, self._kafka)
        with self._lock:
            done = {topic: dict(offsets) for topic, offsets in self._done.items()}
        # What no batch has covered yet is read from its beginning, except by a service that began with the latest.
        from_end = self._kafka.starting == "latest" and not done
        reached = {
            topic: {p: done.get(topic, {}).get(p, end if from_end else begin) for p, (begin, end) in partitions.items()}
            for topic, partitions in found.items()
        }
        lags = {
            t: {p: max(0, end - reached[t][p]) for p, (_, end) in partitions.items()} for t, partitions in found.items()
        }
        self._publish(lags)
        self._level(asked_ms, None if any(any(each.values()) for each in lags.values()) else reached)
        if clock.monotonic_s() >= self._next_headroom_s:
            self._headrooms(headrooms(consumer, found, reached, self._retention_ms))
            self._next_headroom_s = clock.monotonic_s() + HEADROOM_EVERY_S

    def _resume(self, consumer: Consumer) -> None:
        """Before the first batch, what an earlier run committed is the best that is known."""
        with self._lock:
            for topic, offsets in shown(consumer, self._kafka).items():
                for partition, offset in offsets.items():
                    self._done.setdefault(topic, {}).setdefault(partition, offset)

    def _commit(self, consumer: Consumer) -> None:
        with self._lock:
            offsets, self._to_commit = self._to_commit, {}
        if not offsets:
            return
        rows = [TopicPartition(t, p, o) for t, partitions in offsets.items() for p, o in partitions.items()]
        try:
            consumer.commit(offsets=rows, asynchronous=False)
        except KafkaException:
            with self._lock:  # tried again, unless a later batch has overtaken it
                for topic, partitions in offsets.items():
                    self._to_commit[topic] = {**partitions, **self._to_commit.get(topic, {})}
            raise


def consumer_of(kafka: Kafka) -> Consumer:
    """A consumer that joins nothing, and reads only what it is told to; to be closed."""
    # Of what is asked for one record's time, little more than that record shall be fetched.
    small = {"queued.min.messages": 1, "queued.max.messages.kbytes": 64, "fetch.message.max.bytes": 65_536}
    given = {"group.id": kafka.group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    return Consumer({**small, **client(kafka), **given})


def edges(consumer: Consumer, kafka: Kafka) -> Edges:
    """Where each partition of the input topics begins and ends; raises KafkaException."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for each in _partitions(consumer, kafka.topics):
        found.setdefault(each.topic, {})[each.partition] = consumer.get_watermark_offsets(each, timeout=TIMEOUT_S)
    return found


def shown(consumer: Consumer, kafka: Kafka) -> Offsets:
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
    found: dict[tuple[str, int], int] = {}
    if not places:
        return found
    consumer.assign(list(places))
    try:
        until_s = clock.monotonic_s() + TIMEOUT_S
        while len(found) < len(places) and clock.monotonic_s() < until_s:
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                continue
            topic, partition = message.topic(), message.partition()
            if topic is not None and partition is not None and (topic, partition) not in found:
                found[topic, partition] = message.timestamp()[1]
                consumer.pause([TopicPartition(topic, partition)])
    finally:
        consumer.unassign()
    return found


def client(kafka: Kafka) -> dict[str, str | int | float | bool]:
    """The options of a librdkafka client, the operator's last.

    Its own log is off: it repeats a lost connection without end, a counter and one line of ours say it better.
    """
    timeout_ms = int(TIMEOUT_S * 1000)
    return {"bootstrap.servers": kafka.bootstrap, "socket.timeout.ms": timeout_ms, "log_level": 0, **kafka.options}


def text(error: Exception) -> str:
    """What the broker or its client says, without the client's wrapping."""
    if isinstance(error, KafkaException):
        return str(error.args[0].str())
    return str(error) or "no answer in time"


def _partitions(consumer: Consumer, topics: tuple[str, ...]) -> list[TopicPartition]:
    found = []
    for topic in topics:
        metadata = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        found += [TopicPartition(topic, partition) for partition in metadata.partitions]
    return found

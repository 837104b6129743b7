"""How far behind the topics the service is, and its offsets where Kafka's own tools look for them.

Spark commits nothing to Kafka, and its progress reads 0 behind when it is not (Spark 4.1.1). The true lag is the end of
a partition minus the end of the last *committed* batch. Both requests go to the broker from one thread of our own, so
that an unreachable broker delays no batch; a failure is counted and tried again, and the last lags stand.
"""

import logging
import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from service.cut import Offsets
from service.settings import Kafka

EVERY_S = 2.0
TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class Lag(threading.Thread):
    """Asks every two seconds; `publish` gets the lags, `failed` is called once per failed round."""

    def __init__(self, kafka: Kafka, publish: Callable[[Offsets], None], failed: Callable[[], None]) -> None:
        super().__init__(name="tidemark-lag", daemon=True)
        self._kafka = kafka
        self._publish = publish
        self._failed = failed
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
                    self._consumer = Consumer(
                        {**client(self._kafka), "group.id": self._kafka.group, "enable.auto.commit": False}
                    )
                    self._resume(self._consumer)
                self._commit(self._consumer)
                if not self._closing:
                    self._publish(self.lags(self._consumer))
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

    def lags(self, consumer: Consumer) -> Offsets:
        """Records behind, by topic and partition; raises KafkaException."""
        with self._lock:
            done = {topic: dict(offsets) for topic, offsets in self._done.items()}
        # What no batch has covered yet is read from its beginning, except by a service that began with the latest.
        from_end = self._kafka.starting == "latest" and not done
        lags: dict[str, dict[int, int]] = {}
        for each in _partitions(consumer, self._kafka.topics):
            begin, end = consumer.get_watermark_offsets(each, timeout=TIMEOUT_S)
            reached = done.get(each.topic, {}).get(each.partition, end if from_end else begin)
            lags.setdefault(each.topic, {})[each.partition] = max(0, end - reached)
        return lags

    def _resume(self, consumer: Consumer) -> None:
        """Before the first batch, what an earlier run committed is the best that is known."""
        found = consumer.committed(_partitions(consumer, self._kafka.topics), timeout=TIMEOUT_S)
        with self._lock:
            for p in found:
                if p.error is None and p.offset >= 0:
                    self._done.setdefault(p.topic, {}).setdefault(p.partition, p.offset)

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

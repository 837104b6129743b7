"""How far behind the topics the service is, how long that may last, and its offsets where Kafka's own tools look for them.

Spark commits nothing to Kafka, and its progress reads 0 behind when it is not (Spark 4.1.1). The true lag is the end of
a partition minus the end of the last *committed* batch. Records of an open transaction are lag, too: the service cannot
read beyond them, and a transaction that never ends holds its partition for ever.

The headroom is how long the service may stop: the time until
retention may delete the oldest record that no batch has committed. All requests go to the broker from one thread of our
own, so that an unreachable broker delays no batch; a failure is counted and tried again, and no lag is shown meanwhile.
"""

import logging
import threading
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from service import clock
from service.errors import SettingsError
from service.kafka import clients
from service.kafka.clients import TIMEOUT_S
from service.kafka.offsets import Headrooms, edges, headrooms
from service.micro_batch import Offsets
from service.settings import Kafka

EVERY_S = 2.0
HEADROOM_EVERY_S = 30.0

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
                    self._consumer = clients.consumer(self._kafka, small=True, uncommitted=True)
                self._commit(self._consumer)
                if not self._closing:
                    self._show(self._consumer)
                failing = False
            except (KafkaException, SettingsError) as error:
                self._failed()
                if not failing:
                    _log.warning(
                        "The lag is not known, and offsets are not shown in the group: %s", clients.text(error)
                    )
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
        # What no batch of this checkpoint has covered yet is read from its beginning, except by a service that began with the
        # latest. The group's offsets say nothing here: they may be those of an older checkpoint.
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

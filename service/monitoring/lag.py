"""The lag and the headroom, and Kafka's consumer group.

Spark commits no offsets to Kafka, and its progress may report a lag of 0 when there is one (Spark 4.1.1). The lag of a partition
is its end less the end of the last *committed* batch. Records of an open transaction count as lag: the
service cannot read past them, and a transaction that never ends blocks its partition.

The headroom is how long the service may stop before retention may delete a record that no batch has committed. One thread
sends all requests to the broker, so that an unreachable broker delays no batch. It counts a failure and retries. Without a right
to the group, or while the topics of marks do not answer, the lag is still known.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition

from service import clock
from service.errors import SettingsError
from service.kafka import clients, starting
from service.kafka.clients import TIMEOUT_S, Kept
from service.kafka.offsets import Edges, Headrooms, edges, headrooms, marked
from service.micro_batch import Offsets
from service.settings import Kafka
from service.threads import Thread

EVERY_S = 2.0
HEADROOM_EVERY_S = 30.0

_log = logging.getLogger(__name__)


Level = Callable[[int, Offsets, Offsets], None]
"""Gets the time of a request in ms, the ends of the topics, and the offsets up to which batches are committed."""


class Lag(Thread):
    """Asks Kafka every two seconds and calls `publish` with the lags, without any when Kafka does not give them. `failed` is
    called for each request that fails.

    `asked` gets the time in ms just before a request that Kafka has answered, and so does `level`. Every half minute `headrooms`
    gets the headrooms of the topics of the query that is served, `marks` the number of marks of rejects, and with
    `topics_pattern` `listed` the names of all topics.

    It serves the queries of a term, and goes on between them: while Redis is away, the lag grows and is known.
    """

    def __init__(
        self,
        kafka: Kafka,
        publish: Callable[[Offsets], None],
        failed: Callable[[], None],
        *,
        headrooms: Callable[[Headrooms], None] = lambda _: None,
        marks: Callable[[int], None] = lambda _: None,
        level: Level | None = None,
        asked: Callable[[int], None] = lambda _: None,
        listed: Callable[[Iterable[str]], None] = lambda _: None,
    ) -> None:
        super().__init__(name="tidemark-lag", daemon=True)
        self._kafka = kafka
        self._publish = publish
        self._failed = failed
        self._retention_ms: Mapping[str, int] = {}
        self._headrooms = headrooms
        self._marks = marks
        self._asked = asked
        self._listed = listed
        self._level = level
        self._calling_level = threading.Lock()
        self._next_headroom_s = 0.0
        self._wake = threading.Event()
        self._closing = False
        self._failing = set[str]()
        """What has failed when it was tried last."""
        self._lock = threading.Lock()
        self._done: dict[str, dict[int, int]] = {}
        self._to_commit: dict[str, dict[int, int]] = {}
        # This consumer neither joins the group nor reads. The admin client can do the same, but sometimes crashes the process
        # when the group does not exist yet (confluent-kafka 2.16.0).
        make = partial(clients.consumer, kafka, small=True, uncommitted=True)
        self._kept: Kept[Consumer] = Kept(kafka, make, Consumer.close)

    def committed(self, end: Offsets) -> None:
        """Note the end of a committed batch; returns at once. The group gets the offsets within two seconds."""
        with self._lock:
            for offsets in (self._done, self._to_commit):
                for topic, partitions in end.items():
                    offsets.setdefault(topic, {}).update(partitions)

    @contextmanager
    def serving(self, retention_ms: Mapping[str, int], level: Level) -> Iterator[None]:
        """Serve a query in this context; the first one starts the thread. When it ends, no call of `level` runs.

        `retention_ms` has the topics whose headrooms are shown (-1: unlimited).

        Call `committed` before, if the checkpoint has a batch.
        """
        self._retention_ms = retention_ms
        self._listen(level)
        if self.ident is None:
            self.start()
        try:
            yield
        finally:
            self._listen(None)

    def _listen(self, level: Level | None) -> None:
        with self._calling_level:
            self._level = level

    def close(self) -> None:
        """Commit the remaining offsets and end; waits at most as long as two requests to an unreachable broker."""
        self._closing = True
        self._wake.set()
        if self.ident is not None:
            self.join(2 * TIMEOUT_S + 1)

    def run(self) -> None:
        while True:
            is_last = self._closing
            self._try(f"The group {self._kafka.group} does not get the offsets of batches", self._commit)
            if not self._closing and not self._try("The lag is unknown", self._show):
                self._publish({})
            if is_last:
                self._kept.close()
                return
            self._wake.wait(EVERY_S)

    def _try(self, failure: str, action: Callable[[Consumer], None]) -> bool:
        """Return whether the action succeeds. The first of several failures is logged as `failure`."""
        try:
            action(self._kept.get())
        except (KafkaException, SettingsError) as error:
            self._failed()
            if failure not in self._failing:
                _log.warning("%s: %s. The service goes on and tries again", failure, clients.text(error))
            self._failing.add(failure)
            return False
        self._failing.discard(failure)
        return True

    def _show(self, consumer: Consumer) -> None:
        """Raises KafkaException."""
        asked_ms = clock.steady_ms()  # a clock that is set back must not stop silence until it has caught up
        ends = edges(consumer, self._kafka)
        with self._lock:
            done = {topic: dict(offsets) for topic, offsets in self._done.items()}
        # Before the first committed batch, `kafka.starting` decides; later a new partition is read from its beginning. Offsets of
        # the group are not used: they may be those of an older checkpoint.
        first = {} if done else starting.offsets(consumer, self._kafka, ends)
        reached = {
            topic: {
                p: done.get(topic, {}).get(p, first.get(topic, {}).get(p, begin))
                for p, (begin, _) in partitions.items()
            }
            for topic, partitions in ends.items()
        }
        lags = {
            t: {p: max(0, end - reached[t][p]) for p, (_, end) in partitions.items()} for t, partitions in ends.items()
        }
        if self._closing:  # another process may show the lag by now
            return
        self._publish(lags)
        self._asked(asked_ms)
        with self._calling_level:
            if self._level is not None:
                self._level(
                    asked_ms,
                    {t: {p: end for p, (_, end) in partitions.items()} for t, partitions in ends.items()},
                    reached,
                )
        if clock.monotonic_s() >= self._next_headroom_s:
            self._next_headroom_s = clock.monotonic_s() + HEADROOM_EVERY_S
            self._try("The time until retention is unknown", partial(self._show_headrooms, ends, reached))
            self._try("The topics and the marks of rejects are unknown", self._show_topics)

    def _show_headrooms(self, ends: Edges, reached: Offsets, consumer: Consumer) -> None:
        self._headrooms(headrooms(consumer, ends, reached, self._retention_ms))

    def _show_topics(self, consumer: Consumer) -> None:
        topics = consumer.list_topics(timeout=TIMEOUT_S).topics
        if self._kafka.topics_pattern is not None:
            self._listed(topics)
        self._marks(marked(consumer, self._kafka, topics))

    def _commit(self, consumer: Consumer) -> None:
        with self._lock:
            offsets, self._to_commit = self._to_commit, {}
        if not offsets:
            return
        rows = [TopicPartition(t, p, o) for t, partitions in offsets.items() for p, o in partitions.items()]
        try:
            consumer.commit(offsets=rows, asynchronous=False)
        except KafkaException:
            with self._lock:  # retry them, but keep the offsets of a later batch
                for topic, partitions in offsets.items():
                    self._to_commit[topic] = {**partitions, **self._to_commit.get(topic, {})}
            raise

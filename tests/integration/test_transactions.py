"""Records of transactions: an aborted one does not count, and one that never ends holds its partition and is lag."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from load.servers.kafka import CREATE_TIME, Broker
from load.servers.redis import Redis
from service.checkpoint import skips
from service.kafka import clients, scan
from service.kafka.offsets import edges
from service.kafka.source import with_options
from service.micro_batch import Offsets
from service.monitoring.lag import Lag
from service.pipeline.batch import BatchReport, start_query
from service.pipeline.term import Term
from service.recompute import sources
from service.settings import Settings
from service.spark.files import Local
from tests.integration.world import Parts
from tests.stream.records import BASE_MS, make_settings, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]


class World:
    """A topic of one partition, and a producer that writes transactions to it."""

    def __init__(self, spark: SparkSession, broker: Broker, redis: Redis, folder: Path, prefix: str) -> None:
        self.spark, self.topic, self.redis = spark, f"transactions-{prefix}", redis.client()
        broker.create_topic(self.topic, 1, CREATE_TIME)
        self.settings: Settings = make_settings(
            folder,
            service={"checkpoint": str(folder / "checkpoint"), "name": prefix},
            kafka={"bootstrap": broker.bootstrap, "topics": [self.topic], "on_data_loss": "continue"},
            redis={"url": redis.url, "prefix": prefix},
        )
        self.redis.set(f"{prefix}:epoch", 1)
        quiet = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        self.producer = Producer({**quiet, "transactional.id": self.topic})
        self.producer.init_transactions(30)

    def send(self, *seconds: int, end: str = "commit") -> None:
        """A transaction with one reading for each second, and its end: "commit", "abort" or "" for none."""
        self.producer.begin_transaction()
        for second in seconds:
            record = reading("a", second, 10.0)
            self.producer.produce(self.topic, record.value, timestamp=record.at)
        assert self.producer.flush(30) == 0
        if end == "commit":
            self.producer.commit_transaction(30)
        elif end:
            self.producer.abort_transaction(30)

    def publish(self) -> BatchReport:
        """Run the query until nothing is left to read; the batch that had records."""
        reports: list[BatchReport] = []
        query, publication = start_query(Term(self.spark, self.settings, epoch=1), on_batch=reports.append)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert publication.failure is None
        (report,) = [each for each in reports if each.micro_batch.rows]
        return report

    def window(self) -> Mapping[str, str]:
        fields: Any = self.redis.hgetall(f"{self.settings.redis.prefix}:window:device:temperature:a:{BASE_MS}")
        return {str(name): str(text) for name, text in fields.items()}

    def readable(self) -> int:
        """Records that a batch of Spark's reads."""
        reader = with_options(self.spark.read.format("kafka"), self.settings.kafka)
        return reader.option("subscribe", self.topic).load().count()

    def lag(self, done: Offsets) -> tuple[int, Offsets | None]:
        """What the service says of the lag, and of the ends when nothing is left, after a batch that ends at `done`."""
        lags: list[Offsets] = []
        ends: list[Offsets | None] = []
        asked = threading.Event()

        def level(_ms: int, at: Offsets, reached: Offsets) -> None:
            ends.append(at if at == reached else None)
            asked.set()

        thread = Lag(self.settings.kafka, lags.append, lambda: None, level=level)
        thread.committed(done)
        thread.start()
        try:
            assert asked.wait(30)
        finally:
            thread.close()
        return lags[0][self.topic][0], ends[0]


@pytest.fixture
def world(parts: Parts) -> World:
    return World(*parts)


def test_aborted_records_count_nowhere_and_are_not_lost(world: World) -> None:
    """Offsets: 0-1 and their marker committed, 3-5 and their marker aborted, 7 and its marker committed."""
    world.send(0, 1)
    world.send(2, 3, 4, end="abort")
    world.send(5)
    report = world.publish()
    assert (report.micro_batch.rows, report.outcome.admitted, sum(report.outcome.rejected), report.lost) == (9, 3, 0, 0)
    assert world.window()["count"] == "3"
    assert [message.offset() for message in scan.messages(world.settings.kafka, [world.topic])] == [0, 1, 7]
    chosen = sources.Source({world.topic: {0: 0}}, report.micro_batch.end, 0)
    assert sources.records(world.spark, world.settings, chosen).count() == 3
    assert world.lag(report.micro_batch.end) == (0, {world.topic: {0: 9}})


@pytest.mark.thorough
def test_a_transaction_that_never_ends_is_lag_and_its_records_are_not_read(world: World) -> None:
    world.send(0)
    world.send(1, 2, 3, end="")
    report = world.publish()
    assert (report.micro_batch.rows, report.outcome.admitted) == (2, 1)
    assert world.readable() == 1
    assert world.lag(report.micro_batch.end) == (3, None)
    reader, asker = clients.consumer(world.settings.kafka), clients.consumer(world.settings.kafka, uncommitted=True)
    try:
        stable, high = edges(reader, world.settings.kafka), edges(asker, world.settings.kafka)
        assert (stable, high) == ({world.topic: {0: (0, 2)}}, {world.topic: {0: (0, 5)}})
    finally:
        reader.close()
        asker.close()
    assert [message.offset() for message in scan.messages(world.settings.kafka, [world.topic])] == [0]
    world.producer.commit_transaction(30)
    assert (world.publish().outcome.admitted, world.window()["count"]) == (3, "4")


def test_what_reads_the_topic_again_leaves_skipped_offsets_out(world: World) -> None:
    world.send(0, 1, 2)
    skips.write(Local(Path(world.settings.service.checkpoint)), [skips.Span(world.topic, 0, 1, 2)])
    chosen = sources.Source({world.topic: {0: 0}}, {world.topic: {0: 4}}, 0)
    rows = sources.records(world.spark, world.settings, chosen).select("offset").collect()
    assert sorted(row.offset for row in rows) == [0, 2]

"""What must hold before a query goes on, with a real broker and Redis: the manifest, the topics, what Kafka still has."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from load.servers.kafka import Broker
from load.servers.redis import Redis
from load.testbed import to_toml
from service.checkpoint import manifest, resume
from service.cli import main
from service.errors import CheckpointError, DataLossError
from service.kafka import clients, topics
from service.kafka.offsets import edges, headrooms
from service.pipeline.batch import BatchReport, start_query
from service.pipeline.term import Term
from service.settings import Settings, parse
from service.spark.files import Local, local

pytestmark = pytest.mark.integration

RECORDS = 10
PARTITIONS = 2


class World:
    """A topic with ten records in each of two partitions, and a checkpoint whose logs are written by hand."""

    def __init__(self, broker: Broker, redis: Redis, folder: Path, name: str) -> None:
        self.broker, self.redis, self.name = broker, redis.client(), f"resume-{name}"
        self.folder = folder / "checkpoint"
        self.document: dict[str, Any] = {
            "service": {"checkpoint": f"file://{self.folder}"},
            "kafka": {"bootstrap": broker.bootstrap, "topics": [self.name], "group": self.name},
            "input": {"format": "json", "measures": {"temperature": "temperature"}},
            "sessions": {"buckets": 4},
            "redis": {"url": redis.url, "prefix": self.name},
            "views": [{"name": "all", "window": "1 m"}],
        }
        broker.create_topic(self.name, PARTITIONS)
        self.produce(RECORDS)

    def produce(self, records: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for partition in range(PARTITIONS):
            for _ in range(records):
                producer.produce(self.name, b"{}", partition=partition)
        assert producer.flush(10) == 0

    def settings(self, **sections: Any) -> Settings:
        return parse({**self.document, **{name: {**self.document.get(name, {}), **s} for name, s in sections.items()}})

    def batch(self, number: int, *ends: int) -> None:
        """A batch that is committed."""
        line = json.dumps({self.name: {str(p): end for p, end in enumerate(ends)}})
        conf = json.dumps({"conf": {"spark.sql.shuffle.partitions": "3"}})
        for name, text in {
            "metadata": '{"id":"x"}',
            f"offsets/{number}": f"v1\n{conf}\n{line}",
            f"commits/{number}": "v1\n{}",
            f"event_time/{number}": '{"watermark_ms": 0, "newest_ms": -1}',
        }.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


@pytest.fixture
def world(broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str) -> World:
    return World(broker_server, redis_server, tmp_path, prefix)


def test_a_new_checkpoint_gets_a_manifest_and_keeps_what_it_says(spark: SparkSession, world: World) -> None:
    settings = world.settings()
    assert resume.prepare(spark, settings) == []
    there = json.loads((world.folder / manifest.NAME).read_text())
    assert there["settings"] == {"kafka.topics": [world.name], "sessions.buckets": 4}
    assert there["topic_ids"] == topics.ids(settings.kafka)
    assert len(there["topic_ids"][world.name]) == 22
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "7")
        resume.prepare(spark, settings)
        assert spark.conf.get("spark.sql.shuffle.partitions") == str(there["shuffle_partitions"])
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before or "2")
    with pytest.raises(CheckpointError, match=r"sessions\.buckets is 4, the settings say 8.*Set it back"):
        resume.prepare(spark, world.settings(sessions={"buckets": 8}))
    # All of it is deleted but the manifest, which proves nothing.
    world.redis.hset(f"{world.name}:progress", "offsets", json.dumps({world.name: {"0": 4, "1": 5}}))
    with pytest.raises(CheckpointError, match=r"would continue at 10"):
        resume.prepare(spark, world.settings(kafka={"starting": "latest"}))


def test_a_checkpoint_has_a_bucket_for_each_partition_and_keeps_them(spark: SparkSession, world: World) -> None:
    del world.document["sessions"]
    settings, partitions = world.settings(), spark.conf.get("spark.sql.shuffle.partitions") or "1"
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "3")
        begun = resume.with_buckets(spark, settings)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
    assert begun.buckets == 3
    resume.prepare(spark, begun)
    # Another machine has other cores.
    made = json.loads((world.folder / manifest.NAME).read_text())
    assert made["settings"]["sessions.buckets"] == 3
    made["settings"]["sessions.buckets"] = 16
    (world.folder / manifest.NAME).write_text(json.dumps(made))
    (world.folder / f".{manifest.NAME}.crc").unlink(missing_ok=True)
    resumed = resume.with_buckets(spark, settings)
    assert resumed.buckets == 16
    resume.prepare(spark, resumed)
    world.document["sessions"] = {}
    contrary = resume.with_buckets(spark, world.settings(sessions={"buckets": 3}))
    with pytest.raises(CheckpointError, match=r"sessions\.buckets is 16, the settings say 3.*Set it back"):
        resume.prepare(spark, contrary)


def test_a_topic_that_was_made_again_is_noticed(spark: SparkSession, world: World) -> None:
    resume.prepare(spark, world.settings())
    world.batch(0, 2, 2)
    world.broker.delete_topic(world.name)
    world.broker.create_topic(world.name, PARTITIONS)
    world.produce(RECORDS)
    with pytest.raises(CheckpointError, match=f"the topic {world.name} has the id .*deleted and created again"):
        resume.prepare(spark, world.settings())


def test_a_checkpoint_without_a_manifest_is_refused_until_init_makes_one(spark: SparkSession, world: World) -> None:
    world.batch(4, 5, 5)
    with pytest.raises(CheckpointError, match=r"batches up to 4 and no manifest\.json.*checkpoint init"):
        resume.prepare(spark, world.settings())
    with pytest.raises(CheckpointError, match="the settings name others"):
        resume.init(spark, parse({**world.document, "kafka": {**world.document["kafka"], "topics": ["other"]}}))
    unset = {name: section for name, section in world.document.items() if name != "sessions"}
    with pytest.raises(CheckpointError, match=r"the number of its buckets is not known.*Set sessions\.buckets"):
        resume.init(spark, parse(unset))
    made = resume.init(spark, world.settings())
    assert made.shuffle_partitions == 3
    assert manifest.shown(Local(local(world.settings().service.checkpoint))) == made
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        assert resume.prepare(spark, world.settings()) == []
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before or "2")
    with pytest.raises(CheckpointError, match=r"manifest\.json is there"):
        resume.init(spark, world.settings())


def test_records_deleted_before_they_were_read_are_named_and_counted(spark: SparkSession, world: World) -> None:
    resume.init(spark, world.settings())
    world.batch(0, 4, 10)
    assert resume.prepare(spark, world.settings()) == []
    world.broker.delete_records(world.name, {0: 7, 1: 10})
    message = f"{world.name}[0]: committed offset 4, earliest available 7: 3 records are lost"
    with pytest.raises(DataLossError) as caught:
        resume.prepare(spark, world.settings())
    assert message in str(caught.value)
    assert f"{world.name}[1]" not in str(caught.value)
    (gap,) = resume.prepare(spark, world.settings(kafka={"on_data_loss": "continue"}))
    assert (gap.partition, gap.start, gap.end, gap.records) == (0, 4, 7, 3)
    assert str(gap) == message


@pytest.mark.thorough
def test_where_the_loss_is_accepted_the_counter_equals_the_gap(spark: SparkSession, world: World) -> None:
    """All partitions lose records between two runs: 3 and 4 that were not read, and some that were."""
    settings = world.settings(
        kafka={"on_data_loss": "continue", "max_per_batch": 8}, service={"name": f"lossy_{world.name[-1]}"}
    )
    topics.prepare(settings.kafka)
    world.redis.set(f"{world.name}:epoch", 1)
    reports: list[BatchReport] = []

    def run() -> None:
        resume.prepare(spark, settings)
        query, publication = start_query(Term(spark, settings, epoch=1), on_batch=reports.append)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert publication.failure is None

    run()
    assert sum(report.lost for report in reports) == 0
    assert sum(sum(report.outcome.rejected) for report in reports) == 2 * RECORDS
    reports.clear()
    world.produce(RECORDS)
    world.broker.delete_records(world.name, {0: RECORDS + 3, 1: RECORDS + 4})
    run()
    assert sum(report.lost for report in reports) == 7
    assert sum(sum(report.outcome.rejected) for report in reports) == 2 * RECORDS - 7
    assert len(reports) > 1


def test_offsets_beyond_the_end_are_a_loss_that_no_setting_accepts(spark: SparkSession, world: World) -> None:
    resume.init(spark, world.settings())
    world.batch(0, 4, 11)
    with pytest.raises(DataLossError, match=r"\[1\]: committed offset 11, the end is 10"):
        resume.prepare(spark, world.settings(kafka={"on_data_loss": "continue"}))


@pytest.mark.parametrize("evidence", ["redis", "group"])
def test_a_lost_checkpoint_is_begun_again_only_where_that_gives_the_same(
    spark: SparkSession, world: World, caplog: pytest.LogCaptureFixture, evidence: str
) -> None:
    if evidence == "redis":
        world.redis.hset(f"{world.name}:progress", "offsets", json.dumps({world.name: {"0": 4, "1": 5}}))
    else:
        consumer = Consumer({"bootstrap.servers": world.broker.bootstrap, "group.id": world.name})
        consumer.commit(offsets=[TopicPartition(world.name, p, 4 + p) for p in range(2)], asynchronous=False)
        consumer.close()
    with pytest.raises(
        CheckpointError, match=rf"is new, but .*{world.name}\[0\] 4, .*would continue at 10 \(kafka\.starting"
    ):
        resume.prepare(spark, world.settings(kafka={"starting": "latest"}))
    assert not world.folder.exists()
    world.broker.delete_records(world.name, {1: 1})
    with pytest.raises(CheckpointError, match=rf"{world.name}\[1\] begins at 1\. .*checkpoint init"):
        resume.prepare(spark, world.settings())
    resume.init(spark, world.settings())
    assert resume.prepare(spark, world.settings()) == []

    whole = world.settings(
        kafka={"topics": [world.name + "x"]}, service={"checkpoint": str(world.folder.parent / "other")}
    )
    world.broker.create_topic(world.name + "x", 1)
    if evidence == "redis":
        world.redis.hset(f"{world.name}:progress", "offsets", json.dumps({world.name + "x": {"0": 0}}))
        with caplog.at_level(logging.WARNING, "service.checkpoint.resume"):
            resume.prepare(spark, whole)
        assert "The topic is read again from its beginning" in caplog.text


@pytest.mark.usefixtures("shared_spark")
def test_the_command_names_the_damage(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.batch(0, 1, 1)
    (world.folder / "offsets/0").write_text("v1\n{")
    config = tmp_path / "tidemark.toml"
    config.write_text(to_toml({**world.document, "views": [dict(view) for view in world.document["views"]]}))
    assert main(["checkpoint", "verify", "--config", str(config)]) == 8
    shown = capsys.readouterr().out
    assert "FAIL offsets/0: is not what Spark writes" in shown
    assert f"FAIL {manifest.NAME}: is missing" in shown


def test_the_headroom_is_what_retention_leaves_of_the_oldest_unread_record(world: World) -> None:
    kafka = world.settings().kafka
    consumer = clients.consumer(kafka, small=True)
    try:
        ends = edges(consumer, kafka)
        assert ends == {world.name: {0: (0, 10), 1: (0, 10)}}
        reached = {world.name: {0: 9, 1: 10}}
        (_, written_ms), *_ = [m.timestamp() for m in consume(consumer, world.name)]
        hour_ms = 3_600_000
        headroom = headrooms(consumer, ends, reached, {world.name: hour_ms}, now_ms=written_ms + 60_000)[world.name]
        assert headroom[0] == pytest.approx(3540, abs=5)  # ten records are written within seconds
        assert headroom[1] == 3600  # nothing is unread
        late_ms = written_ms + 2 * hour_ms
        assert headrooms(consumer, ends, reached, {world.name: hour_ms}, now_ms=late_ms)[world.name][0] == 0.0
        assert headrooms(consumer, ends, reached, {world.name: -1})[world.name] == {0: float("inf"), 1: float("inf")}
        gone = headrooms(consumer, {world.name: {0: (9, 10)}}, {world.name: {0: 8}}, {world.name: hour_ms})
        assert gone == {world.name: {0: 0.0}}
        assert headrooms(consumer, ends, reached, {}) == {}
    finally:
        consumer.close()


def consume(consumer: Any, topic: str) -> list[Any]:
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return list(consumer.consume(1, timeout=10))
    finally:
        consumer.unassign()

"""The order of publishing is the guarantee: each step is made to fail in a real query, and what is there is looked at.

Nothing of ours is replaced: a step fails because something stands in its way in Kafka or Redis, and succeeds when the
query is started again after that was removed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from load.servers.kafka import CREATE_TIME, Broker
from load.servers.redis import Redis
from service import failpoint
from service.errors import CheckpointError, FencedError, SinkError, SourceError
from service.failpoint import InjectedError
from service.pipeline.batch import STEPS, BatchReport, Publication, start_query
from service.pipeline.failure import classify
from service.pipeline.term import Term
from service.redis.link import WritesLostError
from service.rejects import delivery
from tests.integration.world import Parts
from tests.stream.records import BASE_MS, Record, make_settings, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

LATER = "99"
"""A batch that is not the query's own."""
NOTHING = {"rejects": False, "values": False, "progress": False, "commit": False}


class World:
    """One batch waiting in a topic: two readings and a record to reject."""

    def __init__(self, spark: SparkSession, broker: Broker, redis: Redis, folder: Path, prefix: str) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.topic = f"publication-{prefix}"
        self.redis: Any = redis.client()
        self.settings = make_settings(
            folder,
            service={"checkpoint": str(folder / "checkpoint"), "name": prefix},
            kafka={"bootstrap": broker.bootstrap, "topics": [self.topic], "starting": "earliest"},
            redis={"url": redis.url, "prefix": prefix, "retry_for": "1 s"},
        )
        self.reports: list[tuple[BatchReport, dict[str, bool]]] = []
        self.window = self.key(f"window:device:temperature:a:{BASE_MS}")
        broker.create_topic(self.topic, 1, CREATE_TIME)
        self.send(reading("a", 0, 10.0), reading("a", 1, 20.0), Record(b"junk", BASE_MS))
        self.redis.set(self.key("epoch"), 1)

    def key(self, name: str) -> str:
        return f"{self.settings.redis.prefix}:{name}"

    def send(self, *records: Record) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        for record in records:
            producer.produce(self.topic, record.value, timestamp=record.at)
        assert producer.flush(30) == 0

    def start(self) -> tuple[StreamingQuery, Publication]:
        term = Term(self.spark, self.settings, epoch=1)
        return start_query(term, on_batch=lambda report: self.reports.append((report, self.done())))

    def publish(self) -> Publication:
        """Run the query until it has nothing left to do or has failed."""
        query, publication = self.start()
        try:
            query.processAllAvailable()
        except Exception:
            if publication.failure is None:
                raise
        finally:
            query.stop()
        return publication

    def rejected(self) -> list[int]:
        """The offsets that the rejects topic says were rejected, repeats included."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "t", "log_level": 0})
        try:
            place = TopicPartition(f"{self.topic}.rejects", 0, 0)
            if place.topic not in consumer.list_topics(timeout=10).topics:
                return []
            end = consumer.get_watermark_offsets(place, timeout=10)[1]
            consumer.assign([place])
            messages = consumer.consume(end, timeout=20) if end else []
            assert len(messages) == end
            return [int(delivery.parse(message.headers())["offset"]) for message in messages]
        finally:
            consumer.close()

    def done(self) -> dict[str, bool]:
        """Which steps have left their mark."""
        return {
            "rejects": bool(self.rejected()),
            "values": self.redis.type(self.window) == "hash",
            "progress": self.redis.hget(self.key("progress"), "batch") not in {None, LATER},
            "commit": (self.folder / "checkpoint" / "commits" / "0").exists(),
        }

    def assert_complete(self) -> None:
        assert self.done() == dict.fromkeys(NOTHING, True)
        fields = self.redis.hgetall(self.window)
        assert (fields["count"], fields["mean"]) == ("2", "15")
        assert set(self.rejected()) == {2}
        assert json.loads(self.redis.hget(self.key("progress"), "offsets")) == {self.topic: {"0": 3}}


@pytest.fixture
def world(parts: Parts) -> World:
    return World(*parts)


def without_rejects_topic(world: World) -> Callable[[], object]:
    return lambda: world.broker.create_topic(f"{world.topic}.rejects", 1)


def in_the_way(world: World, key: str) -> Callable[[], object]:
    """A key of somebody else's where one of ours must go."""
    world.broker.create_topic(f"{world.topic}.rejects", 1)
    world.redis.set(key, "somebody else's")
    return lambda: world.redis.delete(key)


def window_in_the_way(world: World) -> Callable[[], object]:
    return in_the_way(world, world.window)


def progress_in_the_way(world: World) -> Callable[[], object]:
    """A later batch of the same epoch: another kind of key would be met before the first reject, where progress is read."""
    world.broker.create_topic(f"{world.topic}.rejects", 1)
    world.redis.hset(world.key("progress"), mapping={"epoch": "1", "batch": LATER})
    return lambda: world.redis.delete(world.key("progress"))


def folder_in_the_way(world: World, name: str) -> Callable[[], object]:
    """A folder where the checkpoint must have a file."""
    world.broker.create_topic(f"{world.topic}.rejects", 1)
    folder = world.folder / "checkpoint" / name
    folder.mkdir(parents=True)
    return folder.rmdir


def unread_in_the_way(world: World) -> Callable[[], object]:
    return folder_in_the_way(world, "event_time/0.unread")


def crash_when_computed(world: World) -> Callable[[], object]:
    """Nothing outside can stand in the way of this step alone: Spark looks at the state before the first one."""
    world.broker.create_topic(f"{world.topic}.rejects", 1)
    failpoint._plan = failpoint.Plan((failpoint.Point("after_decode", 1, "raise"),), None)

    def remove() -> None:
        failpoint._plan = None

    return remove


def event_time_in_the_way(world: World) -> Callable[[], object]:
    return folder_in_the_way(world, "event_time/0")


OBSTACLES = {
    "begin": (unread_in_the_way, CheckpointError, []),
    "compute": (crash_when_computed, InjectedError, []),
    "publish_rejects": (without_rejects_topic, SourceError, []),
    "publish_values": (window_in_the_way, SinkError, ["rejects"]),
    "progress": (progress_in_the_way, FencedError, ["rejects", "values"]),
    "note": (event_time_in_the_way, CheckpointError, ["rejects", "values", "progress"]),
}


def test_every_step_has_an_obstacle() -> None:
    steps = {step.__name__ for step, _ in STEPS}
    assert {name.partition("_")[0] for name in OBSTACLES} == steps - {"deliver"}, (
        "tests/integration/test_outlets.py has deliver"
    )


@pytest.mark.parametrize(
    ("obstacle", "failure", "done"),
    [
        pytest.param(*each, id=name, marks=[] if name in {"publish_values", "progress"} else pytest.mark.thorough)
        for name, each in OBSTACLES.items()
    ],
)
def test_a_step_that_fails_leaves_those_before_it_done_and_those_after_it_and_the_commit_undone(
    world: World, obstacle: Callable[[World], Callable[[], object]], failure: type[Exception], done: list[str]
) -> None:
    remove = obstacle(world)
    assert isinstance(classify(world.publish().failure), failure)
    assert world.done() == {**NOTHING, **dict.fromkeys(done, True)}
    assert world.reports == []
    remove()
    assert world.publish().failure is None
    world.assert_complete()


def test_a_batch_is_reported_when_all_is_published_and_committed_only_then(world: World) -> None:
    world.broker.create_topic(f"{world.topic}.rejects", 1)
    assert world.publish().failure is None
    report, done = world.reports[0]
    assert done == {**dict.fromkeys(NOTHING, True), "commit": False}
    assert (report.micro_batch.batch, report.micro_batch.rows, report.outcome.rejects) == (0, 3, 1)
    world.assert_complete()


def test_writes_that_redis_lost_between_two_batches_end_the_next_one(world: World) -> None:
    world.broker.create_topic(f"{world.topic}.rejects", 1)
    query, publication = world.start()
    try:
        query.processAllAvailable()
        world.redis.hset(world.key("progress"), "epoch", 0)  # as an older copy of the data would have it
        world.send(reading("a", 2, 60.0))
        with pytest.raises(StreamingQueryException):
            query.processAllAvailable()
    finally:
        query.stop()
    assert isinstance(publication.failure, WritesLostError)
    assert world.redis.hget(world.window, "count") == "2"

"""Topics that come and go at restarts of a query on one checkpoint, with a real broker, Redis and Spark."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from load.servers.kafka import CREATE_TIME, Broker
from load.servers.redis import Redis
from service.checkpoint import resume, topic_log
from service.checkpoint import topics as checkpoint_topics
from service.errors import CheckpointError, DataLossError
from service.spark.files import Local
from service.spark.internals import offset_log
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]


class Changing(World):
    """A world whose topics change: `main` with two partitions, and others with one."""

    def __init__(self, spark: SparkSession, broker: Broker, redis: Redis, folder: Path, prefix: str) -> None:
        super().__init__(spark, broker, redis, folder, prefix)
        for name in ("b", "c"):
            broker.create_topic(self.name(name), 1, CREATE_TIME)

    def name(self, topic: str) -> str:
        return self.topic if topic == "main" else f"{self.topic}-{topic}"

    def put(self, topic: str, device: str, *seconds: float, at: float | None = None) -> None:
        for each in seconds:
            record = reading(device, each, at=at)
            self.producer.produce(self.name(topic), record.value, partition=0, timestamp=record.at)
        assert self.producer.flush(30) == 0

    def named(self, topics: Sequence[str], **kafka: Any) -> None:
        """The settings name these topics."""
        names = tuple(self.name(topic) for topic in topics)
        self.settings = self.settings.model_copy(
            update={"kafka": self.settings.kafka.model_copy(update={"topics": names, **kafka})}
        )

    def start(self, *topics: str, **kafka: Any) -> None:
        """One term of a service with these topics, with the checks before its query."""
        self.named(topics, **kafka)
        resume.prepare(self.spark, self.settings)
        self.term()

    def crash(self, *topics: str, **kafka: Any) -> None:
        """A term that ends after the first batch is published, and before it is committed."""

        def fail() -> None:
            raise RuntimeError("killed")

        self.named(topics, **kafka)
        resume.prepare(self.spark, self.settings)
        self.epoch += 1
        self.redis.set(f"{self.prefix}:epoch", self.epoch)
        with pytest.raises(RuntimeError, match="killed"):
            self.publish(None, on_batch=fail)

    def count(self, device: str) -> int:
        return int(self.window(device).get("count", 0))

    @property
    def checkpoint(self) -> Local:
        return Local(self.folder / "checkpoint")

    def topics(self) -> set[str]:
        """The topics in the newest offset log."""
        position = offset_log.position(self.checkpoint)
        assert position is not None
        return {name.removeprefix(self.topic).strip("-") or "main" for name in position.offsets}


@pytest.fixture
def world(parts: Parts) -> Changing:
    return Changing(*parts)


@pytest.mark.thorough
def test_a_topic_comes_where_starting_says_goes_and_comes_back_where_it_was(
    world: Changing, caplog: pytest.LogCaptureFixture
) -> None:
    world.put("main", "a", 0)
    world.start("main")
    world.start("main")
    assert not (world.folder / "checkpoint" / topic_log.DOCUMENT.name).exists(), "nothing has changed"
    world.put("b", "b", 1, 2)
    world.put("c", "c", 1, 2)
    with caplog.at_level(logging.INFO, "service.checkpoint.topics"):
        world.start("main", "c", starting="latest")
        assert f"The topic {world.name('c')} begins (kafka.starting) at {world.name('c')}[0]@2" in caplog.text
        world.put("c", "c", 3)
        world.start("main", "c", "b", starting="earliest")
        assert [world.count(each) for each in "abc"] == [1, 2, 1]
        caplog.clear()
        world.start("main", "b")
        assert f"No longer read: {world.name('c')}[0]@3. The offsets stay" in caplog.text
        assert world.topics() == {"main", "b"}
        world.put("c", "c", 4, 5)
        world.put("main", "a", 6)
        world.start("main", "b")
        assert [world.count(each) for each in "abc"] == [2, 2, 1]
        caplog.clear()
        world.start("main", "b", "c", starting="latest")
        assert f"The topic {world.name('c')} is back, and goes on at {world.name('c')}[0]@3" in caplog.text
    assert [world.count(each) for each in "abc"] == [2, 2, 3]
    assert (world.lost, world.republications) == (0, [])
    assert topic_log.read(world.checkpoint).left == {}
    # What Redis has lost comes back as it was, from all topics, each from where it was begun.
    before = world.values()
    world.lose()
    world.start("main", "b", "c")
    assert (world.lost, world.values()) == (1, before)


@pytest.mark.thorough
def test_what_a_topic_that_left_has_readings_in_is_not_published_again_without_them(world: Changing) -> None:
    world.put("main", "a", 0, 70, 600)
    world.put("b", "a", 1)
    world.start("main", "b")
    window = world.window("a")
    assert (window["count"], window["closed_by"]) == ("2", "watermark")
    world.put("main", "a", 700, 800, 1200, 1500)
    world.start("main")
    world.lose()
    world.start("main")
    assert world.window("a") == {}, "it lacks the reading of b"
    assert world.window("a", 700)["count"] == "1"
    windows, _ = world.republications[-1][1]
    assert windows > 0
    world.start("main", "b")
    world.lose()
    world.start("main", "b")
    assert world.window("a")["count"] == "2"


@pytest.mark.thorough
def test_a_batch_that_was_begun_with_a_topic_is_repeated_with_it(world: Changing) -> None:
    world.put("main", "a", 0)
    world.start("main", "b")
    world.put("b", "b", 1)
    world.crash("main", "b")
    assert world.count("b") == 1
    before = {name: (world.folder / "checkpoint" / name).read_bytes() for name in ("offsets/0", "offsets/1")}
    with pytest.raises(
        CheckpointError, match=rf"batch 1 of .* was begun and not committed, and reads {world.name('b')}"
    ):
        world.start("main")
    assert all((world.folder / "checkpoint" / name).read_bytes() == text for name, text in before.items())
    world.start("main", "b")
    world.put("main", "a", 3)
    world.start("main")
    assert [world.count(each) for each in "ab"] == [2, 1]
    assert world.lost == 0


@pytest.mark.thorough
@pytest.mark.parametrize("batch", [0, 1])
def test_a_topic_comes_although_a_batch_is_repeated(world: Changing, batch: int) -> None:
    world.put("main", "a", 0)
    if batch:
        world.start("main")
        world.put("main", "a", 1)
    world.put("c", "c", 1, 2)
    world.crash("main")
    world.put("main", "a", 2)
    world.start("main", "c", starting="latest")
    assert world.count("a") == 2 + batch
    world.put("c", "c", 3)
    world.start("main", "c")
    assert [world.count(each) for each in "ac"] == [2 + batch, 1]
    offsets = json.loads((world.folder / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[-1])
    assert offsets[world.name("c")] == {"0": 2}, "the repeated batch has none of its records"
    before = world.values()
    world.lose()
    world.start("main", "c")
    assert world.values() == before


@pytest.mark.parametrize("step", [3, *(pytest.param(step, marks=pytest.mark.thorough) for step in (1, 2, 4, 5))])
def test_a_start_killed_at_any_step_is_repeated(world: Changing, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    world.put("main", "a", 0)
    world.put("b", "b", 0)
    world.start("main", "b")
    world.put("main", "a", 1)
    world.crash("main", "b")
    world.put("c", "c", 1)
    calls = []

    def killed(original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) == step:
                raise KeyboardInterrupt
            return original(*arguments)

        return call

    world.named(["main", "c"], starting="latest")
    with monkeypatch.context() as patch:
        patch.setattr(topic_log, "write", killed(topic_log.write))
        patch.setattr(offset_log, "replace", killed(offset_log.replace))
        patch.setattr(checkpoint_topics.manifest.Manifest, "encode", killed(checkpoint_topics.manifest.Manifest.encode))
        try:
            resume.prepare(world.spark, world.settings)
        except KeyboardInterrupt:
            assert len(calls) == step
        else:
            assert len(calls) < step
    world.put("c", "c", 2)
    world.start("main", "c", starting="latest")
    world.put("c", "c", 3)
    world.put("b", "b", 4)
    world.start("main", "c", "b")
    assert world.topics() == {"main", "b", "c"}
    assert [world.count(each) for each in "ab"] == [2, 2]
    assert world.count("c") in {1, 2}
    assert topic_log.read(world.checkpoint).left == {}


def test_a_checkpoint_of_other_topics_is_refused(world: Changing) -> None:
    world.put("main", "a", 0)
    world.start("main")
    with pytest.raises(CheckpointError, match=rf"reads the topics {world.topic}, the settings have none of them"):
        world.start("b", "c")


@pytest.mark.thorough
def test_a_topic_that_was_made_again_while_it_was_away_is_noticed(world: Changing) -> None:
    world.put("main", "a", 0)
    world.put("b", "b", 0)
    world.start("main", "b")
    world.start("main")
    name = world.name("b")
    world.broker.delete_topic(name)
    world.broker.create_topic(name, 1, CREATE_TIME)
    with pytest.raises(CheckpointError, match=rf"the topic {name} has the id .* deleted and created again"):
        world.start("main", "b")


def test_records_that_were_deleted_while_a_topic_was_away_are_named(world: Changing) -> None:
    world.put("main", "a", 0)
    world.put("b", "b", 0)
    world.start("main", "b")
    world.start("main")
    world.put("b", "b", 1, 2, 3)
    place = TopicPartition(world.name("b"), 0, 3)
    world.broker.admin.delete_records([place])[place].result(30)
    with pytest.raises(DataLossError, match=r"committed offset 1, earliest available 3: 2 records are lost"):
        world.start("main", "b")
    world.start("main", "b", on_data_loss="continue")
    assert world.count("b") == 2


@pytest.mark.thorough
def test_offsets_of_a_new_topic_are_given_by_partition(world: Changing) -> None:
    world.put("main", "a", 0)
    world.start("main")
    world.put("b", "b", *range(5))
    world.start("main", "b", starting={world.name("b"): {0: 3}, world.topic: {0: 99}})
    assert world.count("b") == 2
    assert world.window("b")["first"] == str(BASE_MS + 3_000)

"""Topics by a pattern, as a process: new ones are found while it runs, and deleted ones do not keep it from starting."""

import json
import time
from pathlib import Path

import pytest

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service.kafka import starting
from service.settings import Kafka
from tests import topics as tests_topics
from tests.integration.daemon import STARTS_S, DaemonWorld, Service, until

pytestmark = pytest.mark.integration


@pytest.fixture
def world(broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str) -> DaemonWorld:
    topic = f"pattern-{prefix}-a"
    broker_server.create_topic(topic, partitions=2)
    made = DaemonWorld(broker_server, redis_server, tmp_path, topic)
    text = made.config.read_text()
    text = text.replace(
        f'topics = ["{topic}"]', f'topics_pattern = "pattern-{prefix}-[a-z]+"\n            starting = "latest"'
    )
    made.config.write_text(text)
    return made


def send(world: DaemonWorld, topic: str, count: int) -> None:
    common = {"device_id": topic[-1], "event_time": time.time_ns() // 1_000_000}
    values = [json.dumps({**common, "temperature": number}).encode() for number in range(count)]
    tests_topics.send(world.broker, topic, values)


def counted(world: DaemonWorld, topic: str) -> int:
    keys = world.redis.keys(f"{world.topic}:window:device:temperature:{topic[-1]}:*")
    return sum(int(str(world.redis.hget(key, "count"))) for key in keys)


def topics(service: Service) -> list[str]:
    return [each["topic"] for form in service.status().get("inputs", ()) for each in form["topics"]]


def test_a_topic_that_a_pattern_finds_later_begins_at_its_first_record(broker_server: Broker, prefix: str) -> None:
    topic = f"later-{prefix}"
    broker_server.create_topic(topic, partitions=1)
    tests_topics.send(broker_server, topic, [b"{}"] * 4)
    named = Kafka(bootstrap=broker_server.bootstrap, topics=(topic,), starting="latest")
    assert starting.of_topics(named, [topic]) == {topic: {0: 4}}
    assert starting.of_topics(named.model_copy(update={"topics_pattern": topic}), [topic]) == {topic: {0: 0}}


@pytest.mark.thorough
def test_a_new_topic_is_read_from_its_first_record_and_a_deleted_one_ends_nothing_for_good(world: DaemonWorld) -> None:
    first, second = world.topic, f"{world.topic.removesuffix('a')}b"
    with world.start("first") as service:
        until(service.is_ready, STARTS_S, "ready")
        send(world, first, 3)
        until(lambda: counted(world, first) == 3, 60, "the readings of the first topic")
        epoch = service.metric("epoch")
        world.broker.create_topic(second, partitions=1)
        send(world, second, 4)  # before the service has found the topic
        until(lambda: counted(world, second) == 4, 120, "all readings of the new topic")
        assert topics(service) == [first, second]
        assert service.metric("epoch") == epoch + 1
        send(world, first, 2)
        send(world, second, 1)
        until(lambda: (counted(world, first), counted(world, second)) == (5, 5), 60, "later readings of both")
        text = service.log.read_text()
        assert f"New topics match topics_pattern: {second}. The query starts again with them" in text
        assert ".rejects" not in "".join(topics(service))
        assert service.metric("query_restarts_total") == 0
        assert service.stop() == 0
    world.broker.admin.delete_topics([second])[second].result(30)
    with world.start("second") as service:
        send(world, first, 1)
        until(lambda: counted(world, first) == 6, STARTS_S, "the readings of the topic that is left")
        assert topics(service) == [first]
        assert f"No longer read: {second}[0]@5" in service.log.read_text()
        assert service.stop() == 0

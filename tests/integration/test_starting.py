"""Where a new checkpoint begins, and what an existing one makes of it."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from load.servers.kafka import LOG_APPEND_TIME, Broker
from service.checkpoint import resume
from service.errors import CheckpointError, SettingsError
from service.kafka import clients, starting
from service.kafka.offsets import edges
from service.rejects import reject_log
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Make = Callable[..., World]
VIEWS = [{"name": "device", "by": ["device"], "window": "1 m"}]
HISTORY = [reading(f"d{at}", 10 * at) for at in range(6)]
"""At 0, 20 and 40 s in partition 0, and at 10, 30 and 50 s in partition 1."""


@pytest.fixture
def make(parts: Parts) -> Callable[..., World]:
    def world(begin: Any = "earliest", **sections: Any) -> World:
        kafka = {"bootstrap": parts.broker.bootstrap, "topics": [f"world-{parts.prefix}"], "starting": begin}
        return World(*parts, kafka=kafka, views=VIEWS, **sections)

    return world


def devices(world: World) -> list[str]:
    return sorted(name.split(":")[1] for name in world.hashes() if name.startswith("device:"))


def at(seconds: float) -> str:
    return datetime.fromtimestamp(BASE_MS / 1000 + seconds, UTC).isoformat()


def expected_lag(world: World) -> int:
    """Records that a new checkpoint has not read, as the service shows them before its first batch."""
    consumer = clients.consumer(world.settings.kafka, small=True)
    try:
        ends = edges(consumer, world.settings.kafka)
        begins = starting.offsets(consumer, world.settings.kafka, ends)
    finally:
        consumer.close()
    return sum(end - begins[t][p] for t, each in ends.items() for p, (_, end) in each.items())


@pytest.mark.thorough
def test_a_new_checkpoint_begins_at_a_time_of_the_broker_and_an_old_one_continues(make: Make) -> None:
    world = make(at(20))
    world.send(HISTORY)
    assert expected_lag(world) == 4
    world.term()
    assert devices(world) == ["d2", "d3", "d4", "d5"]
    world.term(reading("a", 51), reading("b", 52))
    assert devices(world) == ["a", "b", "d2", "d3", "d4", "d5"]


@pytest.mark.thorough
def test_a_time_after_all_records_of_a_partition_begins_at_its_end(make: Make) -> None:
    world = make(at(45))
    world.send(HISTORY)
    assert expected_lag(world) == 1
    world.term()
    assert devices(world) == ["d5"]


def test_a_new_checkpoint_begins_at_offsets_and_at_the_first_record_elsewhere(make: Make, prefix: str) -> None:
    world = make({f"world-{prefix}": {"0": 2}})
    world.send(HISTORY)
    assert expected_lag(world) == 4
    world.term()
    assert devices(world) == ["d1", "d3", "d4", "d5"]


def test_an_offset_that_a_partition_does_not_have_is_refused_before_the_start(make: Make, prefix: str) -> None:
    world = make({f"world-{prefix}": {"0": 9, "1": 3, "7": 0}})
    world.send(HISTORY)
    with pytest.raises(SettingsError) as refusal:
        resume.prepare(world.spark, world.settings)
    text = f"kafka.starting: world-{prefix}[0] has offsets from 0 to 3, not 9; world-{prefix} has no partition 7"
    assert text in str(refusal.value)


def test_a_new_checkpoint_that_would_not_read_what_was_published_is_refused(make: Make, tmp_path: Path) -> None:
    world = make()
    world.term(*HISTORY)
    later = world.settings.kafka.model_copy(update={"starting": datetime.fromisoformat(at(20))})
    world.begin_again(tmp_path / "new", kafka=later)
    with pytest.raises(CheckpointError, match=r"\[0\] would begin at 1 \(kafka.starting\); .*\[1\] would begin at 1"):
        resume.prepare(world.spark, world.settings)


@pytest.mark.thorough
def test_history_that_is_appended_now_is_late_under_the_brokers_time(make: Make, broker_server: Broker) -> None:
    world = make()
    topic = f"{world.topic}-now"
    broker_server.create_topic(topic, 2, LOG_APPEND_TIME)
    broker_server.create_topic(f"{topic}.rejects", 2, LOG_APPEND_TIME)
    kafka = world.settings.kafka.model_copy(update={"topics": (topic,)})
    world.settings = world.settings.model_copy(update={"kafka": kafka})
    producer = Producer({"bootstrap.servers": broker_server.bootstrap})
    for record in HISTORY:
        producer.produce(topic, record.value, timestamp=record.at)
    assert producer.flush(30) == 0
    world.term()
    assert devices(world) == []
    assert [reject.reason for reject in reject_log.read(kafka)] == ["late"] * len(HISTORY)

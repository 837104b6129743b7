"""A producer's time that is ahead of the service's clock moves no watermark; a topic that is another one is noticed."""

import logging
from pathlib import Path

import pytest
from confluent_kafka import Producer

from load.servers.kafka import CREATE_TIME, Broker
from service import clock
from service.commands.remove_values import remove_values
from service.errors import DataLossError
from service.kafka import topics
from service.kafka.topics import IdCheck
from service.pipeline.batch import BatchReport, start_query
from service.pipeline.term import Term
from service.rejects import reject_log
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, Record, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

YEAR_S = 366 * 86_400


@pytest.fixture
def world(parts: Parts) -> World:
    return World(*parts)


def in_a_year(device: str, at: float | None = None) -> Record:
    """A reading of a producer whose clock is a year ahead, or of a device that sends through such a producer."""
    year_s = (clock.now_ms() - BASE_MS) / 1000 + YEAR_S
    return reading(device, year_s if at is None else at, at=year_s)


def run(world: World, *records: Record, max_per_batch: int = 1) -> list[BatchReport]:
    """All of these in partition 0, in batches of that size at most, with the topics' ids known."""
    world.limit(max_per_batch)
    world.epoch = world.epoch or 1
    world.redis.set(world.key("epoch"), world.epoch)
    for record in records:
        world.producer.produce(world.topic, record.value, partition=0, timestamp=record.at)
    assert world.producer.flush(30) == 0
    reports: list[BatchReport] = []
    term = Term(
        world.spark, world.settings, epoch=world.epoch, id_check=IdCheck(world.settings.kafka, known_ids(world))
    )
    query, publication = start_query(term, on_batch=reports.append)
    try:
        query.processAllAvailable()
    except Exception:
        raise publication.failure or AssertionError from None
    finally:
        query.stop()
    return reports


def known_ids(world: World) -> dict[str, str]:
    """The ids of the topics when the world asked for the first time, as a manifest has them."""
    if not hasattr(world, "ids"):
        world.ids = dict(topics.ids(world.settings.kafka))  # type: ignore[attr-defined]
    return world.ids  # type: ignore[attr-defined, no-any-return]


@pytest.mark.thorough
@pytest.mark.silent("1.2")
def test_one_record_of_the_future_makes_no_other_reading_late(world: World) -> None:
    late_by_it = in_a_year("d", at=3)
    reports = run(world, reading("a", 0), in_a_year("c"), late_by_it, reading("a", 1), reading("b", 2))
    assert world.window("a")["count"] == "2"
    assert world.window("b")["count"] == "1"
    assert reports[-1].micro_batch.watermark_ms == BASE_MS + 2_000 - 25_000
    rejects = {each.place.offset: each for each in reject_log.read(world.settings.kafka)}
    assert {offset: each.reason for offset, each in rejects.items()} == {1: "ahead", 2: "ahead"}
    assert "is ahead of the service's clock" in rejects[1].detail
    for device in ("c", "d"):
        known = world.redis.hgetall(world.key(f"device:{device}"))
        assert (known["early"], int(known["early.at"]) <= clock.now_ms()) == ("1", True)
    run(world, *[in_a_year("c") for _ in range(4)], max_per_batch=100)
    assert world.redis.hget(world.key("device:c"), "skewed") == "1"
    assert world.redis.zcard(world.key("skewed")) == 1


@pytest.mark.thorough
def test_a_replay_has_the_time_of_the_first_attempt(world: World) -> None:
    """The second attempt must not admit what the first one has rejected."""
    world.redis.set(world.key("epoch"), 1)
    world.send([reading("a", 0)])
    times: list[int] = []

    def fail(report: BatchReport) -> None:
        times.append(report.micro_batch.planned_ms)
        if len(times) == 1:
            raise ArithmeticError

    for _ in range(2):
        query, _ = start_query(Term(world.spark, world.settings, epoch=1), on_batch=fail)
        try:
            query.processAllAvailable()
        except Exception:
            assert len(times) == 1
        finally:
            query.stop()
    assert len(times) == 2
    assert times[0] == times[1] > BASE_MS


@pytest.mark.thorough
@pytest.mark.silent("1.2")
def test_a_republication_leaves_out_what_was_ahead_when_it_was_read(world: World) -> None:
    """Later the record's time is not ahead any more, and admission alone would admit it."""
    year_s = (clock.now_ms() - BASE_MS) / 1000 + 60
    world.term(reading("a", 0), reading("a", 1), reading("a", year_s, at=year_s), reading("b", 500))
    before = world.values()
    assert world.window("a")["count"] == "2"
    ahead = world.settings.admission.model_copy(update={"max_ahead_ms": 1 << 50})
    world.settings = world.settings.model_copy(update={"admission": ahead})
    world.lose()
    world.term(reading("b", (year_s + 500), at=year_s + 500))
    start_ms = BASE_MS + int(year_s) // 60 * 60_000
    assert not world.redis.exists(world.key(f"window:device:temperature:a:{start_ms}"))
    after = world.values()
    key = f"window:device:temperature:a:{BASE_MS}"
    assert after[key] == before[key] | {"closed_by": after[key]["closed_by"]}


@pytest.mark.thorough
@pytest.mark.silent("1.2")
def test_values_after_a_future_record_return(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What Redis calls final never falls: a new checkpoint alone publishes nothing, and the log says so."""
    world.term(reading("a", 0), reading("b", 200))
    year_ms = clock.now_ms() + YEAR_S * 1000
    world.redis.hset(world.key("progress"), "final", str(year_ms))
    world.begin_again(tmp_path / "second")
    with caplog.at_level(logging.WARNING):
        world.term(reading("c", 201))
    assert "Event time is ahead of this machine's clock" in caplog.text
    assert "event-time.md#after-a-record-of-the-future" in caplog.text
    assert world.window("c", 180) == {}
    reports = run(world, reading("c", 202))
    assert reports[-1].redis_ahead_ms == year_ms - reports[-1].micro_batch.watermark_ms
    told: list[str] = []
    remove_values(world.settings, told.append)
    assert "are removed; start the service" in told[-1]
    assert {key.removeprefix(f"{world.prefix}:") for key in world.redis.scan_iter(f"{world.prefix}:*")} == {"epoch"}
    world.begin_again(tmp_path / "third")
    world.term()
    assert world.window("c", 180)["count"] == "2"
    assert world.window("a")["closed_by"] == "watermark"


@pytest.mark.thorough
@pytest.mark.silent("1.5")
def test_a_topic_that_was_created_again_and_filled_is_noticed_before_its_batch_commits(
    world: World, broker_server: Broker
) -> None:
    """The new topic has more records than the old one had: the query would go on in its middle."""
    run(world, *[reading("a", n) for n in range(3)], max_per_batch=100)
    broker_server.delete_topic(world.topic)
    broker_server.create_topic(world.topic, 2, CREATE_TIME)
    world.producer = Producer({"bootstrap.servers": broker_server.bootstrap, "log_level": 0})
    with pytest.raises(DataLossError, match="was deleted and created again"):
        run(world, *[reading("b", n) for n in range(9)], max_per_batch=100)


@pytest.mark.thorough
@pytest.mark.silent("1.5")
def test_a_topic_that_was_created_again_and_is_shorter_is_no_batch_of_negative_size(
    world: World, broker_server: Broker
) -> None:
    kafka = world.settings.kafka.model_copy(update={"on_data_loss": "continue"})
    world.settings = world.settings.model_copy(update={"kafka": kafka})
    run(world, *[reading("a", n) for n in range(9)], max_per_batch=100)
    broker_server.delete_topic(world.topic)
    broker_server.create_topic(world.topic, 2, CREATE_TIME)
    world.producer = Producer({"bootstrap.servers": broker_server.bootstrap, "log_level": 0})
    with pytest.raises(DataLossError, match=r"committed offset 9, the end is 3|was deleted and created again"):
        run(world, *[reading("b", n) for n in range(3)], max_per_batch=100)

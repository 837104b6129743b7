"""Silence closes what is open in Redis alone; what comes after it is counted, and a replay without silence ends the same."""

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from load.judge import feed
from load.servers.kafka import Broker
from load.servers.redis import Redis
from schemas import contract
from service.daemon.idle_closer import IdleCloser
from service.pipeline import batch_report
from service.pipeline.outcome import Outcome
from service.pipeline.term import Term
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, Record, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

IDLE_MS = 60_000
FIRST = (reading("a", 0), reading("b", 5), reading("a", 12), reading("c", 65))


class Quiet(World):
    """A world in which looks at the topics are made by hand."""

    reached: tuple[int, int] | None = None
    closed: Outcome | None = None
    failed = 0
    done = threading.Event()

    def idle(self, outcome: Outcome) -> None:
        self.closed = outcome
        self.done.set()

    def fails(self, part: str) -> None:
        self.failed += 1
        self.done.set()

    def go(self, *records: Record) -> None:
        """Publish these, and take them for committed."""
        if not self.epoch:
            self.epoch = 1
            self.redis.set(self.key("epoch"), 1)
        self.publish(self.reached, *records)
        committed = batch_report.committed(self.spark, self.settings.service.checkpoint)
        assert committed is not None
        self.reached = self.epoch, committed.batch

    def be_silent(self, until_ms: int, within_s: float = 60) -> bool:
        """Closes by the clock up to that event time; whether anything was closed in time."""
        self.done.clear()
        term = Term(self.spark, self.settings, self.epoch, published=self.reached, metrics=self)
        term.outlets = self.open_outlets()
        silence = IdleCloser(term)
        silence.start()
        try:
            for asked_ms in range(until_ms - IDLE_MS, until_ms + IDLE_MS + 1, 10_000):
                silence.look(asked_ms, {self.topic: {0: 1}}, {self.topic: {0: 1}})
            is_closed = self.done.wait(within_s)
        finally:
            silence.close()
            if term.outlets is not None:
                assert all(each.lacks_at_most(0, within_s) for each in term.outlets.deliveries)
                term.outlets.close()
        assert not self.failed
        assert contract.check(self.redis, self.prefix) == []
        return is_closed

    def device(self, device: str) -> dict[str, str]:
        return dict(self.redis.hgetall(self.key(f"device:{device}")))

    def feed(self) -> list[str]:
        return [entry["key"] for _, entry in feed.changes(self.redis, self.prefix)]


@pytest.fixture
def world(parts: Parts) -> Quiet:
    return Quiet(*parts)


def what(fields: dict[str, str], *names: str) -> tuple[str, ...]:
    return tuple(fields[name] for name in names)


@pytest.mark.thorough
def test_silence_writes_windows_without_readings_and_again_after_a_late_reading(parts: Parts) -> None:
    view = {"name": "device", "by": ["device"], "window": "1 m", "statistics": ["mean", "last_value", "coverage"]}
    world = Quiet(*parts, views=[{**view, "carry_for": "5 m", "fill": "last"}], admission={"max_delay": "10 m"})
    world.go(reading("a", 20, 5.0))
    assert world.be_silent(BASE_MS + 150_000)
    assert what(world.window("a", 60), "count", "last_value", "closed_by", "revision") == ("0", "5", "idle", "0")
    assert "mean" not in world.window("a", 60)
    assert not world.window("a", 120), "it is not over"
    world.go(reading("a", 90, 6.0), reading("a", 50, 7.0))
    assert what(world.window("a", 60), "count", "mean", "closed_by", "revision") == ("1", "6", "", "1")
    assert world.be_silent(BASE_MS + 400_000)
    assert [world.window("a", at).get("count") for at in range(0, 480, 60)] == ["2", "1", *"0000", None, None]
    assert what(world.window("a", 240), "last", "last_value", "closed_by") == (str(BASE_MS + 90_000), "6", "idle")
    world.assert_right()


def test_a_reading_after_a_silence_is_counted_and_the_feed_says_so(world: Quiet) -> None:
    world.go(*FIRST)
    assert world.be_silent(BASE_MS + 200_000)
    seen = len(world.feed())
    world.go(reading("a", 41, 30.0))
    window = world.window("a")
    assert what(window, "count", "closed_by", "revision") == ("3", "", "1")
    assert what(world.session("a", 0), "count", "state", "closed_by", "revision") == ("3", "open", "", "1")
    assert what(world.device("a"), "status") == ("online",)
    assert what(world.window("b"), "count", "closed_by", "revision") == ("1", "idle", "0")
    changed_keys = world.feed()[seen:]
    for name in (f"window:device:temperature:a:{BASE_MS}", f"session:a:{BASE_MS}", "device:a"):
        assert world.key(name) in changed_keys
    progress = world.redis.hgetall(world.key("progress"))
    assert int(progress["idle_batch"]) == int(progress["batch"]) - 1, "input is not silent now"
    assert contract.check(world.redis, world.prefix) == []


@pytest.mark.thorough
def test_an_earlier_reading_joins_sessions_that_silence_has_closed(world: Quiet) -> None:
    world.go(reading("a", 0), reading("a", 50))
    assert world.be_silent(BASE_MS + 200_000)
    assert what(world.session("a", 50), "state", "closed_by") == ("closed", "idle")
    world.go(reading("a", 25))
    assert what(world.session("a", 0), "count", "state", "closed_by", "revision") == ("3", "open", "", "1")
    joined = world.session("a", 50)
    assert what(joined, "state", "closed_by", "merged_into", "revision") == ("merged", "", str(BASE_MS), "1")
    world.go(reading("b", 400))
    states = [value["closed_by"] for name, value in world.hashes().items() if name.startswith("session:a:")]
    assert sorted(states) == ["", "watermark"], "nothing stays closed by silence alone"
    assert contract.check(world.redis, world.prefix) == []


@pytest.mark.thorough
def test_a_replay_without_the_silences_ends_with_the_same_values(
    world: Quiet, spark: SparkSession, broker_server: Broker, redis_server: Redis, tmp_path: Path
) -> None:
    for records in (FIRST, (reading("a", 41, 30.0), reading("b", 42))):
        world.go(*records)
        assert world.be_silent(BASE_MS + 300_000)
    world.go(reading("d", 400))
    assert world.be_silent(BASE_MS + 900_000)
    other = Quiet(spark, broker_server, redis_server, tmp_path / "replay", f"{world.prefix}_replay")
    other.topic = world.topic
    kafka = other.settings.kafka.model_copy(update={"topics": (world.topic,)})
    other.settings = other.settings.model_copy(update={"kafka": kafka})
    other.go()
    assert other.be_silent(BASE_MS + 900_000)
    seen, again = without_revision(world.values()), without_revision(other.values())
    assert seen == again
    assert {v["closed_by"] for v in seen.values() if isinstance(v, dict) and "closed_by" in v} == {"watermark", "idle"}


@pytest.mark.thorough
def test_nothing_is_closed_beside_a_batch_that_is_published_and_not_committed(world: Quiet) -> None:
    world.go(*FIRST)
    assert world.reached is not None
    world.reached = world.epoch, world.reached[1] + 1
    assert not world.be_silent(BASE_MS + 200_000, within_s=5)
    assert world.closed is None
    assert world.window("a")["closed_by"] == ""


def without_revision(values: dict[str, Any]) -> dict[str, Any]:
    """`revision` says what readers have seen on the way; sums that were added in another order differ in their last digits."""

    def alike(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        fields = {field: text for field, text in value.items() if field != "revision"}
        return fields | ({"stddev": round(float(fields["stddev"]), 9)} if "stddev" in fields else {})

    return {name: alike(value) for name, value in values.items()}

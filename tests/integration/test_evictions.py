"""A Redis that evicts keys: the policy is named at once, evicted values are lost data, and they come back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service import clock
from service.monitoring.evictions import LONGEST_S, SHORTEST_S
from service.monitoring.metrics import Metrics
from service.monitoring.resources import StoreResources
from tests.integration.world import World
from tests.stream.records import make_settings, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

DEVICES, MINUTES = 100, 10


class Evicting:
    """A full Redis of its own, and the service's look at it; `now_s` is the time of the process."""

    def __init__(self, server: Redis, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.spark, self.folder, self.now_s = server, spark, folder, 0.0
        monkeypatch.setattr(clock, "monotonic_s", lambda: self.now_s)
        self.client: Any = server.client()
        self.begin("tidemark")

    def begin(self, prefix: str) -> None:
        """Another process of the service."""
        self.metrics, self.mark = Metrics(), f"{prefix}:republish"
        settings = make_settings(self.folder, redis={"url": self.server.url, "prefix": prefix})
        self._resources = StoreResources(
            self.spark, settings, self.metrics.stores, on_loss=self.metrics.redis_loses_data
        )

    def look(self, seconds: float = SHORTEST_S) -> bool:
        """Whether values are to be published again, so many seconds after the last look."""
        self.now_s += seconds
        self._resources.measure()
        return bool(self.client.exists(self.mark))

    def evict(self) -> int:
        """Return how many keys went because a third of the memory did."""
        before, memory = self.client.info("stats")["evicted_keys"], self.client.info("memory")
        used = memory["used_memory"] - memory["used_memory_startup"]
        self.client.config_set("maxmemory", memory["used_memory_startup"] + 2 * used // 3)
        self.client.set("another", 1)
        self.client.config_set("maxmemory", 0)
        return int(self.client.info("stats")["evicted_keys"] - before)

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"tidemark_{name}", labels) or 0.0


def session_lists(world: World) -> dict[str, list[str]]:
    return {key: world.redis.zrange(key, 0, -1) for key in world.redis.scan_iter(world.key("sessions:*"))}


@pytest.fixture
def evicting(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Evicting]:
    with Redis(tmp_path, settings={"maxmemory-policy": "allkeys-lru"}) as server:
        yield Evicting(server, spark, tmp_path, monkeypatch)


@pytest.mark.silent("1.10")
def test_evicted_values_are_lost_data_and_are_published_again(
    evicting: Evicting, broker_server: Broker, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(evicting.spark, broker_server, evicting.server, evicting.folder, prefix)
    evicting.begin(prefix)
    world.term(*(reading(f"d{n:03d}", 60 * minute + n % 60) for minute in range(MINUTES) for n in range(DEVICES)))
    before, lists = world.values(), session_lists(world)
    assert not evicting.look()
    assert evicting.value("redis_evicts", shard="0") == 1
    assert caplog.text.count("has maxmemory-policy allkeys-lru") == 1

    gone = evicting.evict()
    assert gone > 300
    assert not evicting.look(), "it may not be over"
    assert evicting.value("redis_evicted_keys_total", shard="0") == gone
    assert evicting.value("redis_data_lost_total") == 1
    assert f"has evicted {gone} keys" in caplog.text
    assert len(world.hashes()) < len(before)

    assert evicting.look()
    world.term()
    assert world.values() == before
    assert session_lists(world) == lists
    assert not evicting.look(), "all of it is repaired"
    evicting.begin(prefix)
    assert not evicting.look(), "another process finds nothing either"
    assert evicting.value("redis_data_lost_total") == 0
    assert caplog.text.count("has evicted") == 1
    world.redis.close()


def test_a_redis_that_goes_on_evicting_is_repaired_more_and_more_rarely(evicting: Evicting) -> None:
    client = evicting.client

    def evicts() -> None:
        for number in range(2_000):
            client.set(f"filler:{number}", "x" * 100)
        assert evicting.evict()

    evicts()
    for _ in range(3):
        assert not evicting.look(), "no repair while keys go"
        evicts()
    assert evicting.value("redis_data_lost_total") == 3
    pause_s = SHORTEST_S
    for _ in range(3):
        assert not evicting.look(0)
        assert evicting.look(pause_s)
        client.delete(evicting.mark)  # published again, and evicted meanwhile
        evicts()
        assert not evicting.look(0)
        pause_s *= 2
        assert not evicting.look(pause_s - 1)
    client.set(evicting.mark, "lost 1 1")
    evicting.look(pause_s)
    client.delete(evicting.mark)
    assert evicting.look(), "a repair that ran already says nothing of what went meanwhile"
    client.delete(evicting.mark)
    assert not evicting.look(LONGEST_S)
    evicts()
    assert not evicting.look()
    assert evicting.look(SHORTEST_S), "an hour without an eviction ends the waiting"


def test_evictions_while_no_service_runs_are_found_and_those_of_other_times_are_not(evicting: Evicting) -> None:
    client = evicting.client
    for number in range(2_000):
        client.set(f"filler:{number}", "x" * 100)
    gone = evicting.evict()
    client.config_set("maxmemory-policy", "noeviction")
    assert not evicting.look()
    assert not evicting.look()
    assert evicting.value("redis_data_lost_total") == evicting.value("redis_evicts", shard="0") == 0
    client.config_set("maxmemory-policy", "volatile-lru")
    evicting.begin("tidemark")
    assert not evicting.look()
    assert evicting.value("redis_evicted_keys_total", shard="0") == gone
    assert evicting.look()

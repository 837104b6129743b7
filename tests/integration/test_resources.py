"""What the service uses is measured on a real JVM and a real Redis."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from load.servers.redis import Redis
from service.monitoring.metrics import Metrics
from service.monitoring.resources import ProcessResources, StoreResources
from tests.stream.records import make_settings

pytestmark = pytest.mark.integration


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path) as server:
        yield server


def test_memory_disk_and_redis_are_measured_and_a_redis_that_is_away_hides_nothing_else(
    spark: SparkSession, redis: Redis, tmp_path: Path
) -> None:
    metrics = Metrics()
    section = {"url": redis.url, "timeout": "1 s"}
    settings = make_settings(tmp_path, redis=section, service={"checkpoint": str(tmp_path / "none" / "yet")})
    memory, resources = ProcessResources(spark, metrics.process), StoreResources(spark, settings, metrics.stores)

    def value(name: str, **labels: str) -> float:
        sample = metrics.registry.get_sample_value(f"tidemark_{name}", labels)
        assert sample is not None, name
        return sample

    assert math.isnan(value("redis_memory_bytes", shard="0"))
    with redis.client() as client:
        client.config_set("maxmemory", 10 << 20)
        client.xadd("tidemark:changes", {"key": "tidemark:device:d"})
    memory.measure()
    resources.measure()
    assert 0 < value("jvm_heap_bytes", kind="used") <= value("jvm_heap_bytes", kind="committed")
    assert value("process_memory_bytes", process="driver_jvm") > 50 << 20
    assert value("process_memory_bytes", process="driver_python") > 10 << 20
    for folder in ("checkpoint", "work"):
        assert 0 < value("disk_free_bytes", folder=folder) <= value("disk_size_bytes", folder=folder)
    assert 0 < value("redis_memory_bytes", shard="0") < value("redis_memory_limit_bytes", shard="0") == 10 << 20
    assert value("feed_entries", shard="0") == 1
    with redis.client() as client:
        client.config_set("maxmemory", 0)
    resources.measure()
    assert value("redis_memory_limit_bytes", shard="0") == math.inf
    redis.kill()
    resources.measure()
    assert math.isnan(value("redis_memory_bytes", shard="0"))
    assert value("resource_failures_total", part="redis") == 1
    assert value("jvm_heap_bytes", kind="used") > 0

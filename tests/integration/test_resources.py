"""What the service uses is measured on a real JVM and a real Redis."""

import math
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from load.servers.redis import Redis
from service.errors import ExhaustedError
from service.monitoring import resources as resources_module
from service.monitoring.metrics import Metrics
from service.monitoring.resources import ENDS_AT, ProcessResources, StoreResources
from tests.stream.records import make_settings

pytestmark = pytest.mark.integration


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path) as server:
        yield server


def test_files_sockets_and_threads_near_their_limit_end_the_service(spark: SparkSession, tmp_path: Path) -> None:
    metrics = Metrics()
    resources = ProcessResources(spark, metrics.process)

    def value(name: str, **labels: str) -> float:
        sample = metrics.registry.get_sample_value(f"tidemark_{name}", labels)
        assert sample is not None, name
        return sample

    assert math.isnan(value("process_open_files", process="driver_python"))
    resources.measure()
    before = value("process_open_files", process="driver_python")
    with ExitStack() as opened:
        for _ in range(50):
            for end in socket.socketpair():
                opened.enter_context(end)
        resources.measure()
        assert value("process_open_files", process="driver_python") >= before + 100
        assert value("process_sockets", process="driver_python") >= 100
        resources.require_room()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        present = len(os.listdir("/proc/self/fd"))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (present + 5, hard))
            resources.measure()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert value("process_open_files_limit", process="driver_python") == present + 5
    assert value("limit_used_ratio", limit="open_files") > ENDS_AT
    with pytest.raises(
        ExhaustedError, match=rf"driver_python has \d+% of the open files that it may have: {present + 5}\."
    ):
        resources.require_room()
    resources.count_files()
    assert value("process_threads", process="driver_jvm") > 20
    assert 0 <= value("limit_used_ratio", limit="direct_memory") < ENDS_AT
    assert value("temporary_files", folder="java") > 0
    assert value("temporary_files", folder="spark") >= 0
    assert value("jvm_direct_bytes", owner="java") > 0


def test_a_measurement_that_fails_by_any_error_does_not_end_the_next_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resources_module, "EVERY_S", 0.01)
    measured = threading.Semaphore(0)

    class Broken(resources_module._Measuring):
        def measure(self) -> None:
            measured.release()
            raise KeyError("used_memory")

    broken = Broken("broken")
    broken.start()
    for _ in range(3):
        assert measured.acquire(timeout=30)
    broken.close()
    broken.join(30)
    assert caplog.text.count("What the service uses is not measured") == 1


def test_a_redis_that_is_away_hides_no_other_limit(spark: SparkSession, redis: Redis, tmp_path: Path) -> None:
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
    assert not resources.count_files(), "the thread tries again before the minute is over"
    (tmp_path / "none" / "yet" / "offsets").mkdir(parents=True)
    (tmp_path / "none" / "yet" / "offsets" / "0").touch()
    assert resources.count_files()
    assert value("checkpoint_files", folder="offsets") == 1
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
    resources._shards[0].client.info = lambda: {"redis_version": "of a proxy"}
    resources.measure()
    assert math.isnan(value("redis_memory_bytes", shard="0"))
    assert value("resource_failures_total", part="redis") == 1
    redis.kill()
    resources.measure()
    assert value("resource_failures_total", part="redis") == 2
    assert value("jvm_heap_bytes", kind="used") > 0

"""One broker and one Redis for all tests that do not stop them."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from load.servers.certificates import Authority
from load.servers.kafka import Broker
from load.servers.redis import Redis
from tests.integration.redis_target import Target
from tests.integration.world import Parts

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with Redis(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(scope="session")
def broker_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("broker")
    with Broker(folder, authority=Authority(folder / "authority")) as running:
        yield running


@pytest.fixture
def prefix() -> str:
    """A prefix of its own for each test, so that tests share a Redis and see only their own keys."""
    return f"test{next(_numbers)}"


@pytest.fixture
def target(redis_server: Redis, prefix: str) -> Iterator[Target]:
    """All that a test leaves there satisfies the contract, if the test does not break it on purpose."""
    made = Target(redis_server, prefix)
    yield made
    assert made.is_broken_on_purpose or made.violations() == []
    made.client.close()


@pytest.fixture
def parts(spark: SparkSession, broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str) -> Parts:
    return Parts(spark, broker_server, redis_server, tmp_path, prefix)

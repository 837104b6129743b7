"""The Redis Cluster of tests: it starts, loses just the writes that it is told to lose, fails over, and moves slots."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import MovedError

from load.servers.redis_cluster import RedisCluster

pytestmark = [pytest.mark.integration, pytest.mark.thorough]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def client(cluster: RedisCluster) -> Iterator[Any]:
    """Of a cluster whose nodes all run again, whatever the test before did to them."""
    for node in cluster.nodes:
        node.start()
    cluster.wait_ok()
    with cluster.client() as opened:
        yield opened


def test_a_write_that_only_a_killed_primary_had_is_lost(cluster: RedisCluster, client: Any) -> None:
    key = "{lost}:key"
    client.set(key, "before")

    def lose() -> None:
        for value in range(1_000):
            client.set(key, value)
        assert client.get(key) == "999"

    killed = cluster.fail_over(key, losing=lose)
    assert client.get(key) == "before"
    client.set(key, "after")
    killed.start()
    cluster.wait_ok()
    assert cluster.replica_of(cluster.primary_of(key)) is killed
    assert client.get(key) == "after"


def test_a_moved_slot_takes_its_keys_and_the_writes_between_the_pages(cluster: RedisCluster, client: Any) -> None:
    keys = [f"{{moved}}:{number}" for number in range(250)]
    client.mset(dict.fromkeys(keys, "old"))
    source, pages = cluster.primary_of(keys[0]), []

    def write(page: int) -> None:
        pages.append(page)
        for key in (keys[0], keys[-1], f"{{moved}}:new{page}"):
            client.set(key, f"page{page}")  # follows ASK

    target = cluster.move_slot(keys[0], page=100, between=write)
    assert pages == [0, 1, 2, 3]
    assert cluster.primary_of(keys[0]) is target is not source
    with source.control() as control, pytest.raises(MovedError, match=target.address):
        control.get(keys[1])
    assert client.mget(keys) == ["page3", *["old"] * 248, "page3"]
    assert [client.get(f"{{moved}}:new{page}") for page in pages] == [f"page{page}" for page in pages]
    assert cluster.move_slot(keys[0], to=source) is source
    assert client.get(keys[0]) == "page3"


def test_a_cluster_that_is_stopped_leaves_no_process_and_starts_with_its_slots(tmp_path: Path) -> None:
    with RedisCluster(tmp_path, replicas=0, appendonly=True, settings={"appendfsync": "always"}) as cluster:
        key = "{stopped}:key"
        moved_to = cluster.move_slot(key)
        with cluster.client() as client:
            client.set(key, "1")
        cluster.nodes[0].pause()
        cluster.stop()
        assert not any(node.is_running() for node in cluster.nodes)
        cluster.start()
        with cluster.client() as client:
            assert client.get(key) == "1"
        assert cluster.primary_of(key) is moved_to
    assert not any(node.is_running() for node in cluster.nodes)

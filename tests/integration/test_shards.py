"""Several shards: each is a store of its own, on one Redis and on a real Redis Cluster."""

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from load.servers.redis import Redis
from load.servers.redis_cluster import RedisCluster
from schemas import contract
from service.commands import devices
from service.daemon.lease import Lease
from service.errors import FencedError, SinkError, SinkRefusedError
from service.pipeline.batch_publisher import Sink
from service.publication import meta
from service.publication.policy import WritePolicy
from service.redis import client as redis_client
from service.redis.keys import shards
from service.redis.link import EpochLostError, WritesLostError
from service.settings import Settings
from tests.outputs import MINUTE, T0, changes, device, micro_batch, session, settings, windows

pytestmark = pytest.mark.integration

SHARDS = 3
DEVICES = [f"d{number}" for number in range(60)]


class Target:
    """A prefix of several shards, as a reader sees it, and a way to publish to it."""

    def __init__(self, client: Any, url: str, prefix: str, **options: Any) -> None:
        self.client, self.prefix = client, prefix
        given = {"shards": SHARDS, "cluster": "," in url, **options}
        self.settings: Settings = settings(url, prefix, **given)
        for keys in shards(self.settings.redis):
            self.client.set(keys.epoch, 1)

    def key(self, shard: int, name: str) -> str:
        return f"{{{self.prefix}:{shard}}}:{name}"

    def key_of(self, device: str, name: str) -> str:
        return self.key(shard_of(device), name)

    def sink(self, batch: int, epoch: int = 1, after: tuple[int, int] | None = None, **of: Any) -> Sink:
        return Sink(self.settings, micro_batch(batch, epoch, **of), policy=WritePolicy.stream(after))

    def publish(self, batch: int, count: int, **of: Any) -> None:
        """A batch with a window, a session and a device of each, whose windows have `count` readings."""
        sink = self.sink(batch, **of)
        servers = sink.servers()
        sink.write(rows(count))
        sink.progress(servers)

    def counts(self) -> set[str | None]:
        """The readings of the devices' windows."""
        return {
            self.client.hget(self.key_of(name, f"window:device_1m:temperature:{name}:{T0}"), "count")
            for name in DEVICES
        }


def shard_of(device: str) -> int:
    return zlib.crc32(device.encode()) % SHARDS


def rows(count: int) -> list[Any]:
    return [
        windows([("device_1m", name, T0, [20.0] * count) for name in DEVICES]),
        changes([session(name, count=count) for name in DEVICES], [device(name) for name in DEVICES]),
    ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(params=["one Redis", "a cluster"])
def target(request: pytest.FixtureRequest, redis_server: Redis, prefix: str) -> Iterator[Target]:
    if request.param == "one Redis":
        with redis_server.client() as client:
            yield Target(client, redis_server.url, prefix)
    else:
        yield from clustered(request.getfixturevalue("cluster"), prefix)


@pytest.fixture
def on_cluster(cluster: RedisCluster, prefix: str) -> Iterator[Target]:
    yield from clustered(cluster, prefix)


def clustered(cluster: RedisCluster, prefix: str) -> Iterator[Target]:
    for node in cluster.nodes:
        node.start()
    cluster.wait_ok()
    with cluster.client() as client:
        yield Target(client, cluster.url, prefix, retry_for="20 s")


def test_every_value_is_in_the_shard_of_its_key_with_its_progress(target: Target) -> None:
    target.publish(1, 1)
    sink = target.sink(2, after=(1, 1), watermark_ms=T0 + MINUTE)
    outcome = sink.write(rows(2))
    assert (outcome.windows, outcome.sessions, outcome.devices, outcome.written) == (60, 60, 60, 180)
    assert (outcome.opened, outcome.new_devices) == (0, 0)
    assert sink.progress(sink.servers()) == T0 + MINUTE
    assert contract.check(target.client, target.prefix, SHARDS) == []
    assert target.counts() == {"2"}
    for shard in range(SHARDS):
        progress = target.client.hgetall(target.key(shard, "progress"))
        assert (progress["epoch"], progress["batch"], int(progress["final"])) == ("1", "2", T0 + MINUTE)
        assert meta.contract_of(target.client.get(target.key(shard, "meta"))) == meta.CONTRACT
    outcome = target.sink(3, after=(1, 2)).write([windows([("device_1m", name, T0, [1.0] * 3) for name in DEVICES])])
    assert outcome.refused_final == 60


def test_a_lease_fences_every_shard_before_its_term_begins(target: Target) -> None:
    for shard in (1, 2):
        target.client.set(target.key(shard, "epoch"), 7)  # the first shard has lost what others have
    target.client.set(target.key(0, "epoch"), 6)
    lease = Lease(target.settings, "a")
    try:
        assert lease.acquire() == 8
        assert {target.client.get(target.key(shard, "epoch")) for shard in range(SHARDS)} == {"8"}
        assert [target.client.exists(target.key(shard, "lease")) for shard in range(SHARDS)] == [1, 0, 0]
        for shard in range(SHARDS):
            name = next(each for each in DEVICES if shard_of(each) == shard)
            with pytest.raises(FencedError, match=r"the epoch is 8"):
                target.sink(1, epoch=7).write([windows([("device_1m", name, T0, [1.0])])])
        assert lease.renew()
        target.client.delete(target.key(1, "epoch"))
        assert not lease.renew()
        assert isinstance(lease.loss(), EpochLostError)
        assert lease.acquire(at_least=8) == 9
    finally:
        lease.release()


def test_a_shard_that_has_lost_data_refuses_while_the_others_have_it(target: Target) -> None:
    target.publish(1, 1)
    target.client.delete(target.key(1, "progress"))
    with pytest.raises(WritesLostError, match=rf"shard {{{target.prefix}:1}}.*there is no progress"):
        target.sink(2, after=(1, 1)).write(rows(2))
    assert target.client.hget(target.key(0, "progress"), "batch") == "1"


def test_a_batch_is_not_published_before_every_shard_has_its_progress(target: Target) -> None:
    target.publish(1, 1)
    target.client.delete(target.key(2, "epoch"))
    sink = target.sink(2, after=(1, 1))
    with pytest.raises(EpochLostError):
        sink.progress(sink.servers())
    target.client.set(target.key(2, "epoch"), 1)
    sink.progress(sink.servers())  # the batch is repeated: the others have it already
    batches = {target.client.hget(target.key(shard, "progress"), "batch") for shard in range(SHARDS)}
    assert batches == {"2"}


@pytest.mark.parametrize(("first", "then"), [(3, 1), (1, 3), (3, 4)])
def test_a_prefix_keeps_its_number_of_shards(redis_server: Redis, prefix: str, first: int, then: int) -> None:
    with redis_server.client() as client:
        before, after = (settings(redis_server.url, prefix, shards=number) for number in (first, then))
        for keys in shards(before.redis):
            client.set(keys.meta, meta.meta(before))
        with pytest.raises(SinkRefusedError, match=f"redis.shards = {then}.*are in {first}") as caught:
            meta.require_stored(after.redis)
        assert f"Set redis.shards to {first}" in caught.value.remedy
        meta.require_stored(before.redis)


def test_the_gravest_error_of_several_shards_is_raised(target: Target) -> None:
    target.publish(1, 1)
    target.client.delete(target.key(0, "progress"))
    target.client.set(target.key(2, "epoch"), 5)
    with pytest.raises(FencedError, match="the epoch is 5"):
        target.sink(2, after=(1, 1)).write(rows(2))


def test_other_shards_are_asked_when_one_does_not_answer_the_renewal(target: Target) -> None:
    lease = Lease(target.settings, "a")
    try:
        epoch = lease.acquire()
        target.client.set(target.key(1, "progress"), "of another type")
        lease.reached = 1, 1
        target.client.hset(target.key(0, "progress"), mapping={"epoch": 1, "batch": 1})
        target.client.set(target.key(2, "epoch"), 99)
        assert not lease.renew()
        assert (epoch, lease.reason) == (2, "the epoch is 99")
    finally:
        lease.release()


# What only a cluster does


def test_what_a_failover_has_lost_is_noticed(cluster: RedisCluster, on_cluster: Target) -> None:
    on_cluster.publish(1, 1)
    cluster.fail_over(on_cluster.key(1, "progress"), losing=lambda: on_cluster.publish(2, 2))
    with pytest.raises(WritesLostError, match="progress is at batch 1"):
        on_cluster.sink(3, after=(1, 2)).write(rows(3))
    assert on_cluster.client.hget(on_cluster.key(1, "progress"), "batch") == "1"


def test_a_batch_that_a_failover_interrupts_is_not_finished(cluster: RedisCluster, on_cluster: Target) -> None:
    on_cluster.publish(1, 1)
    sink = on_cluster.sink(2, after=(1, 1))
    servers = sink.servers()
    cluster.fail_over(on_cluster.key(1, "progress"), losing=lambda: sink.write(rows(2)))
    with pytest.raises(SinkError, match="restarted or failed over"):
        sink.progress(servers)
    on_cluster.publish(2, 2, after=(1, 1))
    assert on_cluster.counts() == {"2"}
    assert contract.check(on_cluster.client, on_cluster.prefix, SHARDS) == []


def test_a_primary_that_was_failed_over_and_back_is_another_one(cluster: RedisCluster, on_cluster: Target) -> None:
    """It has the same run id, and it has dropped what the other one had not got."""
    on_cluster.publish(1, 1)
    sink, key = on_cluster.sink(2, after=(1, 1)), on_cluster.key(1, "progress")
    servers = sink.servers()
    primary = cluster.primary_of(key)
    replica = cluster.freeze_replica(primary)
    sink.write(rows(2))
    primary.pause()
    replica.resume()
    with replica.control() as client:
        client.execute_command("CLUSTER FAILOVER TAKEOVER")
    cluster.wait_ok()
    primary.resume()
    cluster.wait_ok()
    with primary.control() as client:
        client.execute_command("CLUSTER FAILOVER TAKEOVER")
    cluster.wait_ok()
    assert cluster.primary_of(key) is primary
    assert None not in on_cluster.counts()
    assert on_cluster.counts() == {"1", "2"}
    with pytest.raises(SinkError, match="restarted or failed over"):
        sink.progress(servers)


@pytest.mark.thorough
def test_a_primary_that_is_killed_is_waited_for(cluster: RedisCluster, on_cluster: Target) -> None:
    on_cluster.publish(1, 1)
    cluster.kill_primary(on_cluster.key(0, "progress"))
    on_cluster.publish(2, 2, after=(1, 1))
    assert on_cluster.counts() == {"2"}


@pytest.mark.parametrize("marks", [{}, {"republish": "asked 1", "rebuild": "1 1 1", "skewed": None}])
def test_a_call_waits_while_its_slot_moves(
    cluster: RedisCluster, on_cluster: Target, marks: Mapping[str, str | None]
) -> None:
    """Also when all keys that a call usually finds are there: none is half run, and no value goes back."""
    on_cluster.publish(1, 3)
    for name, text in marks.items():
        if text is None:
            on_cluster.client.zadd(on_cluster.key(1, name), {"d1": T0})
        else:
            on_cluster.client.set(on_cluster.key(1, name), text)
    moving = [name for name in DEVICES if shard_of(name) == 1]
    impatient = Target(
        on_cluster.client, on_cluster.settings.redis.url.get_secret_value(), on_cluster.prefix, retry_for="0 s"
    )
    refused = list[str]()

    def between(pages: int) -> None:
        for count, start in ((2, T0), (2, T0 + pages * MINUTE)):  # a poorer value, and windows that are new
            table = windows([("device_1m", name, start, [1.0] * count) for name in moving])
            with pytest.raises(SinkError, match=r"ASK|TRYAGAIN|MOVED") as caught:
                impatient.sink(2).write([table])
            assert not isinstance(caught.value, SinkRefusedError)
            refused.append(str(caught.value))

    cluster.move_slot(on_cluster.key(1, "progress"), page=20, between=between)
    assert len(refused) > 4
    assert on_cluster.counts() == {"3"}
    on_cluster.publish(2, 4, after=(1, 1))
    assert on_cluster.counts() == {"4"}
    for name in marks:
        on_cluster.client.delete(on_cluster.key(1, name))
    assert contract.check(on_cluster.client, on_cluster.prefix, SHARDS) == []


@pytest.mark.thorough
def test_the_nodes_of_the_settings_may_be_gone(cluster: RedisCluster, on_cluster: Target, tmp_path: Path) -> None:
    key = on_cluster.key(0, "progress")
    first = cluster.primary_of(key)
    others = [node for node in cluster.nodes if node is not first]
    url = f"redis://{first.address},{others[0].address}"
    few = Target(on_cluster.client, url, on_cluster.prefix, retry_for="20 s")
    assert cluster.kill_primary(key) is first
    few.publish(1, 1)
    assert few.counts() == {"1"}


def test_nodes_that_all_have_other_addresses_are_found_by_those_of_the_settings(
    on_cluster: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where every pod of the cluster was replaced since the last connection."""
    url = on_cluster.settings.redis.url.get_secret_value()
    monkeypatch.setitem(redis_client._nodes, url, frozenset({("127.0.0.1", 1)}))
    on_cluster.publish(1, 1)
    assert on_cluster.counts() == {"1"}


def test_devices_of_all_shards_are_listed_in_one_order(target: Target) -> None:
    target.publish(1, 1)
    listed = devices.page(target.settings, devices.Filter(status="online"), b"d3", 10, lambda *_: None)
    assert [each["device"] for each in listed.devices] == sorted(DEVICES)[sorted(DEVICES).index("d3") + 1 :][:10]
    assert (listed.total, listed.has_more) == (len(DEVICES), True)
    assert devices.page(target.settings, devices.Filter(prefix=b"d59"), b"", None, lambda *_: None).total == 1

"""What is peculiar to a real Redis Cluster: failover, slots that move, and what is said when there is none."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.cluster
from conftest import Server
from redis_nodes import Nodes, until
from stores import MINUTE, T0, Stores

from tidemark_client import (
    ArgumentError,
    AsyncClient,
    Client,
    Place,
    RefusedError,
    UnavailableError,
    queries,
)

SHARDS = 5


@pytest.fixture
def stores(shared_nodes: Nodes) -> Stores:
    shared_nodes.flushall()
    made = Stores(shared_nodes.redis, shared_nodes.url, SHARDS, cluster=True)
    made.fill()
    return made


@pytest.fixture(scope="module")
def mortal_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("mortal"), replicas=True) as nodes:
        yield nodes


@pytest.fixture
def mortal(mortal_nodes: Nodes) -> Stores:
    """The shards on nodes that may be killed; each has a replica."""
    mortal_nodes.revive()
    mortal_nodes.flushall()
    made = Stores(mortal_nodes.redis, mortal_nodes.url, SHARDS, cluster=True)
    made.fill()
    return made


def test_a_failover_is_waited_for(connect: Any, mortal: Stores, mortal_nodes: Nodes) -> None:
    names = mortal.names(2)
    for name in names:
        mortal.window(name, T0 - MINUTE)
        mortal.announce("device", name, mortal.device(name))
    client = connect(**mortal.options)
    following = client.follow("0-0")
    seen = [next(following) for _ in names]
    assert sorted(each.places[0].key for each in seen) == sorted(names)

    mortal_nodes.kill_primary_of(mortal.of(names[0]) + ":meta")

    def write() -> None:
        mortal_nodes.wait_until_ok()
        for name in names:
            mortal.announce("device", name)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        after = [next(following).places[0].key for _ in names]
    finally:
        writer.join()
    assert sorted(after) == sorted(names)
    assert [each.places[0].key for each in client.changes(seen[-1].id)] == after
    # And all that is asked, of the promoted replica and of the others.
    assert [client.latest_complete("site", name).start for name in names] == [T0 - MINUTE] * len(names)
    snapshot = client.snapshot([queries.device(name) for name in names])
    assert [each.id for each in snapshot.answers] == names
    assert sorted(each.id for each in client.devices()) == sorted(names)


@pytest.mark.thorough
def test_a_cluster_without_a_primary_is_away(connect: Any, mortal: Stores, mortal_nodes: Nodes) -> None:
    name = mortal.names()[0]
    mortal.device(name)
    client = connect(**mortal.options)
    assert client.device(name).id == name
    mortal_nodes.kill_primary_of(mortal.of(name) + ":meta")
    with pytest.raises(UnavailableError, match=r"Redis \(cluster 127.0.0.1:.*\) does not answer: .*ask again"):
        ask_until_it_fails(lambda: client.device(name))
    mortal_nodes.wait_until_ok()
    assert answer_of(lambda: client.device(name)).id == name


def ask_until_it_fails(ask: Callable[[], Any]) -> None:
    while True:
        ask()


def answer_of(ask: Callable[[], Any]) -> Any:
    """The answer once there is one: redis-py may take a while to find the new primary."""
    answers: list[Any] = []

    def is_answered() -> bool:
        try:
            answers.append(ask())
        except UnavailableError:
            return False
        return True

    until(is_answered, "no answer")
    return answers[0]


def test_a_slot_may_move_meanwhile(connect: Any, stores: Stores, shared_nodes: Nodes) -> None:
    names = stores.names(4)
    for name in names:
        stores.window(name, T0 - MINUTE)
        stores.announce("device", name, stores.device(name))
    client = connect(**stores.options)

    def check() -> None:
        assert [client.latest_complete("site", name).start for name in names] == [T0 - MINUTE] * len(names)
        assert sorted(each.places[0].key for each in client.changes("0-0")) == sorted(names)
        assert [each.id for each in client.snapshot(map(queries.device, names)).answers] == names
        assert client.device("nobody") is None
        assert client.progress().batch == 7
        assert client.changes(client.end_of_feed(), 0.06) == []

    check()
    prefix = stores.of(names[0])
    # Progress is at the new node, a window at the old one, and the other way round.
    for moved in ("progress", f"device:{names[0]}"):
        shared_nodes.begin_to_move(f"{prefix}:meta", f"{prefix}:{moved}")
        check()
        shared_nodes.end_move(f"{prefix}:meta")
        check()
        assert sorted(each.id for each in client.devices(page=3)) == sorted(names)


def test_devices_of_a_shard_that_moves_are_all_there(connect: Any, stores: Stores, shared_nodes: Nodes) -> None:
    names = [f"n{number}" for number in range(400)]
    for name in names:
        stores.device(name)
    client = connect(**stores.options)
    for shard in range(SHARDS):
        pages = client.device_pages(page=10)
        found = {each.id for each in next(pages)}
        shared_nodes.begin_to_move(f"{stores.prefix(shard)}:meta")
        shared_nodes.end_move(f"{stores.prefix(shard)}:meta")
        found |= {each.id for page in pages for each in page}
        assert found == set(names)


def test_a_window_is_not_read_before_the_progress_that_closes_it(stores: Stores, shared_nodes: Nodes) -> None:
    """redis-py repeats a command that was redirected after all others: that must not be progress alone."""
    name = stores.names()[0]
    prefix = stores.of(name)
    window = stores.window(name, T0, count=2)
    shared_nodes.begin_to_move(f"{prefix}:meta", f"{prefix}:progress")
    client = Client.from_url(**stores.options)
    client.current("site", name)
    execute = client._steps.connection.execute_command

    def write_before(*command: Any, **options: Any) -> Any:
        if command[:2] == ("HGETALL", f"{prefix}:progress"):
            stores.redis.hset(window, "count", 3)
            stores.progress(0, final=T0 + MINUTE)
        return execute(*command, **options)

    client._steps.connection.execute_command = write_before
    found = client.window("site", name, T0)
    client.close()
    shared_nodes.end_move(f"{prefix}:meta")
    assert (found.count, found.final) == (3, True)  # type: ignore[union-attr]


def test_one_node_is_enough_to_find_the_others(stores: Stores, connect: Any) -> None:
    first = stores.options["url"].split(",")[0]
    name = stores.names()[-1]
    stores.device(name)
    for url in (
        first,
        f"{first}/0",
        f"{first}/",
        first.replace("redis://", "redis://127.0.0.1:1,"),
        f"{first}?socket_timeout=3",
    ):
        assert connect(url, cluster=True).device(name).id == connect(url, cluster=True, db=0).device(name).id == name


@pytest.mark.parametrize(
    "url",
    [
        "unix:///tmp/redis.sock",
        "redis://h:1,h:2/1",
        "redis://h:1?db=1",
        "redis://h:1/x/y",
        "redis://h:1,,h:2",
        "redis://h:x,h:2",
        "redis://h:99999",
        "redis://",
        "http://h:1",
        "redis://u:p@",
    ],
)
def test_an_url_that_names_no_nodes_is_refused(url: str) -> None:
    for made in (Client, AsyncClient):
        with pytest.raises(ArgumentError, match="several nodes: give cluster=True"):
            made.from_url("redis://h:1,h:2")
        with pytest.raises(ArgumentError) as caught:
            made.from_url(url, cluster=True)
        assert "u:p" not in str(caught.value)
        with pytest.raises(ArgumentError, match="the database 0 alone"):
            made.from_url("redis://h", cluster=True, db=1)


def test_what_an_url_says_is_given_to_redis_py(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def from_url(url: str, startup_nodes: Any, **options: Any) -> Any:
        given.update(options, url=url, nodes=[(each.host, each.port) for each in startup_nodes])
        raise redis.ConnectionError(*["not now"])

    monkeypatch.setattr(redis.cluster.RedisCluster, "from_url", from_url)
    url = "rediss://us%40er:s%2Ce@h1,[::1]:7000,h3:7002/0?ssl_ca_certs=x"
    with pytest.raises(
        UnavailableError, match=r"\(cluster h1,\[::1\]:7000,h3:7002/?0?\) does not answer: not now"
    ) as caught:
        Client.from_url(url, cluster=True, ssl_check_hostname=True)
    assert "s%2Ce" not in str(caught.value)
    assert given["url"] == "rediss://us%40er:s%2Ce@h1:6379/0?ssl_ca_certs=x"
    assert given["nodes"] == [("::1", 7000), ("h3", 7002)]
    assert (given["ssl_check_hostname"], given["decode_responses"]) == (True, True)


def test_a_node_of_a_cluster_is_not_one_redis(stores: Stores, connect: Any) -> None:
    client = connect(stores.options["url"].split(",")[0])
    devices = [queries.device(f"d{number}") for number in range(20)]
    with pytest.raises(RefusedError, match="It is a node of a Redis Cluster: use from_url with cluster=True"):
        client.ask_all([*devices, *(queries.value(Place("session", f"d{number}", start=0)) for number in range(20))])


def test_one_redis_is_no_cluster(server: Server, connect: Any) -> None:
    with pytest.raises(RefusedError, match="It is no node of a Redis Cluster: leave out cluster=True"):
        connect(server.url, cluster=True).device("d")


def test_a_cluster_that_is_not_there_is_away(connect: Any) -> None:
    with pytest.raises(
        UnavailableError, match=r"Redis \(cluster 127.0.0.1:1, ?127.0.0.1:2\)|\(cluster 127.0.0.1:1,127"
    ):
        connect("redis://127.0.0.1:1,127.0.0.1:2", cluster=True).device("d")


def test_a_user_needs_rights(stores: Stores, shared_nodes: Nodes, connect: Any) -> None:
    def login(user: str) -> Any:
        return connect(stores.options["url"].replace("//", f"//{user}@"), cluster=True)

    rights = ["resetkeys", "~tidemark:*", "~{tidemark:*", "-@all", "+@read", "+@connection", "+cluster"]
    rights += ["+info"]  # redis-py up to 5.0
    users = {"reader": rights, "stranger": [*rights, "resetkeys", "~other:*"], "lost": [*rights, "-cluster"]}
    name = stores.names()[-1]
    stores.device(name)
    for server in shared_nodes.servers:
        for user, words in users.items():
            server.redis.execute_command("ACL", "SETUSER", user, "on", ">secret", *words)
    try:
        reader = login("reader:secret")
        assert reader.device(name).id == name
        assert [each.id for each in reader.devices()] == [name]
        assert reader.changes(reader.end_of_feed(), 0.1) == []
        with pytest.raises(RefusedError, match=r"refuses: .*Reading takes a user with .*\+cluster"):
            login("stranger:secret").device(name)
        with pytest.raises((RefusedError, UnavailableError)):
            login("lost:secret").device(name)
        with pytest.raises(RefusedError):
            login("reader:wrong").device(name)
    finally:
        for server in shared_nodes.servers:
            server.redis.execute_command("ACL", "DELUSER", *users)


def test_a_connection_that_reads_from_replicas_is_refused(stores: Stores) -> None:
    for made in (Client, AsyncClient):
        with pytest.raises(TypeError, match="reads from replicas"):
            made.from_url(**stores.options, read_from_replicas=True)
    with redis.cluster.RedisCluster.from_url(stores.options["url"].split(",")[0], decode_responses=True) as connection:
        connection.read_from_replicas = True
        with pytest.raises(TypeError, match="reads from replicas"):
            Client(connection)


def test_what_is_closed_leaves_no_connections(stores: Stores, shared_nodes: Nodes) -> None:
    def connections() -> int:
        return sum(len(server.redis.client_list()) for server in shared_nodes.servers)

    stores.redis.ping()
    before = connections()
    for _ in range(3):
        with Client.from_url(**stores.options) as client:
            client.progress()
            threads = [threading.Thread(target=lambda: list(client.follow())) for _ in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(0.3)
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    until(lambda: connections() <= before, f"{connections()} connections instead of {before}", 10)


@pytest.mark.thorough
def test_a_failover_fails_no_other_way_where_many_ask(mortal: Stores, mortal_nodes: Nodes) -> None:
    """redis-py closes connections that others use, which then fail in ways of their own."""
    names = mortal.names()
    for name in names:
        mortal.device(name)
    questions, answered, errors = [queries.device(name) for name in names], [0], list[Exception]()
    ended = threading.Event()

    def count(answers: "list[Any]") -> None:
        assert [each.id for each in answers] == names
        answered[0] += 1

    def ask_in_a_thread(client: Client) -> None:
        while not ended.is_set():
            try:
                count(client.ask_all(questions))
            except Exception as error:
                errors.append(error)

    async def ask_in_a_task(client: AsyncClient) -> None:
        while not ended.is_set():
            try:
                count(await client.ask_all(questions))
            except Exception as error:
                errors.append(error)
                await asyncio.sleep(0.01)

    async def ask_in_tasks() -> None:
        async with AsyncClient.from_url(**mortal.options) as client:
            await asyncio.gather(*(ask_in_a_task(client) for _ in range(4)))

    with Client.from_url(**mortal.options) as client:
        threads = [threading.Thread(target=ask_in_a_thread, args=(client,)) for _ in range(3)]
        threads.append(threading.Thread(target=lambda: asyncio.run(ask_in_tasks())))
        for thread in threads:
            thread.start()
        try:
            until(lambda: answered[0] > 10, "few answers before the failover")
            mortal_nodes.kill_primary_of(mortal.of(names[0]) + ":meta")
            count(answer_of(lambda: client.ask_all(questions)))
            after = answered[0]
            until(lambda: answered[0] > after + 10, "few answers after the failover")
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    assert {type(error) for error in errors} <= {UnavailableError}, errors

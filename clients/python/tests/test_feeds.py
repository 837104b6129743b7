"""The feeds of several shards, followed as one."""

import itertools
import threading
import time
from typing import Any

import pytest
from redis_nodes import PATIENCE, until
from stores import T0, Stores

from tidemark_client import ArgumentError, ChangesLostError, Client, ClosedError, Place


@pytest.fixture
def client(connect: Any, stores: Stores) -> Any:
    return connect(**stores.options)


def keys(changes: Any) -> "list[str]":
    return [change.places[0].key for change in changes]


def test_the_feeds_of_all_shards_come_as_one(client: Any, stores: Stores) -> None:
    names = stores.names(3)
    end = client.end_of_feed()
    assert end == ",".join(["0-0"] * stores.shards)
    for turn in range(3):
        for name in names[turn::3]:
            stores.announce("device", name)
            time.sleep(0.002)  # ids are times in ms, and feeds are merged by them
    merged = names[0::3] + names[1::3] + names[2::3]
    following = client.follow(end)
    found = [next(following) for _ in merged]
    assert keys(found) == merged
    assert all(change.id.count(",") == stores.shards - 1 for change in found)
    assert found[-1].id == client.end_of_feed()
    # After each of them, all others come, and those before it do not.
    for number, change in enumerate(found):
        assert keys(client.changes(change.id)) == merged[number + 1 :]
    for everything in ("0-0", "0", end):
        assert keys(client.changes(everything)) == merged
    assert client.changes(client.end_of_feed(), 0.01) == []


def test_an_entry_is_of_its_own_shards_keys(client: Any, stores: Stores) -> None:
    name = stores.names()[-1]
    window, session = stores.window(name, T0), stores.session(name, T0)
    stores.announce("window", name, window)
    stores.announce("session", name, session)
    stores.announce("progress", name, f"{stores.of(name)}:progress")
    found = client.changes("0-0")
    places = [change.places[0] for change in found]
    assert places == [
        Place("window", name, "site", "power", T0),
        Place("session", name, start=T0),
        Place("progress", ""),
    ]
    assert client.value(places[0]) == client.window("site", name, T0)
    assert client.value(places[1]) == client.session(name, T0)
    assert client.value(places[2]) == client.progress()


def test_a_long_feed_comes_whole_and_in_its_order(client: Any, stores: Stores) -> None:
    names = stores.names(1)
    with stores.redis.pipeline() as pipeline:
        for number in range(600):
            name = names[0 if number % 2 else number % stores.shards]
            prefix = stores.of(name)
            entry = {"kind": "device", "keys": f'["{prefix}:device:{name}.{number}"]', "epoch": 2, "batch": 7}
            pipeline.xadd(f"{prefix}:changes", entry)
        pipeline.execute()
    found = [change.places[0].key for change in itertools.islice(client.follow("0-0"), 600)]
    for name in names:
        numbers = [int(key.rpartition(".")[2]) for key in found if key.startswith(f"{name}.")]
        assert numbers == sorted(numbers)
    assert len(set(found)) == 600


def test_a_change_in_any_shard_is_soon_seen(client: Any, stores: Stores) -> None:
    names = stores.names()
    following = client.follow(client.end_of_feed())
    waits = []
    for name in names * 3:
        begun: list[float] = []

        def announce(name: str = name, begun: "list[float]" = begun) -> None:
            begun.append(time.monotonic())
            stores.announce("device", name)

        timer = threading.Timer(0.15, announce)
        timer.start()
        assert next(following).places[0].key == name
        waits.append(time.monotonic() - begun[0])
        timer.join()
    assert sorted(waits)[len(waits) // 2] < 0.2 * PATIENCE, waits


def test_a_wait_ends_in_time(client: Any, stores: Stores) -> None:
    end = client.end_of_feed()
    for block_s in (0.0, 0.01, 0.3):
        begun = time.monotonic()
        assert client.changes(end, block_s) == []
        assert time.monotonic() - begun < block_s + 10, "a busy machine may take seconds"


def test_close_ends_what_follows(stores: Stores) -> None:
    client = Client.from_url(**stores.options)
    stores.announce("device", "d1")
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.extend(client.follow("0-0")))
    thread.start()
    until(lambda: keys(seen) == ["d1"], "the reader has no entry")
    client.close()
    thread.join(30)
    assert not thread.is_alive()
    with pytest.raises(ClosedError):
        client.device("d1")


def test_entries_that_one_feed_has_lost_are_noticed(client: Any, stores: Stores) -> None:
    names = stores.names()
    for name in names * 3:
        stores.announce("device", name)
        time.sleep(0.002)
    early = client.changes("0-0")[stores.shards - 1].id
    assert len(client.changes(early)) == 2 * stores.shards
    feed = f"{stores.of(names[-1])}:changes"
    stores.redis.xtrim(feed, maxlen=1, approximate=False)
    for block_s in (0.0, 1.0):
        with pytest.raises(ChangesLostError, match=rf"{feed.replace('{', '.')}: entries after .* were trimmed away"):
            client.changes(early, block_s)
    end = client.end_of_feed()
    assert client.changes(end) == []
    # An older copy of this shard alone.
    stores.redis.delete(feed)
    for block_s in (0.0, 1.0):
        with pytest.raises(ChangesLostError, match="or Redis has lost them"):
            client.changes(end, block_s)


def test_positions_of_other_feeds_are_named(client: Any, stores: Stores) -> None:
    stores.announce("device", "d1")
    for after in ("", "abc", "1-2-3", ",", "1-0,", "1-0;2-0", "$,$", "1-0, 2-0", "٣-0", "1-0,-1"):
        with pytest.raises(ArgumentError, match="is no id of the change feed"):
            client.changes(after)
    with pytest.raises(ChangesLostError, match=r"has the position in 2 feed\(s\)"):
        next(client.follow("1-0,2-0"))
    if stores.shards > 1:
        with pytest.raises(ChangesLostError, match=r"has the position in 1 feed\(s\)"):
            client.changes("1-0")

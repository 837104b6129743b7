"""What both clients answer where a prefix has several shards, on one Redis and on a real cluster, and where it has one."""

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.utils import HIREDIS_AVAILABLE
from stores import MINUTE, T0, Stores

from tidemark_client import (
    ArgumentError,
    BusyError,
    ChangesLostError,
    Client,
    ClosedError,
    ContractError,
    Place,
    Progress,
    UnknownViewError,
    queries,
)
from tidemark_client.names import Names


@pytest.fixture
def client(connect: Any, stores: Stores) -> Any:
    return connect(**stores.options)


def test_a_shard_is_that_of_zlibs_crc32() -> None:
    # Check values of CRC-32/ISO-HDLC; the first is above 2**31.
    for text, crc in (("123456789", 0xCBF43926), ("", 0), ("a", 0xE8B7BE43), ("abc", 0x352441C2)):
        for shards in (2, 3, 5, 1_024):
            assert Names("p", shards).store(text).prefix == f"{{p:{crc % shards}}}"
    assert Names("p").store("123456789").prefix == "p"


def test_every_value_is_found_in_its_shard(client: Any, stores: Stores) -> None:
    names = stores.names(2)
    for number, name in enumerate(names):
        for start in (T0 - MINUTE, T0):
            stores.window(name, start, count=number + 1)
        stores.session(name, T0)
        stores.device(name, session=T0)
    assert client.meta().shards == stores.shards
    for number, name in enumerate(names):
        newest, complete = client.current("site", name), client.latest_complete("site", name)
        assert (newest.key, newest.start, newest.count, newest.final) == (name, T0, number + 1, False)
        assert (complete.start, complete.final) == (T0 - MINUTE, True)
        assert client.windows("site", name, since=T0 - MINUTE) == [complete, newest]
        assert client.window("site", name, T0) == newest == client.value(Place("window", name, "site", "power", T0))
        assert client.device(name).id == name
        assert client.session(name).start == client.session(name, T0).start == T0
        assert [each.start for each in client.sessions(name)] == [T0]
    asked = [queries.device(name) for name in names] + [queries.current("site", name) for name in names]
    assert [each.id for each in client.ask_all(asked)[: len(names)]] == names
    assert client.device("nobody") is client.session("nobody") is client.current("site", "nobody") is None


ODD = [
    "",
    " ",
    "a:b|c%",
    "}x{",
    "{}",
    "{tidemark:0}",
    "*[?]\\",
    "-\n-\x00",
    "jäger",
    "🜁",
    "123456789",
    "1:2:3",
    "{a}:device:b",
]


def test_keys_and_devices_may_have_any_characters(client: Any, stores: Stores) -> None:
    for name in ODD:
        stores.window(name, T0)
        stores.session(name, T0)
        stores.announce("device", name, stores.device(name, session=T0))
    assert {key for key, _ in client.keys("site")} == set(ODD)
    assert {each.id for each in client.devices(3)} == set(ODD)
    for name in ODD:
        assert client.current("site", name).key == client.device(name).id == client.session(name).device == name
    assert {change.places[0].key for change in client.changes("0-0")} == set(ODD)
    stores.window("50%25|a%7Cb", T0, view="model")
    assert client.current("model", ("50%", "a|b")).key == "50%25|a%7Cb"
    stores.window("all", T0, view="all")
    assert client.current("all").key == "all"


def test_a_text_that_is_not_utf_8_has_the_shard_of_its_bytes(stores: Stores) -> None:
    """A connection of the caller's can carry any bytes as surrogates, but neither with hiredis nor in a pipeline of a cluster."""
    made: Any = redis.cluster.RedisCluster if "cluster" in stores.options else redis.Redis
    url = stores.options["url"].split(",")[0]
    with made.from_url(url, decode_responses=True) as connection, pytest.raises(ArgumentError, match="cannot be sent"):
        Client(connection).device("\ud800")
    if HIREDIS_AVAILABLE or "cluster" in stores.options:
        with Client.from_url(**stores.options) as client, pytest.raises(ArgumentError, match="cannot be sent"):
            client.device("\ud800")
        return
    with Client.from_url(**stores.options) as client:
        assert client.device("\ud800") is None
    with made.from_url(url, decode_responses=True, encoding_errors="surrogateescape") as connection:
        client = Client(connection)
        for text in ("\udcff\udcfe", "d\udc80"):
            raw = zlib_of(text.encode("utf-8", "surrogateescape"))
            home = Stores(connection, url, stores.shards)
            home.shard = lambda _, raw=raw: raw % stores.shards  # type: ignore[method-assign,misc]
            home.window(text, T0)
            home.device(text)
            assert client.current("site", text).key == text  # type: ignore[union-attr]
            assert text in {each.id for each in client.devices()}


def zlib_of(text: bytes) -> int:
    """CRC-32 by its definition."""
    crc = 0xFFFFFFFF
    for byte in text:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_progress_of_a_keys_own_shard_closes_its_windows(client: Any, stores: Stores) -> None:
    names = stores.names()
    for shard, name in enumerate(names):
        stores.window(name, T0)
        stores.progress(shard, batch=8 if shard == 0 else 7, final=T0 + MINUTE if shard == 0 else T0)
    assert [client.current("site", name).final for name in names] == [shard == 0 for shard in range(stores.shards)]
    assert client.latest_complete("site", names[0]).start == T0
    if stores.shards > 1:
        assert client.latest_complete("site", names[1]) is None
        assert client.progress().final == T0


def test_progress_is_what_all_shards_have(client: Any, stores: Stores) -> None:
    stores.progress_of_all(batch=7, final=T0, idle=T0 + 5, idle_epoch=2, idle_batch=7)
    assert (client.progress().closed_until, client.progress().silent) == (T0 + 5, True)
    last = stores.shards - 1
    stores.progress(last, batch=8, final=T0 + MINUTE)
    found = client.progress()
    if stores.shards > 1:
        assert (found.epoch, found.batch, found.final, found.watermark, found.closed_until) == (2, 7, T0, T0, T0 + 5)
        assert (found.silent, found.updated) == (True, 1_700_000_100_000)
        assert not found.includes("readings", 0, 17)
    else:
        assert (found.batch, found.final, found.silent) == (8, T0 + MINUTE, False)
    assert found.includes("readings", 0, 16)
    stores.progress_of_all(batch=8, final=T0 + MINUTE)
    assert (client.progress().batch, client.progress().idle, client.progress().silent) == (8, None, False)
    stores.redis.delete(f"{stores.prefix(last)}:progress")
    assert client.progress() is None


def test_what_shards_have_in_common() -> None:
    def of(epoch: int, batch: int, final: int, offsets: str = '{"t": {"0": 5}}', **idle: int) -> "dict[str, str]":
        fields: dict[str, Any] = {
            "epoch": epoch,
            "batch": batch,
            "final": final,
            "watermark": final,
            "updated": batch,
            **idle,
        }
        return {**{name: str(value) for name, value in fields.items()}, "offsets": offsets, "reference": f"r{batch}"}

    def silent(until: int, epoch: int, batch: int) -> "dict[str, int]":
        return {"idle": until, "idle_epoch": epoch, "idle_batch": batch}

    def found(*shards: "dict[str, str]") -> Any:
        return Progress.of_all(shards)

    behind, ahead = of(2, 9, 50, '{"t": {"0": 8, "1": 3}, "u": {"0": 1}}'), of(3, 1, 70, '{"t": {"0": 7}}')
    both = found(ahead, behind)
    assert (both.epoch, both.batch, both.final, both.reference, both.updated) == (2, 9, 50, "r9", 1)
    assert both.offsets == {"t": {0: 7}}
    assert not both.includes("u", 0, 0)
    assert found(of(1, 1, 50, **silent(70, 1, 1))) == Progress.of(of(1, 1, 50, **silent(70, 1, 1)))
    assert found(ahead, {}) is found({}) is found({"writing": "1 1"}) is None
    for shards, closed_until, is_silent in (
        # No shard is closed beyond the one that is the least.
        ((of(1, 1, 50, **silent(70, 1, 1)), of(1, 1, 60)), 60, True),
        ((of(1, 1, 50, **silent(70, 1, 1)), of(1, 1, 50)), 50, False),
        ((of(1, 1, 50, **silent(70, 1, 1)), of(1, 1, 50, **silent(65, 1, 1))), 65, True),
        ((of(1, 2, 50, **silent(70, 1, 1)), of(1, 2, 50, **silent(70, 1, 2))), 70, False),
        # A topic that is read again: the watermark is behind `final`.
        ((of(1, 1, 80, **silent(70, 1, 1)), of(1, 1, 80, **silent(70, 1, 1))), 80, True),
    ):
        for order in itertools.permutations(shards):
            assert (found(*order).closed_until, found(*order).silent) == (closed_until, is_silent)


def test_keys_of_all_shards_come_newest_first(client: Any, stores: Stores) -> None:
    names = stores.names(3)
    for number, name in enumerate(names):
        stores.window(name, T0 + number * MINUTE)
    newest = [(name, T0 + number * MINUTE) for number, name in enumerate(names)][::-1]
    assert client.keys("site") == newest
    assert client.keys("site", limit=2) == newest[:2]
    assert client.keys("site", since=T0 + 2 * MINUTE) == newest[:-2]
    assert client.keys("all") == []
    # Those of one start are in the order that one Redis has them in, too.
    for name in "abc":
        stores.window(name, T0 - MINUTE, view="model")
    assert [key for key, _ in client.keys("model")] == ["c", "b", "a"]


def test_all_keys_of_all_shards_come_with_their_newest_starts(client: Any, stores: Stores) -> None:
    assert list(client.all_keys("site")) == []
    names = stores.names(150)
    for number, name in enumerate(names):
        stores.redis.zadd(f"{stores.of(name)}:keys:site", {name: T0 + number * MINUTE})
    pages = list(client.key_pages("site", page=20))
    assert len(pages) > 3
    assert dict(pair for page in pages for pair in page) == {
        name: T0 + number * MINUTE for number, name in enumerate(names)
    }
    with pytest.raises(UnknownViewError):
        list(client.all_keys("sites"))


def test_a_connection_of_the_callers_stays_open(stores: Stores) -> None:
    with Client(stores.redis) as client:
        assert client.progress() is not None
    with pytest.raises(ClosedError):
        client.progress()
    assert stores.redis.ping()


def test_skewed_devices_of_all_shards_come_newest_first(client: Any, stores: Stores) -> None:
    assert client.skewed() == []
    names = stores.names(2)
    for number, name in enumerate(names):
        stores.redis.zadd(f"{stores.of(name)}:skewed", {name: T0 + number})
    newest = [(name, T0 + number) for number, name in enumerate(names)][::-1]
    assert client.skewed() == newest
    assert client.skewed(limit=1) == newest[:1]


def test_all_devices_of_all_shards_come_once(client: Any, stores: Stores) -> None:
    for number in range(200):
        stores.device(f"n{number}")
    pages = list(client.device_pages(page=30))
    assert sorted(each.id for page in pages for each in page) == sorted(f"n{number}" for number in range(200))
    assert all(len(page) >= 30 for page in pages[:-1])
    if stores.shards > 1:
        # Not those of other prefixes, of shards that there are not, and of the prefix without shards.
        for prefix in ("{tidemark:9}", "{tidemark:01}", "{tidemark:x}", "{tidemark2:0}", "{xtidemark:0}", "tidemark"):
            stores.redis.hset(f"{prefix}:device:stranger", "status", "online")
        assert len(list(client.devices())) == 200


def test_a_snapshot_of_several_shards_is_of_one_batch(client: Any, stores: Stores) -> None:
    names, ending = stores.names(2), threading.Event()
    for name in names:
        stores.device(name)

    def write() -> None:
        """Shard by shard, so that they are one batch apart meanwhile."""
        for batch in itertools.count(8):
            for shard in range(stores.shards):
                stores.redis.hset(f"{stores.prefix(shard)}:progress", "writing", f"2 {batch}")
                for name in names[2 * shard : 2 * shard + 2]:
                    stores.redis.hset(f"{stores.of(name)}:device:{name}", "batch", batch)
                stores.progress(shard, batch)
            if ending.wait(0.03):
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        batches = set()
        while len(batches) < 5:
            snapshot = client.snapshot([queries.device(name) for name in names], attempts=10_000)
            assert {each.written.batch for each in snapshot.answers} == {snapshot.progress.batch}
            batches.add(snapshot.progress.batch)
    finally:
        ending.set()
        thread.join()


@pytest.mark.parametrize("stores", ["three shards", "cluster"], indirect=True)
def test_a_snapshot_waits_for_the_shards_that_it_reads(client: Any, stores: Stores) -> None:
    first, second, *_ = stores.names()
    for name in (first, second):
        stores.device(name)
        stores.window(name, T0)
    both = [queries.device(first), queries.current("site", second)]

    def read(questions: "list[queries.Query[Any]]") -> Any:
        return client.snapshot(questions, attempts=2)

    assert read(both).progress.batch == 7
    stores.progress(1, batch=8)
    with pytest.raises(BusyError, match="in each of 2 attempts a batch was being written"):
        read(both)
    assert read([queries.device(first)]).progress.batch == 7
    assert read([queries.current("site", second)]).progress.batch == 8
    for questions in ([queries.keys("site")], [queries.progress()], []):
        with pytest.raises(BusyError):
            read(questions)
    stores.progress(1, batch=7, writing="2 8")
    assert read([queries.device(first)]).answers[0].id == first
    with pytest.raises(BusyError):
        read(both)
    stores.redis.delete(f"{stores.prefix(1)}:progress")
    assert read([queries.device(first)]).answers[0].id == first
    with pytest.raises(BusyError):
        read(both)


def test_a_shard_without_values_is_one_without_readings(client: Any, stores: Stores) -> None:
    """Its node has lost all; the others are read as ever."""
    names = stores.names()
    for name in names:
        stores.window(name, T0 - MINUTE)
        stores.device(name)
    assert client.latest_complete("site", names[0]).final
    for kind in ("meta", "progress", f"device:{names[0]}", "keys:site", f"window:site:power:{names[0]}:{T0 - MINUTE}"):
        stores.redis.delete(f"{stores.prefix(0)}:{kind}")
    assert client.device(names[0]) is client.progress() is None
    if stores.shards == 1:
        with pytest.raises(ContractError, match="no tidemark:meta"):
            client.current("site", names[0])
        return
    assert client.current("site", names[0]) is None
    assert [client.latest_complete("site", name).key for name in names[1:]] == names[1:]
    assert [client.device(name).id for name in names[1:]] == names[1:]
    assert {key for key, _ in client.keys("site")} == set(names[1:])
    # A meta that is missing elsewhere changes nothing; one that is nowhere does.
    for shard in range(1, stores.shards):
        stores.redis.delete(f"{stores.prefix(shard)}:meta")
    with pytest.raises(ContractError, match=r"no \{tidemark:0\}:meta and no tidemark:meta[.] Is 'tidemark'"):
        client.views()
    assert client.device(names[1]).id == names[1]


def test_another_number_of_shards_is_an_error_once(client: Any, stores: Stores) -> None:
    name = stores.names()[-1]
    stores.device(name)
    position = client.end_of_feed()
    assert client.device(name).id == name
    asks: list[Callable[[], Any]] = [
        client.views,
        lambda: client.current("site", "x"),
        lambda: client.device(name),
        lambda: client.session(name),
        client.progress,
        client.end_of_feed,
        lambda: client.changes(position),
        lambda: list(client.devices()),
    ]
    numbers = itertools.cycle([4, stores.shards])
    for ask in asks:
        for key in list(stores.redis.scan_iter("*tidemark*")):
            stores.redis.delete(key)
        now = Stores(stores.redis, "", next(numbers))
        now.fill()
        with pytest.raises(ContractError, match=rf"had [0-9] shard\(s\), and has {now.shards} now: read again"):
            ask()
        assert client.meta().shards == now.shards
        now.device(name)
        assert client.device(name).id == name
    assert now.shards == stores.shards
    now.announce("device", name)
    with pytest.raises(
        ChangesLostError, match=rf"position in 2 feed\(s\), prefix 'tidemark' has {stores.shards} shard"
    ):
        client.changes("5-0,6-0")
    assert len(client.changes(position)) == 1, "it was before every entry"


@pytest.mark.parametrize("shards", [0, -1, "3", 2.5, None, [], {}])
def test_a_number_of_shards_that_is_none_is_named(client: Any, stores: Stores, shards: Any) -> None:
    stores.meta(0, shards=shards)
    with pytest.raises(ContractError, match=r"meta is not what a service of Tidemark writes"):
        client.device("d")


def test_a_meta_in_the_wrong_place_is_named(stores: Stores, connect: Any) -> None:
    stores.meta(0, shards=1 if stores.shards > 1 else 3)
    with pytest.raises(ContractError, match=r"has shards = [13]\. One shard has the prefix itself"):
        connect(**stores.options).views()
    if stores.shards > 1:
        stores.meta(0)
        with pytest.raises(ContractError, match=r"Is '\{tidemark:1\}' the service's redis.prefix"):
            connect(**{**stores.options, "prefix": "{tidemark:1}"}).views()


def test_a_prefix_without_a_meta(stores: Stores, connect: Any) -> None:
    client = connect(**{**stores.options, "prefix": "other"})
    with pytest.raises(ContractError, match=r"no \{other:0\}:meta and no other:meta[.] Is 'other' the service's"):
        client.views()
    if "cluster" in stores.options:
        with pytest.raises(ContractError, match="no other:meta"):
            client.device("d")
        return
    # One Redis answers as it always did, and finds the shards when they come.
    assert client.device("d") is client.progress() is None
    position = client.end_of_feed()
    assert (position, client.changes(position)) == ("0-0", [])
    others = Stores(stores.redis, "", 3, prefix="other")
    others.fill()
    others.device("d")
    others.announce("device", "d")
    assert [change.places[0].key for change in client.changes(position)] == ["d"]
    assert client.device("d").id == "d"

"""Readers of a prefix with three shards, on one Redis and on a cluster: the contract's check, what is published, the observer."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from load.faults.history import History, read
from load.faults.observer import Observer
from load.judge import feed, published
from load.servers.redis import Redis
from load.servers.redis_cluster import RedisCluster
from load.testbed import TOPIC, Testbed
from schemas import contract

pytestmark = pytest.mark.integration

SHARDS = 3
NAMES = [f"d{number}" for number in range(12)]  # d0 is in shard 0
WRITTEN = {"epoch": "1", "batch": "4", "updated": "1"}
WINDOW = {**dict.fromkeys(("sum", "mean", "min", "max"), 2), "start": 0, "end": 60_000, "count": 1, "stddev": 0}
WINDOW |= {"first": 5, "last": 5}
SESSION = {
    "start": 5,
    "last": 5,
    "count": 1,
    "duration": 0,
    "state": "closed",
    "reason": "gap",
    "closed_by": "watermark",
}
DEVICE = {"status": "offline", "last_seen": 5, "session": "", "reference": ""}
PROGRESS = {"watermark": 59_999, "final": 59_999, "offsets": json.dumps({TOPIC: {"0": 9}}), "reference": ""}
META = {"contract": 3, "shards": SHARDS, "measures": [], "views": []}
META |= {"sessions": {"gap_ms": 1, "max_duration_ms": 1, "retain_ms": 1}}


@dataclass
class Stores:
    """A prefix with three shards that hold what the contract wants, and a client."""

    url: str
    client: Any
    prefix: str

    def key(self, shard: int, name: str) -> str:
        return f"{contract.prefixes(self.prefix, SHARDS)[shard]}:{name}"

    def violations(self, shards: int = SHARDS) -> list[str]:
        return contract.check(self.client, self.prefix, shards)

    def fill(self) -> None:
        for name in NAMES:
            shard = contract.shard_of(name, SHARDS)
            self.hash(shard, f"window:v:t:{name}:0", WINDOW)
            self.hash(shard, f"session:{name}:5", {**SESSION, "revision": 0})
            self.hash(shard, f"device:{name}", DEVICE)
            self.sorted_set(shard, f"sessions:{name}", "5", 5)
            self.sorted_set(shard, "keys:v", name, 0)
            self.client.zadd(self.key(shard, "skewed"), {name: 5})
            keys = json.dumps([self.key(shard, f"window:v:t:{name}:0")])
            self.client.xadd(self.key(shard, "changes"), {"kind": "window", "keys": keys, "batch": 4, "epoch": 1})
        for shard in range(SHARDS):
            self.client.set(self.key(shard, "epoch"), 1)
            self.client.set(self.key(shard, "meta"), json.dumps(META))
            self.progress(shard)
        self.client.set(self.key(0, "lease"), "me", px=600_000)

    def progress(self, shard: int, **changed: object) -> None:
        self.client.hset(self.key(shard, "progress"), mapping={**PROGRESS, **WRITTEN, **changed})

    def hash(self, shard: int, name: str, fields: Mapping[str, Any]) -> None:
        self.client.hset(self.key(shard, name), mapping={**fields, **WRITTEN})
        self.client.expire(self.key(shard, name), 600)

    def sorted_set(self, shard: int, name: str, member: str, score: float) -> None:
        self.client.zadd(self.key(shard, name), {member: score})
        self.client.expire(self.key(shard, name), 600)

    def move(self, name: str, shard: int) -> None:
        """To another shard, as a writer with another hash would have put it."""
        now = next(self.key(each, name) for each in range(SHARDS) if self.client.exists(self.key(each, name)))
        self.client.restore(self.key(shard, name), 600_000, self.dump(now))
        self.client.delete(now)

    def dump(self, key: str) -> Any:
        with published.connect(self.url, cluster="," in self.url) as raw:
            return raw.dump(key)


@pytest.fixture(scope="module", params=["one Redis", "cluster"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("redis")
    with Redis(folder) if request.param == "one Redis" else RedisCluster(folder, replicas=0) as running:
        yield running.url


@pytest.fixture
def stores(url: str, prefix: str) -> Iterator[Stores]:
    options: dict[str, Any] = {"decode_responses": True, "encoding_errors": "surrogateescape"}
    with published.connect(url, cluster="," in url, **options) as client:
        made = Stores(url, client, f"{prefix}[*]")
        made.fill()
        yield made


def test_each_shard_has_something_and_the_contract_holds(stores: Stores) -> None:
    assert {contract.shard_of(name, SHARDS) for name in NAMES} == {0, 1, 2}
    assert stores.violations() == []
    with published.connect(stores.url, cluster="," in stores.url) as undecoded:
        assert contract.check(undecoded, stores.prefix, SHARDS) == []


def test_a_shard_goes_by_the_bytes_of_a_device(stores: Stores) -> None:
    raw = b"\xff:\n"
    name = raw.decode("utf-8", "surrogateescape")
    shard = contract.shard_of(raw, SHARDS)
    assert contract.shard_of(name, SHARDS) == shard
    for at in (shard, (shard + 1) % SHARDS):
        key = stores.key(at, "device:").encode() + raw
        stores.client.hset(key, mapping={**DEVICE, **WRITTEN})
        stores.client.expire(key, 600)
    # A client that decodes cannot name such a key (hiredis packs no surrogates).
    with published.connect(stores.url, cluster="," in stores.url) as undecoded:
        [violation] = contract.check(undecoded, stores.prefix, SHARDS)
        assert f"device:\\xff:\n: is in shard {(shard + 1) % SHARDS}, and belongs to shard {shard}" in violation


Change = Callable[[Stores], Any]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda s: s.move("window:v:t:d0:0", 2), "window:v:t:d0:0: is in shard 2, and belongs to shard 0"),
        (lambda s: s.move("device:d0", 2), "device:d0: is in shard 2, and belongs to shard 0"),
        (lambda s: s.move("session:d0:5", 2), "session:d0:5: is in shard 2, and belongs to shard 0"),
        (lambda s: s.move("sessions:d0", 2), "sessions:d0: is in shard 2, and belongs to shard 0"),
        (lambda s: s.client.zadd(s.key(2, "keys:v"), {"d0": 0}), "keys:v: has d0, which belongs to shard 0"),
        (lambda s: s.client.zadd(s.key(2, "skewed"), {"d0": 5}), "skewed: has d0, which belongs to shard 0"),
        (lambda s: s.client.set(s.key(1, "lease"), "you", px=9_000), "lease: is in shard 1, and belongs to shard 0"),
        (lambda s: s.client.delete(s.key(0, "meta")), "meta: is missing"),
        (lambda s: s.client.delete(s.key(2, "meta")), "meta: is missing"),
        (
            lambda s: s.client.set(s.key(2, "meta"), json.dumps({**META, "measures": ["t"]})),
            "meta: is not that of the other shards",
        ),
        (lambda s: s.client.set(s.key(1, "meta"), json.dumps({**META, "shards": 2})), "meta: shards = 2, not 3"),
        (lambda s: s.client.set(s.key(1, "meta"), json.dumps({**META, "shards": 0})), "meta: shards: 0 is less than"),
        (lambda s: s.client.set(f"{s.prefix}:epoch", 1), "epoch: is in none of the 3 shards"),
        (lambda s: s.client.set(s.key(2, "").replace(":2}", ":3}") + "epoch", 1), "epoch: is in none of the 3 shards"),
        (lambda s: s.client.hset(s.key(2, "progress"), "final", 0), "progress: final = 0 is behind"),
    ],
)
def test_each_rule_of_shards_can_be_violated(stores: Stores, change: Change, what: str) -> None:
    change(stores)
    assert any(what in violation for violation in stores.violations()), stores.violations()


def test_a_prefix_is_checked_with_its_own_number_of_shards(stores: Stores) -> None:
    assert any("shards = 3, not 2" in each for each in stores.violations(2))
    assert any("is in none of the 2 shards" in each for each in stores.violations(2))
    stores.client.set(f"{stores.prefix}:meta", json.dumps(META))
    assert stores.violations(1) == [f"{stores.prefix}:meta: shards = 3, not 1"]


def test_keys_of_all_shards_are_read_by_the_same_names(stores: Stores) -> None:
    hashes = dict(published.hashes(stores.client, stores.prefix, shards=SHARDS))
    names = {
        f"{kind}:{name}{end}"
        for kind, end in (("window:v:t", ":0"), ("session", ":5"), ("device", ""))
        for name in NAMES
    }
    assert hashes.keys() == {f"{stores.prefix}:{name}" for name in names}
    for name in names:
        assert published.read(stores.client, stores.prefix, name, SHARDS) == hashes[f"{stores.prefix}:{name}"]
    assert published.read(stores.client, stores.prefix, "window:v:t:d0:60000", SHARDS) == {}
    assert published.read(stores.client, stores.prefix, "progress", SHARDS)["batch"] == "4"


def test_a_window_is_closed_by_the_progress_of_its_shard(stores: Stores) -> None:
    stores.progress(1, final=60_000)
    windows = dict(published.hashes(stores.client, stores.prefix, ("window",), shards=SHARDS))
    for name in NAMES:
        key = f"window:v:t:{name}:0"
        why = "watermark" if contract.shard_of(name, SHARDS) == 1 else ""
        assert windows[f"{stores.prefix}:{key}"]["closed_by"] == why
        assert published.read(stores.client, stores.prefix, key, SHARDS)["closed_by"] == why


def test_the_feeds_of_all_shards_are_read(stores: Stores) -> None:
    entries = feed.changes(stores.client, stores.prefix, shards=SHARDS)
    right = {stores.key(contract.shard_of(name, SHARDS), f"window:v:t:{name}:0") for name in NAMES}
    assert {fields["key"] for _, fields in entries} == right
    one, shard = [each for each in entries if "test" in each[1]["key"]], contract.prefixes(stores.prefix, SHARDS)[1]
    last = max(number for number, fields in one if fields["key"].startswith(shard))
    assert feed.changes(stores.client, shard, last) == []


class Parts:
    """Of a testbed, what the observer asks for when it only looks at Redis."""

    def __init__(self, stores: Stores) -> None:
        self._url = stores.url
        self.broker = self
        self.bootstrap = "127.0.0.1:1"
        self.settings: Any = {"redis": {"prefix": stores.prefix, "shards": SHARDS, "cluster": "," in stores.url}}

    def redis_client(self, **options: Any) -> Any:
        return published.connect(self._url, cluster="," in self._url, decode_responses=True, **options)


def test_a_batch_is_published_when_each_shard_has_it(stores: Stores, tmp_path: Path) -> None:
    stores.progress(1, batch=5, watermark=60_001, final=60_001, offsets=json.dumps({TOPIC: {"0": 12}}))
    stores.progress(2, batch=5, watermark=60_001, final=60_001, offsets=json.dumps({TOPIC: {"0": 12, "1": 3}}))
    stores.client.set(stores.key(2, "epoch"), 2)
    history = History(tmp_path / "history.jsonl")
    observer = Observer(cast(Testbed, Parts(stores)), history, 1, pids=list, metrics=dict)
    observer.stop()  # looks once
    history.close()
    assert (observer.progress, observer.epoch) == ((1, 4), 1)
    assert [each[1:] for each in observer.closed] == [(59_999, -1)]
    entries = list(read(history.path))
    progress = [entry for entry in entries if entry["what"] == "progress"]
    assert [(each.get("shard"), each["batch"], each["final"], each["offsets"]) for each in progress] == [
        (0, 4, 59_999, {f"{TOPIC}[0]": 9}),
        (1, 5, 60_001, {f"{TOPIC}[0]": 12}),
        (2, 5, 60_001, {f"{TOPIC}[0]": 12, f"{TOPIC}[1]": 3}),
        (None, 4, 59_999, {f"{TOPIC}[0]": 9, f"{TOPIC}[1]": 0}),
    ]
    for what in ("epoch", "feed", "value"):
        assert {entry["shard"] for entry in entries if entry["what"] == what} == {0, 1, 2}
    assert [entry["up"] for entry in entries if entry["what"] == "redis"] == [True]

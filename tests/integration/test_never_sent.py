"""Devices of the reference that have never sent: listed in a real Redis until their first reading."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from load.servers.redis import Redis
from load.testbed import to_toml
from schemas import contract
from service.cli import main
from service.daemon.never_sent import NeverSent
from service.errors import FencedError
from service.pipeline.batch_publisher import Sink
from service.pipeline.term import Term, TermMetrics
from service.publication.early import Early
from service.reference.attributes import Index
from service.settings import Settings, parse
from tests.outputs import T0, changes, device, micro_batch
from tidemark_client import Client

pytestmark = pytest.mark.integration

RETAIN_MS = 3_600_000


class Metrics(TermMetrics):
    def __init__(self) -> None:
        self.devices: list[int] = []

    def never_sent(self, devices: int) -> None:
        self.devices.append(devices)


class World:
    """A prefix of a Redis, a checkpoint, and terms of the service with a reference of devices and their sites."""

    def __init__(self, redis: Redis, prefix: str, folder: Path, **options: Any) -> None:
        self.folder, self.prefix, self.options = folder, prefix, options
        self.client: Any = redis.client()
        self.document: dict[str, Any] = {
            "service": {"checkpoint": str(folder / "checkpoint")},
            "kafka": {"bootstrap": "localhost:1", "topics": ["readings"]},
            "input": {"format": "json", "measures": {"temperature": "temperature"}},
            "reference": {"url": "jdbc:sqlite:x.db", "query": "q", "list_never": True},
            "sessions": {"retain": "1 h"},
            "redis": {"url": redis.url, "prefix": prefix, **options},
            "views": [{"name": "all", "window": "1 m"}],
        }
        (folder / "checkpoint" / "reference").mkdir(parents=True)
        self.settings = self._settings()
        self.metrics = Metrics()
        self.epoch = 0
        self.term = self.next_term()

    def _settings(self) -> Settings:
        return parse(self.document)

    def prefixes(self) -> list[str]:
        shards = self.options.get("shards", 1)
        return [self.prefix] if shards == 1 else [f"{{{self.prefix}:{number}}}" for number in range(shards)]

    def next_term(self, **reference: Any) -> Term:
        self.epoch += 1
        for prefix in self.prefixes():
            self.client.set(f"{prefix}:epoch", self.epoch)
        self.document["reference"] |= reference
        self.settings = self._settings()
        spark: Any = SimpleNamespace()
        self.term = Term(spark, self.settings, self.epoch, metrics=self.metrics)
        self.lists = NeverSent(self.term)
        return self.term

    def look(self, **sites: str) -> None:
        """One look of the service with a reference of these devices."""
        table = pa.table({"device": [*sites], "site": [*sites.values()]}).sort_by("device")
        version = f"{hash(tuple(sorted(sites.items()))) & 0xFFFFFFFFFFFF:012x}"
        self.term.fixed_snapshot = SimpleNamespace(version=version, table=table)  # type: ignore[assignment]
        self.lists.work()

    def send(self, batch: int, *names: str) -> None:
        """A batch with a reading of each of these devices."""
        attributes = Index(pa.table({"device": ["a"], "site": ["leeds"]}))
        sink = Sink(self.settings, micro_batch(batch, epoch=self.epoch), attributes)
        sink.write([changes([], [device(name) for name in names])])
        sink.progress()

    def never(self) -> dict[str, str]:
        """The listed devices by id, each with its site, as the client reads them."""
        with Client.from_url(self.settings.redis.url.get_secret_value(), self.prefix) as client:
            found = {each.id: each for each in client.devices(status="never")}
            assert {each.id for each in client.devices() if each.status == "never"} == found.keys()
        return {name: found[name].attributes.get("site", "") for name in sorted(found)}

    def hash_of(self, name: str) -> dict[str, str]:
        return next(filter(None, (self.client.hgetall(f"{each}:device:{name}") for each in self.prefixes())), {})

    def violations(self) -> list[str]:
        return contract.check(self.client, self.prefix)


@pytest.fixture
def make(redis_server: Redis, prefix: str, tmp_path: Path) -> Callable[..., World]:
    def made(**options: Any) -> World:
        world = World(redis_server, prefix, tmp_path, **options)
        world.send(0, "stranger")
        return world

    return made


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    return make()


def test_a_device_of_the_reference_is_never_until_its_first_reading(world: World) -> None:
    world.look(a="leeds", b="cork", c="cork")
    assert world.never() == {"a": "leeds", "b": "cork", "c": "cork"}
    assert world.client.pttl(f"{world.prefix}:device:a") == -1
    assert world.violations() == []
    world.send(1, "a")
    assert world.never() == {"b": "cork", "c": "cork"}  # at once, without a look
    assert world.hash_of("a")["status"] == "online"
    assert world.client.pttl(f"{world.prefix}:device:a") > 0
    assert world.violations() == []
    world.look(a="leeds", b="cork", c="cork")
    assert world.never() == {"b": "cork", "c": "cork"}
    assert world.metrics.devices == [3, 2]
    assert world.client.zrange(f"{world.prefix}:never", 0, -1) == ["b", "c"]


def test_an_outlet_of_states_gets_the_devices_that_have_not_sent(world: World) -> None:
    told: list[Any] = []
    world.document["outlets"] = [{"name": "alarms", "kind": "parquet", "path": "nowhere", "states": True}]
    world.next_term().outlets = cast("Any", SimpleNamespace(look=lambda: told.append("look"), expect=told.append))
    world.look(a="leeds", b="cork")
    world.send(1, "a")
    world.look(a="leeds", b="cork")
    assert told == ["look", {"a", "b"}, "look", {"b"}]


def test_a_device_that_has_sent_is_not_listed_when_its_hash_has_expired(world: World) -> None:
    world.look(a="leeds", b="cork")
    world.send(1, "a")
    world.client.delete(f"{world.prefix}:device:a")  # as after `sessions.retain`, before the service has looked again
    world.next_term()
    world.look(a="leeds", b="cork")
    world.next_term()
    world.look(a="leeds", b="cork")
    assert world.never() == {"b": "cork"}


def test_a_loss_of_redis_lists_those_again_that_have_not_sent(world: World) -> None:
    world.look(a="leeds", b="cork", c="cork")
    world.send(1, "a")
    world.look(a="leeds", b="cork", c="cork")
    world.client.delete(*world.client.keys(f"{world.prefix}:*"))
    world.next_term()
    world.send(2, "c")  # the republication writes what the state has; a has left it
    world.look(a="leeds", b="cork", c="cork")
    assert world.never() == {"b": "cork"}
    assert world.violations() == []


@pytest.mark.parametrize("mark", ["republish", "rebuild"])
def test_nothing_is_listed_while_values_that_redis_had_are_written_again(world: World, mark: str) -> None:
    world.client.set(f"{world.prefix}:{mark}", "asked 1")
    world.look(a="leeds")
    assert world.never() == {}
    world.client.delete(f"{world.prefix}:{mark}")
    world.look(a="leeds")
    assert world.never() == {"a": "leeds"}


def test_a_row_that_leaves_the_reference_leaves_the_list_and_a_changed_one_has_new_attributes(world: World) -> None:
    world.look(a="leeds", b="cork", c="cork")
    world.look(a="leeds", b="york")
    assert world.never() == {"a": "leeds", "b": "york"}
    assert world.hash_of("c") == {}
    before = world.client.xlen(f"{world.prefix}:changes")
    world.look(a="leeds", b="york", d="york")
    assert world.client.xlen(f"{world.prefix}:changes") == before + 1  # d alone is announced
    world.next_term(list_never=False)
    world.lists.start()
    assert world.never() == {}
    assert world.client.exists(f"{world.prefix}:never") == 0
    assert world.hash_of("stranger")["status"] == "online"


def test_early_readings_end_never_too(world: World) -> None:
    world.look(a="leeds", b="cork")
    early = Early()
    early.take({"device": "a", "broker_ms": T0, "event_ms": T0 + 60_000, "reason": "early"})
    sink = Sink(world.settings, micro_batch(1, epoch=world.epoch))
    sink.run("early", **next(early.calls(0, world.settings)))
    assert world.never() == {"b": "cork"}
    assert world.hash_of("a")["status"] == "offline"
    assert world.violations() == []
    world.look(a="leeds", b="cork")
    world.client.delete(f"{world.prefix}:device:a")
    world.look(a="leeds", b="cork")
    assert world.never() == {"b": "cork"}


def test_an_older_term_lists_nothing(world: World) -> None:
    world.client.set(f"{world.prefix}:epoch", 2)
    with pytest.raises(FencedError):
        world.look(a="leeds")
    assert world.never() == {}


def test_the_list_of_shards_and_odd_ids_is_complete(make: Callable[..., World]) -> None:
    world = make(shards=3, chunk=2)
    names = {f"{word} {number}:*": "leeds" for word in ("日本", "a:device:b", "<b>") for number in range(4)}
    world.look(**names)
    assert world.never() == dict(sorted(names.items()))
    gone = sorted(names)[:5]
    world.send(1, *gone)
    world.look(**names)
    assert [*world.never()] == sorted(names)[5:]
    assert world.violations() == []


def test_the_command_and_sql_list_them(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    world.look(a="leeds", b="cork")
    world.send(1, "a")
    config = tmp_path / "tidemark.toml"
    config.write_text(to_toml(world.document), encoding="utf-8")
    assert main(["devices", "--config", str(config), "--status", "never"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["device", "status", "last", "seen", "site"],
        ["b", "never", "never", "cork"],
    ]
    assert lines[2] == "1 of 1 device"
    question = "select device, last_seen, \"ref.site\" from devices where status = 'never'"
    assert main(["sql", "--config", str(config), "--json", question]) == 0
    assert json.loads(capsys.readouterr().out) == [{"device": "b", "last_seen": None, "ref.site": "cork"}]

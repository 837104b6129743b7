"""The comparer on a real broker and a real Redis: right content passes, and each way of being wrong turns it red."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from load.judge.compare import compare
from load.judge.oracle import Expected, expected, records
from load.judge.rules import read_rules
from load.servers.kafka import CREATE_TIME, Broker
from load.servers.redis import Redis
from schemas import contract

pytestmark = pytest.mark.integration

BROKER_MS = 1_700_000_040_000
WATERMARK_MS = BROKER_MS - 5_000
PREFIX = "test*[1]"
SETTINGS = """
[service]
checkpoint = "checkpoint"
[kafka]
bootstrap = "{bootstrap}"
topics = ["readings", "more"]
rejects = "{rejects}"
[input]
format = "json"
measures = {{ temperature = "t" }}
[[views]]
name = "device"
by = ["device"]
window = "10 s"
[[views]]
name = "all"
window = "20 s"
slide = "10 s"
[sessions]
gap = "500 ms"
[redis]
url = "{redis}"
prefix = "test*[1]"
"""


@dataclass(frozen=True)
class Stand:
    """A broker with topics, a Redis, and the settings that name them."""

    folder: Path
    broker: Broker
    redis: Redis

    def settings(self, rejects: str = "{topic}.rejects") -> Path:
        path = self.folder / f"{rejects.strip('{}')}.toml"
        path.write_text(SETTINGS.format(bootstrap=self.broker.bootstrap, redis=self.redis.url, rejects=rejects))
        return path

    def expected(self, **given: Any) -> Expected:
        return expected(self.settings(), watermark_ms=WATERMARK_MS, **given)


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("compare")
    with Broker(folder) as broker, Redis(folder) as redis:
        for topic, partitions in (("readings", 2), ("more", 1)):
            broker.create_topic(topic, partitions, CREATE_TIME)
        for topic in ("readings.rejects", "more.rejects", "one_lost"):
            broker.create_topic(topic, 1)
        stand = Stand(folder, broker, redis)
        send_readings(stand)
        send_rejects(stand)
        yield stand


@pytest.fixture
def published(stand: Stand) -> Expected:
    """Redis holds what it must."""
    right = stand.expected()
    publish(stand, right, right)
    return right


def send_readings(stand: Stand) -> None:
    producer = Producer({"bootstrap.servers": stand.broker.bootstrap})
    poison = (b"no JSON", None, b'{"device_id": "d:1", "event_time": 1}', b"{}")
    for number in range(400):
        reading = {"device_id": f"d:{number % 7}", "event_time": BROKER_MS - 30_000 + number * 97, "t": number / 8}
        value = poison[number // 50 % 4] if number % 50 == 17 else json.dumps(reading).encode()
        topic, partition = (("readings", 0), ("readings", 1), ("more", 0))[number % 3]
        producer.produce(topic, value, partition=partition, timestamp=BROKER_MS)
    assert producer.flush(30) == 0


def send_rejects(stand: Stand) -> None:
    """The rejects as a service sends them, one of them twice and one ahead; the topic `one_lost` lacks one."""
    right = stand.expected()
    values = {r[:3]: r.value for r in records(read_rules(stand.settings()), ["readings", "more"])}
    rejects = [(place, values[place], reason) for place, reason in sorted(right.rejects.items())]
    ahead = (("readings", 0, 10_000), b"x", "late")
    producer = Producer({"bootstrap.servers": stand.broker.bootstrap})

    def send(to: str, place: tuple[str, int, int], value: bytes | None, reason: str) -> None:
        fields = dict(zip(("reason", "topic", "partition", "offset"), (reason, *map(str, place)), strict=True))
        producer.produce(to, value, headers=[(f"tidemark.{name}", text) for name, text in fields.items()])

    for each in [*rejects, rejects[0], ahead]:
        send(f"{each[0][0]}.rejects", *each)
    for each in rejects[1:]:
        send("one_lost", *each)
    assert producer.flush(30) == 0


def publish(stand: Stand, values: Expected, progress: Expected, shards: int = 1) -> None:
    """Write `values` into an empty Redis, with the progress that belongs to `progress`."""
    prefixes = contract.prefixes(PREFIX, shards)

    def shard_of(text: str) -> str:
        return prefixes[contract.shard_of(text, shards)]

    with stand.redis.client() as client:
        client.flushall()
        pipe = client.pipeline(transaction=False)

        def write(key: str, fields: Mapping[str, object]) -> None:
            text = {name: repr(value) if isinstance(value, float) else str(value) for name, value in fields.items()}
            pipe.hset(key, mapping={**text, "epoch": "1", "batch": "4"})

        for (view, measure, key, start), window in values.windows.items():
            names = ("start", "end", "count", "sum", "mean", "min", "max", "stddev", "first", "last")
            fields = {name: getattr(window, name) for name in names}
            write(f"{shard_of(key)}:window:{view}:{measure}:{key}:{start}", fields)
            pipe.zadd(f"{shard_of(key)}:keys:{view}", {key: window.start}, gt=True)
        for (name, start), session in values.sessions.items():
            fields = {
                name: getattr(session, name) for name in ("start", "last", "count", "state", "reason", "closed_by")
            }
            for measure, statistics in session.measures.items():
                fields |= {f"{measure}.{each}": getattr(statistics, each) for each in ("count", "mean", "min", "max")}
            write(f"{shard_of(name)}:session:{name}:{start}", {**fields, "duration": session.last - session.start})
        for name, device in values.devices.items():
            fields = {"status": device.status, "last_seen": device.last_seen, "session": device.session or ""}
            fields |= {measure: value for measure, (value, _) in device.values.items()}
            fields |= {f"{measure}.at": at for measure, (_, at) in device.values.items()}
            write(f"{shard_of(name)}:device:{name}", fields)
        offsets: dict[str, dict[int, int]] = {}
        for (topic, number), partition in progress.partitions.items():
            offsets.setdefault(topic, {})[number] = partition.end
        reached = {"watermark": progress.watermark_ms, "final": progress.watermark_ms}
        for prefix in prefixes:
            write(f"{prefix}:progress", {**reached, "offsets": json.dumps(offsets), "reference": ""})
        pipe.execute()


def test_right_content_is_no_difference(stand: Stand, published: Expected) -> None:
    states = {session.state for session in published.sessions.values()}
    assert states == {"open", "closed"}
    assert {window.final for window in published.windows.values()} == {True, False}
    verdict = compare(stand.settings())
    assert verdict.examples == []
    assert (verdict.ok, verdict.duplicates, verdict.ahead) == (True, 1, 1)
    assert verdict.compared == {
        "windows": len(published.windows),
        "sessions": len(published.sessions),
        "devices": 7,
        "rejects": 8,
    }
    assert sum(each["admitted"] for each in verdict.partitions.values()) == 392
    assert sum(each["consumed"] for each in verdict.partitions.values()) == 400


def test_partitions_that_processes_share_give_the_same_verdict(stand: Stand, published: Expected) -> None:
    assert compare(stand.settings(), processes=2) == compare(stand.settings())
    with stand.redis.client() as client:
        client.hincrby(f"{PREFIX}:window:all:temperature:all:{BROKER_MS - 30_000}", "count", 1)
    assert compare(stand.settings(), processes=2).kinds == {"window.count": 1}


def test_what_lies_beyond_progress_is_not_expected(stand: Stand) -> None:
    ends = {"readings": {0: 100, 1: 90}, "more": {0: 0}}
    right = stand.expected(ends=ends)
    assert sum(each.consumed for each in right.partitions.values()) == 190
    publish(stand, right, right)
    verdict = compare(stand.settings())
    assert verdict.examples == []
    assert verdict.ahead == 1 + 8 + 1 - len(right.rejects) - verdict.duplicates


def test_records_of_an_archive_stand_for_those_that_the_topics_have_no_more(stand: Stand) -> None:
    starts = {"readings": {0: 100, 1: 90}, "more": {0: 0}}
    there = records(read_rules(stand.settings()), ["readings", "more"])
    archive = [each for each in there if each.offset < starts[each.topic][each.partition]]
    assert len(archive) == 190
    assert stand.expected(starts=starts, archive=archive) == stand.expected()
    assert stand.expected(starts=starts, archive=archive[1:]) != stand.expected()


Change = Callable[[Any, str], Any]


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda client, _: client.ping(), {}),
        (lambda client, key: client.hset(key, "count", 9), {"window.count": 1}),
        (lambda client, key: client.delete(key), {"window.missing": 1}),
        (lambda client, _: client.zadd(f"{{{PREFIX}:2}}:keys:device", {"d:x": 0}), {"keys.score": 1}),
        (lambda client, _: client.delete(f"{{{PREFIX}:1}}:progress"), {"progress.missing": 1}),
        (lambda client, _: client.hincrby(f"{{{PREFIX}:0}}:progress", "batch"), {"progress.shards": 1}),
        (lambda client, _: client.hincrby(f"{{{PREFIX}:2}}:progress", "watermark"), {"progress.shards": 1}),
    ],
)
def test_shards_are_compared_as_one_store(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, change: Change, kinds: Mapping[str, int]
) -> None:
    monkeypatch.setenv("TIDEMARK_REDIS__SHARDS", "3")
    right = stand.expected()
    publish(stand, right, right, 3)
    with stand.redis.client() as client:
        change(client, f"{{{PREFIX}:{contract.shard_of('all', 3)}}}:window:all:temperature:all:{BROKER_MS - 30_000}")
    verdict = compare(stand.settings())
    assert verdict.kinds == kinds
    assert verdict.compared.get("devices") == (None if "progress.missing" in kinds else 7)


def test_a_reject_that_is_lost_is_red(stand: Stand, published: Expected) -> None:
    verdict = compare(stand.settings(rejects="one_lost"))
    assert verdict.kinds == {"reject.missing": 1, "partition.sum": 1}

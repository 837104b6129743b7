"""A service goes on from the checkpoint of a second service, and what refuses that."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service.checkpoint import beginnings, event_time
from service.checkpoint.beginnings import Beginning
from service.commands import offline, switch
from service.errors import CheckpointError, DataLossError, FencedError
from service.micro_batch import format_offsets
from service.settings import Settings
from service.settings.outlets import ParquetOutlet
from service.spark.files import Local
from service.spark.internals import offset_log
from state.rules import ENDLESS_MS
from state.watermark import EventTime
from tests.integration.world import Parts, World
from tests.outputs import settings
from tests.stream.records import Record, reading

pytestmark = pytest.mark.integration


class Switching:
    """The progress of a service that has read five records, its checkpoint and another one, without a process."""

    def __init__(self, redis: Redis, broker: Broker, folder: Path, prefix: str) -> None:
        self.topic, self.broker = f"switch-{prefix}", broker
        broker.create_topic(self.topic, partitions=1)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for _ in range(5):
            producer.produce(self.topic, b"x", partition=0)
        assert producer.flush(30) == 0
        made = settings(redis.url, prefix)
        kafka = made.kafka.model_copy(update={"bootstrap": broker.bootstrap, "topics": (self.topic,)})
        self.settings: Settings = made.model_copy(update={"kafka": kafka})
        self.client: Any = redis.client()
        self.used, self.other = Local(folder / "used"), Local(folder / "other")
        self.publishes({"offsets": json.dumps({self.topic: {"0": 5}})})

    def publishes(self, fields: dict[str, str]) -> None:
        common = {"epoch": "1", "batch": "7", "watermark": "900", "final": "900", "updated": "0", "reference": ""}
        self.client.hset(f"{self.settings.redis.prefix}:progress", mapping={**common, **fields})

    def commits(self, end: int, watermark_ms: int = 800, begin: int = 0) -> None:
        """The other checkpoint has read up to an offset."""
        conf = json.dumps({"conf": {"spark.sql.shuffle.partitions": "2"}})
        self.other.replace("offsets/0", f"v1\n{conf}\n{format_offsets({self.topic: {0: end}})}".encode())
        self.other.replace(offset_log.FIRST, b"\0v1\n" + format_offsets({self.topic: {0: begin}}).encode())
        self.other.replace("commits/0", b"v1\n{}")
        event_time.Log(self.other).note(0, EventTime(watermark_ms, 1_000))

    def switch(self, *, accept: bool = False) -> None:
        switch.prepare(self.settings, self.used, self.other, lambda _: None, accept=accept)

    def refused(self, match: str, error: type[Exception] = CheckpointError) -> None:
        with pytest.raises(error, match=match):
            self.switch()
        assert self.mark() is None

    def mark(self) -> str | None:
        return str(found) if (found := self.client.get(f"{self.settings.redis.prefix}:rebuild")) is not None else None


@pytest.fixture
def switching(redis_server: Redis, broker_server: Broker, tmp_path: Path, prefix: str) -> Iterator[Switching]:
    made = Switching(redis_server, broker_server, tmp_path, prefix)
    yield made
    made.client.close()


def test_a_switch_notes_that_values_up_to_the_newest_final_window_are_read_again(switching: Switching) -> None:
    switching.commits(4)
    for final in ("900", "950"):  # the second time the service had gone on, and goes back
        switching.publishes({"watermark": final, "final": final})
        switching.switch()
        assert (switching.mark() or "").split()[1] == final


def test_a_checkpoint_that_is_ahead_of_the_service_or_has_read_nothing_is_refused(switching: Switching) -> None:
    """Its rejects and finals are nowhere, and what Redis has is older than its state."""
    switching.refused("has no committed batch")
    switching.commits(6)
    switching.refused(rf"is ahead of what the service has published: {switching.topic}\[0\]@6")
    switching.commits(5, watermark_ms=901)
    switching.refused("ahead of what the service has published: its watermark is")
    switching.commits(5, watermark_ms=900)
    switching.publishes({"offsets": json.dumps({switching.topic: {"0": 5}, "other": {"0": 1}})})
    switching.refused("has read switch-.*, and the service other, switch-")


def test_a_switch_waits_for_what_only_the_service_can_finish(
    switching: Switching, monkeypatch: pytest.MonkeyPatch
) -> None:
    switching.commits(5)
    outlet = ParquetOutlet(name="files", kind="parquet", path="/nowhere")
    switching.settings = switching.settings.model_copy(update={"outlets": (outlet,)})
    for name in ("outlets/000000000007-0-abc", "outlets/corrected-7-000001"):
        switching.used.replace(name, b"")
        switching.refused("values in 1 file are not in every outlet.*stop it when it has written them")
        switching.used.remove(name)
    switching.publishes({"writing": "1 8"})
    switching.refused("was cut off in a batch.*stop it in order")
    monkeypatch.setattr(offline, "WAIT_S", 1.0)
    switching.client.set(f"{switching.settings.redis.prefix}:lease", "another", px=600_000)
    switching.refused("holds the lease: the service runs", FencedError)


def test_records_that_kafka_has_deleted_since_refuse_the_way_back(switching: Switching) -> None:
    switching.commits(1)
    switching.broker.delete_records(switching.topic, {0: 2})
    switching.refused(rf"{switching.topic}\[0\]: committed offset 1, earliest available 2", DataLossError)


def test_values_that_would_lack_readings_refuse_the_switch_unless_that_is_accepted(switching: Switching) -> None:
    total = switching.settings.views[0].model_copy(update={"name": "total", "window_ms": ENDLESS_MS})
    switching.settings = switching.settings.model_copy(update={"views": (total,)})
    ((view, measure), *_) = switching.settings.endless
    for files, from_ms in ((switching.used, 0), (switching.other, 5_000)):
        beginnings.DOCUMENT.write(files, (Beginning(view, measure, from_ms, 0),))
    switching.commits(5)
    switching.refused("The view total, which has no windows, would begin at .*become smaller.*--accept")
    beginnings.DOCUMENT.write(switching.other, ())
    switching.commits(5, begin=2)
    switching.refused("has readings from .* on, and values may be open since .*--accept")
    switching.switch(accept=True)
    assert switching.mark() is not None


def minutes(first: int, last: int) -> list[Record]:
    """Readings of four devices; the last one is silent in every third minute."""
    seconds = range(60 * first, 60 * last, 10)
    return [
        reading(f"d{number}", second, 20.0 + number)
        for second in seconds
        for number in range(4)
        if number < 3 or second // 60 % 3
    ]


@pytest.mark.thorough
@pytest.mark.spark
def test_a_service_goes_on_from_a_checkpoint_that_was_made_beside_it_and_back(parts: Parts) -> None:
    service = World(*parts)
    (parts.folder / "second").mkdir()
    kafka = {"topics": [service.topic], "rejects": "{topic}.second-rejects"}
    own = parts.folder / "second", f"{parts.prefix}_second"
    second = World(parts.spark, parts.broker, parts.redis, *own, kafka=kafka, sessions={"buckets": 2})
    parts.broker.create_topic(f"{service.topic}.second-rejects", 2)
    service.term(*minutes(0, 12))
    second.term()
    assert second.values() == service.values()
    service.term(*minutes(12, 20))
    former = service.settings.service.checkpoint, 4
    sent = 20
    for folder, buckets in ((second.settings.service.checkpoint, 2), former):
        before, finals = service.values(), service.redis.hget(service.key("progress"), "final")
        used, other = Local(Path(service.settings.service.checkpoint)), Local(Path(folder))
        switch.prepare(service.settings, used, other, lambda _: None, accept=False)
        service.epoch = int(service.redis.get(service.key("epoch")))
        service.begin_again(Path(folder), sessions=service.settings.sessions.model_copy(update={"buckets": buckets}))
        service.term()
        assert service.values() == before
        service.term(*minutes(sent, sent + 4))
        sent += 4
        service.assert_right()
        assert [service.redis.get(service.key(mark)) for mark in ("rebuild", "republish")] == [None, None]
        assert int(service.redis.hget(service.key("progress"), "final")) > int(finals)

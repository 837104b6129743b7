"""The parts of a rebuild that need no query: the gate, the shortened batch, and what refuses the switch."""

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service.checkpoint import beginnings, event_time, manifest, skips, view_versions
from service.checkpoint.beginnings import Beginning
from service.checkpoint.manifest import Manifest
from service.checkpoint.rebuilt import Folders
from service.commands import rebuild
from service.commands.rebuild import Options
from service.daemon import owner, rebuilder
from service.daemon.lease import Lease
from service.daemon.rebuilder import BeyondError, Gate, Rebuilder
from service.errors import CheckpointError, DataLossError
from service.micro_batch import Offsets, format_offsets
from service.recompute.comparison import Comparison
from service.settings import Settings
from service.settings.outlets import ParquetOutlet
from service.spark.files import Local
from service.spark.internals import offset_log
from state.rules import ENDLESS_MS
from state.watermark import EventTime
from tests.outputs import settings

pytestmark = pytest.mark.integration

TOPIC = "readings"


def offsets(*of: int) -> Offsets:
    return {TOPIC: dict(enumerate(of))}


class Rebuilding:
    """A service's checkpoint and progress, and the folder of a rebuild, without either process."""

    def __init__(self, redis: Redis, folder: Path, prefix: str) -> None:
        made = settings(redis.url, prefix)
        service = made.service.model_copy(update={"checkpoint": str(folder / "checkpoint")})
        self.settings: Settings = made.model_copy(update={"service": service})
        self.client: Any = redis.client()
        self.folders = Folders.of(str(folder / "checkpoint"))
        self.used, self.beside = Local(self.folders.used), Local(self.folders.beside)
        self.used.replace(manifest.NAME, Manifest.of(self.settings.with_buckets(2), {}, 2).encode())

    def publishes(self, *ends: int, watermark_ms: int = 1_000) -> None:
        texts = {"offsets": json.dumps({TOPIC: dict(enumerate(ends))}), "watermark": str(watermark_ms)}
        fields = {"epoch": "1", "batch": "7", "final": str(watermark_ms), "updated": "0", "reference": "", **texts}
        self.client.hset(f"{self.settings.redis.prefix}:progress", mapping=fields)

    def plans(self, batch: int, *ends: int, is_committed: bool = False) -> None:
        conf = json.dumps({"conf": {"spark.sql.shuffle.partitions": "2"}})
        self.beside.replace(f"offsets/{batch}", f"v1\n{conf}\n{format_offsets(offsets(*ends))}".encode())
        self.beside.replace(offset_log.FIRST, b"\0v1\n" + format_offsets(offsets(0, 0)).encode())
        if is_committed:
            self.beside.replace(f"commits/{batch}", b"v1\n{}")

    def command(self, *, accept: bool = False) -> Any:
        made: Any = rebuild._Rebuild(self.settings, Options(accept=accept), lambda _: None)
        made.own, partitions = made._own(made._manifest())
        made.runner = Rebuilder(self.settings, made.own, partitions)
        return made


@pytest.fixture
def rebuilding(redis_server: Redis, tmp_path: Path, prefix: str) -> Iterator[Rebuilding]:
    made = Rebuilding(redis_server, tmp_path, prefix)
    made.folders.begin()
    yield made
    made.client.close()


def test_a_batch_waits_until_the_service_has_published_all_of_its_records(rebuilding: Rebuilding) -> None:
    gate, passed = Gate(rebuilding.settings, rebuilding.folders.beside), threading.Event()
    rebuilding.plans(4, 10, 20)
    looks: list[int] = []

    def is_over() -> bool:
        looks.append(1)
        return False

    def wait() -> None:
        gate(4, is_over)
        passed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    for ends in ((), (9, 20), (10, 19)):
        if ends:
            rebuilding.publishes(*ends)
        seen = len(looks)
        while len(looks) < seen + 2:
            assert not passed.wait(0.05)
    rebuilding.publishes(10, 20)
    assert passed.wait(30)
    thread.join()
    gate(4, lambda: True)


def test_the_last_batch_ends_where_the_service_has_ended(rebuilding: Rebuilding) -> None:
    """Its watermark is held by records before that end only: the service had read all that there was."""
    gate, files = Gate(rebuilding.settings, rebuilding.folders.beside), rebuilding.beside
    last = gate.last = offsets(12, 20)
    assert not rebuilder.shorten(files, last)
    rebuilding.plans(4, 10, 15, is_committed=True)
    rebuilding.plans(5, 13, 18)
    with pytest.raises(BeyondError):
        gate(5, lambda: False)
    assert not rebuilder.shorten(files, last)
    assert offset_log.ends(files, 5) == offsets(12, 18)
    assert [*map(tuple, event_time.noted_unread(files, 5))] == [(TOPIC, 1)]
    gate(5, lambda: False)
    rebuilding.plans(5, 12, 18, is_committed=True)
    rebuilding.plans(6, 14, 21)
    assert not rebuilder.shorten(files, last)
    assert event_time.noted_unread(files, 6) == []
    rebuilding.plans(6, 12, 20, is_committed=True)
    rebuilding.plans(7, 30, 30)
    assert rebuilder.shorten(files, last)
    assert offset_log.ends(files, 7) == offsets(30, 30)  # the service reads it


def test_the_new_checkpoint_begins_with_the_services_views_skips_and_watermark(rebuilding: Rebuilding) -> None:
    view_versions.Log(rebuilding.used).write(0, view_versions.begun(rebuilding.settings))
    views = tuple(
        view.model_copy(update={"window_ms": 120_000}) if view.name == "all_1m" else view
        for view in rebuilding.settings.views
    )
    longer = rebuilding.settings.model_copy(update={"views": views})
    live = view_versions.filled(
        changed := view_versions.changed(view_versions.begun(rebuilding.settings), longer, 5),
        {view.name: view_versions.Filled(view.incomplete) for view in changed.views},
    )
    view_versions.Log(rebuilding.used).write(6, live)
    rebuilding.settings = longer
    skips.write(rebuilding.used, [skips.Span(TOPIC, 0, 3, 4)])
    command = rebuilding.command()
    command._seed()
    stored = view_versions.Log(rebuilding.beside).at(0)
    assert stored is not None
    assert [(view.of, view.name, view.is_next) for view in stored.views] == [
        ("device_1m", "device_1m", False),
        ("all_1m", "all_1m@2", False),
    ]
    assert skips.read(rebuilding.beside) == (skips.Span(TOPIC, 0, 3, 4),)
    command._seed()
    rebuilding.plans(4, 10, 20, is_committed=True)
    for before, service, after in ((500, 800, 800), (800, 800, 800)):
        event_time.Log(rebuilding.beside).note(4, EventTime(before, 900), limit=7)
        rebuilding.publishes(10, 20, watermark_ms=service)
        command._finish_event_time()
        assert event_time.read(rebuilding.beside, 4) == (EventTime(after, 900), event_time.NO_LIST, 7)
    rebuilding.publishes(10, 20, watermark_ms=799)
    with pytest.raises(CheckpointError, match="was held by unread records when it stopped"):
        command._finish_event_time()


def test_what_only_the_service_can_finish_refuses_the_switch(rebuilding: Rebuilding) -> None:
    rebuilding.publishes(10, 20)
    command = rebuilding.command()
    command._seed()
    rebuilding.plans(4, 10, 20, is_committed=True)
    command._require_in_order()
    rebuilding.plans(4, 11, 20, is_committed=True)
    with pytest.raises(CheckpointError, match="has not published again what the new checkpoint has read"):
        command._require_in_order()
    rebuilding.publishes(11, 20)
    fewer = rebuilding.settings.model_copy(update={"views": rebuilding.settings.views[:1]})
    view_versions.Log(rebuilding.used).write(3, view_versions.begun(fewer))
    changed = rebuilding.settings.views[0].model_copy(update={"window_ms": 120_000})
    command.settings = rebuilding.settings.model_copy(update={"views": (changed,)})
    with pytest.raises(CheckpointError, match=r"views of the service have changed.*begin again"):
        command._require_in_order()


def test_what_an_outlet_lacks_or_would_get_twice_refuses_the_switch(rebuilding: Rebuilding) -> None:
    rebuilding.publishes(10, 20)
    command = rebuilding.command()
    command._seed()
    rebuilding.plans(4, 10, 20, is_committed=True)
    outlet = ParquetOutlet(name="files", kind="parquet", path="/nowhere")
    command.settings = rebuilding.settings.model_copy(update={"outlets": (outlet,)})
    command._require_in_order()
    rebuilding.used.replace("outlets/000000000007-0-abc", b"")
    with pytest.raises(
        CheckpointError, match=r"finals in 1 file are not in every outlet.*Start the service, stop it in order"
    ):
        command._require_in_order()
    rebuilding.used.remove("outlets/000000000007-0-abc")
    rebuilding.used.replace("outlets/term", b"7")
    # A batch that is planned is what a stop in order leaves; one that was being written may be in an outlet.
    rebuilding.used.replace("offsets/0", (rebuilding.folders.beside / "offsets/4").read_bytes())
    rebuilding.used.replace(offset_log.FIRST, (rebuilding.folders.beside / offset_log.FIRST).read_bytes())
    command._require_in_order()
    progress = f"{rebuilding.settings.redis.prefix}:progress"
    rebuilding.client.hset(progress, "writing", "1 8")
    with pytest.raises(CheckpointError, match=r"cut off in a batch whose finals may be in an outlet"):
        command._require_in_order()
    rebuilding.client.hdel(progress, "writing")
    event_time.Log(rebuilding.beside).note(4, EventTime(999, 2_000))
    with pytest.raises(CheckpointError, match=r"has closed values up to .*the new checkpoint up to"):
        command._finish_event_time()
    rebuilding.used.replace("backfill/log.json", b"{}")  # of a command that goes on after the switch
    for _ in range(2):  # a kill may come between
        command._carry()
        assert rebuilding.beside.read("outlets/term") == b"7"
        assert rebuilding.beside.read("backfill/log.json") == b"{}"


def test_a_backfill_that_ends_while_its_entries_are_carried_loses_none(
    rebuilding: Rebuilding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stores an entry, notes it in its log, and moves it to where the service looks: all of that may come between."""
    used, read = rebuilding.used, Local.read
    used.replace("backfill/key.json", b"before")
    used.replace("backfill/key-000000", b"entry")

    def meanwhile(self: Local, name: str) -> bytes:
        content = read(self, name)
        if name.startswith("backfill/") and used.names("backfill") != ["key.json"]:
            used.replace("backfill/key.json", b"after")
            used.move("backfill/key-000000", "outlets/corrected-7-000000")
        return content

    monkeypatch.setattr(Local, "read", meanwhile)
    rebuilding.command()._carry()
    beside = rebuilding.beside
    assert (beside.names("backfill"), beside.names("outlets")) == (["key.json"], ["corrected-7-000000"])
    assert read(beside, "backfill/key.json") == b"after"


def test_a_second_command_does_nothing_while_the_first_has_the_lease_of_the_rebuild(rebuilding: Rebuilding) -> None:
    rebuilding.publishes(10, 20)
    command = rebuilding.command()
    first = Lease(command.own, owner.here())
    first.acquire()
    said: list[object] = []

    def stop() -> None:
        while not (command.runner and first.token in command.runner.metrics.unready()):
            if ended.wait(0.05):
                return
        said.append(command._follower)
        command.runner.stop()

    command.runner, ended = None, threading.Event()
    thread = threading.Thread(target=stop)
    thread.start()
    try:
        command.run()
    finally:
        ended.set()
        thread.join()
        first.release()
    assert said == [None]


def test_counts_of_views_without_windows_become_smaller_only_if_that_is_accepted(rebuilding: Rebuilding) -> None:
    total = rebuilding.settings.views[0].model_copy(update={"name": "total", "window_ms": ENDLESS_MS})
    rebuilding.settings = rebuilding.settings.model_copy(update={"views": (total,)})
    ((view, measure), *_) = rebuilding.settings.endless
    rebuilding.publishes(10, 20, watermark_ms=10**12)
    command = rebuilding.command()
    for service_ms in (0, 5_000):
        rebuilding.used.replace(
            beginnings.DOCUMENT.name, json.dumps([asdict(Beginning(view, measure, service_ms, 0))]).encode()
        )
        command._require_alike(service_ms, Comparison())
        assert list(command._not_carried(service_ms, Comparison()))[1:] == []
        with pytest.raises(CheckpointError, match=r"Views without windows would begin at .*become smaller.*--accept"):
            command._require_alike(service_ms + 1, Comparison())
        assert "their counts become smaller" in list(command._not_carried(service_ms + 1, Comparison()))[1]


def test_an_undo_is_refused_if_it_would_lose_records_or_corrected_values(
    rebuilding: Rebuilding, broker_server: Broker, prefix: str
) -> None:
    topic = f"undone-{prefix}"
    broker_server.create_topic(topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker_server.bootstrap, "log_level": 0})
    for _ in range(3):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0
    kafka = rebuilding.settings.kafka.model_copy(update={"bootstrap": broker_server.bootstrap, "topics": (topic,)})
    made = rebuilding.settings.model_copy(update={"kafka": kafka})
    conf = json.dumps({"conf": {"spark.sql.shuffle.partitions": "2"}})
    rebuilding.used.replace("offsets/0", f"v1\n{conf}\n{format_offsets({topic: {0: 1}})}".encode())
    rebuilding.used.replace("commits/0", b"v1\n{}")
    rebuilding.publishes(3)
    rebuilding.folders.exchange()
    rebuilding.used.replace("outlets/corrected-1-000001", b"")
    outlet = ParquetOutlet(name="files", kind="parquet", path="/nowhere")
    with pytest.raises(CheckpointError, match="corrected values in 1 file are not in the outlets yet"):
        rebuild.undo(made.model_copy(update={"outlets": (outlet,)}), lambda _: None)
    place = TopicPartition(topic, 0, 2)
    broker_server.admin.delete_records([place])[place].result(30)
    with pytest.raises(DataLossError, match=rf"{topic}\[0\]: committed offset 1, earliest available 2"):
        rebuild.undo(made, lambda _: None)
    assert rebuilding.folders.is_switched


def test_the_command_refuses_by_name_what_it_cannot_rebuild(rebuilding: Rebuilding) -> None:
    def refused(match: str) -> None:
        with pytest.raises(CheckpointError, match=match):
            rebuild.rebuild(rebuilding.settings, Options(), lambda _: None)

    refused("Redis has no progress under")
    rebuilding.client.hset(f"{rebuilding.settings.redis.prefix}:progress", "offsets", '{"others": {"0": 1}}')
    refused("The service reads others, the settings name readings")
    rebuilding.publishes(1)
    (rebuilding.folders.used / manifest.NAME).unlink()
    refused("has no manifest.json")
    rebuilding.used.replace(manifest.NAME, Manifest.of(rebuilding.settings.with_buckets(2), {}, 2).encode())
    with pytest.raises(CheckpointError, match="There is no switch to undo"):
        rebuild.undo(rebuilding.settings, lambda _: None)
    said: list[str] = []
    rebuilding.client.set(f"{rebuilding.settings.redis.prefix}.rebuild:window:a:b:c:0", "x")
    rebuild.forget(rebuilding.settings, lambda line: said.append(str(line)))
    assert not rebuilding.folders.beside.exists()
    assert "removed" in said[-1]
    assert rebuilding.client.keys(f"{rebuilding.settings.redis.prefix}.rebuild:*") == []
    # Another program may have the prefix.
    other = f"{rebuilding.settings.redis.prefix}.rebuild:window:a:b:c:0"
    rebuilding.client.set(other, "x")
    rebuilding.folders.beside.mkdir()
    (rebuilding.folders.beside / "offsets").write_text("of another program")
    refused(rf"Redis has keys under .*, such as {other}, and no rebuild has begun")
    rebuilding.client.delete(other)
    refused("exists and has no rebuild.json: it is not of a rebuild")
    rebuilding.client.set(other, "x")
    with pytest.raises(CheckpointError, match="has no rebuild"):
        rebuild.forget(rebuilding.settings, lambda _: None)
    assert rebuilding.client.get(other) == "x"

"""`tidemark rejects` on a real broker: what is listed and shown, and that nothing is sent a second time."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service import settings
from service.cli import main
from service.commands import dissect, replay
from service.commands import rejects as reject_commands
from service.errors import FencedError, SettingsError
from service.kafka import scan
from service.micro_batch import MicroBatch
from service.rejects import delivery, marks, reject_log
from service.rejects.fence import Fence
from service.rejects.fetch import Record
from service.rejects.marks import Mark
from service.rejects.reject_log import ORIGIN, Coordinates
from tests.stream.records import BASE_MS, avro, write_schemas

pytestmark = pytest.mark.integration

UNKNOWN = b"\0\0\0\0\2" + avro(device_id="d2", event_time=BASE_MS)[5:]


def reading(device: str, temperature: float | None = 20.0) -> bytes:
    return avro(device_id=device, event_time=BASE_MS, temperature=temperature)


class World:
    """An input topic with records that were all rejected, and what a user sees of it."""

    def __init__(self, broker: Broker, redis: Redis, folder: Path, prefix: str, capsys: Any) -> None:
        self.topic = f"rejects-{prefix}"
        self.redis, self.prefix, self.capsys = redis.client(), prefix, capsys
        self.config = folder / "tidemark.toml"
        self.config.write_text(
            f"""
            [service]
            checkpoint = "checkpoint"
            [kafka]
            bootstrap = "{broker.bootstrap}"
            topics = ["{self.topic}"]
            [input]
            schemas = "{write_schemas(folder / "schemas")}"
            measures = {{temperature = "temperature"}}
            [admission]
            max_bytes = 200
            [[views]]
            name = "all"
            window = "1 m"
            [redis]
            url = "{redis.url}"
            prefix = "{prefix}"
            """
        )
        self.settings = settings.load(self.config)
        broker.create_topic(self.topic, 2)
        broker.create_topic(f"{self.topic}.rejects", 2)
        self.sender = delivery.RejectProducer(self.settings.kafka)
        self.offsets = {0: 0, 1: 0}
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def reject(
        self,
        value: bytes | None,
        reason: str,
        detail: str = "",
        partition: int = 0,
        times: int = 1,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> str:
        """A record in the input topic and its reject; returns its place."""
        offset = self.offsets[partition]
        self.offsets[partition] += 1
        own = [("trace", b"t1"), *headers]
        self.producer.produce(self.topic, value, b"the-key", partition=partition, headers=list(own))
        assert self.producer.flush(30) == 0
        fields = {"reason": reason, "detail": detail, "topic": self.topic, "partition": partition, "offset": offset}
        row = {**fields, "broker_ms": BASE_MS + 1000 * offset}
        for _ in range(times):
            self.sender.send(row, Record(b"the-key", value, own), MicroBatch(3, 7, 0, {}, {}))
        self.sender.flush(MicroBatch(3, 7, 0, {}, {}))
        return f"{self.topic}[{partition}]@{offset}"

    def tidemark(self, *arguments: str) -> str:
        assert main(["rejects", arguments[0], "--config", str(self.config), *arguments[1:]]) == 0
        return str(self.capsys.readouterr().out)

    def sent(self) -> list[tuple[str, bytes | None]]:
        """What was sent again: the place that it says it comes from, and its bytes."""
        sent = []
        for message in scan.messages(self.settings.kafka, [self.topic]):
            origin = [text for name, text in scan.headers(message) if name == ORIGIN and text is not None]
            if origin and origin[-1].count(b"/") == 3:
                place = Coordinates.parse(origin[-1].decode().rpartition("/")[0])
                assert (message.partition(), message.key()) == (place.partition, b"the-key")
                assert ("trace", b"t1") in scan.headers(message)
                sent.append((str(place), message.value()))
        return sent


@pytest.fixture
def world(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str, capsys: pytest.CaptureFixture[str]
) -> Iterator[World]:
    made = World(broker_server, redis_server, tmp_path, prefix, capsys)
    yield made
    made.redis.close()


def test_rejects_are_listed_once_and_shown_with_the_bytes_that_are_wrong(world: World) -> None:
    assert world.tidemark("list").splitlines() == ["0 rejects"]
    late = world.reject(reading("d1"), "late", "event time 1 ms", times=3)
    range_ = world.reject(reading("d2", 1e9), "out_of_range", "temperature = 1.0E9, allowed -40 to 80", partition=1)
    broken = world.reject(reading("d1")[:-3], "undecodable", "20 bytes")
    lines = world.tidemark("list").splitlines()
    assert sum(late in line for line in lines) == 1
    assert lines[-4:] == ["3 rejects", "  1 late: 1 open", "  1 out_of_range: 1 open", "  1 undecodable: 1 open"]
    listed = [json.loads(line) for line in world.tidemark("list", "--json", "--device", "d1").splitlines()]
    assert [(each["offset"], each["reason"], each["state"]) for each in listed] == [
        (0, "late", "open"),
        (1, "undecodable", "open"),
    ]
    since = str(BASE_MS + 1000)
    assert broken in world.tidemark("list", "--since", since)
    assert late not in world.tidemark("list", "--since", since)
    assert world.tidemark("list", "--until", str(BASE_MS)).splitlines() == ["0 rejects"]
    assert world.tidemark("list", "--reason", "early").splitlines() == ["0 rejects"]

    shown = world.tidemark("show", range_)
    assert "device_id = 'd2'  bytes 5-8" in shown
    assert "temperature = 1000000000.0" in shown
    assert "header trace: 't1'" in shown
    value = reading("d2", 1e9)
    begin, end = dissect.dissect(value, world.settings.input, dissect.writers(world.settings.input)).spans[
        "temperature"
    ]
    assert shown.count("^^") == end - begin
    assert "decoding stops at byte" in world.tidemark("show", broken)
    assert main(["rejects", "show", "--config", str(world.config), f"{world.topic}/0/99"]) == 1


def test_the_newest_rejects_are_listed_in_the_order_of_the_brokers_time(world: World) -> None:
    first, second = world.reject(reading("a"), "late"), world.reject(reading("b"), "late")
    beside = world.reject(reading("c"), "late", partition=1)  # as old as the first
    third = world.reject(reading("d"), "late")

    def listed(*arguments: str) -> list[str]:
        return [line.split()[0] for line in world.tidemark("list", *arguments).splitlines() if "@" in line]

    assert listed() == [first, beside, second, third]
    assert listed("-n", "2") == [second, third]
    assert listed("-n", "0") == []


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        (["--reason", "lates"], "invalid choice: 'lates' (choose from 'oversized', "),
        (["--state", "corected"], "invalid choice: 'corected' (choose from 'correcting', "),
        (["--since", "2h", "--until", "3h"], "--since 2h is not before --until 3h"),
    ],
    ids=["reason", "state", "span"],
)
def test_a_selection_that_can_select_nothing_is_refused(world: World, selection: list[str], says: str) -> None:
    try:
        status = main(["rejects", "list", "--config", str(world.config), *selection])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2
    assert says in world.capsys.readouterr().err


def test_an_id_of_any_length_makes_no_line_of_the_table_wide(world: World) -> None:
    world.reject(reading("d1"), "late")
    place = world.reject(reading("x" * 60_000), "bad_device", "60000 bytes")
    assert max(map(len, world.tidemark("list").splitlines())) < 400
    (only,) = [json.loads(line) for line in world.tidemark("list", "--json", "--reason", "bad_device").splitlines()]
    assert only["device"] == "x" * 60_000
    assert "x" * 60_000 in world.tidemark("show", place)


def test_what_is_sent_again_is_sent_once_whoever_asks_how_often(world: World) -> None:
    late = world.reject(reading("d1"), "late")
    wrong = world.reject(reading("d2", 1e9), "out_of_range", "temperature = 1.0E9", partition=1)
    unknown = world.reject(UNKNOWN, "unknown_schema")
    nothing = world.reject(None, "undecodable")
    output = world.tidemark("replay", "--since", "0", "--reason", "unknown_schema", "--reason", "late")
    assert "0 sent, 2 not" in output
    assert "still does not decode: schema 2 is not known" in output
    assert "tidemark correct" in output
    assert world.sent() == []

    # The id is resolvable now; a value is mended; another gets bytes of its own.
    write_schemas(world.config.parent / "schemas")
    (world.config.parent / "schemas" / "2.avsc").write_text(
        (world.config.parent / "schemas" / "1.avsc").read_text(encoding="utf-8")
    )
    assert "1 would be sent" in world.tidemark("replay", unknown, "--dry-run")
    assert world.sent() == []
    assert "1 sent, 0 not" in world.tidemark("replay", unknown)
    assert "1 sent, 0 not" in world.tidemark("replay", wrong, "--set", "temperature=21.5")
    new = world.config.parent / "value"
    new.write_bytes(reading("d9"))
    assert "1 sent, 0 not" in world.tidemark("replay", nothing, "--value", str(new))
    sent = [(unknown, UNKNOWN), (nothing, reading("d9")), (wrong, reading("d2", 21.5))]
    assert sorted(world.sent()) == sorted(sent)
    for already in (3, 4):
        output = world.tidemark("replay", "--since", "0", "--set", "temperature=3")
        assert f"{already} replayed already" in output
        assert sorted(world.sent()) == sorted([*sent, (late, reading("d1", 3.0))])
    assert "4 rejects" in world.tidemark("list", "--state", "replayed")
    assert "replayed, since 20" in world.tidemark("show", unknown)


def test_a_replay_that_is_killed_is_finished_by_the_next_and_sends_nothing_twice(world: World) -> None:
    places = [world.reject(reading("d1", 1e9 + n), "out_of_range", partition=n % 2) for n in range(4)]
    command = [sys.executable, "-m", "service.cli", "rejects", "replay", "--config", str(world.config), places[0]]
    switch = {"TIDEMARK_TEST": "1", "TIDEMARK_FAILPOINT": "replayed_before_marked:1"}
    killed = subprocess.run([*command, places[1]], env={**os.environ, **switch}, timeout=60, check=False)
    assert killed.returncode == -9
    assert sorted(place for place, _ in world.sent()) == places[:2]
    # Another one was taken, and not sent before its run was killed.
    at = Coordinates.parse(places[2])
    marks.write(world.settings.kafka, [Mark(at, "replaying", {"from": world.offsets[0] + 1})])
    output = world.tidemark("replay", "--reason", "out_of_range")
    assert "3 were taken by a run that did not finish" in output
    assert "2 of them are there, the others are open again" in output
    assert "2 sent, 2 not" in output
    assert sorted(place for place, _ in world.sent()) == sorted(places)
    assert "0 sent, 4 not" in world.tidemark("replay", "--reason", "out_of_range")
    assert len(world.sent()) == 4


def test_a_run_that_another_has_overtaken_sends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.reject(reading("d1", 1e9), "out_of_range")
    [chosen] = reject_log.read(world.settings.kafka)
    wait_for_it = marks.write

    def overtaken(kafka: Any, entries: Any) -> None:
        wait_for_it(kafka, entries)
        Fence(world.settings.redis).close()

    monkeypatch.setattr(marks, "write", overtaken)
    with pytest.raises(FencedError, match="another correction or replay has begun"):
        replay.replay(world.settings, [chosen], replay.Mend({}), print)
    assert world.sent() == []


FORGED: Sequence[Sequence[tuple[str, bytes | None]]] = (
    [("tidemark.omitted_bytes", b"abc")],
    [("tidemark.omitted_bytes", b"7")],
    [("tidemark.reason", b"\xff\xfe"), ("tidemark.offset", None)],
    [("tidemark.", b""), ("tidemark.batch", b"junk")],
    [("tidemark.topic", b"another"), ("tidemark.partition", b"0"), ("tidemark.offset", b"0")],
    [(ORIGIN, b"junk"), (ORIGIN, b"\xff"), (ORIGIN, None)],
)


def test_no_header_of_a_records_own_hides_or_changes_its_reject(world: World) -> None:
    whole = delivery.headers(
        {"reason": "late", "detail": "", "topic": world.topic, "partition": 0, "offset": 0, "broker_ms": 1},
        MicroBatch(1, 1, 0, {}, {}),
    )
    forged = [*FORGED, whole, [*whole, ("tidemark.omitted_bytes", b"1")]]
    wanted = {
        world.reject(reading(f"d{n}", 1e9), "out_of_range", headers=forged[n % len(forged)]): forged[n % len(forged)]
        for n in range(48)
    }
    listed = [json.loads(line) for line in world.tidemark("list", "--json").splitlines()]
    assert sorted(f"{world.topic}[0]@{each['offset']}" for each in listed) == sorted(wanted)
    assert {(each["reason"], each["state"], each["epoch"], each["batch"]) for each in listed} == {
        ("out_of_range", "open", 3, 7)
    }
    for reject in reject_log.read(world.settings.kafka):
        assert reject.headers == (("trace", b"t1"), *wanted[str(reject.place)])
        assert reject.value == reading(f"d{reject.place.offset}", 1e9)
    assert f"{len(wanted)} sent, 0 not" in world.tidemark(
        "replay", "--reason", "out_of_range", "--set", "temperature=1"
    )
    assert sorted(place for place, _ in world.sent()) == sorted(wanted)


def test_who_forges_an_origin_marks_nobodys_reject_as_replayed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "SETTLE_S", 3.0)
    place = world.reject(reading("d1", 1e9), "out_of_range")
    at = Coordinates.parse(place)
    marks.write(world.settings.kafka, [Mark(at, "replaying", {"from": world.offsets[0], "token": "5f"})])
    bare = f"{at.topic}/{at.partition}/{at.offset}".encode()
    for forged in (bare, bare + b"/", bare + b"/00", b"junk", b"\xff"):
        world.producer.produce(world.topic, b"mine", b"the-key", partition=0, headers=[(ORIGIN, forged)])
    assert world.producer.flush(30) == 0
    output = world.tidemark("replay", place)
    assert "0 of them are there, the others are open again" in output
    assert "1 sent, 0 not" in output


def test_a_run_from_before_redis_lost_its_data_sends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    place = world.reject(reading("d1", 1e9), "out_of_range")
    [chosen] = reject_log.read(world.settings.kafka)
    write = marks.write

    def lost(kafka: Any, entries: Any) -> None:
        monkeypatch.setattr(marks, "write", write)
        write(kafka, entries)
        world.redis.delete(f"{world.prefix}:correction")
        assert "1 sent" in world.tidemark("replay", place)

    monkeypatch.setattr(replay, "SETTLE_S", 3.0)
    monkeypatch.setattr(marks, "write", lost)
    with pytest.raises(FencedError, match="another correction or replay has begun"):
        replay.replay(world.settings, [chosen], replay.Mend({}), print)
    assert [sent for sent, _ in world.sent()] == [place]


def test_many_rejects_are_sent_only_by_who_says_so_and_as_fast_as_that_one_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reject_commands, "UNASKED", 3)
    places = [world.reject(reading("d1", 1e9), "out_of_range") for _ in range(4)]
    asked = ["rejects", "replay", "--config", str(world.config), "--reason", "out_of_range"]
    assert main(asked) == SettingsError.status
    assert "More than 3 rejects are chosen" in world.capsys.readouterr().err
    assert world.sent() == []
    assert "4 would be sent" in world.tidemark("replay", "--reason", "out_of_range", "--dry-run")
    assert world.sent() == []
    begun_s = time.monotonic()
    assert "4 sent, 0 not" in world.tidemark("replay", "--reason", "out_of_range", "--yes", "--rate", "2")
    assert time.monotonic() - begun_s >= 2
    assert sorted(place for place, _ in world.sent()) == sorted(places)


def test_rejects_are_sent_a_few_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "AT_ONCE", 2)
    for _ in range(5):
        world.reject(reading("d1", 1e9), "out_of_range")
    sizes = []
    send = replay._send

    def counted(kafka: Any, rejects: Any, fence: Fence) -> None:
        sizes.append(len(rejects))
        send(kafka, rejects, fence)

    monkeypatch.setattr(replay, "_send", counted)
    assert "5 sent, 0 not" in world.tidemark("replay", "--reason", "out_of_range")
    assert sizes == [2, 2, 1]


def test_a_mark_that_comes_too_late_does_not_hide_the_end(world: World) -> None:
    place = Coordinates(world.topic, 1, 5)
    marks.write(world.settings.kafka, [Mark(place, "replaying", {"from": 1}), Mark(place, "replayed", {"as": [1, 9]})])
    marks.write(world.settings.kafka, [Mark(place, "replaying", {"from": 1}), Mark(place, "open", {})])
    assert marks.read(world.settings.kafka)[place].state == "replayed"

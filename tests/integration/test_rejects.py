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
from pyspark.sql import SparkSession

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service.cli import main
from service.commands import dissect, replay
from service.commands import rejects as reject_commands
from service.errors import FencedError, SettingsError
from service.micro_batch import MicroBatch
from service.rejects import delivery, marks, reject_log
from service.rejects.fence import Fence
from service.rejects.marks import Mark
from service.rejects.reject_log import ORIGIN, Coordinates
from tests.integration.rejects_world import World, reading
from tests.stream.records import BASE_MS

pytestmark = pytest.mark.integration


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
    assert world.tidemark("list", "--reason", "early").splitlines() == ["0 rejects"]

    shown = world.tidemark("show", range_)
    assert "device_id = 'd2'  bytes 5-8" in shown
    assert "temperature = 1000000000.0" in shown
    assert "header trace: 't1'" in shown
    value = reading("d2", 1e9)
    begin, end = dissect.dissect(value, world.settings.form, dissect.writers(world.settings.form)).spans["temperature"]
    assert shown.count("^^") == end - begin
    assert "temperature = 1000000000.0: allowed -40 to 80" in shown
    assert "temperature = 1000000000.0: allowed -40 to 80" in world.tidemark("list", range_)
    assert "decoding stops at byte" in world.tidemark("show", broken)
    assert main(["rejects", "show", "--config", str(world.config), f"{world.topic}/0/99"]) == 1


def test_since_is_the_time_of_the_rejection_whatever_the_time_of_the_record(world: World) -> None:
    """The log recommends `--since 10m` when rejects begin, also while the service reads what is days old."""
    place = world.reject(reading("d1"), "late")
    assert 1000 * time.time() - 3_600_000 > BASE_MS, "the broker's time of the record"
    assert place in world.tidemark("list", "--since", "10m")
    assert world.tidemark("list", "--until", "10m").splitlines() == ["0 rejects"]
    assert place in world.tidemark("show", "--since", "10m")


def test_a_time_before_1970_lists_every_reject(world: World) -> None:
    """Kafka's protocol has -1 and -2 for the end and the begin of a partition."""
    world.reject(reading("d1"), "late")
    for since in ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.998Z", "1900-01-01"):
        assert world.tidemark("list", "--since", since).splitlines()[-2] == "1 rejects"


def test_the_newest_rejects_are_listed_and_printed_as_json_in_the_order_of_the_brokers_time(world: World) -> None:
    first, second = world.reject(reading("a"), "late"), world.reject(reading("b"), "late")
    beside = world.reject(reading("c"), "late", partition=1)  # as old as the first
    third = world.reject(reading("d"), "late")

    def listed(*arguments: str) -> list[str]:
        return [line.split()[0] for line in world.tidemark("list", *arguments).splitlines() if "@" in line]

    def offsets(*arguments: str) -> list[tuple[int, int]]:
        documents = map(json.loads, world.tidemark("list", "--json", *arguments).splitlines())
        return [(each["partition"], each["offset"]) for each in documents]

    assert listed() == [first, beside, second, third]
    assert listed("-n", "2") == [second, third]
    assert listed("-n", "0") == []
    assert offsets() == [(0, 0), (1, 0), (0, 1), (0, 2)]
    assert offsets("-n", "2") == [(0, 1), (0, 2)]
    assert offsets("-n", "0") == []


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        (["--reason", "lates"], "'lates' is not one of oversized, "),
        (["--state", "corected"], "'corected' is not one of 'correcting', "),
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


@pytest.mark.thorough
def test_a_replay_that_is_killed_is_finished_by_the_next_and_sends_nothing_twice(world: World) -> None:
    places = [world.reject(reading("d1", 1e9 + n), "out_of_range", partition=n % 2) for n in range(4)]
    command = [sys.executable, "-m", "service.cli", "rejects", "replay", "--force", "--config"]
    command += [str(world.config), places[0]]
    switch = {"TIDEMARK_TEST": "1", "TIDEMARK_FAILPOINT": "replayed_before_marked:1"}
    killed = subprocess.run([*command, places[1]], env={**os.environ, **switch}, timeout=60, check=False)
    assert killed.returncode == -9
    assert sorted(place for place, _ in world.sent()) == places[:2]
    # Another one was taken, and not sent before its run was killed.
    [at] = Coordinates.parse(places[2])
    marks.write(world.settings.kafka, [Mark(at, "replaying", {"from": world.offsets[0] + 1})])
    output = world.tidemark("replay", "--force", "--reason", "out_of_range")
    assert "3 were taken by a run that did not finish" in output
    assert "2 of them are there, the others are open again" in output
    assert "2 sent, 2 not" in output
    assert sorted(place for place, _ in world.sent()) == sorted(places)
    assert "0 sent, 4 not" in world.tidemark("replay", "--force", "--reason", "out_of_range")
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
        replay.replay(world.settings, [chosen], replay.Mend({}), print, force=True)
    assert world.sent() == []


FORGED: Sequence[Sequence[tuple[str, bytes | None]]] = (
    [("tidemark.omitted_bytes", b"abc")],
    [("tidemark.omitted_bytes", b"7")],
    [("tidemark.reason", b"\xff\xfe"), ("tidemark.offset", None)],
    [("tidemark.", b""), ("tidemark.batch", b"junk")],
    [("tidemark.topic", b"another"), ("tidemark.partition", b"0"), ("tidemark.offset", b"0")],
    [(ORIGIN, b"junk"), (ORIGIN, b"\xff"), (ORIGIN, None)],
)


def test_no_header_of_a_records_own_hides_or_changes_its_reject(world: World, shared_spark: SparkSession) -> None:
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


def test_what_a_killed_replay_has_sent_is_found_behind_a_transaction_that_is_still_open(
    world: World, broker_server: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SETTLE_S", 0.0)
    place = world.reject(reading("d1", 1e9), "out_of_range")
    [at] = Coordinates.parse(place)
    options = {"bootstrap.servers": broker_server.bootstrap, "transactional.id": world.topic, "log_level": 0}
    other = Producer(options)
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(world.topic, b"open", partition=0)
    assert other.flush(30) == 0
    mark = Mark(at, "replaying", {"from": world.offsets[0], "token": "5f"})
    marks.write(world.settings.kafka, [mark])
    world.producer.produce(world.topic, b"sent", partition=0, headers=[(ORIGIN, replay._origin(mark))])
    assert world.producer.flush(30) == 0
    output = world.tidemark("replay", "--force", place)
    other.abort_transaction(30)
    assert "1 of them are there, the others are open again" in output
    assert "0 sent, 1 not" in output


def test_who_forges_an_origin_marks_nobodys_reject_as_replayed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "SETTLE_S", 3.0)
    place = world.reject(reading("d1", 1e9), "out_of_range")
    [at] = Coordinates.parse(place)
    marks.write(world.settings.kafka, [Mark(at, "replaying", {"from": world.offsets[0], "token": "5f"})])
    bare = f"{at.topic}/{at.partition}/{at.offset}".encode()
    for forged in (bare, bare + b"/", bare + b"/00", b"junk", b"\xff"):
        world.producer.produce(world.topic, b"mine", b"the-key", partition=0, headers=[(ORIGIN, forged)])
    assert world.producer.flush(30) == 0
    output = world.tidemark("replay", "--force", place)
    assert "0 of them are there, the others are open again" in output
    assert "1 sent, 0 not" in output


@pytest.mark.thorough
def test_a_run_from_before_redis_lost_its_data_sends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    place = world.reject(reading("d1", 1e9), "out_of_range")
    [chosen] = reject_log.read(world.settings.kafka)
    write = marks.write

    def lost(kafka: Any, entries: Any) -> None:
        monkeypatch.setattr(marks, "write", write)
        write(kafka, entries)
        world.redis.delete(f"{world.prefix}:correction")
        assert "1 sent" in world.tidemark("replay", "--force", place)

    monkeypatch.setattr(replay, "SETTLE_S", 3.0)
    monkeypatch.setattr(marks, "write", lost)
    with pytest.raises(FencedError, match="another correction or replay has begun"):
        replay.replay(world.settings, [chosen], replay.Mend({}), print, force=True)
    assert [sent for sent, _ in world.sent()] == [place]


@pytest.mark.thorough
def test_many_rejects_need_an_option_and_keep_its_rate(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reject_commands, "UNASKED", 3)
    places = [world.reject(reading("d1", 1e9), "out_of_range") for _ in range(4)]
    asked = ["rejects", "replay", "--force", "--config", str(world.config), "--reason", "out_of_range"]
    assert main(asked) == SettingsError.status
    assert "More than 3 rejects are chosen" in world.capsys.readouterr().err
    assert world.sent() == []
    assert "4 would be sent" in world.tidemark("replay", "--force", "--reason", "out_of_range", "--dry-run")
    assert world.sent() == []
    begun_s = time.monotonic()
    assert "4 sent, 0 not" in world.tidemark("replay", "--force", "--reason", "out_of_range", "--yes", "--rate", "2")
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
    assert "5 sent, 0 not" in world.tidemark("replay", "--force", "--reason", "out_of_range")
    assert sizes == [2, 2, 1]


def test_a_mark_that_comes_too_late_does_not_hide_the_end(world: World) -> None:
    place = Coordinates(world.topic, 1, 5)
    marks.write(world.settings.kafka, [Mark(place, "replaying", {"from": 1}), Mark(place, "replayed", {"as": [1, 9]})])
    marks.write(world.settings.kafka, [Mark(place, "replaying", {"from": 1}), Mark(place, "open", {})])
    assert marks.read(world.settings.kafka)[place].state == "replayed"

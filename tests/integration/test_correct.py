"""`tidemark correct`: late readings become part of final values, as if they had come in time; the oracle is asked."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from load.judge import feed, published
from load.servers.kafka import Broker
from load.servers.redis import Redis
from load.servers.server_process import PATIENCE
from schemas import contract
from service import failpoint
from service.checkpoint import view_versions
from service.cli import main
from service.errors import CheckpointError, FencedError, SettingsError, SinkError
from service.failpoint import InjectedError, Plan, Point
from service.recompute import correct, republish
from service.rejects import marks
from service.rejects.fence import Fence
from service.rejects.marks import Mark
from service.rejects.reject_log import Coordinates
from service.spark.files import Local
from tests import exposure
from tests.integration.daemon import STARTS_S, DaemonWorld, until
from tests.integration.world import VIEWS, Parts, World
from tests.stream.records import BASE_MS, Record, reading
from tests.topics import send

pytestmark = [pytest.mark.integration, pytest.mark.spark]


class Correcting(World):
    """A world whose values are corrected, and compared with the oracle."""

    def __init__(
        self, spark: SparkSession, broker: Broker, redis: Redis, folder: Path, prefix: str, **more: Any
    ) -> None:
        super().__init__(
            spark,
            broker,
            redis,
            folder,
            prefix,
            input={"event_time_unit": "logical", "measures": {"temperature": "temperature", "humidity": "humidity"}},
            redis={"chunk": 5},
            **more,
        )

    def correct(
        self, since_ms: int | None = 0, until_ms: int | None = None, *, again: bool = False, dry: bool = False
    ) -> correct.Report:
        return correct.correct(self.settings, since_ms, until_ms, print, again=again, dry=dry, spark=self.spark)

    def states(self, places: list[Coordinates]) -> list[str]:
        by_place = marks.read(self.settings.kafka)
        return [by_place[place].state if place in by_place else "open" for place in places]


@pytest.fixture
def world(parts: Parts) -> Iterator[Correcting]:
    made = Correcting(*parts)
    yield made
    made.redis.close()
    failpoint._plan = None


def minutes(first: int, last: int) -> list[Record]:
    """Readings of five devices; d0 never falls silent, m has two sessions a short silence apart."""
    records = []
    for second in range(60 * first, 60 * last, 10):
        numbers = [number for number in range(5) if number == 0 or (second // 60 + number) % 4]
        records += [reading(f"d{number}", second + number / 7, 20 + number + second % 70 / 7) for number in numbers]
    return records


LATE = [
    reading("d1", 125.5, 99.0, at=400),  # into a window and a session that are there
    reading("m", 130, at=400),  # two sessions become one
    reading("n", 300, 5.0, at=500),  # a device that nobody knows
    reading("d0", 500.5, -7.0, at=700),  # a device that never falls silent
    reading("d2", 150, at=900),  # a window that nobody else is in
    reading("p", 180, None, at=400),  # a session begins earlier, and has another name; it has no temperature
]
BASE = [*minutes(0, 20), reading("m", 105), reading("m", 157), reading("p", 200)]


@pytest.mark.thorough
def test_a_late_reading_does_not_wait_for_the_end_of_the_month(parts: Parts) -> None:
    month = {"name": "month", "by": ["device"], "window": "1 mo", "measures": ["temperature"]}
    week = {"name": "week", "by": [], "window": "1 w", "time_zone": "Asia/Kathmandu", "measures": ["temperature"]}
    world = Correcting(
        *parts,
        views=[{**view, "retain": "60 d"} for view in (*VIEWS, month, week)],
        sessions={"retain": "60 d"},
        outlets=[{"name": "files", "kind": "parquet", "path": str(parts.folder / "windows")}],
    )
    late = world.term(*BASE, *LATE)[len(BASE) :]
    report = world.correct()
    assert (report.corrected, report.longer, report.waiting) == (len(LATE), len(LATE), 0)
    assert world.states(late) == ["correcting"] * len(LATE)
    assert (world.window("d1", 125)["max"], world.window("d1", 125)["revision"]) == ("99", "1")
    world.limit(40)
    world.term(*minutes(20, 24))  # the outlet has corrections with the next batches
    world.assert_right()
    assert world.correct().corrected == 0  # nothing is closed since
    # What comes back after a loss has the late readings, and the open month still lacks them.
    world.lose()
    world.term()
    world.assert_right()
    for days, state in ((8, "correcting"), (13, "corrected")):  # the week ends, then the month
        world.term(reading("d0", days * 86_400, at=days * 86_400), reading("d0", days * 86_400 + 300))
        report = world.correct()
        assert (report.corrected, report.longer) == (len(LATE), len(LATE) if state == "correcting" else 0)
        assert world.states(late) == [state] * len(LATE)
        world.term(*minutes(days * 1_440 + 6, days * 1_440 + 10))
        world.assert_right()
    world.redis.close()


@pytest.mark.thorough
def test_windows_without_readings_are_corrected_and_come_back_after_a_loss(parts: Parts) -> None:
    filled = {"statistics": ["mean", "last_value", "integral", "coverage"], "carry_for": "5 m", "fill": "last"}
    world = Correcting(
        *parts,
        views=[{**view, **filled, "measures": ["temperature"]} for view in VIEWS],
        outlets=[{"name": "files", "kind": "parquet", "path": str(parts.folder / "windows")}],
    )
    base = [reading("d", 20, 5.0), *(reading("o", second) for second in range(15, 1_200, 30)), reading("d", 800, 6.0)]
    world.term(*base, reading("d", 150, 9.0, at=400), reading("n", 610, 3.0, at=700))
    counts = [world.window("d", second).get("count") for second in range(0, 480, 60)]
    assert counts == ["1", *"00000", None, None], "the first reading holds for five minutes"
    world.assert_right()
    assert world.correct().corrected == 2
    counts = [world.window("d", second).get("count") for second in range(0, 480, 60)]
    assert counts == ["1", "0", "1", *"00000"], "the late reading holds longer, and is the first one of a window"
    assert (world.window("d", 180)["last_value"], world.window("d", 180)["revision"]) == ("9", "1")
    assert world.window("n", 660)["count"] == "0"
    world.limit(2)
    world.term(
        *(reading("o", second) for second in range(1_200, 1_400, 30))
    )  # the outlet has corrections with the next batches
    world.assert_right()
    world.lose()
    world.term()
    world.assert_right()
    world.redis.close()


def test_late_readings_are_corrected_as_if_they_had_come_in_time(world: Correcting) -> None:
    # A late reading of an open window, and one of an open session.
    waiting = [reading("d0", 1190, at=1215), reading("w", 1150, at=1171), reading("w", 1165)]
    places = world.term(*BASE, *LATE, *waiting[::-1])
    late, waits = places[len(BASE) : len(BASE) + len(LATE)], [places[-1], places[-2]]
    world.assert_right()
    before = world.hashes()
    assert world.session("m", 105)["last"] == world.session("m", 105)["start"]
    last_id = world.redis.xrevrange(f"{world.prefix}:changes", count=1)[0][0]

    dry_report = world.correct(dry=True)
    assert world.hashes() == before
    assert world.states(late) == ["open"] * len(LATE)
    assert world.redis.get(f"{world.prefix}:correction") is None
    report = world.correct()
    assert (dry_report.corrected, dry_report.waiting) == (report.corrected, report.waiting)
    assert (dry_report.windows, dry_report.sessions) == (report.windows, report.sessions)
    assert (report.corrected, report.waiting, report.refused, report.poorer) == (len(LATE), 2, 0, 0)
    world.assert_right()
    assert world.states(late) == ["corrected"] * len(LATE)
    assert world.states(waits) == ["open"] * 2
    assert (world.window("d1", 125)["max"], world.window("d1", 125)["revision"]) == ("99", "1")
    assert (world.window("n", 300)["count"], world.window("n", 300)["revision"]) == ("1", "0")
    assert (world.session("m", 105)["count"], world.session("m", 105)["revision"]) == ("3", "1")
    merged = world.session("m", 157)
    assert (merged["state"], merged["merged_into"]) == ("merged", world.session("m", 105)["start"])
    assert world.session("p", 200)["merged_into"] == world.session("p", 180)["start"]
    # Every change was announced, with its revision, and nothing that did not change.
    after = world.hashes()
    changed = {f"{world.prefix}:{name}" for name in after if after[name] != before.get(name)}
    announced = feed.changes(world.redis, world.prefix, last_id)
    assert {entry["key"] for _, entry in announced} == changed
    revisions = {f"{world.prefix}:{name}": value["revision"] for name, value in after.items() if "revision" in value}
    assert all(revisions[entry["key"]] == entry["revision"] for _, entry in announced)
    # What is not a window or a session of theirs is as it was, and keeps its time to live.
    assert all(after[name] == before[name] for name in before if name.startswith("device:"))
    assert all(world.redis.pttl(key) > 0 for key in changed)

    # Twice changes nothing.
    assert world.correct().corrected == 0
    assert world.hashes() == after
    report = world.correct(again=True)
    assert (report.corrected, report.written) == (len(LATE), 0)
    assert report.same > 0
    assert world.hashes() == after

    # The service goes on; what waited is closed then. Later late readings meet values that were corrected before.
    more = [reading("d1", 126.5, 98.0, at=2000), reading("m", 140, at=2000)]
    world.term(*minutes(20, 36), *more)
    report = world.correct()
    assert (report.corrected, report.waiting) == (4, 0)
    world.assert_right()
    assert (world.window("d1", 125)["revision"], world.session("m", 105)["count"]) == ("2", "4")

    # What Redis loses comes back with what was corrected.
    before = world.hashes()
    for key in world.redis.scan_iter(f"{world.prefix}:*"):
        world.redis.delete(key)
    world.term()
    world.assert_right()
    assert world.hashes().keys() == {name for name in before if before[name].get("state") != "merged"}


@pytest.mark.thorough
def test_what_redis_loses_of_a_correction_comes_back_when_it_is_asked_to(world: Correcting) -> None:
    world.term(*BASE, *LATE)
    backup, before = world.backup(), world.hashes()
    world.correct()
    corrected = {name: content(value) for name, value in world.hashes().items() if value != before.get(name)}
    assert len(corrected) > len(LATE)
    assert (world.window("d1", 125)["max"], world.session("m", 157)["state"]) == ("99", "merged")
    # A backup of before the correction: its progress is that of now, so that nothing is noticed.
    world.lose()
    world.restore(backup)
    assert world.session("m", 157)["state"] == "closed"
    world.redis.set(world.key("republish"), republish.mark(republish.ASKED))
    world.term(*minutes(20, 21))
    assert world.redis.get(world.key("republish")) is None
    world.assert_right()
    hashes = world.hashes()
    assert {name: content(hashes[name]) for name in corrected} == corrected
    assert hashes[f"session:m:{BASE_MS + 105_000}"]["revision"] == "1"


def content(value: dict[str, str]) -> dict[str, str]:
    """What a value says of readings, to nine digits: a recomputation adds in another order."""
    own = {"epoch", "batch", "updated", "revision"}
    texts = {name: text for name, text in value.items() if name not in own}
    return {name: f"{float(text):.9g}" if "." in text else text for name, text in texts.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["half_corrected", "corrected_before_marked"])
def test_a_run_that_is_killed_is_finished_by_the_next_whatever_that_is_asked_for(world: Correcting, point: str) -> None:
    places = world.term(*BASE, *LATE)[-len(LATE) :]
    failpoint._plan = Plan((Point(point, 1, "raise"),), None)
    with pytest.raises(InjectedError):
        world.correct()
    failpoint._plan = None
    assert world.states(places) == ["correcting"] * len(LATE)
    written = {name: value for name, value in world.hashes().items() if value.get("revision") == "1"}
    assert written
    # Another span, and more late readings of the same windows.
    more = world.term(*minutes(20, 22), reading("d1", 127.5, 97.0, at=2000))[-1:]
    report = world.correct(since_ms=BASE_MS + 1_900_000)
    assert report.corrected == len(LATE) + 1
    assert world.states([*places, *more]) == ["corrected"] * (len(LATE) + 1)
    world.assert_right()
    if point == "corrected_before_marked":
        after = world.hashes()
        assert all(
            after[name] == value for name, value in written.items() if ":d1:" not in name and ":all:" not in name
        )


@pytest.mark.thorough
def test_readings_behind_the_watermark_are_corrected_like_late_ones(world: Correcting) -> None:
    """By the broker's time for them they came in time: whoever reads the topic again must leave them out."""
    world.term(*BASE)
    behind = [reading("d1", 125.5, 99.0), reading("m", 130), reading("n", 300, 5.0), reading("p", 180, None)]
    places = world.term(*behind)
    assert world.assert_right().refused == len(behind)
    first, *rest = places
    at_ms = BASE_MS + 125_500
    for since_ms, until_ms, corrected in ((at_ms, at_ms + 1, [first]), (0, None, rest)):
        assert world.correct(since_ms, until_ms).corrected == len(corrected)
        assert world.states(corrected) == ["corrected"] * len(corrected)
        world.assert_right()
    details = marks.read(world.settings.kafka)[first].details
    assert (details["event_ms"], details["at_ms"] > 0) == (at_ms, True)
    assert world.correct(again=True).corrected == len(behind)
    world.assert_right()
    world.redis.flushall()
    world.term()
    world.assert_right()


@pytest.mark.thorough
def test_it_writes_nothing_when_another_has_begun_or_redis_is_not_whole(world: Correcting) -> None:
    places = world.term(*BASE, *LATE)[-len(LATE) :]
    before = world.hashes()
    write = marks.write

    def meanwhile(change: Any) -> Any:
        def marked(kafka: Any, entries: list[Mark]) -> None:
            write(kafka, entries)
            change()

        return marked

    def behind() -> None:
        world.redis.hset(f"{world.prefix}:progress", "batch", -1)

    def mark() -> None:
        world.redis.set(f"{world.prefix}:republish", "lost 1")

    batch = world.redis.hget(f"{world.prefix}:progress", "batch")
    for change, error, message in (
        (lambda: Fence(world.settings.redis).close(), FencedError, "another correction"),
        (behind, SinkError, "Redis has lost data"),
        (mark, SinkError, "being republished"),
    ):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(marks, "write", meanwhile(change))
            with pytest.raises(error, match=message):
                world.correct()
        assert world.hashes() == before
        world.redis.hset(f"{world.prefix}:progress", "batch", batch)
    with pytest.raises(SinkError, match="being republished"):
        world.correct()
    world.redis.delete(f"{world.prefix}:republish")
    # A value that is open in spite of progress is not touched, and nothing is marked as corrected.
    key = f"{world.prefix}:window:device:temperature:d1:{BASE_MS + 120_000}"
    end = world.redis.hget(key, "end")
    world.redis.hset(key, "end", world.redis.hget(f"{world.prefix}:progress", "final") + "0")
    with pytest.raises(SinkError, match="1 are open"):
        world.correct()
    assert world.redis.hget(key, "count") == before[key.removeprefix(f"{world.prefix}:")]["count"]
    world.redis.hset(key, "end", end)
    assert world.states(places) == ["correcting"] * len(LATE)
    assert world.correct().corrected == len(LATE)
    world.assert_right()


@pytest.mark.thorough
def test_a_view_that_is_added_during_a_run_gets_what_the_next_run_finishes(world: Correcting) -> None:
    places = world.term(*BASE, *LATE)[-len(LATE) :]
    settings, log = world.settings, view_versions.Log(Local(Path(world.settings.service.checkpoint)))
    served = view_versions.begun(settings)
    view = served.views[0].model_copy(update={"name": "new", "title": "new", "incomplete": {"temperature": 1}})
    write = marks.write

    def added(kafka: Any, entries: list[Mark]) -> None:
        write(kafka, entries)
        log.write(0, replace(served, views=(*served.views, view)))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(marks, "write", added)
        with pytest.raises(CheckpointError, match=r"got the view new with \w+ since this run began.*Run it again"):
            world.correct()
    assert world.states(places) == ["correcting"] * len(LATE)
    # What the filler has read before, it would write over what is corrected now.
    with pytest.raises(SettingsError, match="computes the past of the view new at this moment"):
        world.correct()
    log.write(0, served)
    assert world.correct().corrected == len(LATE)
    world.assert_right()


@pytest.mark.thorough
def test_a_republication_waits_for_a_correction(world: Correcting, monkeypatch: pytest.MonkeyPatch) -> None:
    world.term(*BASE, *LATE)
    assert world.correct().corrected == len(LATE)
    world.lose(f"window:device:temperature:d1:{BASE_MS + 120_000}")
    world.redis.set(world.key("republish"), republish.mark(republish.ASKED))
    round_, rounds = correct.Correction._round, []

    def fenced(self: correct.Correction, *some: Any) -> Any:
        rounds.append(1)
        if len(rounds) == 1:
            Fence(world.settings.redis).close()
        return round_(self, *some)

    monkeypatch.setattr(correct.Correction, "_round", fenced)
    with pytest.raises(SinkError, match="another correction or replay has begun"):  # FencedError would end its thread
        world.term(*minutes(20, 21))
    world.term(*minutes(21, 22))
    assert len(rounds) == 2
    assert world.redis.get(world.key("republish")) is None
    world.assert_right()


@pytest.mark.thorough
def test_a_new_checkpoint_keeps_admitted_late_readings_when_redis_loses_them(world: Correcting) -> None:
    world.limit(100_000)
    late = [reading("d1", 125.5, 99.0, at=400), reading("n", 300, 5.0, at=500)]
    world.term(*sorted([*minutes(0, 40), *late], key=lambda each: each.at))
    assert world.correct(0, BASE_MS + 450_000).corrected == 1  # the other one stays open
    world.lose()
    admission = world.settings.admission.model_copy(update={"max_delay_ms": 300_000})
    world.begin_again(world.folder / "second", admission=admission)
    world.term(reading("z", 2399))
    before = world.values()
    assert before[f"window:device:temperature:n:{BASE_MS + 300_000}"]["count"] == "1"
    world.lose()
    world.term(reading("z", 2399.5))
    after = world.values()
    assert {name for name in before if name.startswith("window:")} <= after.keys()
    name = f"window:device:temperature:d1:{BASE_MS + 120_000}"
    assert after[name]["count"] == before[name]["count"]


@pytest.mark.thorough
def test_a_run_without_the_services_checkpoint_is_refused_and_writes_nothing(world: Correcting, tmp_path: Path) -> None:
    places = world.term(*BASE, *LATE[:1])[-1:]
    before = world.hashes()
    elsewhere = world.settings.service.model_copy(update={"checkpoint": str(tmp_path / "elsewhere")})
    world.settings = world.settings.model_copy(update={"service": elsewhere})
    with pytest.raises(CheckpointError, match=r"elsewhere has no committed batch.*where the service's checkpoint is"):
        world.correct()
    assert (world.hashes(), world.states(places)) == (before, ["open"])


@pytest.mark.thorough
@pytest.mark.usefixtures("shared_spark")
def test_beside_the_running_service_a_late_reading_is_corrected_and_a_reject_is_sent_again(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"daemon-{prefix}"
    broker_server.create_topic(topic, partitions=2)
    world = DaemonWorld(broker_server, redis_server, tmp_path, topic)
    hour_ago_ms = (time.time_ns() // 1_000_000 - 3_600_000) // 10_000 * 10_000

    def tidemark(*arguments: str) -> str:
        assert main([*arguments, "--config", str(world.config)]) == 0
        return capsys.readouterr().out

    def correct_in_a_process_of_its_own() -> str:
        command = [sys.executable, "-m", "service.cli", "correct", "--since", "1h", "--config", str(world.config)]
        return subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=STARTS_S * PATIENCE, check=True
        ).stdout

    def late(temperature: float) -> bytes:
        return json.dumps({"device_id": "x", "event_time": hour_ago_ms, "temperature": temperature}).encode()

    with world.start("service") as service:
        world.send(100)
        until(service.is_ready, STARTS_S, "the first batch")
        send(broker_server, topic, [late(20.0), b'{"device_id":"y",'])
        until(lambda: service.metric("rejects_total") == 2, 60, "the rejects")
        until(lambda: world.counted() == 100, 60, "all readings in windows")
        assert "computed 1 windows and 1 sessions\n" in correct_in_a_process_of_its_own()
        assert exposure.open_to_others(world.folder / "checkpoint") == []
        assert world.counted() == 101
        send(broker_server, topic, [late(30.0)])
        until(lambda: service.metric("rejects_total") == 3, 60, "the third reject")
        assert "computed 1 windows and 1 sessions\n" in tidemark("correct", "--since", "1h")
        assert "no late reading" in tidemark("correct", "--since", "1h")
        window = published.read(world.redis, topic, f"window:device:temperature:x:{hour_ago_ms}")
        expected = "2", "25", "watermark", "1"
        assert tuple(window[name] for name in ("count", "mean", "closed_by", "revision")) == expected
        session = world.redis.hgetall(f"{topic}:session:x:{hour_ago_ms}")
        assert (session["count"], session["state"], session["revision"]) == ("2", "closed", "1")

        mended = tmp_path / "mended"
        now_ms = time.time_ns() // 1_000_000
        mended.write_text(json.dumps({"device_id": "y", "event_time": now_ms, "temperature": 1.5}))
        replay = ("rejects", "replay", "--reason", "undecodable", "--value", str(mended))
        assert "1 sent, 0 not" in tidemark(*replay)
        until(lambda: world.counted() == 103, 60, "the record that was sent again")
        assert "0 sent, 1 not" in tidemark(*replay)
        assert service.stop() == 0, service.log.read_text()
    assert world.counted() == 103
    assert counts_of(tidemark("rejects", "list")) == {"late": "2 corrected", "undecodable": "1 replayed"}
    assert contract.check(world.redis, topic) == []


def counts_of(listed: str) -> dict[str, str]:
    """The counts at the end of `tidemark rejects list`, by reason."""
    lines = [line.split(": ") for line in listed.splitlines() if line.startswith("  ")]
    return {name.split()[1]: states for name, states in lines}

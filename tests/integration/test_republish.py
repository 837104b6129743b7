"""Redis loses what it acknowledged, in every way it can; afterwards it holds what it held before, to the digit."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from schemas import contract
from service.errors import CheckpointError, SinkRefusedError
from service.recompute.republish import ASKED, LOST, mark
from service.redis.link import WritesLostError
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, Record, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]


class Losing(World):
    """A world whose Redis and Kafka lose things."""

    def watermark_ms(self) -> int:
        return int(self.redis.hget(self.key("progress"), "watermark"))

    def delete_records(self, partition: int, until_ms: int) -> int:
        """Delete records with a time below; returns that of the oldest one that is left."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "t", "log_level": 0})
        try:
            [position] = consumer.offsets_for_times([TopicPartition(self.topic, partition, until_ms)], timeout=10)
            self.broker.admin.delete_records([position])[position].result(10)
            consumer.assign([position])
            message = consumer.poll(20)
            assert message is not None
            return int(message.timestamp()[1])
        finally:
            consumer.close()


@pytest.fixture
def world(parts: Parts) -> Losing:
    return Losing(*parts)


def minutes(first: int, last: int) -> list[Record]:
    """Readings of six devices; some fall silent for a while, d0 never does, and two are rejected."""
    records = [Record(b"junk", reading("x", 60 * first).at), reading("x", 60 * first - 3600, at=60 * first)]
    for second in range(60 * first, 60 * last, 10):
        numbers = [number for number in range(6) if number == 0 or (second // 60 + number) % 4]
        records += [reading(f"d{number}", second + number / 7, 20 + number + second % 70 / 7) for number in numbers]
    return records


def assert_same(actual: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Equal, but for the rounding of sums that were added up in another order."""
    assert actual.keys() == wanted.keys()
    for name, right in wanted.items():
        if not isinstance(right, dict):
            assert actual[name] == right, name
            continue
        assert actual[name].keys() == right.keys(), name
        for field, text in right.items():
            near = text == actual[name][field] or (
                "." in text + actual[name][field]
                and math.isclose(float(text), float(actual[name][field]), rel_tol=1e-9, abs_tol=1e-9)
            )
            assert near, (name, field, actual[name][field], text)


def kinds(values: dict[str, Any]) -> dict[str, int]:
    """How many there are of what: a comparison of nothing would find no difference."""
    closed_by = [f.get("closed_by") for n, f in values.items() if n.startswith("window")]
    state = [f.get("state") for n, f in values.items() if n.startswith("session")]
    return {
        "final": closed_by.count("watermark"),
        "open": closed_by.count(""),
        "closed": state.count("closed"),
        "going": state.count("open"),
    }


def stored(values: dict[str, Any]) -> dict[str, Any]:
    """Without what progress says of windows."""
    windows = {
        n: {f: text for f, text in v.items() if f != "closed_by"} for n, v in values.items() if n.startswith("window")
    }
    return {**values, **windows}


def test_what_redis_has_lost_is_there_again_as_it_was(world: Losing) -> None:
    # A reading that joins two sessions of m: the second one is open in the backup, and no session later.
    world.term(*minutes(0, 20), reading("m", 1165, at=1199), reading("m", 1199))
    backup = world.backup()
    assert f"session:m:{BASE_MS + 1_199_000}" in world.values()
    world.term(reading("m", 1180, at=1200), *minutes(20, 40))
    assert (world.lost, world.republications) == (0, [])
    before = world.values()
    assert min(kinds(before).values()) > 2

    # All of it. Values do not live longer for it.
    world.lose()
    world.term()
    assert_same(world.values(), before)
    assert (world.lost, len(world.republications), world.redis.get(world.key("republish"))) == (1, 2, None)
    assert all(unrecoverable == (0, 0) for _, unrecoverable in world.republications)
    for name, window in before.items():
        if name.startswith("window:all:"):
            to_end_ms = int(window["end"]) - max(world.watermark_ms(), int(window["last"]))
            longest_ms = 7_200_000 + to_end_ms + world.settings.admission.max_ahead_ms
            assert world.redis.pttl(world.key(name)) <= longest_ms, name

    # Back to an older backup: what had not become final in it is not final now either, before it is whole again.
    world.lose()
    world.restore(backup)
    stale = [
        name
        for name, window in world.values().items()
        if window and name.startswith("window") and not window["closed_by"] and window != before[name]
    ]
    assert stale
    world.epoch += 1
    world.redis.set(world.key("epoch"), world.epoch)
    republisher = world.republisher()
    republisher.begin()
    between = world.values()
    assert all(between.get(name) in (None, before[name]) for name in stale if before[name]["closed_by"])
    world.publish(None)
    republisher.everything(republisher.asked())
    assert_same(world.values(), before)
    assert world.lost == 2

    # The progress key alone, between two batches of a query: the second one writes nothing.
    world.term()
    written: list[dict[str, Any]] = []

    def lose_progress() -> None:
        written.append(world.values())
        world.lose("progress")

    world.limit(len(minutes(40, 42)) // 2)
    with pytest.raises(WritesLostError, match="there is no progress"):
        world.publish(None, *minutes(40, 42), on_batch=lose_progress)
    assert len(written) == 1
    assert_same(stored(world.values()), stored(written[0]))
    world.term()
    assert world.lost == 3
    grown = world.values()
    assert kinds(grown)["final"] > kinds(before)["final"]

    # Some values, and somebody asks for them; the progress is whole, so nothing is noticed.
    earlier = len(world.republications)
    for pattern in ("window:device:*:d1:*", "window:all:*", "session:d0:*", "device:d2"):
        world.lose(pattern)
    world.redis.set(world.key("republish"), mark(ASKED))
    world.term()
    assert_same(world.values(), grown)
    assert (world.lost, len(world.republications) - earlier, world.redis.get(world.key("republish"))) == (3, 2, None)


@pytest.mark.thorough
def test_what_one_shard_has_lost_is_there_again_and_the_others_keep_theirs(parts: Parts) -> None:
    world = Losing(*parts, redis={"shards": 3})
    world.term(*minutes(0, 20))
    backup = world.backup(shard=1)
    world.term(*minutes(20, 40))
    before = world.values()
    assert min(kinds(before).values()) > 2
    assert {contract.shard_of(f"d{number}", 3) for number in range(6)} | {contract.shard_of("all", 3)} == {0, 1, 2}

    def marks() -> set[str | None]:
        return {world.redis.get(f"{each}:republish") for each in world.prefixes}

    # All of one shard.
    world.lose(shard=2)
    world.term()
    assert_same(world.values(), before)
    assert (world.lost, marks()) == (1, {None})

    # One is back at an older backup. Another one had asked for a republish, and the writer was killed before its end.
    world.lose(shard=1)
    world.restore(backup)
    asked = mark(ASKED)
    world.redis.set(f"{world.prefixes[2]}:republish", asked)
    whole = tuple(map(int, world.redis.hmget(f"{world.prefixes[0]}:progress", "epoch", "batch")))
    world.epoch += 1
    for each in world.prefixes:
        world.redis.set(f"{each}:epoch", world.epoch)
    republisher = world.republisher()
    republisher.begin()
    lost, waiting = (world.redis.get(f"{world.prefixes[number]}:republish") for number in (1, 2))
    assert (lost.split()[0], waiting) == ("lost", asked)
    assert world.redis.get(f"{world.prefixes[0]}:republish") is None
    assert republisher.term.published == whole  # that of the shards that have lost nothing
    # These were not touched: they may be a batch ahead of the state.
    assert tuple(map(int, world.redis.hmget(f"{world.prefixes[0]}:progress", "epoch", "batch"))) == whole
    world.publish(None)
    republisher.everything(republisher.asked())
    assert_same(world.values(), before)
    assert (world.lost, marks()) == (2, {None})

    # A writer was killed between the progress of two shards: the next one goes on, and nothing is lost.
    world.redis.hset(f"{world.prefixes[0]}:progress", mapping={"batch": 99, "updated": 1})
    world.term(*minutes(40, 42))
    assert (world.lost, marks()) == (2, {None})
    assert kinds(world.values())["final"] > kinds(before)["final"]
    world.redis.close()


@pytest.mark.thorough
def test_what_kafka_has_only_a_part_of_is_not_told(world: Losing) -> None:
    world.term(*minutes(0, 40))
    before = world.values()
    # Of partition 0 the first 10 minutes go, of partition 1 nothing.
    gone = world.delete_records(0, until_ms=BASE_MS + 600_000)
    whole_from_ms = gone + world.settings.admission.max_ahead_ms + 1
    world.lose()
    world.term()
    after = world.values()
    lacking = before.keys() - after.keys()
    assert_same({n: v for n, v in after.items() if n != "keys:all"}, {n: before[n] for n in after if n != "keys:all"})
    assert kinds(after)["final"] > 50
    for name in lacking:
        if name.startswith("window"):
            assert int(before[name]["start"]) < whole_from_ms, name
        else:
            # The device that never falls silent: where its sessions were cut depends on the first of them.
            assert int(before[name]["start"]) < whole_from_ms + 30_000 or name.startswith("session:d0:"), name
    kept = {n for n, v in before.items() if n.startswith("window") and int(v["start"]) >= whole_from_ms}
    assert kept <= after.keys()
    unrecoverable_windows, unrecoverable_sessions = world.republications[-1][1]
    assert 0 < unrecoverable_windows <= len([n for n in lacking if n.startswith("window")])
    assert unrecoverable_sessions > 0


def shorter_gap(world: World) -> Any:
    return world.settings.sessions.model_copy(update={"gap_ms": 10_000})


PAIRS = [reading("p", second + pause) for second in range(0, 2400, 200) for pause in (0, 20)]
"""Sessions of two readings, which a gap of 10 s parts."""


@pytest.mark.thorough
def test_a_gap_that_has_changed_makes_no_session_beside_those_that_are_there(world: Losing, tmp_path: Path) -> None:
    world.term(*minutes(0, 20), *PAIRS[:12])
    backup = world.backup()
    world.term(*minutes(20, 40), *PAIRS[12:])
    before = world.values()
    kept = {name for name, value in before.items() if name.startswith("session:p:") and value["state"] == "closed"}
    assert len(kept) > 8

    # The last minutes of Redis are gone; what it has kept stays, and what it has lost follows the gap of today.
    world.lose()
    world.restore(backup)
    whole = {name: value for name, value in world.values().items() if name in kept and value["state"] == "closed"}
    assert len(whole) > 3
    world.settings = world.settings.model_copy(update={"sessions": shorter_gap(world)})
    world.term()
    after = world.values()
    assert {name: after[name] for name in whole} == whole
    ends = {name: int(value["last"]) for name, value in whole.items()}
    inside = [name for name in after if name.startswith("session:p:") and name not in ends and starts_in(name, ends)]
    assert inside == []
    assert len([name for name in after if name.startswith("session:p:")]) > len(kept), "what was lost comes in two"
    assert world.redis.get(world.key("republish")) is None


def starts_in(name: str, ends: dict[str, int]) -> bool:
    """Whether a session starts inside one of the others of its device."""
    device, _, start = name.rpartition(":")
    spans = [(int(other.rpartition(":")[2]), last) for other, last in ends.items() if other.startswith(f"{device}:")]
    return any(begin < int(start) <= last for begin, last in spans)


@pytest.mark.thorough
def test_a_new_checkpoint_in_a_prefix_in_use_makes_nothing_inside_what_is_there(world: Losing, tmp_path: Path) -> None:
    world.term(*minutes(0, 20), *PAIRS[:12])
    before = world.values()
    closed = {name for name, value in before.items() if name.startswith("session:") and value["state"] == "closed"}
    assert len(closed) > 8
    world.begin_again(tmp_path / "again", sessions=shorter_gap(world))
    world.term(*minutes(20, 24), *PAIRS[12:14])
    after = world.values()
    assert {name: after[name] for name in closed} == {name: before[name] for name in closed}
    ends = {name: int(before[name]["last"]) for name in closed}
    assert [name for name in after if name.startswith("session:") and starts_in(name, ends)] == []
    assert world.redis.get(world.key("rebuild")) is None
    assert {f"session:p:{BASE_MS + second * 1000}" for second in (1200, 1220)} <= after.keys(), "what came since"


def test_a_rebuild_ends_with_the_final_windows_that_redis_did_not_have(world: Losing, tmp_path: Path) -> None:
    """Nobody saw the loss, and the new checkpoint does not write windows that were final, as it has parts of them at first."""
    world.term(*minutes(0, 40))
    before = world.values()
    world.lose("window:device:temperature:d1:*")
    world.begin_again(tmp_path / "again")
    world.limit(300)
    world.term(*minutes(40, 44))
    after = world.values()
    final = {name for name, value in before.items() if name.startswith("window") and value["closed_by"]}
    assert len([name for name in final if ":d1:" in name]) > 10
    assert_same({name: after[name] for name in final}, {name: before[name] for name in final})
    assert [world.redis.get(world.key(mark)) for mark in ("rebuild", "republish")] == [None, None]


@pytest.mark.thorough
def test_a_second_rebuild_does_not_end_with_the_first(world: Losing, tmp_path: Path) -> None:
    world.term(*minutes(0, 20))
    final = world.redis.hget(world.key("progress"), "final")
    world.redis.set(world.key("rebuild"), f"1 {BASE_MS} 1")
    world.begin_again(tmp_path / "again")
    world.epoch += 1
    world.redis.set(world.key("epoch"), world.epoch)
    world.republisher().begin()
    _, until, epoch = world.redis.get(world.key("rebuild")).split()
    assert (until, int(epoch)) == (final, world.epoch)


@pytest.mark.thorough
@pytest.mark.parametrize("dry", [True, False])
def test_where_no_batch_was_committed_nothing_is_republished_and_the_mark_stays(world: World, dry: bool) -> None:
    """On a host that does not have the service's checkpoint, nobody could tell what is lost."""
    world.redis.set(world.key("republish"), mark(LOST))
    config = world.folder / "tidemark.toml"
    config.write_text(
        f"""
        [service]
        checkpoint = "{world.folder}/another"
        [kafka]
        bootstrap = "{world.settings.kafka.bootstrap}"
        topics = ["{world.topic}"]
        [input]
        format = "json"
        measures = {{temperature = "temperature"}}
        [[views]]
        name = "device"
        by = ["device"]
        window = "1 m"
        [redis]
        url = "{world.settings.redis.url.get_secret_value()}"
        prefix = "{world.settings.redis.prefix}"
        """
    )
    command = [
        sys.executable,
        "-m",
        "service.cli",
        "republish",
        "--config",
        str(config),
        *(["--dry-run"] if dry else []),
    ]
    ended = subprocess.run(command, timeout=300, check=False, capture_output=True, text=True)
    assert ended.returncode == CheckpointError.status, ended.stderr
    assert "has no committed batch" in ended.stderr
    assert world.redis.get(world.key("republish")) is not None


@pytest.mark.thorough
def test_a_prefix_with_the_values_of_another_services_topics_is_refused_by_name(world: Losing) -> None:
    world.term(*minutes(0, 3))
    elsewhere = json.dumps({"others": {"0": 9}})
    world.redis.hset(world.key("progress"), "offsets", elsewhere)  # what a service that reads them has published
    with pytest.raises(SinkRefusedError, match=rf"'{world.prefix}': its values are of others, kafka\.topics has"):
        world.term()
    assert world.redis.hget(world.key("progress"), "offsets") == elsewhere


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"window_ms": 600_000}, "10 m by device, its published windows are 1 m by device"),
        ({"slide_ms": 20_000}, "1 m every 20 s by device, its published windows are 1 m by device"),
        ({"by": ()}, "1 m by nothing, its published windows are 1 m by device"),
    ],
)
def test_a_view_that_changed_under_its_name_is_refused_and_keeps_its_windows(
    world: Losing, change: dict[str, Any], text: str
) -> None:
    world.term(*minutes(0, 3))
    settings, before = world.settings, world.values()
    device = next(view for view in settings.views if view.by == ("device",))
    others = tuple(view for view in settings.views if view is not device)
    changed = device.model_copy(update=change)
    world.settings = settings.model_copy(update={"views": (changed, *others)})
    with pytest.raises(SinkRefusedError, match=rf"views\.{device.name} is {text}"):
        world.term(*minutes(3, 5))
    assert world.values() == before
    renamed = changed.model_copy(update={"name": "another"})
    world.settings = settings.model_copy(update={"views": (renamed, *others)})
    world.term(*minutes(3, 5))
    assert any(name.startswith("window:another:") for name in world.values())


@pytest.mark.thorough
def test_a_prefix_of_another_contract_is_refused_by_name_and_used_once_its_keys_are_gone(world: Losing) -> None:
    world.term(*minutes(0, 3))
    before = world.values()
    world.redis.delete(world.key("meta"))  # no version before 2 wrote it, nor this field
    world.redis.hdel(world.key("progress"), "final")
    there = world.hashes()
    with pytest.raises(SinkRefusedError, match=f"redis.prefix = '{world.prefix}': its values are of contract 1"):
        world.term()
    assert world.hashes() == there
    world.lose()
    world.term()
    assert_same(world.values(), before)


@pytest.mark.thorough
def test_a_meta_that_is_gone_is_lost_data_and_not_another_contract(world: Losing) -> None:
    world.term(*minutes(0, 3))
    before = world.values()
    lost = next(name for name in before if name.startswith("window:"))
    world.redis.delete(world.key("meta"), world.key(lost))
    world.term()
    assert world.redis.exists(world.key("meta"))
    assert_same(world.values(), before)

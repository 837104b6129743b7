"""Changes of statuses leave once, each begins where the one before ended, and the last one is the status that readers see."""

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from service.aggregation.sessions import finals, rules
from service.daemon.idle_detection import Tables
from service.errors import SettingsError
from service.micro_batch import MicroBatch
from service.outlets import kafka, tables, transitions
from service.outlets.outbox import Outbox
from service.outlets.outlet import Entry, Position
from service.outlets.parquet import Parquet
from service.outlets.publication import Outlets
from service.settings import ParquetOutlet
from service.spark.files import Local
from state import codec, windows
from state.layout import OFFLINE, ONLINE, QUIET, BucketState, Changes, empty_state
from state.rules import Rules
from state.table import advance
from tests.stream.records import make_settings
from tests.unit.test_measure_status import NOTHING, runs
from tests.unit.test_outlets import Memory, Watcher

RULES = Rules(
    gap_ms=10, max_duration_ms=160, retain_ms=1_000_000, measures=("t", "h"), by_measure=True, has_transitions=True
)
LIMITS = {"interval": {"b": 4, "c": 3}, "gap": {"c": 20}}
STATES = {"name": "states", "kind": "parquet", "path": "nowhere", "states": True, "retry_for": "30 s"}
PLACE = {ONLINE: 0, QUIET: 1, OFFLINE: 2}


class Stopped(Exception):  # noqa: N818 - the process ends here
    """Raised in the middle of an action."""


class Service:
    """A bucket's state, and the outlet of states, through batches and silences. `shown` are the statuses that readers see."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.memory = folder, Memory()
        self.settings = make_settings(folder, outlets=[STATES])
        self.state: BucketState = empty_state(RULES)
        self.epoch, self.committed = 0, -1
        self.shown: dict[tuple[str, str], str] = {}
        self.tables: Tables | None = None
        self.outlets: Outlets | None = None
        self.start()

    def start(self) -> None:
        """Begin a term."""
        self.stop()
        self.epoch += 1
        files = Outbox(Local(self.folder))
        self.outlets = Outlets(
            self.settings, files, self.epoch, lambda _: self.memory, Watcher(), committed=self.committed
        )
        self.outlets.start()
        self.tables = None

    def stop(self) -> None:
        if self.outlets is not None:
            self.outlets.close()

    def micro_batch(self, number: int, watermark_ms: int) -> MicroBatch:
        return MicroBatch(self.epoch, number, watermark_ms, {"r": {0: number}}, {"r": {0: number + 1}})

    def batch(self, table: pa.Table, watermark_ms: int, skewed: dict[str, int], *, dies: bool = False) -> None:
        """Publish a batch. If it dies, its commit is missing, and the next term repeats it."""
        assert self.outlets is not None
        number = self.committed + 1
        micro_batch = self.micro_batch(number, watermark_ms)
        after, changes = advance(self.state, table, watermark_ms, RULES)
        asked = finals(self.settings)
        assert asked is not None
        payload = codec.pack_changes(asked.of(changes.sessions, windows.empty(), changes.transitions))
        self.outlets.publish(micro_batch, [payload], skewed)
        if dies:
            self.start()
            self.batch(table, watermark_ms, skewed)
            return
        self.state, self.committed, self.tables = after, number, None
        self._show(changes)

    def idle(self, line_ms: int) -> None:
        """Close by the clock, as service/daemon/idle_closer.py does."""
        assert self.outlets is not None
        if self.tables is None:
            self.tables = Tables([self.state], RULES)
        closed = []
        for number in self.tables.due(line_ms):
            state, changes = self.tables.step(number, line_ms)
            self.tables.keep(number, state)
            closed.append(changes)
            self._show(changes)
        self.outlets.close_idle(self.micro_batch(self.committed, line_ms), closed, [])

    def _show(self, changes: Changes) -> None:
        for row in changes.transitions.to_pylist() if changes.transitions is not None else ():
            key = row["device"], row["field"]
            former = PLACE.get(self.shown.get(key, ""), -1)
            if row["is_reading"] or PLACE[row["status"]] > former:
                self.shown[key] = row["status"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What has left."""
        assert self.outlets is not None
        assert all(each.lacks_at_most(0, 30) for each in self.outlets.deliveries)
        return [row for entry in self.memory.entries for row in entry.rows.to_pylist()]


def play(folder: Path, seed: int, *, dies: bool) -> Service:
    """A random walk. The same seed has the same readings and silences, whether the process dies or not."""
    folder.mkdir()
    chance, deaths = random.Random(seed), random.Random(seed + 1)
    service, now_ms, watermark_ms = Service(folder), 1_000, 900
    skewed: dict[str, int] = {}
    for _ in range(30):
        action = chance.random()
        if action < 0.6:
            now_ms += chance.choice((1, 5, 15, 60))
            watermark_ms = max(watermark_ms, now_ms - chance.choice((10, 25, 50)))
            readings = [
                (chance.choice("abcd"), chance.randint(watermark_ms, now_ms), chance.choice("th"))
                for _ in range(chance.randint(0, 4))
            ]
            if chance.random() < 0.2:
                skewed = dict.fromkeys(chance.sample("abcd", chance.randint(0, 2)), now_ms)
            service.batch(runs(*readings, **LIMITS), watermark_ms, skewed, dies=dies and deaths.random() < 0.3)
        elif service.committed >= 0:
            now_ms += chance.randint(1, 40)
            service.idle(max(watermark_ms, now_ms - 5))
        if dies and deaths.random() < 0.2:
            service.start()
    return service


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_a_chain_that_ends_in_what_readers_see_and_no_death_changes_them(tmp_path: Path, seed: int) -> None:
    plain, dying = play(tmp_path / "plain", seed, dies=False), play(tmp_path / "dying", seed, dies=True)
    rows, after_deaths = ([{**row, "epoch": 0} for row in each.rows] for each in (plain, dying))
    for played in (after_deaths, rows):
        chains: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in played:
            chains[row["device"], row["field"]].append(row)
        for (device, name), chain in chains.items():
            befores = [row["was"] for row in chain]
            assert befores[1:] == [row["status"] for row in chain[:-1]], (device, name)
            assert all(row["was"] != row["status"] for row in chain)
            assert befores[0] == ("in_time" if name == "skewed" else None)
        assert {key: chain[-1]["status"] for key, chain in chains.items() if key[1] != "skewed"} == plain.shown
    # A term compares the list of skewed devices from its second batch on.
    without, others = ([row for row in each if row["field"] != "skewed"] for each in (after_deaths, rows))
    assert without == others
    plain.stop()
    dying.stop()


def at(row: dict[str, Any]) -> int:
    return round(row["at"].timestamp() * 1000)


def told(service: Service, field: str = "status") -> list[tuple[Any, ...]]:
    """(device, time, was, status, why) of what has left of a field."""
    return [
        (row["device"], at(row), row["was"], row["status"], row["why"]) for row in service.rows if row["field"] == field
    ]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.stop()


def test_silence_takes_a_device_offline_once_and_its_next_reading_brings_it_back(service: Service) -> None:
    service.batch(runs(("a", 1_000, "t")), 990, {})
    service.idle(1_020)
    service.idle(1_030)
    service.start()
    service.batch(runs(("b", 1_001, "t")), 991, {})
    service.batch(runs(("a", 1_005, "t")), 992, {})
    service.start()
    service.batch(runs(("a", 1_006, "t")), 993, {})
    service.batch(NOTHING, 1_100, {})
    service.batch(runs(("a", 1_200, "t")), 1_190, {})
    assert [row for row in told(service) if row[0] == "a"] == [
        ("a", 1_000, None, ONLINE, "reading"),
        ("a", 1_010, ONLINE, OFFLINE, "idle"),
        ("a", 1_005, OFFLINE, ONLINE, "reading"),
        ("a", 1_016, ONLINE, OFFLINE, "watermark"),
        ("a", 1_200, OFFLINE, ONLINE, "reading"),
    ]


def test_a_device_that_never_sent_leaves_once_and_begins_with_never(service: Service) -> None:
    outlets = service.outlets
    assert outlets is not None
    service.batch(runs(("a", 1_000, "t")), 990, {})
    outlets.look()
    service.batch(runs(("late", 1_001, "t")), 991, {})
    outlets.expect({"late", "n", "m"})  # the look has not seen that one of them came meanwhile
    service.batch(NOTHING, 992, {})
    service.start()
    assert service.outlets is not None
    service.outlets.look()
    service.outlets.expect({"n", "m"})
    service.batch(runs(("n", 1_002, "t")), 993, {}, dies=True)
    service.batch(runs(("n", 1_003, "t")), 994, {})
    assert [(device, was, status, why) for device, _, was, status, why in told(service) if device != "a"] == [
        ("late", None, ONLINE, "reading"),
        ("m", None, "never", "reference"),
        ("n", None, "never", "reference"),
        ("n", "never", ONLINE, "reading"),
    ]


def test_a_clock_that_is_ahead_leaves_when_redis_lists_it_and_when_it_no_longer_does(service: Service) -> None:
    service.batch(NOTHING, 990, {})
    service.batch(NOTHING, 991, {"a": 1_000}, dies=True)
    service.batch(NOTHING, 992, {"a": 1_002}, dies=True)
    service.start()
    for watermark_ms in (993, 994):  # a term compares the list from its second batch on
        service.batch(NOTHING, watermark_ms, {})
    assert told(service, "skewed") == [
        ("a", 1_000, "in_time", "skewed", "early"),
        ("a", 994, "skewed", "in_time", "reading"),
    ]


@pytest.mark.parametrize("listed", [({}, {"b": 1_002}), ({"b": 1_001}, {}), ({"b": 1_001}, {"c": 1_002})])
def test_a_repeat_with_other_clocks_is_whole(service: Service, listed: tuple[dict[str, int], dict[str, int]]) -> None:
    first, again = listed
    service.batch(runs(("a", 1_000, "t")), 990, {})
    committed, state = service.committed, service.state
    service.batch(runs(("a", 1_001, "t"), ("d", 1_001, "t")), 991, first)
    service.committed, service.state = committed, state  # its commit is missing
    service.start()
    service.batch(runs(("a", 1_001, "t"), ("d", 1_001, "t")), 991, again)
    service.batch(NOTHING, 992, again)
    service.batch(NOTHING, 993, {})
    chains: dict[str, list[str]] = defaultdict(list)
    for device, _, was, status, _ in told(service, "skewed"):
        chains[device] += [was, status]
    assert chains == {device: ["in_time", "skewed", "skewed", "in_time"] for device in {**first, **again}}


def test_an_outlet_that_is_added_again_begins_without_what_had_left_before(service: Service, tmp_path: Path) -> None:
    service.batch(runs(("a", 1_000, "t")), 990, {})
    service.idle(1_020)
    assert service.outlets is not None
    service.outlets.expect({"n"})
    service.batch(NOTHING, 991, {"a": 1_001})
    settings = service.settings
    service.settings = make_settings(tmp_path, outlets=[{**STATES, "name": "others", "states": False}])
    service.start()
    service.settings = settings
    service.start()
    before = len(service.rows)
    assert service.outlets is not None
    service.outlets.expect({"n"})
    for watermark_ms in (992, 993):
        service.batch(NOTHING, watermark_ms, {"a": 1_001})
    assert [(row["device"], row["field"], row["was"], row["status"]) for row in service.rows[before:]] == [
        ("n", "status", None, "never"),
        ("a", "skewed", "in_time", "skewed"),
    ]


def test_what_cannot_be_stored_has_not_left(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    outlets = service.outlets
    assert outlets is not None
    service.batch(runs(("a", 1_000, "t")), 990, {})

    def fail(*_: object) -> None:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr("service.outlets.silence.Silence._write", fail)
        with pytest.raises(OSError):  # noqa: PT011
            service.idle(1_020)
    service.tables = None
    service.idle(1_020)
    assert told(service)[1:] == [("a", 1_010, ONLINE, OFFLINE, "idle")]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"views": ["device"]}, "views: an outlet takes windows or states, not both"),
        ({"sessions": True}, "states: an outlet takes sessions or states, not both"),
    ],
)
def test_an_outlet_of_states_takes_nothing_else(tmp_path: Path, keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        make_settings(tmp_path, outlets=[{**STATES, **keys}])


def test_the_state_tells_transitions_only_to_an_outlet_of_states(tmp_path: Path) -> None:
    assert rules(make_settings(tmp_path, outlets=[STATES])).has_transitions
    assert not rules(make_settings(tmp_path, outlets=[{**STATES, "states": False}])).has_transitions
    plain = replace(RULES, has_transitions=False)
    assert advance(None, runs(("a", 1_000, "t")), 990, plain)[1].transitions is None


def test_rows_of_states_have_a_file_of_their_day_a_key_in_a_topic_and_a_schema(tmp_path: Path) -> None:
    def entry(batch: int, *rows: tuple[str, str, int, str | None, str]) -> Entry:
        table = transitions._table([(*row, "reading") for row in rows])
        return Entry(Position(1, batch), tables.states(table, 1, batch))

    section = ParquetOutlet(name="files", kind="parquet", path=str(tmp_path), states=True, compact_after=2)
    made = Parquet(section)
    made.open(1)
    again = ("a", "status", 86_400_000, None, ONLINE)
    for batch in (1, 2):
        made.write(entry(batch, again, ("a", "status", 5 + batch, ONLINE, OFFLINE)))
    found = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table().to_pylist()
    assert sorted((row["day"], row["status"], row["batch"]) for row in found) == [
        ("1970-01-01", OFFLINE, 1),
        ("1970-01-01", OFFLINE, 2),
        ("1970-01-02", ONLINE, 2),
    ]
    content = tables.CONTENTS["states"]
    rows = entry(1, ("a", "t.status", 5, None, ONLINE)).rows
    assert kafka.keys(rows, content.record_key) == [b"a:t.status"]
    schema = kafka.avro_schema(content.schema(()), content.name)
    assert (schema["name"], [each["name"] for each in schema["fields"]]) == ("State", rows.column_names)

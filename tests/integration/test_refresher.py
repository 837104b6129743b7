"""What serves while the database is away, refuses or has been mended: on a real SQLite file, with real time."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from service import clock, settings
from service.daemon.refresher import Refresher
from service.errors import ReferenceDataError, ReferenceTooOldError
from service.monitoring.metrics import Metrics
from service.reference import snapshots
from service.reference.database import UnreadableError
from tests.integration import daemon

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")]
until = partial(daemon.until, within_s=60, what="the refresher to see it")
EXPECTATION = {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "site", "regex": "^[a-z]+$"}}


class World:
    """A database of devices, and refreshers that end with the test."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.database = folder / "devices.db"
        self.metrics = Metrics()
        self.made: list[Refresher] = []
        (folder / "suite.json").write_text(json.dumps({"expectations": [EXPECTATION]}))
        self.hold(a="leeds", b="cork")

    def hold(self, **sites: str) -> None:
        with sqlite3.connect(self.database) as connection:
            connection.execute("drop table if exists devices")
            connection.execute("create table devices (device_id text, site text)")
            connection.executemany("insert into devices values (?, ?)", sites.items())
        connection.close()

    def settings(self, **changes: Any) -> settings.Settings:
        return settings.parse(
            {
                "service": {"checkpoint": str(self.folder / "checkpoint")},
                "kafka": {"bootstrap": "127.0.0.1:1", "topics": ["readings"]},
                "input": {"format": "json", "measures": {"temperature": "temperature"}, "columns": {"line": "line"}},
                "reference": {
                    "url": f"jdbc:sqlite:{self.database}",
                    "query": "select * from devices",
                    "expectations": str(self.folder / "suite.json"),
                    "refresh": "500 ms",
                    "timeout": "30 s",
                    **changes,
                },
                "views": [{"name": "site", "by": ["site", "line"], "window": "1 m"}],
                "redis": {"url": "redis://127.0.0.1:1"},
            }
        )

    def refresher(self, **changes: Any) -> Refresher:
        given = self.settings(**changes)
        assert given.reference is not None
        made = Refresher(self.spark, given, given.reference, self.metrics)
        self.made.append(made)
        return made

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"tidemark_{name}", labels) or 0.0

    def failed(self, reason: str) -> float:
        return self.value("reference_failures_total", reason=reason)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    made = World(spark, tmp_path)
    yield made
    for each in made.made:
        each.close()


def sites(of: Refresher) -> dict[str, str]:
    table = of.current_snapshot.snapshot.table
    return dict(zip(table["device"].to_pylist(), table["site"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("reason", "trouble"),
    [
        ("unreachable", lambda world: world.database.rename(world.folder / "away.db")),
        ("refused", lambda world: world.hold() or sqlite3.connect(world.database).execute("drop table devices")),
        ("invalid", lambda world: world.hold(a="Leeds 1", b="cork")),
        ("invalid", lambda world: world.hold(a="leeds")),
    ],
    ids=["away", "no table", "bad rows", "half the rows gone"],
)
def test_the_last_good_snapshot_serves_on(world: World, reason: str, trouble: Callable[[World], object]) -> None:
    running = world.refresher()
    first = running.current_snapshot.snapshot
    running.begin()
    trouble(world)
    until(lambda: world.failed(reason) >= 2)
    running.begin()
    assert running.current_snapshot.snapshot.version == first.version
    assert world.value("reference_kept") == 1
    assert world.metrics.notes["reference"].startswith(f"the last good snapshot serves on, {reason}: ")
    assert running.document()["failure"]["reason"] == reason
    age_s = world.value("reference_age_seconds")
    until(lambda: world.value("reference_age_seconds") > age_s)

    world.hold(a="leeds", b="izmir")
    until(lambda: world.value("reference_kept") == 0)
    running.begin()
    assert sites(running) == {"a": "leeds", "b": "izmir"}
    assert (world.metrics.notes, running.document()["failure"]) == ({}, None)


@pytest.mark.parametrize(
    "trouble",
    [lambda world: world.database.unlink(), lambda world: world.hold(a="Leeds 1", b="cork")],
    ids=["away", "bad rows"],
)
def test_after_a_restart_the_kept_snapshot_serves_and_says_so(world: World, trouble: Callable[[World], object]) -> None:
    world.refresher().close()
    trouble(world)
    until(lambda: clock.now_ms() - _kept(world).read_ms > 500)  # a younger one would not have been asked about
    again = world.refresher()
    assert sites(again) == {"a": "leeds", "b": "cork"}
    assert world.value("reference_kept") == 1
    assert "reference" in world.metrics.notes


def test_a_start_without_anything_kept_waits_for_the_database_and_refuses_bad_data(world: World) -> None:
    world.hold(a="Leeds 1")
    with pytest.raises(ReferenceDataError, match="'Leeds 1'") as caught:
        world.refresher()
    assert not isinstance(caught.value, UnreadableError)
    world.database.unlink()
    with pytest.raises(UnreadableError):
        world.refresher()


@pytest.mark.thorough
def test_what_is_older_than_max_age_does_not_serve(world: World) -> None:
    running = world.refresher(max_age="5 s")
    world.database.unlink()
    running.require_young()
    until(lambda: clock.now_ms() - _kept(world).read_ms > 5_000)
    until(lambda: world.failed("unreachable"))
    with pytest.raises(
        ReferenceTooOldError, match=r"read \d+ s ago, reference.max_age is 5 s; since then: .*devices.db"
    ):
        running.require_young()
    running.close()
    with pytest.raises(UnreadableError, match="max_age is 5 s"):  # a start waits
        world.refresher(max_age="5 s")


def test_after_a_silence_the_first_batch_sees_the_newest_and_a_batch_that_is_replayed_what_it_saw(world: World) -> None:
    running = world.refresher()
    running.begin()
    world.hold(a="leeds", b="izmir")
    until(lambda: running._newest.version != running.current_snapshot.snapshot.version)
    running.begin()  # no batch has ended meanwhile
    assert sites(running)["b"] == "izmir"
    world.hold(a="leeds", b="turin")
    until(lambda: running._newest.version != running.current_snapshot.snapshot.version)
    running.swap()
    assert sites(running)["b"] == "turin"
    running.rewind(is_repeated=True)
    running.begin()
    assert sites(running)["b"] == "izmir"
    running.rewind(is_repeated=False)
    running.begin()
    assert sites(running)["b"] == "turin", "the last batch was committed"


def test_unchanged_data_makes_the_snapshot_young_again(world: World) -> None:
    running = world.refresher()
    first = running.document()
    until(lambda: running.document()["read_ms"] > first["read_ms"])
    assert running.document()["version"] == first["version"]
    assert running.document()["rows"] == 2


def _kept(world: World) -> snapshots.Snapshot:
    kept = snapshots.latest(Path(world.settings().service.checkpoint) / "reference")
    assert kept is not None
    return kept


def test_a_view_by_a_field_of_the_record_asks_the_reference_for_no_such_column(world: World) -> None:
    assert [view.by for view in world.settings().views] == [("site", "line")]
    assert sites(world.refresher()) == {"a": "leeds", "b": "cork"}


def test_devices_without_a_time_zone_are_counted_while_a_view_needs_theirs(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.hold(a="Europe/Rome", b="Mars/Olympus", c="", d="europe/rome", e="../zones")
    running = world.refresher(expectations=None)
    running.begin()
    assert world.value("reference_without_zone") == 0, "no view needs a zone"
    days = {"window": "1 d", "time_zone": {"column": "site"}}
    views = [settings.View(name=name, by=("device", "site"), **days) for name in ("day", "night")]
    of_records = settings.View(name="line", by=("device", "line"), **{**days, "time_zone": {"column": "line"}})
    running.serve([*views, of_records])
    assert world.value("reference_without_zone") == 4, "each once"
    assert "4 devices of the reference have no time zone in site" in caplog.text
    assert "such as b, which has 'Mars/Olympus'" in caplog.text
    zones = dict.fromkeys("abcde", "Asia/Tokyo")
    world.hold(**zones)

    def is_mended() -> bool:
        running.swap()
        return world.value("reference_without_zone") == 0

    until(is_mended)
    world.hold(**{**zones, "c": "Asia/Tokio"})
    until(lambda: running.swap() or world.value("reference_without_zone") == 1)
    running.serve([of_records])
    assert world.value("reference_without_zone") == 0, "the view is gone"

"""Devices that move or leave the reference: what is computed of their past counts each reading where the stream counted it."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.dataset as ds
import pytest

from service.outlets.parquet import newest
from service.outlets.tables import WINDOW_KEY
from service.recompute import backfill, correct
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, Record, reading

pytestmark = [pytest.mark.integration, pytest.mark.spark]

SITE = {"name": "site", "by": ["site"], "window": "1 m", "statistics": ["count", "sum", "max", "p95"]}
SOURCE = {"url": "jdbc:sqlite:unused", "query": "unused"}
Values = dict[tuple[str, int], tuple[int, float, float]]
"""Count, sum and maximum by site and start (s)."""


@pytest.fixture
def make_world(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    monkeypatch.setattr("service.outlets.publication.LOOK_S", 0.0)
    outlet = {"name": "files", "kind": "parquet", "path": str(parts.folder / "files")}
    made: list[World] = []

    def make(**sections: Any) -> World:
        known: dict[str, Any] = {"views": [SITE], "reference": SOURCE, "outlets": [outlet]}
        made.append(World(*parts, **known | sections))
        return made[0]

    yield make
    for world in made:
        world.redis.close()


def in_redis(world: World) -> Values:
    found = {}
    for name, value in world.hashes().items():
        if name.startswith("window:site:"):
            *_, site, start = name.split(":")
            content = int(value["count"]), float(value["sum"]), float(value["max"])
            found[site, (int(start) - BASE_MS) // 1000] = content
    return found


def in_files(world: World) -> Values:
    table = ds.dataset(world.folder / "files", format="parquet", partitioning="hive").to_table()
    return {
        (row["key"], round(row["start"].timestamp() - BASE_MS / 1000)): (row["count"], row["sum"], row["max"])
        for row in newest(table, WINDOW_KEY).to_pylist()
    }


def first(values: Values) -> Values:
    """The values of the first minute."""
    return {key: value for key, value in values.items() if key[1] == 0}


def moved(world: World) -> None:
    """d1 moves from north to south after the first minute, which the watermark has closed by then."""
    world.refer(d1="north", d2="north", d3="south")
    world.term(reading("d1", 1, 1.0), reading("d1", 2, 2.0), reading("d2", 3, 3.0), reading("d2", 4, 4.0))
    world.term(reading("d3", 5, 3.0), reading("d3", 6, 3.0))
    world.refer(d1="south", d2="north", d3="south")
    world.term(*later(130))


def later(*seconds: int) -> list[Record]:
    return [reading(device, second, 1.0) for second in seconds for device in ("d1", "d2", "d3")]


def deliver(world: World, *records: Record) -> None:
    """Several batches: the service takes corrected and backfilled values between two of them, an entry at a time."""
    world.limit(2)
    world.term(*records)


@pytest.mark.thorough
@pytest.mark.silent("0.2")
def test_redis_and_an_outlet_have_the_same_corrected_window_of_a_device_that_has_moved_away(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    moved(world)
    world.term(reading("d2", 20, 50.0, at=135), reading("d2", 21, 60.0, at=135))
    assert correct.correct(world.settings, 0, None, print, spark=world.spark).corrected == 2
    deliver(world, *later(140, 141))
    expected = {("north", 0): (6, 120.0, 60.0), ("south", 0): (2, 6.0, 3.0)}
    assert first(in_redis(world)) == expected
    assert first(in_files(world)) == expected


@pytest.mark.thorough
@pytest.mark.silent("0.3")
@pytest.mark.parametrize("unknown", ["keep", "reject"])
def test_a_late_reading_of_a_device_that_has_moved_or_left_counts_once_and_takes_no_other_with_it(
    make_world: Callable[..., World], unknown: str
) -> None:
    world = make_world(admission={"unknown_device": unknown})
    moved(world)
    world.term(reading("d1", 20, 50.0, at=135))
    world.refer(d1="south", d3="south")
    world.term(reading("d3", 22, 7.0, at=136), reading("d1", 150, 1.0), reading("d3", 150, 1.0))
    assert correct.correct(world.settings, 0, None, print, spark=world.spark).corrected == 2
    deliver(world, reading("d1", 160, 1.0), reading("d3", 160, 1.0), reading("d3", 161, 1.0))
    # d1's late reading was read when d1 was in the south already; its others were read in the north, as d2's, which has left.
    expected = {("north", 0): (4, 10.0, 4.0), ("south", 0): (4, 63.0, 50.0)}
    assert first(in_redis(world)) == expected
    assert first(in_files(world)) == expected


@pytest.mark.thorough
def test_a_backfill_and_a_republication_count_a_device_where_it_was(make_world: Callable[..., World]) -> None:
    world = make_world()
    moved(world)
    expected = {("north", 0): (4, 10.0, 4.0), ("south", 0): (2, 6.0, 3.0)}
    assert first(in_redis(world)) == expected
    backfill.backfill(world.settings, (BASE_MS, BASE_MS + 60_000), [], print, spark=world.spark)
    deliver(world, *later(140, 141))
    assert first(in_redis(world)) == expected
    assert first(in_files(world)) == expected
    before = in_redis(world)
    world.lose()
    world.term()
    assert in_redis(world) == before

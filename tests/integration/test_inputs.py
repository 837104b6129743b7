"""Columns and filters of the input through the service's own edges: Redis that loses all, late readings, `check`."""

import json

import pytest

from service.commands import check_spark
from service.recompute import correct
from tests.integration.world import Parts, World
from tests.stream.records import BASE_MS, Record

pytestmark = [pytest.mark.integration, pytest.mark.spark]

INPUT = {
    "format": "json",
    "measures": {"temperature": "temperature"},
    "columns": {"line": {"path": "line", "max_values": 2}, "kind": "kind"},
    "where": "kind <> 'pump'",
}
VIEWS = [
    {"name": "device", "by": ["device"], "window": "1 m"},
    {"name": "line", "by": ["line"], "window": "1 m"},
    {"name": "events", "by": ["line"], "window": "1 m", "measures": [], "statistics": ["count", "distinct"]},
    {"name": "warm", "by": ["device", "line"], "window": "1 m", "where": "temperature > 20"},
]


def reading(device: str, seconds: int, temperature: float, line: str, kind: str = "meter", at: int = -1) -> Record:
    fields = {"device_id": device, "event_time": BASE_MS + seconds * 1000, "temperature": temperature}
    value = json.dumps({**fields, "line": line, "kind": kind}).encode()
    return Record(value, BASE_MS + (seconds if at < 0 else at) * 1000, device.encode())


@pytest.fixture
def world(parts: Parts) -> World:
    return World(*parts, input=INPUT, views=VIEWS)


def lines(world: World) -> dict[str, int]:
    """Readings of the first minute by line."""
    prefix, suffix = "window:line:temperature:", f":{BASE_MS}"
    hashes = world.hashes()
    names = [name for name in hashes if name.startswith(prefix) and name.endswith(suffix)]
    return {name.removeprefix(prefix).removesuffix(suffix): int(hashes[name]["count"]) for name in names}


@pytest.mark.thorough
def test_what_is_lost_or_late_is_counted_under_the_same_keys_and_filtered_alike(world: World) -> None:
    world.term(reading("a", 0, 30.0, "l2"))
    world.term(reading("a", 1, 10.0, "l1"), reading("b", 2, 30.0, "l2", "pump"))
    late = [
        reading("b", 4, 25.0, "l3", at=200),
        reading("c", 5, 25.0, "l1", "pump", at=200),
        reading("b", 6, 5.0, "l2", at=200),
    ]
    world.term(reading("b", 3, 30.0, "l3"), reading("a", 200, 20.0, "l1"), *late)
    before = world.values()
    assert lines(world) == {"l2": 1, "l1": 1, "(other)": 1}
    world.assert_right()
    world.lose()
    world.term()
    assert world.values() == before
    report = correct.correct(world.settings, 0, None, print, spark=world.spark)
    assert report.corrected == 2
    assert lines(world) == {"l2": 2, "l1": 1, "(other)": 2}
    world.assert_right()


@pytest.mark.silent("1.8")
def test_check_says_how_many_records_have_each_mapped_field(parts: Parts) -> None:
    shape = {
        "format": "json",
        "device_id": "`dev.id`",
        "measures": {
            "typed": "temprature",
            "dotted": "tank.level",
            "quoted": "`tank.level`",
            "difference": "warm - `tank.level`",
        },
        "columns": {"line": "line", "kind": "knid"},
    }
    world = World(*parts, input=shape, views=VIEWS[:1])
    for text in (
        "the topics have no record in which to look for the fields",
        "none of the newest 2 records can be decoded, to look for the fields",
    ):
        (line,) = check_spark.sample_of_fields(world.settings)
        assert (line.name, line.detail) == ("input: fields", text)
        world.send([Record(b"no JSON", BASE_MS)] * 2)
    common = {"dev.id": "a", "event_time": BASE_MS, "temperature": 1, "line": "x"}
    values = [{**common, "tank.level": n, **({"warm": 1} if n < 3 else {})} for n in range(10)]
    world.send([Record(json.dumps(each).encode(), BASE_MS) for each in values])
    found = [(line.name, line.status, line.detail) for line in check_spark.sample_of_fields(world.settings)]
    world.redis.close()
    has, lacks = "of the newest 10 decoded records have", "none of the newest 10 decoded records has"
    assert found == [
        ("input.device_id", "ok", f"10 {has} `dev.id`"),
        ("input.event_time", "ok", f"10 {has} event_time"),
        ("input.measures.typed", "warn", f"{lacks} temprature"),
        ("input.measures.dotted", "warn", f"{lacks} tank.level"),
        ("input.measures.quoted", "ok", f"10 {has} `tank.level`"),
        ("input.measures.difference", "ok", f"3 {has} warm"),
        ("input.measures.difference", "ok", f"10 {has} `tank.level`"),
        ("input.columns.line", "ok", f"10 {has} line"),
        ("input.columns.kind", "warn", f"{lacks} knid"),
    ]


def test_check_says_how_many_records_meet_the_filters(world: World) -> None:
    assert [line.detail for line in check_spark.sample_of_filters(world.settings)] == [
        "Spark accepts input.where, views.warm.where; the topics have no record to try"
    ]
    world.send([reading("a", 0, 30.0, "l1"), reading("a", 1, 10.0, "l1"), reading("b", 2, 30.0, "l2", "pump")])
    found = {line.name: (line.status, line.detail) for line in check_spark.sample_of_filters(world.settings)}
    assert found == {
        "input.where": ("ok", "2 of the newest 3 records meet it"),
        "views.warm.where": ("ok", "1 of the newest 2 admitted readings meet it"),
    }

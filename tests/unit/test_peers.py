"""The arithmetic of `make peers`: what counts as a point, and which values of an engine are wrong."""

from types import SimpleNamespace
from typing import Any

import pytest

from load.judge.expected import Session, WindowValue
from load.peers.__main__ import is_right, ratios
from load.peers.engines import PEERS, settings
from load.peers.figures import Point, differences, marks, slope
from load.testbed import ROOT
from service.kafka.source import CONSUMER_OPTIONS

MINUTE = 60_000


def window(start: int, count: int) -> WindowValue:
    return WindowValue(start, start + MINUTE, count, 20.3 * count, 20.3, 20.0, 20.5, 0.1, start, start + 1, "")


def session(last: int, state: str) -> Session:
    return Session(0, last, 3, state, "", {}, "")


EXPECTED: Any = SimpleNamespace(
    windows={
        ("device", "temperature", device, start): window(start, count)
        for device, start, count in (("a:1", 0, 30), ("b", 0, 10), ("a:1", MINUTE, 40), ("a:1", 2 * MINUTE, 20))
    },
    sessions={("a:1", 0): session(20_000, "closed"), ("b", 0): session(110_000, "open")},
)


def row(start: int, count: int, total: str, deviation: str = "0.1") -> dict[str, str]:
    ends = {"start": str(start), "end": str(start + MINUTE), "count": str(count)}
    return ends | {"sum": total, "mean": "20.3", "min": "20", "max": "20.5", "stddev": deviation}


RIGHT = {
    "window:device:temperature:a:1:0": row(0, 30, "609.0"),
    "window:device:temperature:b:0": row(0, 10, "203", "0.10000000001"),
    "window:device:temperature:a:1:60000": row(MINUTE, 40, "812.0000000001"),
    "session:a:1:0": {"start": "0", "last": "20000", "count": "3", "state": "closed"},
}


def points(*records: float) -> list[Point]:
    """Each 2 s after the last one; before the third one a record takes ten times the CPU."""
    cpu = [0.0, 10.0, 20.0, 21.0, 22.0]
    return [Point(each, 2.0 * at, {"engine": cpu[at], "redis": 0.5 * at}) for at, each in enumerate(records)]


def test_a_mark_has_the_share_of_the_readings_before_it_and_the_counts_of_windows_that_end_there() -> None:
    first, second = marks(EXPECTED, 2 * MINUTE)
    assert (first.end_ms, first.share, second.share) == (MINUTE, 0.4, 0.8)
    assert first.probes == {"window:device:temperature:a:1:0": "30", "window:device:temperature:b:0": "10"}


def test_the_slope_begins_behind_the_warm_up_and_has_nothing_of_the_start() -> None:
    assert slope(points(1_000, 10_000, 400_000, 500_000, 900_000), 900_000) == {
        "per_second": 125_000,
        "engine_us": 4.0,
        "redis_us": 2.0,
    }


def test_an_engine_that_takes_the_rest_at_once_is_timed_from_its_last_point_before() -> None:
    assert slope(points(100_000, 900_000), 900_000) == {"per_second": 400_000, "engine_us": 12.5, "redis_us": 0.62}
    assert slope(points(900_000), 900_000) is None


def test_right_values_have_no_difference_and_open_ones_do_not_count() -> None:
    still_open = {"session:b:100": {"start": "100", "last": "110000", "count": "1", "state": "closed"}}
    later = {"window:device:temperature:a:1:120000": {"end": "180000"}}
    assert differences(EXPECTED, RIGHT | still_open | later, 2 * MINUTE) == []


@pytest.mark.parametrize(
    ("key", "name", "value", "sentence"),
    [
        ("window:device:temperature:b:0", "count", "9", "count is 9, expected 10"),
        ("window:device:temperature:b:0", "sum", "203.0001", "sum is 203.0001, expected 203.0"),
        ("window:device:temperature:b:0", "max", "20.500000000001", "max is 20.500000000001, expected 20.5"),
        ("window:device:temperature:b:0", "stddev", "NaN", "stddev is NaN, expected 0.1"),
        ("window:device:temperature:b:0", "stddev", "0.1001", "stddev is 0.1001, expected 0.1"),
        ("session:a:1:0", "last", "20001", "last is 20001, expected 20000"),
    ],
)
def test_a_wrong_value_is_named(key: str, name: str, value: str, sentence: str) -> None:
    assert differences(EXPECTED, RIGHT | {key: RIGHT[key] | {name: value}}, 2 * MINUTE) == [f"{key}: {sentence}"]


def test_a_missing_window_and_one_too_many_are_named() -> None:
    rows = {key: row for key, row in RIGHT.items() if key != "session:a:1:0"} | {
        "window:device:temperature:c:0": {"end": "60000"}
    }
    assert differences(EXPECTED, rows, 2 * MINUTE) == [
        "session:a:1:0: it is missing",
        "window:device:temperature:c:0: no reading gives it",
    ]


def test_an_engine_with_wrong_values_has_no_ratio_and_turns_the_status_red() -> None:
    engines: dict[str, dict[str, Any]] = {
        "tidemark": {"differences": 0, "per_second": 300, "engine_us": 4.0},
        "flink-sql": {"differences": 0, "per_second": 200, "engine_us": 5.0},
        "flink-stream": {"differences": 1, "examples": ["x"]},
    }
    assert ratios(engines) == {"per_second_to_flink-sql": 1.5, "engine_us_to_flink-sql": 0.8}
    assert not is_right({"engines": engines})
    assert is_right({"engines": {"flink-sql": engines["flink-sql"]}})


@pytest.mark.parametrize("name", PEERS)
def test_each_peer_reads_with_the_consumer_options_of_tidemark(name: str) -> None:
    chosen = settings(name, ROOT, "localhost:1", "redis://localhost:2")
    text = "\n".join(f"{key} {value}" for key, value in chosen.items())
    for option, value in CONSUMER_OPTIONS.items():
        assert chosen.get(f"streams.consumer.{option}", chosen.get(f"consumer.{option}")) == value
        assert name != "flink-sql" or f"'properties.{option}' = '{value}'" in text
    assert "$" not in text

"""The fleet: the same seed gives the same readings however time is cut, and its shares and bounds hold."""

import itertools
import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from load.fleet.fleet import (
    REFERENCE_QUERY,
    TYPES,
    Fleet,
    FleetSettings,
    Kind,
    Readings,
    kinds_of,
    reference_rows,
    with_outsiders,
    write_reference_sqlite,
)
from load.fleet.options import arguments, fleet_of, options_of

START_MS = 1_760_000_000_000


def joined(pieces: list[Readings]) -> Readings:
    return Readings(*(np.concatenate([getattr(each, column.name) for each in pieces]) for column in fields(Readings)))


def same(left: Readings, right: Readings) -> bool:
    return all(
        np.array_equal(getattr(left, column.name), getattr(right, column.name), equal_nan=column.name == "values")
        for column in fields(Readings)
    )


def test_the_same_seed_gives_the_same_readings_however_time_is_cut() -> None:
    settings = FleetSettings(devices=500, rate=1_000)
    whole = Fleet(7, settings).readings(0, 20_000, START_MS)
    other = Fleet(7, settings)
    cuts = [0, 1, 17, 250, 4_999, 5_000, 12_345, 20_000]
    pieces = [other.readings(start, end, START_MS) for start, end in itertools.pairwise(cuts)]
    assert len(whole) > 15_000
    assert same(joined(pieces), whole)


def test_outsiders_can_be_off_or_one_kind() -> None:
    assert set(with_outsiders(0.0).values()) == {0.0}
    assert with_outsiders(0.01, Kind.YEAR_2099) == {Kind.YEAR_2099: 0.01}
    assert sum(with_outsiders(0.02).values()) == pytest.approx(0.03)
    fleet = Fleet(3, FleetSettings(devices=100, rate=5_000, shares=with_outsiders(0.1, Kind.LATE, Kind.RANDOM)))
    counts = kinds_of(fleet.readings(0, 5_000, START_MS))
    assert set(np.flatnonzero(counts)) == {Kind.ORDINARY, Kind.LATE, Kind.RANDOM}


@pytest.mark.parametrize(
    "settings",
    [
        FleetSettings(
            devices=30, rate=50.0, dropout_share=0.2, dropout_ms=16_000, dropout_every_ms=40_000, evolved=0.3
        ),
        FleetSettings(devices=30, rate=50.0, max_delay_ms=250, shares={}),
    ],
)
def test_a_generator_with_the_options_of_a_fleet_sends_its_readings(settings: FleetSettings) -> None:
    words = ["--bootstrap", "localhost:9092", "--topic", "readings", "--seed", "7", "--rate", "50"]
    sent, right = (
        fleet.readings(0, 60_000, START_MS)
        for fleet in (fleet_of(arguments([*words, *options_of(settings)])), Fleet(7, settings))
    )
    assert len(sent) > 1_000
    assert same(sent, right)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"devices": 0}, "a device"),
        ({"rate": -1.0}, "rate"),
        ({"shares": {Kind.LATE: 1.0}}, "less than 1"),
        ({"shares": {Kind.LATE: -0.1}}, "at least 0"),
        ({"dropout_ms": 600_000}, "shorter"),
    ],
)
def test_an_impossible_fleet_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        FleetSettings(**wrong)


def test_the_reference_has_a_row_for_each_device_and_is_replaced_whole(tmp_path: Path) -> None:
    small, large = Fleet(1, FleetSettings(devices=10)), Fleet(1, FleetSettings(devices=1_000))
    path = tmp_path / "reference.sqlite"
    for fleet in (small, large):
        write_reference_sqlite(path, fleet)
        with closing(sqlite3.connect(path)) as database:
            assert database.execute(REFERENCE_QUERY).fetchall() == reference_rows(fleet)
    assert [each.name for each in tmp_path.iterdir()] == ["reference.sqlite"]
    device, kind, site, model, installed = reference_rows(large)[5]
    assert device == large.names[5]
    assert device.startswith(f"{kind}-")
    assert site
    assert model in TYPES[large.type[5]].models
    assert installed < "2026"

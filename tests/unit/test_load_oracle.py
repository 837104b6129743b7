"""The oracle: it must be right on its own, so it is held against hand-made cases and a slower, exact recomputation."""

import io
import json
import math
import random
import struct
import subprocess
import sys
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.judge.decoders import schema_ids, to_ms, walk
from load.judge.expected import Readings, View, devices, key_text, sessions, windows
from load.judge.oracle import Expected, Ledger, Record
from load.judge.predicates import Predicate
from load.judge.rules import Reference, Rules, amount, read_reference, read_rules
from load.servers.schema_registry import Registry
from tests.examples import examples

NOW = 1_700_000_000_000
FIRST = [
    {"name": "device_id", "type": "string"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "t", "type": ["null", "double"], "default": None},
]
SCHEMAS = {
    1: FIRST,
    2: [
        *FIRST,
        {"name": "h", "type": ["null", "float"], "default": None},
        {"name": "note", "type": {"type": "enum", "name": "N", "symbols": ["A", "B"]}, "default": "A"},
    ],
}
DOCUMENT = """
[kafka]
bootstrap = "nowhere:9092"
topics = ["readings"]
[input]
format = "{format}"
schemas = "avro"
event_time = "at"
event_time_unit = "{unit}"
measures = {{ temperature = "t", humidity = "h" }}
[admission]
max_delay = "1 m"
max_ahead = "10 s"
max_bytes = "100 B"
ranges = {{ temperature = [-40, 60.5] }}
[[views]]
name = "all"
window = "1 m"
[redis]
url = "redis://nowhere/0"
"""


def rules_in(folder: Path, **values: str) -> Rules:
    (folder / "avro").mkdir(exist_ok=True)
    for number, fields in SCHEMAS.items():
        schema = {"type": "record", "name": "Reading", "fields": fields}
        (folder / "avro" / f"{number}.avsc").write_text(json.dumps(schema))
    path = folder / "tidemark.toml"
    extra = values.pop("extra", "")
    path.write_text(DOCUMENT.format(**{"format": "json", "unit": "ms", **values}) + extra)
    return read_rules(path, {})


def decide(
    rules: Rules, value: bytes | None, *, key: bytes | None = None, reference: Reference | None = None
) -> str | None:
    return Ledger(rules, reference or {}).take(Record("readings", 0, 0, NOW, key, value))


def encode(record: Mapping[str, object]) -> bytes:
    return json.dumps(record).encode()


def avro(record: Mapping[str, object], number: int = 2) -> bytes:
    body = io.BytesIO()
    schema = {"type": "record", "name": "Reading", "fields": SCHEMAS[number]}
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    return struct.pack(">bI", 0, number) + body.getvalue()


GOOD = {"device_id": "d", "at": NOW, "t": 20.5, "h": 50}


def test_the_oracle_loads_nothing_of_the_service_nor_spark() -> None:
    program = "import sys, load.judge.compare; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "load" in loaded
    assert not {"service", "state", "pyspark"} & set(loaded)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (struct.pack(">bI", 0, 2) + b"\x80\x80\x80\x80\x80\x80\x40x", "undecodable"),
        (struct.pack(">bI", 0, 2) + b"\x01x", "undecodable"),
        # The unions' indexes -1 (fastavro: the last branch) and 2, an enum's index -1.
        (avro(GOOD).replace(b"\x02" + struct.pack("<d", 20.5), b"\x01" + struct.pack("<d", 20.5)), "undecodable"),
        (avro(GOOD).replace(b"\x02" + struct.pack("<d", 20.5), b"\x04" + struct.pack("<d", 20.5)), "undecodable"),
        (avro(GOOD)[:-1] + b"\x01", "undecodable"),
        (avro(GOOD)[:-1] + b"\x04", "undecodable"),
        # An index written in more bytes than it needs is allowed, in more than an int can have is not.
        (avro(GOOD)[:-1] + b"\x82\x00", None),
        (avro(GOOD)[:-1] + b"\x82\x80\x80\x80\x80\x00", "undecodable"),
        (avro(GOOD).replace(b"\x02d", b"\x02\xff"), "undecodable"),
    ],
)
def test_avro_is_what_the_format_allows_also_where_fastavro_takes_more(
    tmp_path: Path, value: bytes, reason: str | None
) -> None:
    assert decide(rules_in(tmp_path, format="avro"), value) == reason


def test_damaged_avro_is_admitted_only_when_a_strict_walk_accepts_it(tmp_path: Path) -> None:
    rules = rules_in(tmp_path, format="avro")
    names: dict[str, Any] = {}
    schema = fastavro.parse_schema({"type": "record", "name": "Reading", "fields": SCHEMAS[2]}, named_schemas=names)
    chance = random.Random(7)
    good = avro(GOOD)
    accepted = 0
    for _ in range(3_000):
        damaged = bytearray(good)
        damaged[chance.randrange(5, len(good))] = chance.randrange(256)
        try:
            end = walk(schema, names, bytes(damaged), 5)
        except (ValueError, IndexError):
            end = 0
        if end < len(damaged):
            assert decide(rules, bytes(damaged)) == "undecodable"
        else:
            accepted += 1
            size = damaged[5] >> 1
            is_text = damaged[6 : 6 + size].isascii()
            assert (decide(rules, bytes(damaged)) == "undecodable") != is_text
    assert 0 < accepted < 3_000


def test_an_older_writers_records_get_the_readers_defaults(tmp_path: Path) -> None:
    rules = rules_in(tmp_path, format="avro")
    ledger = Ledger(rules, {})
    assert ledger.take(Record("readings", 0, 0, NOW, None, avro(GOOD, 1))) is None
    assert ledger.close(0).devices["d"].values == {"temperature": (20.5, NOW)}


@pytest.mark.parametrize(
    ("value", "unit", "ms"),
    [
        (1, "s", 1_000),
        (1.001, "s", 1_001),  # in binary 1.001 * 1000 is below 1001
        (-0.0001, "s", -1),
        (1_999, "us", 1),
        (-1, "us", -1),
        (1.9, "ms", 1),
        (math.inf, "ms", 1 << 62),
        (-math.inf, "ms", -(1 << 62)),
        (math.nan, "ms", None),
        (None, "iso", None),
        ("1969-12-31T23:59:59.9999Z", "iso", -1),
    ],
)
def test_event_times_are_whole_milliseconds_rounded_down(value: object, unit: str, ms: int | None) -> None:
    assert to_ms(value, unit) == ms


def test_a_timestamp_logical_type_says_its_own_unit(tmp_path: Path) -> None:
    for unit in ("ms", "us", "logical"):
        assert decide(rules_in(tmp_path, format="avro", unit=unit), avro(GOOD)) is None
    with pytest.raises(ValueError, match="no timestamp logical type"):
        Ledger(rules_in(tmp_path, unit="logical"), {})


def test_no_proxy_is_asked_for_a_registry_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Registry(user="reader") as refusing, pytest.raises(OSError, match="/subjects/a/versions: status 401"):
        schema_ids(refusing.url, ["a"])
    with Registry() as registry:
        number = registry.register("a", {"type": "object"}, kind="JSON")
        assert schema_ids(registry.url, ["a", "nobody"]) == {number}


def test_settings_are_read_as_they_are_written(tmp_path: Path) -> None:
    rules = rules_in(tmp_path)
    assert (rules.max_delay_ms, rules.max_ahead_ms, rules.max_bytes) == (60_000, 10_000, 100)
    assert (rules.gap_ms, rules.max_duration_ms, rules.rejects) == (300_000, 86_400_000, "{topic}.rejects")
    assert rules.views == (View("all", (), 60_000, 60_000, ("temperature", "humidity")),)
    (tmp_path / "secret").write_text("pass\n")
    environ = {
        "TIDEMARK_REDIS__URL": "redis://me@there:1/2",
        "TIDEMARK_REDIS__PASSWORD_FILE": "secret",
        "OTHER__A": "b",
    }
    assert read_rules(tmp_path / "tidemark.toml", environ).redis_url == "redis://me:pass@there:1/2"
    assert [amount(text) for text in ("1.5 s", "2 h", 7, "64 KiB")] == [1_500, 7_200_000, 7, 65_536]
    with pytest.raises(ValueError, match="neither a duration nor a size"):
        amount("ten seconds")


def test_reference_rows_become_text(tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(tmp_path / "d.db")) as connection:
        connection.execute("create table d (id text, site text, floor int, other text)")
        connection.execute("insert into d values ('a', 'x', 3, 'o'), ('b', null, null, 'o'), (null, 'y', 1, 'o')")
        connection.commit()
    extra = (
        '[reference]\nurl = "jdbc:sqlite:d.db"\nkey = "id"\ncolumns = ["site", "floor"]\nquery = "select * from d"\n'
    )
    assert read_reference(rules_in(tmp_path, extra=extra)) == {
        "a": {"site": "x", "floor": "3", "other": "o"},
        "b": {"site": None, "floor": None, "other": "o"},
    }


def test_keys_are_unambiguous() -> None:
    attributes = {"site": "a|b", "room": "50%", "none": None}
    assert key_text((), "d", attributes) == "all"
    assert key_text(("site",), "d", attributes) == "a|b"
    assert key_text(("device",), "d", attributes) == "d"
    assert key_text(("site", "room", "device"), "d|", attributes) == "a%7Cb|50%25|d%7C"
    assert key_text(("none",), "d", attributes) == "(none)"
    assert key_text(("site", "none"), "d", {}) == "(none)|(none)"


def columns(rows: list[tuple[str, int, float | None]]) -> Readings:
    names = list(dict.fromkeys(name for name, _, _ in rows))
    return Readings(
        names,
        np.array([names.index(name) for name, _, _ in rows], np.int32),
        np.array([ms for _, ms, _ in rows], np.int64),
        {"m": np.array([math.nan if x is None else x for _, _, x in rows], np.float64)},
    )


numbers = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: round(x, 3))
rows_of_readings = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-50, 200), st.none() | numbers), max_size=40)


@examples(200)
@given(rows_of_readings, st.sampled_from([(20, 20), (30, 10), (7, 7), (40, 5)]), st.booleans())
def test_windows_equal_an_exact_recomputation(
    rows: list[tuple[str, int, float | None]], lengths: tuple[int, int], by_device: bool
) -> None:
    length, step = lengths
    view = View("v", ("device",) if by_device else (), length, step, ("m",))
    all_windows = windows([view], columns(rows), {}, 100)
    right: dict[tuple[str, int], list[tuple[int, Fraction]]] = {}
    for device, ms, x in rows:
        for start in range(-200, 400):
            if x is not None and start % step == 0 and start <= ms < start + length:
                right.setdefault((device if by_device else "all", start), []).append((ms, Fraction(x)))
    assert {(key, start) for _, _, key, start in all_windows} == right.keys()
    assert len(all_windows) == len(right)
    assert [all_windows.number(place) for place in all_windows] == list(range(len(all_windows)))
    for (key, start), readings in right.items():
        value = all_windows["v", "m", key, start]
        xs = [x for _, x in readings]
        mean = sum(xs) / len(xs)
        variance = sum((x - mean) ** 2 for x in xs) / len(xs)
        scale = float(max(map(abs, xs)))
        assert (value.start, value.end, value.count) == (start, start + length, len(xs))
        assert (value.min, value.max) == (float(min(xs)), float(max(xs)))
        assert (value.first, value.last) == (min(ms for ms, _ in readings), max(ms for ms, _ in readings))
        assert value.sum == pytest.approx(float(sum(xs)), rel=1e-15, abs=1e-13 * scale)
        assert value.mean == pytest.approx(float(mean), rel=1e-15, abs=1e-15 * scale)
        assert value.stddev == pytest.approx(math.sqrt(variance), rel=1e-12, abs=1e-15 * scale)
        assert value.final == (start + length <= 100)


def test_a_deviation_a_millionth_of_a_mean_is_exact() -> None:
    xs = [1e6 + k / 1000 for k in (1, 2, 3, 4)] * 1_000
    value = windows([View("v", (), 60, 60, ("m",))], columns([("d", 1, x) for x in xs]), {}, 0)["v", "m", "all", 0]
    assert value.stddev == pytest.approx(math.sqrt(1.25) / 1000, rel=1e-6)
    assert value.sum == math.fsum(xs)


def test_a_window_that_is_not_there_is_a_key_error() -> None:
    all_windows = windows([View("v", (), 60, 60, ("m",))], columns([("d", 1, 1.0)]), {}, 0)
    for place in (("v", "m", "all", 60), ("v", "m", "all", -60), ("v", "m", "d", 0), ("w", "m", "all", 0)):
        assert all_windows.number(place) is None
        with pytest.raises(KeyError):
            all_windows[place]


def test_readings_too_far_apart_for_one_number_are_refused() -> None:
    rows: list[tuple[str, int, float | None]] = [("a", 0, 1.0), ("b", 1 << 62, 1.0)]
    with pytest.raises(ValueError, match="too far apart"):
        windows([View("v", ("device",), 60, 60, ("m",))], columns(rows), {}, 0)


def spans(times: list[int], gap: int, longest: int, watermark: int) -> list[tuple[int, int, int, str, str]]:
    all_sessions = sessions(columns([("d", ms, 1.0) for ms in times]), gap, longest, watermark)
    return [(s.start, s.last, s.count, s.state, s.reason) for s in all_sessions.values()]


def test_readings_one_gap_apart_are_of_one_session_and_more_apart_are_not() -> None:
    assert spans([0, 10, 20, 31], 10, 1600, 41) == [(0, 20, 3, "closed", "gap"), (31, 31, 1, "open", "")]


def test_a_session_is_closed_when_nothing_can_join_it_any_more() -> None:
    assert spans([0], 10, 1600, 10) == [(0, 0, 1, "open", "")]
    assert spans([0], 10, 1600, 11) == [(0, 0, 1, "closed", "gap")]


def test_an_endless_session_is_cut_at_the_edge_of_a_cell() -> None:
    # Cells of 10. From 3 on, the cells up to [150, 160) end within 163; [160, 170) does not.
    pieces = spans(list(range(3, 333, 5)), 10, 160, 500)
    assert [(start, last) for start, last, *_ in pieces] == [(3, 158), (163, 318), (323, 328)]
    assert [reason for *_, reason in pieces] == ["max_duration", "max_duration", "gap"]


def test_readings_of_the_cell_a_session_begins_in_are_never_cut_off() -> None:
    # Cells of 1 and a longest duration of 1: every cell is a session of its own.
    assert spans([0, 0, 1, 2], 5, 1, 3) == [
        (0, 0, 2, "open", ""),
        (1, 1, 1, "open", ""),
        (2, 2, 1, "open", ""),
    ]


@examples(100)
@given(rows_of_readings, st.randoms(use_true_random=False))
def test_sessions_do_not_depend_on_the_order_of_readings(
    rows: list[tuple[str, int, float | None]], chance: random.Random
) -> None:
    shuffled = chance.sample(rows, len(rows))
    first = sessions(columns(rows), 9, 60, 120)
    again = sessions(columns(shuffled), 9, 60, 120)
    # Of 0 and -0 it is no matter which is the smaller one.
    assert repr(sorted(first.items())).replace("-0.0", "0.0") == repr(sorted(again.items())).replace("-0.0", "0.0")
    assert sum(s.count for s in first.values()) == len(rows)
    for (device, start), session in first.items():
        xs = [x for name, ms, x in rows if name == device and start <= ms <= session.last and x is not None]
        value = session.measures["m"]
        assert session.last - session.start <= 60
        assert value.count == len(xs)
        if xs:
            assert (value.min, value.max) == (min(xs), max(xs))
            assert value.mean == pytest.approx(float(sum(map(Fraction, xs)) / len(xs)), rel=1e-14, abs=1e-9)
        else:
            assert math.isnan(value.mean)


def test_a_device_keeps_its_last_values_and_of_two_at_one_time_the_larger() -> None:
    rows: list[tuple[str, int, float | None]] = [
        ("d", 5, 2.0),
        ("d", 5, 3.0),
        ("d", 4, 9.0),
        ("d", 6, None),
        ("e", 9, None),
    ]
    readings = columns(rows)
    all_devices = devices(readings, sessions(readings, 10, 160, 17), {"d": {"site": "x"}})
    assert (all_devices["d"].status, all_devices["d"].last_seen, all_devices["d"].session) == ("offline", 6, None)
    assert all_devices["d"].values == {"m": (3.0, 5)}
    assert all_devices["d"].attributes == {"site": "x"}
    assert (all_devices["e"].status, all_devices["e"].session, all_devices["e"].values) == ("online", 9, {})


def test_a_device_has_the_limits_that_its_row_of_the_reference_says(tmp_path: Path) -> None:
    rules = rules_in(
        tmp_path,
        extra='[reference]\nurl = "jdbc:sqlite:x"\nquery = ""\ncolumns = ["site"]\nsession_gap = "gap"\n'
        'expected_interval = "every"\n[reference.ranges]\ntemperature = ["low", "high"]\n',
    )
    reference: Reference = {
        "own": {"site": "x", "gap": "400 s", "every": "1000", "low": "3", "high": None},
        "none": {"site": "y", "gap": None, "every": None, "low": None, "high": None},
    }
    ledger = Ledger(rules, reference)
    taken = {}
    rows = [("own", 0, 3), ("own", 0, 2.9), ("own", 350_000, 4), ("none", 0, -5), ("none", 350_000, 4)]
    for offset, (device, ms, t) in enumerate(rows):
        value = encode({**GOOD, "device_id": device, "at": NOW + ms, "t": t})
        taken[offset] = ledger.take(Record("readings", 0, offset, NOW + ms, None, value))
    assert [offset for offset, reason in taken.items() if reason] == [1]
    expected = ledger.close(NOW + 351_001)
    assert {(device, start - NOW): s.state for (device, start), s in expected.sessions.items()} == {
        ("own", 0): "open",
        ("none", 0): "closed",
        ("none", 350_000): "open",
    }
    assert {device: each.status for device, each in expected.devices.items()} == {"own": "quiet", "none": "online"}
    assert expected.devices["own"].attributes == {"site": "x"}


def test_of_two_open_sessions_the_device_names_the_latest() -> None:
    readings = columns([("d", 0, 1.0), ("d", 20, 1.0)])
    assert devices(readings, sessions(readings, 10, 160, 5), {})["d"].session == 20


def take_all(rules: Rules, rows: list[tuple[str, int]]) -> Expected:
    ledger = Ledger(rules, {})
    for offset, (device, ms) in enumerate(rows):
        value = encode({"device_id": device, "at": NOW + ms, "t": 1})
        ledger.take(Record("readings", offset % 2, offset // 2, NOW, None, value))
    return ledger.close(NOW)


def test_per_partition_consumed_is_admitted_and_rejected(tmp_path: Path) -> None:
    expected = take_all(rules_in(tmp_path), [("d", 0), ("d", 99_000), ("", 0), ("d", 1), ("d", 2)])
    assert {place: (p.consumed, p.admitted, p.rejected) for place, p in expected.partitions.items()} == {
        ("readings", 0): (3, 2, 1),
        ("readings", 1): (2, 1, 1),
    }
    assert expected.rejects == {("readings", 0, 1): "no_device", ("readings", 1, 0): "early"}
    assert expected.devices["d"].last_seen == NOW + 2


def test_a_filter_takes_nan_for_larger_than_every_number_as_spark_does() -> None:
    values = {"power": float("nan")}
    results = [Predicate(f"power {operator} 100", ("power",))(values) for operator in (">", "<", "=")]
    assert results == [True, False, False]

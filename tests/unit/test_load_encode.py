"""Records: byte for byte what fastavro writes, readable by schema id, and each outsider is what it says."""

import io
import json
import math
import struct

import fastavro
import numpy as np
import pytest

from load.fleet.encode import SCHEMAS, YEAR_2099_MS, AvroEncoder, JsonEncoder, encode, key_of
from load.fleet.fleet import DAY_MS, HOUR_MS, MEASURES, Fleet, FleetSettings, Kind, Readings, with_outsiders

START_MS = 1_760_000_000_000
SCHEMA = {each: fastavro.parse_schema(json.loads((SCHEMAS / f"{each}.avsc").read_text())) for each in (1, 2)}
DAMAGED = {
    Kind.RANDOM,
    Kind.TRUNCATED,
    Kind.UNKNOWN_SCHEMA,
    Kind.HUGE_LENGTH,
    Kind.NULL_VALUE,
    Kind.TRAILING,
    Kind.OVERSIZED,
}


def some(kind: Kind | None = None, evolved: float = 0.3, n: int = 2_000) -> tuple[Fleet, Readings, np.ndarray]:
    shares = with_outsiders(0.5, kind) if kind else {}
    fleet = Fleet(11, FleetSettings(devices=300, rate=1_000, evolved=evolved, shares=shares))
    readings = fleet.readings(0, 10_000, START_MS).between(0, n)
    return fleet, readings, (START_MS + readings.due_ms).astype(np.int64) - readings.delay_ms


def record_of(fleet: Fleet, readings: Readings, row: int, event_ms: int) -> dict[str, object]:
    measures = {
        name: readings.values[row, column]
        for column, name in enumerate(MEASURES)
        if not math.isnan(readings.values[row, column])
    }
    return {"device_id": fleet.names[readings.device[row]], "event_time": event_ms, **measures}


def decoded(value: bytes) -> tuple[int, dict[str, object], bytes]:
    magic, schema_id = struct.unpack(">bI", value[:5])
    assert magic == 0
    body = io.BytesIO(value[5:])
    return schema_id, fastavro.schemaless_reader(body, SCHEMA[schema_id], None), body.read()


def test_ordinary_records_are_the_bytes_that_fastavro_writes() -> None:
    fleet, readings, event_ms = some()
    values = encode(AvroEncoder(fleet), fleet, readings, event_ms)
    ids = set()
    for row, value in enumerate(values):
        device = readings.device[row]
        record = record_of(fleet, readings, row, int(event_ms[row]))
        schema_id = 2 if fleet.evolved[device] else 1
        if schema_id == 2:
            record["firmware"] = "2.1.0"
        expected = io.BytesIO()
        expected.write(b"\x00" + schema_id.to_bytes(4, "big"))
        fastavro.schemaless_writer(expected, SCHEMA[schema_id], record)
        assert value == expected.getvalue()
        ids.add((schema_id, fleet.type[device]))
    assert len(ids) == 10  # each type under each schema


def outsider_is_right(kind: Kind, record: dict[str, object], event_ms: int, plain: dict[str, object]) -> None:
    measures = [record[name] for name in MEASURES if name in plain]
    shift = record["event_time"] - event_ms
    if kind is Kind.LATE:
        assert -7 * HOUR_MS <= shift <= -6 * HOUR_MS
    elif kind is Kind.AHEAD:
        assert shift == DAY_MS
    elif kind is Kind.YEAR_2099:
        assert YEAR_2099_MS <= record["event_time"] < YEAR_2099_MS + DAY_MS
    elif kind is Kind.NOT_A_NUMBER:
        assert all(math.isnan(each) for each in measures)
    elif kind is Kind.OUT_OF_RANGE:
        assert set(measures) == {1e9}
    elif kind is Kind.NO_DEVICE:
        assert record["device_id"] == ""
    elif kind is Kind.UNKNOWN_DEVICE:
        assert record["device_id"].startswith("ghost-")


@pytest.mark.parametrize("encoding", ["avro", "json"])
@pytest.mark.parametrize("kind", sorted(set(Kind) - DAMAGED - {Kind.ORDINARY, Kind.DUPLICATE}))
def test_an_outsider_that_can_be_read_is_what_its_kind_says_and_nothing_else(kind: Kind, encoding: str) -> None:
    fleet, readings, event_ms = some(kind)
    encoder = AvroEncoder(fleet) if encoding == "avro" else JsonEncoder(fleet)
    seen = 0
    for row, value in enumerate(encode(encoder, fleet, readings, event_ms)):
        plain = record_of(fleet, readings, row, int(event_ms[row]))
        if encoding == "avro":
            record = decoded(value)[1]
            record["event_time"] = round(record["event_time"].timestamp() * 1000)
        else:
            record = json.loads(value)
        if readings.kind[row] == kind:
            outsider_is_right(kind, record, int(event_ms[row]), plain)
            seen += 1
        else:
            assert {name: record[name] for name in plain} == plain
    assert seen > 500


def test_a_null_value_is_none_and_keys_follow_the_device_id() -> None:
    fleet, readings, event_ms = some(Kind.NULL_VALUE)
    values = encode(AvroEncoder(fleet), fleet, readings, event_ms)
    assert [value is None for value in values] == [kind == Kind.NULL_VALUE for kind in readings.kind]
    assert key_of(fleet, 3, Kind.RANDOM) == fleet.names[3].encode()
    assert key_of(fleet, 3, Kind.NO_DEVICE) == b""
    assert key_of(fleet, 3, Kind.UNKNOWN_DEVICE) == b"ghost-000003"

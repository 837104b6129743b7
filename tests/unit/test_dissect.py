"""What can be told of a record's bytes when the record itself is of no use."""

import json
from pathlib import Path

import pytest

from service.commands import dissect
from service.commands.metadata import Metadata
from service.settings import Input
from service.units import format_time, parse_time_ms
from tests.stream.records import BASE_MS, avro, write_schemas

MEASURES = {"temperature": "temperature"}
HEAD = 5


@pytest.fixture
def given(tmp_path: Path) -> Input:
    return Input(schemas=write_schemas(tmp_path), measures=MEASURES)


def value(temperature: float | None = 20.0) -> bytes:
    return avro(device_id="d1", event_time=BASE_MS, temperature=temperature, humidity=None)


def test_a_whole_record_is_told_field_by_field_with_its_bytes(given: Input) -> None:
    dissected = dissect.dissect(value(), given, dissect.writers(given))
    assert (dissected.whole, dissected.schema, dissected.at("temperature")) == (True, 1, 20.0)
    assert dissected.spans["device_id"] == (5, 8)
    assert value()[slice(*dissected.spans["device_id"])] == b"\x04d1"
    assert [end for _, end in dissected.spans.values()][-1] == len(value())
    assert dissect.event_ms(dissected, given) == BASE_MS
    assert dissect.device(dissected, Metadata(b"other"), given) == "d1"


@pytest.mark.parametrize(
    ("found", "expected"),
    [(0, "0"), (17, "17"), ("", "the-key"), (True, "the-key"), (None, "the-key")],
)
def test_the_device_is_a_text_or_a_whole_number_else_the_key(given: Input, found: object, expected: str) -> None:
    dissected = dissect.Dissected({"device_id": found}, {})
    assert dissect.device(dissected, Metadata(b"the-key"), given) == expected


def test_a_broken_record_is_told_as_far_as_it_goes(given: Input) -> None:
    schemas = dissect.writers(given)
    micro_batch = dissect.dissect(value()[:-3], given, schemas)
    assert list(micro_batch.fields) == ["device_id", "event_time"]
    assert micro_batch.stop == micro_batch.spans["event_time"][1]
    assert micro_batch.why.startswith("temperature: ")
    assert dissect.offending(micro_batch, "undecodable", "", given, 100, 20) == (micro_batch.stop, 20)
    long = dissect.dissect(b"\0\0\0\0\1\x80\x80\x80\x80\x80\x40rest", given, schemas)
    assert (long.fields, long.stop) == ({}, HEAD)
    assert dissect.device(long, Metadata(b"the-key"), given) == "the-key"
    more = dissect.dissect(value() + b"\xff\xff", given, schemas)
    assert (more.at("temperature"), more.stop, more.why) == (20.0, len(value()), "2 bytes after the record")
    unknown = dissect.dissect(b"\0\0\0\0\7rest", given, schemas)
    assert (unknown.schema, unknown.stop, "7 is not known" in unknown.why) == (7, 1, True)
    assert dissect.offending(unknown, "unknown_schema", "", given, 100, 9) == (1, 5)
    assert dissect.dissect(b"\xffnoise", given, schemas).stop == 0
    assert dissect.dissect(None, given, schemas).why == "there is no value"


def test_the_offending_bytes_are_those_of_the_field_that_the_reason_names(given: Input) -> None:
    dissected = dissect.dissect(value(1e9), given, dissect.writers(given))
    size = len(value())
    span = dissect.offending(dissected, "out_of_range", "temperature = 1.0E9, allowed -40 to 80", given, 100, size)
    assert span == dissected.spans["temperature"]
    assert dissect.offending(dissected, "late", "", given, 100, size) == dissected.spans["event_time"]
    assert dissect.offending(dissected, "no_device", "", given, 100, size) == dissected.spans["device_id"]
    assert dissect.offending(dissected, "bad_device", "", given, 100, size) == dissected.spans["device_id"]
    assert dissect.offending(dissected, "oversized", "", given, 10, size) == (10, size)


def test_json_stops_at_the_byte_where_it_is_broken() -> None:
    given = Input(format="json", measures=MEASURES, event_time_unit="iso")
    text = '{"device_id":"gerät","temperature":1.5,}'.encode()
    assert dissect.dissect(text, given, {}).stop == len(text) - 1
    assert dissect.dissect(b'{"a":"\xff"}', given, {}).stop == 6
    assert dissect.dissect(b"[1]", given, {}).why == "is an array in JSON, expected an object"
    nested = dissect.dissect(b'{"device_id":"d","event_time":"2026-09-21T12:00:00Z","v":{"t":1}}', given, {})
    assert nested.at("v.t") == 1
    assert dissect.event_ms(nested, given) == parse_time_ms("2026-09-21T12:00", 0)


def test_a_mended_record_is_of_the_same_schema_and_what_does_not_fit_is_refused(given: Input) -> None:
    schemas = dissect.writers(given)
    seen = dissect.dissect(value(1e9), given, schemas)
    mended = dissect.encode(value(1e9), {**seen.fields, "temperature": 21.5}, given, schemas)
    assert mended == value(21.5)
    with pytest.raises(ValueError, match="does not fit schema 1"):
        dissect.encode(value(), {**seen.fields, "temperature": "warm"}, given, schemas)
    as_json = Input(format="json", measures=MEASURES)
    assert json.loads(dissect.encode(b"{}", {"device_id": "ä"}, as_json, {})) == {"device_id": "ä"}


def test_a_dump_marks_the_bytes_and_leaves_out_what_is_far_from_them() -> None:
    lines = list(dissect.hexdump(bytes(range(20)), (2, 4)))
    assert lines[0].startswith("  00000000  00 01 02 03")
    assert lines[1].index("^") == lines[0].index("02")
    assert lines[1].count("^") == 4
    assert len(lines) == 3
    far = list(dissect.hexdump(bytes(70_000), (65_536, 70_000)))
    assert far[0] == "  ... 65504 bytes before"
    assert far[-1].endswith("bytes after")
    assert len(far) < 40


def test_times_are_written_as_people_write_them() -> None:
    assert parse_time_ms("2026-11-20T08:00+01:00", 0) == parse_time_ms("2026-11-20T07:00", 0)
    assert parse_time_ms("2h", 10_000_000) == 10_000_000 - 7_200_000
    assert parse_time_ms(str(BASE_MS), 0) == BASE_MS
    assert parse_time_ms(format_time(BASE_MS), 0) == BASE_MS
    assert format_time(1 << 62) == str(1 << 62)
    with pytest.raises(ValueError, match="two hours ago"):
        parse_time_ms("yesterday", 0)
    for text in ("9999999999999999", "9" * 4_000, "999999999 d"):
        with pytest.raises(ValueError, match="before the year 1 or after 9999"):
            parse_time_ms(text, BASE_MS)

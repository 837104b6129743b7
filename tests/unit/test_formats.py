"""The formats: one class for each name that the settings allow."""

import multiprocessing
import resource
import tracemalloc
from contextlib import suppress
from time import process_time
from typing import Any, get_args

import pytest

from load.faults import bombs
from load.judge.decoders import Pack, RejectedError
from service.admission.arrays import UnreadableArrayError
from service.admission.formats import FORMATS
from service.rejects import delivery
from service.rejects.fetch import Record
from service.settings import Input
from service.settings.formats import TRAITS


def test_each_format_of_the_settings_is_one_class_in_one_module() -> None:
    names = get_args(Input.model_fields["format"].annotation)
    assert set(names) == set(TRAITS) == set(FORMATS)
    modules = [type(each).__module__ for each in FORMATS.values()]
    assert len(set(modules)) == len(modules)


def test_a_format_with_schema_ids_keeps_its_schemas_in_files_of_its_own() -> None:
    suffixes = {name: each.suffix for name, each in FORMATS.items()}
    assert {name for name, suffix in suffixes.items() if suffix} == {name for name, each in TRAITS.items() if each.kind}
    kept = [suffix for suffix in suffixes.values() if suffix]
    assert len(set(kept)) == len(kept)


BOMBS = {
    "lists in one another": b"\x81" * 4_000_000,
    "endless lists": b"\x9f" * 4_000_000,
    "a list of 2^63": b"\x9b\x7f" + b"\xff" * 7,
    "bytes of 2^62": b"\x5b\x3f" + b"\xff" * 7,
    "a number of 4 MB": b"\x81\xa2\x00\x61a\x02\xc2\x5a\x00\x3d\x09\x00" + b"\xff" * 4_000_000,
    "a decimal with a huge exponent": b"\x81\xa2\x00\x61a\x02\xc4\x82\x1b\x0f" + b"\xff" * 7 + b"\x01",
    "a float with a huge exponent": b"\x81\xa2\x00\x61a\x02\xc5\x82\x1b\x0f" + b"\xff" * 7 + b"\x01",
    "many empty maps": b"\x9f" + b"\xa0" * 1_000_000 + b"\xff",
    "a list that holds itself": b"\xd8\x1c\x81\xd8\x1d\x00",
    "brackets": b"[" * 4_000_000,
    "objects": b"[" + b"{}," * 1_000_000 + b"{}]",
    "quotes": b'a,b\n"' + b'"' * 4_000_000,
    "commas": b"," * 4_000_000,
    "rows": b"a,b\n" + b"1,2\n" * 99_999,
    "tags": b"m" + b",a=b" * 800_000 + b" f=1",
    "fields": b"m f=1" + b",f=1" * 800_000,
    "backslashes": b"m f=" + b"\\" * 4_000_000,
    "an open text": b'm f="' + b'\\"' * 2_000_000,
    "lines": b"{}\n" * 99_999,
    "a base name that each measurement repeats": b'[{"bn":"'
    + b"a" * 80_000
    + b'","v":1}'
    + b',{"v":1}' * 99_999
    + b"]",
    "a header that each row repeats": b"a" * 80_000 + b"\n" + b"1\n" * 99_999,
    "rows of one sign": b"a,b\n" + b"1\n" * 3_000_000,
}


@pytest.mark.parametrize(
    ("name", "bomb", "text"),
    [
        ("senml", "a base name that each measurement repeats", r"more than 8388608 bytes.*input\.max_array_bytes"),
        ("csv", "a header that each row repeats", r"more than 8388608 bytes.*input\.max_array_bytes"),
        ("csv", "rows of one sign", "more than 100000 readings"),
    ],
)
def test_what_readings_repeat_is_counted_while_they_are_made(name: str, bomb: str, text: str) -> None:
    form = Input.model_validate({"format": name, "max_array_bytes": 8 << 20})
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableArrayError, match=text):
            FORMATS[name].cut(BOMBS[bomb], form, 0)
        assert tracemalloc.get_traced_memory()[1] < 128 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "bomb"),
    [
        ("senml-cbor", b"\x9f" + b"\xa0" * (8 << 20)),
        ("senml-cbor", b"\x9a\x00\x80\x00\x00" + b"\x80" * (8 << 20)),
        ("senml-cbor", b"\x81\xa1\x00\x9a\x00\x80\x00\x00" + b"\x80" * (8 << 20)),
        ("sparkplug-b", b"\x12\x00" * (4 << 20)),
    ],
)
def test_what_is_empty_takes_little_memory_until_it_is_refused(name: str, bomb: bytes) -> None:
    reader, writer = multiprocessing.get_context("fork").Pipe()

    def cut() -> None:  # in a process of its own, because the parsers' memory is not Python's
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(UnreadableArrayError):
            FORMATS[name].cut(bomb, Input(format=name), 0)
        writer.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

    FORMATS[name].looks_alike(b"")  # imports
    process = multiprocessing.get_context("fork").Process(target=cut)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert reader.recv() < 160 << 10, "KiB"


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("sparkplug-b", b"\x12\x04\n\x02\xff\xfe"),
        ("sparkplug-b", b"\x12\x03\x7a\x01\xff"),
        ("senml-cbor", b"\x81\xa2\x00\x61a\x02\xf8\x63"),
        ("senml-cbor", b"\x81\xa2\x00\x61a\x02\xd8\x1c\x81\xd8\x1d\x00"),
        ("senml-cbor", b"\x81\xa2\x00\xc2\x59\x10\x00" + b"\x01" * 4_096 + b"\x02\x01"),
    ],
    ids=[
        "a name that is not UTF-8",
        "a text that is not UTF-8",
        "a simple value",
        "a list in itself",
        "4 KB of a number",
    ],
)
def test_a_value_that_json_does_not_have_is_undecodable_and_ends_no_task(name: str, record: bytes) -> None:
    with pytest.raises(UnreadableArrayError) as error:
        FORMATS[name].cut(record, Input(format=name), 0)
    assert error.value.reason == "undecodable"


def test_a_rejected_reading_is_cut_out_of_its_record_as_the_service_has_read_it() -> None:
    form = Input.model_validate(
        {
            "format": "csv",
            "device_id": "unit",
            "columns": {"line": "line"},
            "measures": {"t": {"path": "value", "where": "id = '2.50'"}, "all": "u * i"},
        }
    )
    value = b"unit,line,id,value,u,i\n1.50,7.10,2.50,3,1,2\n1.0,8,2.50,4,1,2\n"
    seen = FORMATS["csv"].cut(value, form).each
    assert seen[0] == b'{"unit":"1.50","line":"7.10","id":"2.50","value":3,"u":1,"i":2}'
    for index, expected in enumerate(seen):
        assert delivery.of_reading(Record(b"k", value, []), index, form) == Record(b"k", expected, [])


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("name", [name for name, each in TRAITS.items() if each.is_cut])
def test_no_record_costs_much_or_stops_the_service(name: str, bomb: str) -> None:
    form = Input.model_validate({"format": name, "max_array_bytes": 8 << 20})
    begin = process_time()
    with suppress(UnreadableArrayError):
        FORMATS[name].cut(BOMBS[bomb], form, 0)
    assert process_time() - begin < 10


@pytest.mark.parametrize("schema", [{"properties": 5}, {"properties": ["t"]}, {"properties": {"t": 5}}, 5, True])
def test_a_json_schema_of_another_form_describes_every_field(schema: Any) -> None:
    assert FORMATS["json-schema"].describes(schema, ["t", "x"], Input(format="json-schema"))


def test_packed_bytes_with_a_blank_and_an_equals_sign_are_no_line_protocol() -> None:
    packed = b"\x1f\x8b\x08\x00 a=1\x02\xff" + b"\x8b" * 20
    assert not FORMATS["line-protocol"].looks_alike(packed)
    assert FORMATS["line-protocol"].looks_alike("größe,d=a t=1 1790000000000000000".encode())


@pytest.mark.parametrize(("name", "bomb"), [(name, bomb) for name, each in bombs.PACKS.items() for bomb in each])
def test_a_bomb_of_the_hostile_fleet_has_the_reason_that_the_oracle_gives(name: str, bomb: bytes) -> None:
    with pytest.raises(UnreadableArrayError) as error:
        FORMATS[name].cut(bomb, Input.model_validate({"format": name}), 0)
    with pytest.raises(RejectedError) as expected:
        Pack(None).read(bomb)  # type: ignore[arg-type]
    assert error.value.reason == str(expected.value)

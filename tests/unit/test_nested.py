"""Readings within a record: an array at a path, the fields around it, objects whose keys are names."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest

from service.admission import nested
from service.admission.arrays import UnreadableArrayError

LIMIT = 1 << 20


def cut(record: Any, path: str, limit: int = LIMIT) -> list[Any] | str | None:
    value = record if isinstance(record, bytes) else json.dumps(record).encode()
    try:
        found = nested.readings(value, path.split("."), limit)
    except UnreadableArrayError as error:
        return f"{error.reason}: {error}"
    return None if found is None else [json.loads(each) for each in found]


@pytest.mark.parametrize(
    ("path", "record", "expected"),
    [
        ("values", {"ts": 1, "values": [{"t": 5}, {"t": 6}]}, [{"t": 5, "^": {"ts": 1}}, {"t": 6, "^": {"ts": 1}}]),
        ("values", {"values": [{"t": 5}]}, [{"t": 5, "^": {}}]),
        ("values", {"values": [{}, 7, "x", None, [1, 2.5]], "ts": 1}, 5),
        ("values", {"values": {"t": 5}, "ts": 1}, [{"t": 5, "^": {"ts": 1}}]),
        (
            "data.values",
            {"id": "a", "data": {"unit": "C", "values": [{"t": 5}]}},
            [{"t": 5, "^": {"unit": "C", "^": {"id": "a"}}}],
        ),
        (
            "a.b",
            {"id": 1, "a": [{"x": 1, "b": [{"t": 5}]}, {"x": 2, "b": [{"t": 6}, {"t": 7}]}]},
            [
                {"t": 5, "^": {"x": 1, "^": {"id": 1}}},
                {"t": 6, "^": {"x": 2, "^": {"id": 1}}},
                {"t": 7, "^": {"x": 2, "^": {"id": 1}}},
            ],
        ),
        (
            "*",
            {"pump-1": [{"t": 5}, {"t": 6}], "ts": 1, 'pump"2': {"t": 7}},
            [
                {"t": 5, "^": {"ts": 1}, "^key": "pump-1"},
                {"t": 6, "^": {"ts": 1}, "^key": "pump-1"},
                {"t": 7, "^": {"ts": 1}, "^key": 'pump"2'},
            ],
        ),
        ("devices.*", {"ts": 1, "devices": {"a": {"t": 5}}}, [{"t": 5, "^": {"^": {"ts": 1}}, "^key": "a"}]),
        ("values", [{"ts": 1, "values": [{"t": 5}]}, {"ts": 2, "values": [{"t": 6}]}], 2),
        ("values", {"t": 5, "^": {"ts": 1}}, None),
        (
            "payload",
            {"ts": 1, "payload": json.dumps({"t": 5, "u": "\u00e4"})},
            [{"t": 5, "u": "\u00e4", "^": {"ts": 1}}],
        ),
        ("a.b", {"a": json.dumps({"b": [{"t": 5}, {"t": 6}], "c": 1})}, 2),
        ("payload", {"payload": "[1"}, "undecodable: is not JSON: what begins at byte 0 has no end"),
        ("payload", {"payload": "warm"}, [{"value": "warm", "^": {}}]),
        (
            "payload",
            {"payload": json.dumps(json.dumps({"t": 5}))},
            [{"value": json.dumps(json.dumps({"t": 5})), "^": {}}],
        ),
        ("values", {"ts": 1, "values": []}, "filtered: the record has no readings"),
        ("values", {"ts": 1, "values": None}, "filtered: the record has no readings"),
        ("values", {"ts": 1}, "undecodable: has no field 'values', where its readings are"),
        ("a.b", {"a": [{"c": 1}, {"b": [{"t": 5}]}, {}]}, [{"t": 5, "^": {"^": {}}}]),
        ("a.b", {"a": [{"c": 1}, {"b": []}]}, "undecodable: has no field 'b', where its readings are"),
        ("*.b", {"x": {"b": [{"t": 5}]}, "y": {}}, [{"t": 5, "^": {"^": {}, "^key": "x"}}]),
        ("a.b", {"a": 5}, "undecodable: has no object with 'b', where its readings are"),
        ("values", b"[" * 8 + b'{"values":[{"t":5}]}' + b"]" * 8, [{"t": 5, "^": {}}]),
        (
            "values",
            b"[" * 9 + b'{"values":[{"t":5}]}' + b"]" * 9,
            "undecodable: has more than 8 arrays in one another before its readings",
        ),
        ("values", b"5", "undecodable: is neither an array of readings nor an object"),
        ("values", b'{"values":[{"t":5}]', "undecodable: is not JSON: it ends early"),
        ("values", b'{"values":[{"t":5}]}x', "undecodable: 1 bytes after the record"),
        ("values", b'{"values":[1,]}', "undecodable: is not JSON: expected a comma and a value at byte 12"),
        ("values", b'{"values" [1]}', "undecodable: is not JSON: expected a name at byte 1"),
        ("values", b'{"values":[1], }', "undecodable: is not JSON: expected a comma and a value at byte 13"),
        ("values", b'{"values":[{"t":"]}\\""}]}', [{"t": ']}"', "^": {}}]),
    ],
)
def test_readings_of_a_path_have_the_fields_around_it(path: str, record: Any, expected: Any) -> None:
    found = cut(record, path)
    assert (len(found or ()) if isinstance(expected, int) else found) == expected


def test_elements_that_are_no_objects_become_objects() -> None:
    record = {"values": [7, "x", None, [1, 2.5], {}, []], "ts": 1}
    around = {"^": {"ts": 1}}
    assert cut(record, "values") == [
        {"value": 7, **around},
        {"value": "x", **around},
        {"value": None, **around},
        {"0": 1, "1": 2.5, **around},
        around,
        around,
    ]


def test_the_bytes_of_an_element_are_those_of_the_record() -> None:
    found = nested.readings(
        b'{ "ts": 1e400, "values" : [ {"t" : 1.50, "u":"\\u00e4"} , 12345678901234567890123 ] }', ["values"], LIMIT
    )
    assert found == [
        b'{"t" : 1.50, "u":"\\u00e4","^":{"ts": 1e400}}',
        b'{"value":12345678901234567890123,"^":{"ts": 1e400}}',
    ]


def test_fields_around_many_readings_are_bounded() -> None:
    record = {"note": "x" * 1_000, "values": [1] * 1_000}
    assert str(cut(record, "values", 100_000)).startswith("oversized: its readings have more than 100000 bytes")
    assert str(cut({"values": [1] * 100_001}, "values", 1 << 24)).startswith("oversized: more than 100000 readings")


@pytest.mark.parametrize(
    "value", [b"[" * 1_000_000, b'{"a":' * 200_000, b'{"values":' + b"[" * 500_000 + b"]" * 500_000 + b"}"]
)
def test_a_deep_record_takes_no_stack_and_no_long_time(value: bytes) -> None:
    begin = time.process_time()
    with suppress(UnreadableArrayError):
        nested.readings(value, ["values"], LIMIT)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    ("path", "arrays"),
    [("a.b", b'"a":[' + b",".join([b'{"b":[]}'] * 50_000) + b"]"), ("*", b",".join([b'"a":[]'] * 50_000))],
)
def test_many_arrays_without_a_reading_take_no_long_time_beside_a_long_field(path: str, arrays: bytes) -> None:
    value = b'{"note":"' + b"x" * 2_000_000 + b'",' + arrays + b"}"
    begin = time.process_time()
    with pytest.raises(UnreadableArrayError, match="has no readings"):
        nested.readings(value, path.split("."), 8 << 20)
    assert time.process_time() - begin < 5

"""Records that are arrays: what they hold, what is refused as a whole, and what a hostile one may cost."""

import gzip
import json
import random
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from pydantic import ByteSize

from load.judge import arrays as oracle
from service.admission import arrays
from service.admission.arrays import EMPTY, MAX_READINGS, NO_INDEX, UnreadableArrayError, elements, unpacked
from service.admission.expansion import DETAIL, FAULT, INDEX, Expander
from service.aggregation.screen import OFFSET_BITS, _offset_and_index
from service.commands import compatibility
from service.errors import SettingsError
from service.pipeline.outcome import Outcome
from service.rejects import delivery
from service.rejects.fetch import Record
from service.rejects.reject_log import Coordinates
from service.settings import Input, parse
from tests.unit.test_inputs import document

LIMIT = 8 << 20
KEY = b"k" * 60_000


def outcome(value: bytes, limit: int = LIMIT) -> list[bytes] | str | None:
    try:
        return elements(unpacked(value, limit))
    except UnreadableArrayError as error:
        return f"{error.reason}: {error}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'[{"a":1},{"a":2}]', [b'{"a":1}', b'{"a":2}']),
        (b' [ {"a" : [1, 2]} ,\n{"b": {"c": [{}]}}]\r\n', [b'{"a" : [1, 2]}', b'{"b": {"c": [{}]}}']),
        (b'[{"a":"]},{[,\\""},{"b":"\\\\"}]', [b'{"a":"]},{[,\\""}', b'{"b":"\\\\"}']),
        (b'[{"a":1},5,null,[{"a":1}],"x",{"a":tru},{"a":2}]', 7),
        (b'[{"a":1],{"a":2}]', [b'{"a":1]', b'{"a":2}']),
        (b"[1,,2,]", [b"1", b"", b"2", b""]),
        (b'{"a":[1,2]}', None),
        (b"[]", "filtered: the array has no readings"),
        (b" [ \n] ", "filtered: the array has no readings"),
        (b"", "undecodable: is neither an array of readings nor an object"),
        (b"null", "undecodable: is neither an array of readings nor an object"),
        (b'"[{}]"', "undecodable: is neither an array of readings nor an object"),
        (b'[{"a":1},{"a":2}', "undecodable: the array has no end"),
        (b"[{}]]", "undecodable: 1 bytes after the array"),
        (b"[{}][{}]", "undecodable: 4 bytes after the array"),
        (b'[{"a":1},{"a:2}]', "undecodable: the array has a string without an end, at byte 10"),
        (b"\xff[{}]", "undecodable: is neither an array of readings nor an object"),
    ],
)
def test_an_array_is_cut_or_the_fault_is_named(value: bytes, expected: list[bytes] | int | str | None) -> None:
    for each in (value, gzip.compress(value, mtime=0)):
        found = outcome(each)
        assert (len(found) if isinstance(expected, int) and isinstance(found, list) else found) == expected


def test_cuts_are_those_of_a_parser_of_json_and_of_the_oracle() -> None:
    chance = random.Random(7)

    def value(depth: int) -> object:
        kind = chance.randrange(7 if depth < 4 else 4)
        if kind < 4:
            return [None, chance.random(), "".join(chance.choices('ab"\\[]{},: \n', k=chance.randrange(6))), True][kind]
        if kind == 4:
            return [value(depth + 1) for _ in range(chance.randrange(4))]
        return {str(n): value(depth + 1) for n in range(chance.randrange(4))}

    for _ in range(500):
        array = [value(0) for _ in range(1 + chance.randrange(5))]
        text = json.dumps(array, indent=chance.choice([None, 1])).encode()
        assert [json.loads(each) for each in elements(text) or ()] == array
        # Damaged text: the same cuts or the same refusal as the oracle's, which goes letter by letter.
        broken = bytearray(text)
        for _ in range(chance.randrange(1, 3)):
            broken[chance.randrange(len(broken))] = chance.choice(b'[]{},"\\x ')
        try:
            theirs: object = oracle.readings(bytes(broken), LIMIT, 0)
        except oracle.NoReadingsError as fault:
            theirs = str(fault) or EMPTY
        ours = outcome(bytes(broken))
        assert (ours.partition(":")[0] if isinstance(ours, str) else ours) == theirs, broken


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (gzip.compress(b"[{}", mtime=0) + gzip.compress(b",{}]", mtime=0) + b"\0\0", [b"{}", b"{}"]),
        (gzip.compress(b"[{}]", mtime=0)[:-1], "undecodable: gzip: the stream ends early"),
        (gzip.compress(b"[{}]", mtime=0)[:12], "undecodable: gzip: the stream ends early"),
        (b"\x1f\x8b", "undecodable: gzip: the stream ends early"),
        (b"\x1f\x8b" + b"x" * 20, "undecodable: gzip: Error -3 while decompressing data"),
        (gzip.compress(b"[{}]", mtime=0)[:-8] + b"01234567", "undecodable: gzip: Error -3 while decompressing data"),
        (gzip.compress(b"[{}]", mtime=0) + b"x", "undecodable: gzip: the stream ends early"),
        (gzip.compress(b"", mtime=0) * 101, "undecodable: gzip: more than 100 members"),
        (b"[" + b" " * LIMIT + b"]", "oversized: 8388610 bytes, limit 8388608 (input.max_array_bytes)"),
    ],
)
def test_compressed_bytes_are_read_or_refused_by_name(value: bytes, expected: list[bytes] | str) -> None:
    found = outcome(value)
    assert found[: len(expected)] == expected if isinstance(found, str) else found == expected


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join([packer.compress(b" " * (1 << 20)) for _ in range(64)]) + packer.flush()
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        found = outcome(bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == f"oversized: {len(bomb)} bytes of gzip, unpacked limit 8388608 (input.max_array_bytes)"
    assert peak < 5 * LIMIT


def test_no_text_takes_more_than_time_in_proportion_to_its_length() -> None:
    # A cut that goes back over its text would take minutes for these 400 kB.
    for part in (b'{"a":', b'{"', b'"a"', b"[{", b'{"a":"{', b"{{}", b'["\\'):
        assert isinstance(outcome(b"[" + part * (400_000 // len(part))), str)


def test_an_array_has_at_most_100_000_readings() -> None:
    assert MAX_READINGS == oracle.MOST
    text = b"[" + b",".join([b"{}"] * MAX_READINGS) + b"]"
    found = outcome(text)
    assert isinstance(found, list)
    assert len(found) == MAX_READINGS
    assert outcome(text[:-1] + b",{}]") == "oversized: more than 100000 readings in one record"


def records(*values: bytes | None, topic: str = "readings", key: bytes | None = b"k") -> pa.RecordBatch:
    size = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array(values, pa.binary()),
            "key": pa.array([key] * size, pa.binary()),
            "topic": [topic] * size,
            "partition": pa.array([0] * size, pa.int32()),
            "offset": pa.array(range(size), pa.int64()),
            "timestamp": pa.array([0] * size, pa.timestamp("us", "UTC")),
        }
    )


EXPANDER = Expander({"readings": Input(format="json", array=True, max_array_bytes=ByteSize(LIMIT))}, 65_536)


def test_a_record_becomes_its_readings_in_their_order() -> None:
    given = records(b"[1,2]", None, b'{"a":1}', b"[]", gzip.compress(b"[3]", mtime=0), b"nothing")
    [batch] = EXPANDER([given])
    rows = [tuple(row[name] for name in ("offset", "value", INDEX, FAULT)) for row in batch.to_pylist()]
    assert rows == [
        (0, b"1", 0, None),
        (0, b"2", 1, None),
        (1, None, None, None),
        (2, b'{"a":1}', None, None),
        (3, b"[]", None, EMPTY),
        (4, b"3", 0, None),
        (5, b"nothing", None, "undecodable"),
    ]
    assert batch.to_pylist()[-1][DETAIL] == "is neither an array of readings nor an object"


def test_a_detail_that_quotes_half_of_a_character_is_text() -> None:
    expander = Expander({"readings": Input(format="senml")}, 65_536)
    [batch] = expander([records(rb'[{"n": "a", "\ud800_": 1}]')])
    assert batch.to_pylist()[0][DETAIL] == r"measurement 0: \ud800_ must be understood, and is not known"


def test_records_of_other_inputs_pass_as_they_are() -> None:
    [batch] = EXPANDER([records(b"[1,2]", b"\x1f\x8b", topic="others")])
    assert [(row["value"], row[INDEX], row[FAULT]) for row in batch.to_pylist()] == [
        (b"[1,2]", None, None),
        (b"\x1f\x8b", None, None),
    ]


def test_batches_of_readings_are_bounded_in_rows_and_bytes() -> None:
    many = b"[" + b",".join([b"{}"] * 20_000) + b"]"
    sizes = [batch.num_rows for batch in EXPANDER([records(many, many)])]
    assert sum(sizes) == 40_000
    assert max(sizes) == 5_000
    large = b"[" + b",".join([b'"' + b"x" * 1_000_000 + b'"'] * 8) + b"]"
    assert max(batch.num_rows for batch in EXPANDER([records(large, large)])) == 5


def test_batches_are_bounded_by_the_copies_of_keys_and_headers_too() -> None:
    many = b"[" + b",".join([b"{}"] * 100) + b"]"
    sizes = [sum(map(len, batch.column("key").to_pylist())) for batch in EXPANDER([records(*[many] * 50, key=KEY)])]
    assert sum(sizes) == 5_000 * len(KEY)
    assert max(sizes) < (4 << 20) + 2 * len(KEY)
    given = [[{"key": "h", "value": KEY}]] * 50
    kind = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    with_headers = replace(EXPANDER, carried=("headers",))
    batches = [*with_headers([records(*[many] * 50).append_column("headers", pa.array(given, kind))])]
    assert sum(each.num_rows for each in batches) == 5_000
    assert max(each.num_rows for each in batches) <= (4 << 20) / len(KEY) + 1
    heavy = records(b"[" + b",".join([b"{}"] * 200) + b"]").append_column("headers", pa.array(given[:1], kind))
    [batch] = with_headers([heavy])
    assert batch.to_pylist()[0][DETAIL] == (
        "601 bytes and a key of 1 and headers of 60001 for each of 200 readings, limit 8388608 (input.max_array_bytes)"
    )


def test_a_key_counts_for_each_reading_of_its_record() -> None:
    many = b"[" + b",".join([b"{}"] * 1_000) + b"]"
    [batch] = EXPANDER([records(many, key=b"k" * 10_000)])
    assert batch.to_pylist()[0][DETAIL] == (
        "3001 bytes and a key of 10000 for each of 1000 readings, limit 8388608 (input.max_array_bytes)"
    )
    [batch] = EXPANDER([records(b"[{}]", key=b"k" * 70_000)])
    assert (batch.num_rows, batch.to_pylist()[0][FAULT]) == (1, "oversized")


@pytest.mark.parametrize("text", ["readings[2]@1207#3", "readings/2/1207#3", "readings[2]@1207"])
def test_a_place_has_the_index_of_a_reading(text: str) -> None:
    [place] = Coordinates.parse(text)
    assert str(place) == text.replace("/", "[", 1).replace("/", "]@")
    assert place.index == (3 if "#" in text else NO_INDEX)
    assert sorted([place, Coordinates("readings", 2, 1207, 0)])


def test_a_place_in_a_key_for_duplicates_has_the_index_and_older_keys_have_none() -> None:
    assert _offset_and_index(1207) == "1207"
    assert _offset_and_index(1207 + (1 << OFFSET_BITS)) == "1207#0"
    assert _offset_and_index(1207 + ((MAX_READINGS) << OFFSET_BITS)) == f"1207#{MAX_READINGS - 1}"
    assert (MAX_READINGS << OFFSET_BITS) + (1 << OFFSET_BITS) < 1 << 63


REJECT = {"reason": "late", "detail": "d", "topic": "readings", "partition": 0, "offset": 1, "broker_ms": 2}


class Batch:
    epoch, batch = 3, 4


def test_headers_of_a_reject_have_the_index_whatever_a_device_sends() -> None:
    own = [("tidemark.index", b"9"), ("tidemark.omitted_bytes", b"8")]
    for index in (None, 0, 7):
        added = delivery.headers({**REJECT, "index": index}, Batch())  # type: ignore[arg-type]
        for record in delivery.forms(Record(b"k", b"v", list(own)), added):
            mine, values = delivery.split(record.headers)
            assert values.get("index") == index
            assert values["offset"] == 1
            assert mine in (own, [])
    assert delivery.split(own) == (own, {})


def test_a_reject_of_a_reading_has_its_bytes_alone() -> None:
    value = gzip.compress(b'[{"a":1}, {"a":2}]', mtime=0)
    record = Record(b"k", value, [("h", b"x")])
    assert delivery.of_reading(record, NO_INDEX) is record
    assert delivery.of_reading(record, 1) == Record(b"k", b'{"a":2}', [("h", b"x")])
    assert delivery.of_reading(record, 2) is None
    assert delivery.of_reading(Record(b"k", b"broken", []), 0) is None
    heavy = Record(b"k", value, [("h", b"x" * delivery.HEADERS_OF_A_READING)])
    assert delivery.of_reading(heavy, 0) == Record(b"k", b'{"a":1}', [])


def test_records_are_the_readings_without_further_ones() -> None:
    rejected = (1,) * len(Outcome().rejected)
    assert Outcome(admitted=5, rejected=rejected, filtered=2, further=4).records == 3 + len(rejected)


def test_sample_records_may_be_arrays(tmp_path: Path) -> None:
    given = {"name": "gateways", "topics": ["g"], "measures": {"t": "t"}, "format": "json", "array": True}
    good = '{"device_id": "a", "event_time": 1790000000000, "t": 1}'
    for text, expected in (
        (f"[{good},\n{good}]", "2 records can be decoded"),
        (f"[{good}]\n{good}\n[{good}, {good}]", "4 records can be decoded"),
        (f'[{good}, {{"t": "x"}}]', 'record 2: t = "x": expected a number'),
        (f"[{good}", "record 1: the array has no end (byte 0)"),
    ):
        (tmp_path / "sample.json").write_text(text)
        lines = compatibility.check(parse(document(given)), [tmp_path / "sample.json"])
        assert next(iter(lines)).detail.startswith(expected)


def test_arrays_are_of_json() -> None:
    given = {"name": "gateways", "topics": ["g"], "measures": {"t": "t"}, "array": True}
    with pytest.raises(
        SettingsError, match=r"inputs\.gateways\.array: needs format = 'json', and the format is 'avro'"
    ):
        parse(document(given))
    settings = parse(document({**given, "format": "json", "max_array_bytes": "1 MiB"}))
    assert (settings.has_arrays, settings.has_filter, int(settings.forms[0].max_array_bytes)) == (True, True, 1 << 20)
    with pytest.raises(SettingsError, match=r"max_array_bytes"):
        parse(document({**given, "format": "json", "max_array_bytes": arrays.LARGEST_ARRAY + 1}))


@settings_of_hypothesis(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ['{"a":1}', '{"a":"},{"}', "{}", '"', ",", ", ", "[", "]", "{", "}", "\\", "1", ' {"b": "x"} ']
        ),
        max_size=9,
    )
)
def test_flat_objects_are_cut_as_all_others(pieces: list[str]) -> None:
    for between in ("", ",", ", "):
        text = f"[{between.join(pieces)}]".encode()
        found = arrays._flat(text)
        assert found is None or found == arrays._walked(text)


def test_flat_objects_are_cut_without_a_walk() -> None:
    assert arrays._flat(b'[ {"a":1}, {"b":"x, y"} ]') == [b'{"a":1}', b'{"b":"x, y"}']
    assert arrays._flat(b'[{"a":"},{"},{"b":1}]') is None
    assert arrays._flat(b"[" + b",".join([b"{}"] * (MAX_READINGS + 1)) + b"]") is None

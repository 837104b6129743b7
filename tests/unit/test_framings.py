"""What stands before a record of Avro: every framing's header, without Spark."""

import json
import zlib
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto

from load.fleet.protobuf import varint
from load.servers.schema_registry import Registry
from service.admission import avro_types, guids, protobuf
from service.admission.formats import framings
from service.admission.protobuf import Unpacker
from service.admission.schema_sources import load_set
from service.commands import check_input, dissect, places, records
from service.commands.metadata import Metadata
from service.errors import SchemaError, SettingsError
from service.settings import Input, Measure, Settings, parse
from service.settings import Registry as Section
from tests.samples import sample
from tests.stream.messages import ENV, FILE, READING_CLASS
from tests.stream.records import BASE_MS, avro

VERSIONS = {1: "b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63", 2: "00000000-0000-0000-0000-000000000002"}
FIRST = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "device_id", "type": "string"},
        {"name": "event_time", "type": "long"},
        {"name": "t", "type": "double"},
    ],
}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "more", "type": "int", "default": 0}]}
SCHEMAS: dict[int, dict[str, Any]] = {1: FIRST, 2: SECOND}


def body(number: int, temperature: float) -> bytes:
    more = {"more": 7} if number == 2 else {}
    return avro(1, SCHEMAS[number], device_id="d", event_time=BASE_MS, t=temperature, **more)[5:]


# By framing: the header of each schema, and of one that nobody has. Fingerprints are compared elsewhere.
HEADERS: dict[str, tuple[bytes, bytes, bytes]] = {
    "confluent": (b"\0\0\0\0\1", b"\0\0\0\0\2", b"\0\0\0\0\x09"),
    "headers": (b"\0\0\0\0\1", b"\0\0\0\0\2", b"\0\0\0\0\x09"),
    "apicurio": (b"\0" * 8 + b"\1", b"\0" * 8 + b"\2", b"\0" * 8 + b"\x09"),
    "glue": (
        bytes.fromhex("0300b7b4a7f09c964e4aa687fb5de9ef0c63"),
        b"\3\0" + b"\0" * 15 + b"\2",
        b"\3\0" + b"\0" * 15 + b"\x09",
    ),
    "single-object": (b"", b"", b"\xc3\1" + b"\0" * 8),
}
HEADERS["glue-zlib"] = HEADERS["glue"]


def settings(folder: Path, framing: str, **given: Any) -> Settings:
    (folder / "avro").mkdir(exist_ok=True)
    for number, schema in SCHEMAS.items():
        (folder / "avro" / f"{number}.avsc").write_text(json.dumps(schema))
    versions = (
        {"schema_versions": {str(number): each for number, each in VERSIONS.items()}}
        if framing in {"glue", "glue-zlib"}
        else {}
    )
    return parse(
        {
            "service": {"checkpoint": str(folder / "checkpoint")},
            "kafka": {"bootstrap": "broker:9092", "topics": ["topic"]},
            "input": {
                "schemas": str(folder / "avro"),
                "framing": framing,
                "reader_schema": 1,
                "measures": {"t": "t"},
                **versions,
                **given,
            },
            "admission": {"max_delay": "1 d", "max_ahead": "1 d"},
            "views": [{"name": "device", "window": "1 m"}],
            "redis": {"url": "redis://redis:6379/0"},
        },
        where="test",
    )


def header(framing: str, number: int) -> bytes:
    form = Input.model_validate({"framing": framing, "schema_versions": VERSIONS})
    made = framings.of(form).header(form, number, SCHEMAS[number])
    assert made is not None
    return made


def cases(framing: str) -> dict[str, tuple[bytes | None, Any]]:
    """Value, and the temperature or the reason of its reject, by name."""
    if framing == "none":
        return {
            "a record": (body(1, 1.5), 1.5),
            "of another schema": (body(2, 2.5), "undecodable"),
            "cut": (body(1, 1.5)[:-1], "undecodable"),
            "empty": (b"", "undecodable"),
            "no value": (None, "undecodable"),
        }
    first, second, unknown = header(framing, 1), header(framing, 2), HEADERS[framing][2]
    packed, is_unpacked = b"\3\5" + first[2:] + zlib.compress(body(1, 1.5)), framing == "glue-zlib"
    return {
        "compressed": (packed, 1.5 if is_unpacked else "undecodable"),
        "compressed and cut": (packed[:-1], "undecodable"),
        "compressed, and more bytes": (packed + b"\0", "undecodable"),
        "compressed, of a schema that nobody has": (b"\3\5" + unknown[2:] + packed[18:], "undecodable"),
        "more than max_array_bytes, compressed": (b"\3\5" + first[2:] + zlib.compress(bytes(9 << 20)), "undecodable"),
        "8 MB, compressed": (b"\3\5" + first[2:] + zlib.compress(bytes(8 << 20)), "undecodable"),
        "8 MB more": (b"\3\5" + first[2:] + zlib.compress(bytes(8 << 20), 1), "undecodable"),
        "of the first": (first + body(1, 1.5), 1.5),
        "of the second": (second + body(2, 2.5), 2.5),
        "unknown": (
            unknown + body(1, 1.5),
            "unknown_schema" if framing in {"confluent", "headers", "apicurio"} else "undecodable",
        ),
        "more bytes": (first + body(1, 1.5) + b"\0", "undecodable"),
        "another framing": (b"\x07" + first[1:] + body(1, 1.5), "undecodable"),
        "cut in the header": (first[:-1], "undecodable"),
        "the header alone": (first, "undecodable"),
        "empty": (b"", "undecodable"),
        "no value": (None, "undecodable"),
    }


@pytest.mark.parametrize("framing", framings.FRAMINGS)
def test_each_framing_is_read_without_spark(framing: str, tmp_path: Path) -> None:
    form = settings(tmp_path, framing).form
    known = dissect.writers(form)
    for name, (value, expected) in cases(framing).items():
        found = dissect.dissect(value, form, known)
        reason, text = dissect.reason(found, Metadata(b"k"), form)
        answer = reason or dissect.reading(found, Metadata(b"k"), form).measures["t"]
        assert answer == expected, (name, answer, text)


def test_values_that_unpack_to_much_are_handed_on_in_parts() -> None:
    bomb = b"\3\5" + bytes(16) + zlib.compress(bytes(8 << 20))
    values = [b"\3\0first", *[bomb] * 6, None, b"\3\0last"]
    parts = [part.to_pylist() for part in framings.unpacked_parts(pa.array(values, pa.binary()), 8 << 20)]
    assert max(sum(len(each or b"") for each in part) for part in parts) < 13 << 20
    assert [each for part in parts for each in part] == [
        b"\3\0first",
        *[bytes([3]) + bytes(17 + (8 << 20))] * 6,
        None,
        b"\3\0last",
    ]
    assert [part.to_pylist() for part in framings.unpacked_parts(pa.array([], pa.binary()), 1)] == [[]]


GUID = "89791762-2336-4186-9674-299b90a802e2"


def of_headers(first: bytes, second: bytes = b"") -> dict[str, tuple[list[tuple[str, bytes | None]], bytes, Any]]:
    """Headers, value, and the temperature or the reason of its reject, by name; `second` is what Protobuf adds to an id."""
    by_guid, by_id = b"\1" + UUID(GUID).bytes + second, b"\0\0\0\0\1" + second
    name = framings.HEADER
    return {
        "a GUID": ([(name, by_guid)], first, 1.5),
        "an id": ([("x", b"\7"), (name, by_id)], first, 1.5),
        "no header": ([("x", b"\7")], by_id + first, 1.5),
        "before the value, although the header is empty": ([(name, b"")], by_id + first, 1.5),
        "two headers, of which the last one counts": ([(name, b"\7"), (name, by_guid)], first, 1.5),
        "a GUID that nobody has": ([(name, by_guid[:7] + b"\0" * 10 + second)], first, "unknown_schema"),
        "an id that nobody has": ([(name, b"\0\0\0\0\x09" + second)], first, "unknown_schema"),
        "a header of another kind": ([(name, b"\2" + by_guid[1:])], first, "undecodable"),
        "a GUID that is cut": ([(name, by_guid[:3])], b"", "undecodable"),
        "neither": ([], first, "undecodable"),
        "a header without a value": ([(name, None)], first, "undecodable"),
    }


def test_a_schema_may_be_named_in_a_header(tmp_path: Path) -> None:
    form = settings(tmp_path, "headers").form
    known = {**SCHEMAS, guids.number_of(GUID): FIRST}
    for name, (headers, value, expected) in of_headers(body(1, 1.5)).items():
        found = dissect.dissect(value, form, known, headers)
        answer = dissect.reason(found, Metadata(b"k"), form)[0]
        assert (answer or dissect.reading(found, Metadata(b"k"), form).measures["t"]) == expected, name
    headers, value, _ = of_headers(body(1, 1.5))["a GUID"]
    seen = dissect.dissect(value, form, known, headers)
    assert dissect.encode(value, {**seen.fields, "t": 2.5}, form, known, headers) == body(1, 2.5)


def test_a_registry_gives_each_version_by_its_id_and_by_its_guid(tmp_path: Path) -> None:
    with Registry() as registry:
        number = registry.register("topic-value", FIRST)
        section = Section.model_validate({"url": registry.url})
        given = settings(tmp_path, "headers").model_copy(update={"registry": section})
        known = load_set(given).schemas
        guid = uuid5(NAMESPACE_OID, json.dumps(FIRST))
        assert known == {number: FIRST, guids.number_of(str(guid)): FIRST}
        value = b"\1" + guid.bytes
        assert dissect.dissect(body(1, 1.5), given.form, known, [(framings.HEADER, value)]).fields["t"] == 1.5
        plain = settings(tmp_path, "confluent").model_copy(update={"registry": section})
        assert load_set(plain).schemas == {number: FIRST}


def test_headers_are_those_of_the_specifications() -> None:
    for framing in ("confluent", "apicurio", "glue"):
        assert (header(framing, 1), header(framing, 2)) == HEADERS[framing][:2]
    # Avro's own test of the fingerprint: int is 0x7275d51a3f395c8f, in little-endian order.
    form = Input.model_validate({"framing": "single-object"})
    assert framings.of(form).header(form, 1, {"type": "int"}) == bytes.fromhex("c3018f5c393f1ad57572")
    assert header("single-object", 1) != header("single-object", 2)


@pytest.mark.parametrize("framing", ["confluent", "apicurio", "single-object", "glue", "glue-zlib"])
def test_init_recognises_the_framing(framing: str) -> None:
    packed = b"\3\5" + header(framing, 1)[2:] + zlib.compress(body(1, 1.5))
    messages = [sample(packed if framing == "glue-zlib" else header(framing, 1) + body(1, 1.5))]
    assert records.framing_of(messages) == framing
    if not framing.startswith("glue"):
        assert records.ids(messages, framing, SCHEMAS) == {1: 1}


@pytest.mark.parametrize(
    ("framing", "given", "message"),
    [
        (
            "apicurio",
            {"format": "json", "reader_schema": None},
            "input.framing: 'apicurio' is for the formats avro, json-schema, protobuf, and the format is 'json'",
        ),
        ("headers", {"format": "json", "reader_schema": None}, "input.framing: 'headers' is for the formats avro"),
        ("glue", {"format": "json", "reader_schema": None}, "input.framing: 'glue' is for the formats avro"),
        ("single-object", {"format": "protobuf"}, "input.framing: 'single-object' is for the formats avro, and"),
        ("none", {"format": "json-schema"}, "input.framing: 'none' is for the formats avro, protobuf, and"),
        ("none", {"format": "protobuf"}, "input.record_type: is missing"),
        ("confluent", {"format": "json-schema", "record_type": "R"}, "input.record_type: is for Avro and Protobuf"),
        ("glue", {"schema_versions": {}}, "needs the UUID of each schema id"),
        ("glue", {"schema_versions": {"1": "x"}}, "'x' is no UUID"),
        ("confluent", {"schema_versions": {"1": VERSIONS[1]}}, "no other framing has them"),
    ],
)
def test_a_framing_that_cannot_be_read_is_refused(tmp_path: Path, framing: str, given: Any, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        settings(tmp_path, framing, **given)
    assert message in str(error.value)


def test_a_text_that_is_no_guid_is_an_error_of_the_schema() -> None:
    with pytest.raises(SchemaError, match="'no' is no GUID"):
        guids.number_of("no")


UNION = [
    "null",
    FIRST,
    {"type": "record", "name": "Alarm", "namespace": "x", "fields": [{"name": "code", "type": "int"}]},
]


def message() -> bytes:
    made = READING_CLASS(device_id="d")
    made.event_time.FromMilliseconds(BASE_MS)
    made.temperature.value = 1.5
    return bytes(made.SerializeToString())


TEXT = b'{"device_id": "d", "event_time": %d, "temperature": 1.5}' % BASE_MS
# By format and framing: the type that is read, its record, one of another type and one of no type, each behind its header.
TYPED: dict[tuple[str, str], tuple[str | None, bytes, bytes | None, bytes]] = {
    ("avro", "confluent"): ("R", b"\0\0\0\0\1\2" + body(1, 1.5), b"\0\0\0\0\1\4\6", b"\0\0\0\0\1\6\6"),
    ("avro", "none"): ("R", b"\2" + body(1, 1.5), b"\0", b"\1"),
    ("protobuf", "confluent"): (
        "fleet.Reading",
        b"\0\0\0\0\1\2\2" + message(),
        b"\0\0\0\0\1\0\x0a\1d",
        b"\0\0\0\0\1\2\6\x0a\1d",
    ),
    ("protobuf", "apicurio"): (
        "fleet.Reading",
        b"\0" * 8 + b"\1\x09\x0a\7Reading" + message(),
        b"\0" * 8 + b"\1\7\x0a\5Other\x0a\1d",
        b"\0" * 8 + b"\1\7\x0a\5Empty\x0a\1d",
    ),
    ("protobuf", "glue"): (
        "fleet.Reading",
        HEADERS["glue"][0] + b"\1" + message(),
        HEADERS["glue"][0] + b"\0\x0a\1d",
        HEADERS["glue"][0] + b"\3\x0a\1d",
    ),
    ("protobuf", "none"): ("fleet.Reading", message(), None, b"\x0a\2d"),
    ("json-schema", "glue"): (None, HEADERS["glue"][0] + TEXT, None, HEADERS["glue"][0]),
}


@pytest.mark.parametrize("length", [1, 7, 125, 126, 127, 128, 300, 20_000])
def test_a_message_s_name_of_any_length_is_read_and_a_damaged_one_is_unreadable(length: int) -> None:
    """Apicurio's serializer writes a message of Protobuf, whose lengths are varints."""
    apicurio, name = framings.FRAMINGS["apicurio"], b"R" * length
    inner = DescriptorProto(name=name.decode()).SerializeToString()
    head = b"\0" * 8 + b"\1" + varint(len(inner)) + inner
    assert protobuf.head(head + b"body", apicurio) == head
    for damaged in (head[:9], head[:10], head[:-1], head.replace(b"\n", b"\0", 1), head.replace(b"R", b"\xff", 1)):
        with pytest.raises(protobuf.UnreadableError):
            protobuf.head(damaged, apicurio)
    with pytest.raises(protobuf.UnreadableError):
        protobuf.head(b"\0" * 8 + b"\1" + varint(length + 2) + b"\n" + b"a" * 30_000, apicurio)


def typed(folder: Path, form: str, framing: str, others: str) -> Settings:
    """Settings with the schemas of TYPED in a folder."""
    schemas = folder / "schemas"
    schemas.mkdir(exist_ok=True)
    (schemas / "1.avsc").write_text(json.dumps(UNION))
    (schemas / "1.json").write_text('{"type": "object"}')
    (schemas / "1.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[ENV, FILE]).SerializeToString())
    given = {"format": form, "schemas": str(schemas), "others": others, "reader_schema": 1}
    return settings(
        folder,
        framing,
        **given,
        **({} if (name := TYPED[form, framing][0]) is None else {"record_type": name}),
        **({"schema_versions": {"1": VERSIONS[1]}} if framing == "glue" else {}),
        measures={"t": {"avro": "t"}.get(form, "temperature")},
    )


def typed_cases(form: str, framing: str, others: str) -> dict[str, tuple[bytes, Any]]:
    """Value, and the temperature, the reason of its reject or None for a record that is filtered, by name."""
    _, mine, other, none = TYPED[form, framing]
    named = {} if other is None else {"of another type": (other, None if others == "ignore" else "undecodable")}
    return {"mine": (mine, 1.5), "of no type": (none, "undecodable"), **named}


@pytest.mark.parametrize(("form", "framing"), TYPED)
def test_the_records_of_one_type_are_read(tmp_path: Path, form: str, framing: str) -> None:
    given = typed(tmp_path, form, framing, "reject")
    known = dissect.writers(given.form)
    for name, (value, expected) in typed_cases(form, framing, "reject").items():
        found = dissect.dissect(value, given.form, known)
        answer = dissect.reason(found, Metadata(b"k"), given.form)
        assert (answer[0] or dissect.reading(found, Metadata(b"k"), given.form).measures["t"]) == expected, (
            name,
            answer,
        )
    mine = TYPED[form, framing][1]
    fields = {**dissect.dissect(mine, given.form, known).fields}
    if form == "avro":
        assert dissect.encode(mine, {**fields, "t": 1.5}, given.form, known) == mine
    assert [line.status for line in check_input.schemas_of(given)].count("fail") == 0


@pytest.mark.parametrize(
    ("form", "framing", "message"),
    [
        ("avro", "confluent", "has the records R, x.Alarm"),
        ("protobuf", "none", "input.record_type = 'fleet.None': the schema has no message fleet.None"),
    ],
)
def test_a_type_without_a_schema_ends_the_start(tmp_path: Path, form: str, framing: str, message: str) -> None:
    given = typed(tmp_path, form, framing, "reject")
    name = None if form == "avro" else "fleet.None"
    other = given.model_copy(update={"input": given.form.model_copy(update={"record_type": name})})
    with pytest.raises(SchemaError, match=message):
        Unpacker.of(other.form, load_set(other).schemas)


@pytest.mark.parametrize(
    ("text", "expected"), [("NaN", "not_finite"), ("-INF", "not_finite"), ("1.5", "undecodable"), ("x", "undecodable")]
)
def test_a_text_of_protobuf_is_read_as_a_number_as_that_of_json_is(tmp_path: Path, text: str, expected: str) -> None:
    given = typed(tmp_path, "protobuf", "none", "reject")
    form = given.form.model_copy(update={"measures": {"t": Measure(path="env.line")}})
    known = load_set(given).schemas
    made = READING_CLASS.FromString(message())
    made.env.line = text
    value = made.SerializeToString()
    row = Unpacker.of(form, known).row(value)
    assert (row is None) == (expected == "undecodable")
    assert dissect.reason(dissect.dissect(value, form, known), Metadata(b"k"), form)[0] == expected


@pytest.mark.parametrize("framing", ["headers", "a GUID in headers", "apicurio"])
def test_init_proposes_the_framing_with_the_schemas_of_a_registry(tmp_path: Path, framing: str) -> None:
    with Registry() as registry:
        number = registry.register("topic-value", FIRST)
        guid = uuid5(NAMESPACE_OID, json.dumps(FIRST)).bytes
        named = {"headers": b"\0" + number.to_bytes(4), "a GUID in headers": b"\1" + guid}.get(framing)

        value = (b"" if named else b"\0" + number.to_bytes(8)) + body(1, 1.5)
        messages = [sample(value, headers=[(framings.HEADER, named)] if named else None)]
        request = places.Request(
            tmp_path / "tidemark.toml",
            {"bootstrap": "broker:9092", "topics": ["topic"]},
            {"url": "redis://redis:6379/0"},
            1,
            registry={"url": registry.url},
        )
        found = places.form(messages, request)
        assert found.input == {"reader_schema": number, "framing": framing.rpartition(" ")[2]}
        [seen] = records.decode(messages, found.input, found.schemas).sample
        assert seen.record["t"] == 1.5


def test_init_proposes_the_type_that_most_records_have() -> None:
    schemas = {1: avro_types.wrapped(UNION)}

    _, mine, other, _ = TYPED["avro", "confluent"]
    messages = [sample(each) for each in (mine, mine, other)]
    assert records.types(messages, "confluent", schemas) == {"R": 2, "x.Alarm": 1}

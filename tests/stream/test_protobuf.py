"""Protobuf with the ids of a registry's schemas: what is decoded, what is rejected alone, and what bombs do, on real Spark."""

import base64
import json
import struct

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from load.servers.schema_registry import Registry
from service.admission import protobuf, readings
from service.admission.formats import framings
from service.admission.registry import PROTOBUF, Client
from service.admission.schema_sources import load_schemas
from service.commands import check_input
from service.commands.dissect import Dissector
from service.commands.explain import explain
from service.errors import SchemaError
from service.reference.attributes import Index
from service.rejects.reject_log import Coordinates, Reject
from service.settings import Registry as Section
from service.settings import parse
from tests.stream.decisions import admitted, outcome, reason
from tests.stream.messages import ENV, FILE, READING_CLASS, F, framed, message, text
from tests.stream.records import BASE_MS, SCHEMA, Record, make_document
from tests.stream.script import KAFKA

pytestmark = pytest.mark.spark

INPUT = {
    "format": "protobuf",
    "measures": {"temperature": "temperature", "pressure": "env.pressure", "sum": "count + env.pressure"},
    "columns": {"kind": "kind", "line": "env.line"},
}


def body(**fields):
    made = READING_CLASS(device_id="a", kind=0, count=2)
    made.event_time.FromMilliseconds(BASE_MS)
    for name, value in fields.items():
        if name == "temperature":
            made.temperature.value = value
        elif name == "pressure":
            made.env.pressure = value
        else:
            setattr(made, name, value)
    return made.SerializeToString()


def nested(depth):
    content = b""
    for _ in range(depth):
        content = b"\x42" + protobuf_varint(len(content)) + content
    return content


def protobuf_varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@pytest.fixture
def registry():
    with Registry() as running:
        running.register("env", text(ENV), kind="PROTOBUF")
        references = [{"name": "env.proto", "subject": "env", "version": 1}]
        running.register("readings-value", text(FILE), references, kind="PROTOBUF")
        running.register("elsewhere", text(descriptor_pb2.FileDescriptorProto(name="e.proto")), kind="PROTOBUF")
        yield running


NUMBER = 2
CASES = {
    framed(body(temperature=20.5, pressure=1.5), NUMBER): (20.5, 1.5, 3.5),
    framed(body(), NUMBER): (None, None, None),
    framed(body(temperature=0.0), NUMBER): (0.0, None, None),
    framed(body() + b"\xfa\x01\x01x", NUMBER): (None, None, None),  # a field of a newer schema
    framed(body(), 1): "unknown_schema",  # of another subject
    framed(body(), 9): "unknown_schema",
    framed(body(temperature=float("nan")), NUMBER): "not_finite",
    framed(body(temperature=float("-inf")), NUMBER): "not_finite",
    framed(body(device_id=""), NUMBER): "no_device",
    framed(body()[:-1], NUMBER): "undecodable",
    framed(b"\xff" * 50, NUMBER): "undecodable",
    framed(b"\x0a\x01\xff", NUMBER): "undecodable",  # no UTF-8
    framed(nested(99) + body(), NUMBER): (None, None, None),
    framed(nested(5_000), NUMBER): "undecodable",
    framed(body(raw=b"x" * 70_000), NUMBER): "oversized",
    framed(body(), NUMBER, b"\x00"): "undecodable",  # the first message is another one, with text at 1 and nothing else
    framed(body(), NUMBER, b"\x02\x08"): "undecodable",
    framed(body(), NUMBER, b"\x02\x01"): "undecodable",
    framed(body(), NUMBER, b"\xff\xff\xff\xff\xff\xff"): "undecodable",
    framed(body(), NUMBER, b"\xfe\xff\xff\xff\x0f"): "undecodable",
    framed(b"", NUMBER, b""): "undecodable",
    b"\0": "undecodable",
}


def test_a_message_is_decoded_by_its_schema_or_rejected_alone(spark, tmp_path, registry):
    settings = parse(make_document(tmp_path, input=INPUT, registry={"url": registry.url}))
    rows = admitted(spark, settings, [Record(value, BASE_MS) for value in CASES])
    expected = list(CASES.values())
    expected[15] = "no_device"
    assert [outcome(row, *INPUT["measures"]) for row in rows] == expected
    assert rows[0]["event_ms"] == BASE_MS


def test_a_protobuf_input_leaves_other_inputs_alone(spark, tmp_path, registry):
    shapes = [
        {**INPUT, "name": "one", "topics": ["readings"]},
        {"name": "two", "topics": ["plain"], "format": "json", "measures": {"temperature": "t"}},
    ]
    given = make_document(tmp_path, registry={"url": registry.url})
    given = {name: each for name, each in given.items() if name != "input"} | {"inputs": shapes}
    settings = parse({**given, "kafka": {"bootstrap": given["kafka"]["bootstrap"]}})
    plain = json.dumps({"device_id": "b", "event_time": BASE_MS, "t": 7}).encode()
    values = [("readings", framed(body(temperature=1.0), NUMBER)), ("plain", plain), ("plain", framed(body(), NUMBER))]
    rows = admitted(spark, settings, [Record(value, BASE_MS, topic=topic) for topic, value in values])
    assert [row["temperature"] for row in rows] == [1.0, 7.0, None]
    assert reason(rows[2]) == "undecodable"


def test_the_plan_of_several_inputs_unpacks_a_message_once(spark, tmp_path, registry):
    number = registry.register("plain-value", SCHEMA)
    shapes = [
        {**INPUT, "name": "one", "topics": ["readings"]},
        {"name": "two", "topics": ["plain"], "measures": {"humidity": "humidity"}, "reader_schema": number},
    ]
    ranges = {"temperature": [-50, 150], "pressure": [0, 2_000], "humidity": [0, 100]}
    sections = {
        "registry": {"url": registry.url},
        "admission": {"ranges": ranges, "unknown_device": "reject"},
        "reference": {"url": "jdbc:sqlite:unused", "query": "unused"},
    }
    given, known = make_document(tmp_path, **sections), Index(pa.table({"device": pa.array(["a"])}))
    given = {name: each for name, each in given.items() if name != "input"} | {"inputs": shapes}
    settings = parse({**given, "kafka": {"bootstrap": given["kafka"]["bootstrap"]}})
    plan = readings.admit(spark.createDataFrame([], KAFKA), settings, known)._jdf.queryExecution()
    analyzed, optimized = plan.analyzed(), plan.optimizedPlan()
    assert optimized.toString().count("unpack(") == analyzed.toString().count("unpack(") == 1
    assert _expressions(optimized) < 1.5 * _expressions(analyzed)


def _expressions(plan):
    """The number of expressions of a plan, each counted wherever it occurs."""
    own, children = plan.expressions(), plan.children()
    count = sum(own.apply(number).toJSON().count('"class"') for number in range(own.size()))
    return count + sum(_expressions(children.apply(number)) for number in range(children.size()))


def test_a_record_is_shown_explained_and_mended(tmp_path, registry):
    settings = parse(make_document(tmp_path, input=INPUT, registry={"url": registry.url}))
    dissector, value = Dissector(settings), framed(body(temperature=20.5, pressure=1.5), NUMBER)
    shown = dissector("readings", value)
    assert (shown.schema, shown.at("device_id"), shown.at("env.pressure")) == (NUMBER, "a", 1.5)
    mended = dissector.encode("readings", value, {"device_id": "b", "env": {"pressure": 2.5}})
    assert dissector("readings", mended).fields == {"device_id": "b", "env": {"pressure": 2.5}}
    with pytest.raises(ValueError, match="does not fit schema 2"):
        dissector.encode("readings", value, {"device_id": 5})
    reject = Reject(Coordinates("readings", 0, 1), "undecodable", "", BASE_MS, 0, 0, None, framed(b"\xff", NUMBER), ())
    assert "Error parsing message" in explain(reject, dissector("readings", reject.value), settings)
    lines = {line.name: line for line in check_input.mapping(settings)}
    assert not [name for name, line in lines.items() if "does not describe" in line.detail]
    wrong = parse(make_document(tmp_path, input={**INPUT, "measures": {"t": "env.x"}}, registry={"url": registry.url}))
    assert [(line.name, line.detail) for line in check_input.mapping(wrong) if line.status == "warn"] == [
        ("input.measures.t", f"schema {NUMBER} does not describe 'env.x'")
    ]


def test_a_schema_that_does_not_fit_together_is_refused(tmp_path, registry):
    client = Client(Section(url=registry.url), PROTOBUF)
    for content in ("no base64", text(FILE), base64.b64encode(b"\xff").decode()):
        with pytest.raises(SchemaError, match="cannot be used"):
            protobuf.check({"files": [["x.proto", content]]})
    protobuf.check(client.schema(NUMBER))
    settings = parse(make_document(tmp_path, input=INPUT, registry={"url": registry.url}))
    assert list(load_schemas(settings)["input"].schemas) == [NUMBER]


@pytest.mark.parametrize("unit", ["iso", "s", "ms", "us", "ns"])
def test_a_timestamp_in_a_column_is_a_text_whatever_the_unit_of_times(tmp_path, registry, unit):
    columns = {"began": "next.event_time"}
    given = {**INPUT, "columns": columns, "event_time_unit": unit}
    settings = parse(make_document(tmp_path, input=given, registry={"url": registry.url}))
    made = READING_CLASS.FromString(body())
    made.next.event_time.FromMilliseconds(BASE_MS)
    unpacker = protobuf.Unpacker.of(settings.input, load_schemas(settings)["input"].schemas)
    row = dict(zip(unpacker.roles, unpacker.row(framed(made.SerializeToString(), NUMBER)), strict=False))
    assert row["next", "event_time"] == made.event_time.ToJsonString()
    seen = Dissector(settings)("readings", framed(made.SerializeToString(), NUMBER))
    assert seen.used["next"]["event_time"] == row["next", "event_time"]


def test_what_a_bomb_takes_is_bounded_by_its_bytes(tmp_path, registry):
    settings = parse(make_document(tmp_path, input=INPUT, registry={"url": registry.url}))
    unpacker = protobuf.Unpacker.of(settings.input, load_schemas(settings)["input"].schemas)
    many = framed(body() + b"\x22\x00" * 30_000, NUMBER)  # 30,000 times an empty message in one field
    assert unpacker.row(many)[[*unpacker.roles].index(("device_id",))] == "a"
    assert unpacker.row(framed(nested(20_000), NUMBER)) is None
    assert unpacker.row(framed(b"\x0a\xff\xff\xff\xff\x07", NUMBER)) is None  # text of 2 GiB that is not there


def test_a_field_may_have_the_name_of_a_method_of_its_message():
    names = ("HasField", "DESCRIPTOR", "ParseFromString", "ListFields", "SerializeToString")
    fields = {name: (number, F.TYPE_DOUBLE) for number, name in enumerate(names, start=1)}
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="m", syntax="proto2")
    file.message_type.append(message("M", {**fields, "next": (9, ".m.M")}))
    files = (("m.proto", text(file)),)
    own = b"".join(bytes([number << 3 | 1]) + struct.pack("<d", number) for number, _ in fields.values())
    value = framed(own + b"\x4a" + bytes([len(own)]) + own, path=b"\x00")
    unpacker = protobuf.Unpacker(
        {b"\0\0\0\0\1": files},
        dict.fromkeys([("HasField",), ("next", "DESCRIPTOR"), ("next", "next", "HasField")], "number"),
        "ms",
        framings.FRAMINGS["confluent"],
    )
    assert unpacker.row(value) == (1.0, 2.0, None)
    parsed = protobuf.parsed(value, files, framings.FRAMINGS["confluent"])
    assert (
        protobuf.fields(parsed)["next"]
        == protobuf.plain(parsed)["next"]
        == {name: n for name, (n, _) in fields.items()}
    )

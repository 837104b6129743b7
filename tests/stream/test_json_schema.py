"""JSON with the ids of a registry's JSON Schemas: what is decoded, from where on, and what is rejected, on real Spark."""

import json

import pytest

from load.servers.schema_registry import Registry
from service.admission.schema_sources import SchemaSet
from service.commands.dissect import Dissector
from service.commands.explain import explain
from service.rejects.reject_log import Coordinates, Reject
from service.settings import parse
from tests.stream.decisions import admitted, by_oracle, reason
from tests.stream.records import BASE_MS, Record, avro, make_document

pytestmark = pytest.mark.spark

SCHEMA = {"type": "object", "properties": {"device_id": {"type": "string"}, "temperature": {"type": "number"}}}
GOOD = {"device_id": "a", "event_time": BASE_MS, "temperature": 20.5}
TEXT = json.dumps(GOOD).encode()


def framed(number, text=TEXT):
    return b"\0" + number.to_bytes(4, "big") + text


CASES = {
    framed(1): 20.5,
    framed(2): 20.5,  # another version of the subject
    framed(1, b' {"device_id": "a", "event_time": %d}\n' % BASE_MS): None,
    framed(3): "unknown_schema",  # of another subject
    framed(4): "unknown_schema",  # an Avro schema of this subject
    framed(9): "unknown_schema",
    TEXT: "undecodable",
    b"\0\0\0\0": "undecodable",
    b"": "undecodable",
    framed(1, b""): "undecodable",
    framed(1, b"[1]"): "undecodable",
    framed(1, TEXT + b"x"): "undecodable",
    framed(1, TEXT[:-1]): "undecodable",
    framed(1, TEXT.replace(b"20.5", b'"warm"')): "undecodable",
    framed(1, TEXT.replace(b'"a"', b'"\xff"')): "undecodable",
    framed(1, framed(1)): "undecodable",
    framed(1, TEXT.replace(b'"a"', b'""')): "no_device",
    framed(1, TEXT.replace(b"20.5", b"1e999")): "not_finite",
    framed(1, b"x" * 70_000): "oversized",
    framed(1) + b" ": 20.5,
}


@pytest.fixture
def registry():
    with Registry() as running:
        running.register("readings-value", SCHEMA, kind="JSON")
        running.register("readings-value", {**SCHEMA, "title": "second"}, kind="JSON")
        running.register("elsewhere", {**SCHEMA, "title": "third"}, kind="JSON")
        running.register("readings-value", {"type": "record", "name": "r", "fields": []})
        yield running


def document(folder, registry):
    source = {"format": "json-schema", "measures": {"temperature": "temperature"}}
    return make_document(folder, input=source, registry={"url": registry.url})


def test_a_record_is_decoded_behind_a_known_id_or_rejected_alone(spark, tmp_path, registry):
    given = document(tmp_path, registry)
    settings, records = parse(given), [Record(value, BASE_MS) for value in CASES]
    rows = admitted(spark, settings, records)
    assert [reason(row) or row["temperature"] for row in rows] == list(CASES.values())
    # The oracle does not look at the kind of a schema.
    _, reasons = by_oracle(tmp_path, given, [each for each in records if each.value != framed(4)])
    assert reasons == [each if isinstance(each, str) else None for value, each in CASES.items() if value != framed(4)]


def test_an_id_that_was_learned_is_decoded_from_that_offset_on(spark, tmp_path, registry):
    settings = parse(document(tmp_path, registry))
    schemas = {"input": SchemaSet({1: SCHEMA, 2: SCHEMA}, {}, {2: {"readings": {0: 101}}})}
    records = [Record(framed(number), BASE_MS, offset=at) for at in (100, 101) for number in (1, 2)]
    rows = admitted(spark, settings, records, schemas=schemas)
    assert [row["reject"] is None for row in rows] == [True, False, True, True]


def test_a_reject_says_where_and_why_decoding_stopped(tmp_path, registry):
    settings = parse(document(tmp_path, registry))
    dissector = Dissector(settings)
    for value, expected in {
        framed(1, TEXT.replace(b"20.5", b'"warm"')): 'temperature = "warm": expected a number',
        framed(1, b"[1]"): "is an array in JSON, expected an object (byte 5 of 8)",
        framed(1, b'{"a": }'): "is not JSON: Expecting value (byte 11 of 12)",
        TEXT: "does not begin with a zero byte and a schema id (byte 0 of",
    }.items():
        reject = Reject(Coordinates("readings", 0, 1), "undecodable", "", BASE_MS, 0, 0, None, value, ())
        assert explain(reject, dissector("readings", value), settings).startswith(expected)
    whole = dissector("readings", framed(2))
    assert (whole.schema, whole.fields) == (2, GOOD)
    assert dissector.encode("readings", framed(2), {"device_id": "b"}) == framed(2, b'{"device_id":"b"}')
    assert dissector("readings", avro(device_id="a", event_time=BASE_MS)).stop is not None

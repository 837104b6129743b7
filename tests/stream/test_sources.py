"""Device ids, times, measures and columns from the key, headers, the topic and Kafka's time: in the plan, and without Spark.

Every case is decided by both (service/admission/decode.py, service/commands/dissect.py); the answers are computed by hand.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from service import settings as service_settings
from service.admission import readings
from service.admission.schema_sources import SchemaSet
from service.commands import dissect
from service.commands.explain import explain
from service.commands.metadata import Metadata
from service.errors import SchemaError, SettingsError
from service.recompute import late
from service.rejects.reject_log import Coordinates, Reject
from tests.stream.decisions import admitted, reason
from tests.stream.records import BASE_MS, Record, avro, make_document
from tests.stream.script import KAFKA, Add, Expect, run

pytestmark = pytest.mark.spark

HEADER = (
    ("device-id", b"old"),
    ("device-id", b"pump-1"),
    ("at", b"2026-09-21T14:14:01Z"),
    ("t", b" 21.5 "),
    ("none", None),
)
FORM: dict[str, Any] = {
    "format": "json",
    "device_id": "id",
    "event_time": "at",
    "measures": {"t": "t"},
    "columns": {"line": "line"},
}
VALUE = {"id": "d1", "at": BASE_MS, "t": 20.5, "line": "A"}
GOOD = ("d1", BASE_MS, 20.5, "A")
# Name: what the input has otherwise, key, headers, the answer. The answer is device, event time, measure, column; or a reason.
Case = tuple[dict[str, Any], bytes | None, tuple[tuple[str, bytes | None], ...], Any]
CASES: dict[str, Case] = {
    "key": ({"device_id": "$key"}, b"k-1", (), ("k-1", *GOOD[1:])),
    "no key": ({"device_id": "$key"}, None, (), "no_device"),
    "field of the key": ({"device_id": "$key.site.id"}, b'{"site":{"id":"s 1"}}', (), ("s 1", *GOOD[1:])),
    "number in the key": ({"device_id": "$key.id"}, b' {"id":17} ', (), ("17", *GOOD[1:])),
    "largest number in the key": (
        {"device_id": "$key.id"},
        b'{"id":9223372036854775807}',
        (),
        ("9223372036854775807", *GOOD[1:]),
    ),
    "too large a number in the key": ({"device_id": "$key.id"}, b'{"id":9223372036854775808}', (), "undecodable"),
    "fraction in the key": ({"device_id": "$key.id"}, b'{"id":1.5}', (), "undecodable"),
    "object in the key": ({"device_id": "$key.id"}, b'{"id":{}}', (), "undecodable"),
    "null in the key": ({"device_id": "$key.id"}, b'{"id":null}', (), "no_device"),
    "blank in the key": ({"device_id": "$key.id"}, b'{"id":" "}', (), "no_device"),
    "key without the field": ({"device_id": "$key.id"}, b'{"ID":"a"}', (), "no_device"),
    "a key that is no JSON": ({"device_id": "$key.id"}, b"pump-1", (), "no_device"),
    "a key that is a text of JSON": ({"device_id": "$key.id"}, b'"pump-1"', (), "no_device"),
    "a key that is an array": ({"device_id": "$key.id"}, b'[{"id":"a"}]', (), "no_device"),
    "a key that ends early": ({"device_id": "$key.id"}, b'{"id":"a"', (), "no_device"),
    "a key with more behind": ({"device_id": "$key.id"}, b'{"id":"a"} x', (), ("a", *GOOD[1:])),
    "a name twice in the key": ({"device_id": "$key.id"}, b'{"id":"a","id":"b"}', (), "no_device"),
    "NaN in the key": ({"device_id": "$key.id"}, b'{"id":"a","x":NaN}', (), "no_device"),
    "half of a character in the key": ({"device_id": "$key.id"}, b'{"id":"\\ud800"}', (), "undecodable"),
    "a question mark in the key": ({"device_id": "$key.id"}, b'{"id":"a?"}', (), ("a?", *GOOD[1:])),
    "a key that is not UTF-8": ({"device_id": "$key.id"}, b'{"id":"\xff"}', (), "no_device"),
    "names with signs in the key": ({"device_id": "$key.`a.b`.`it's`"}, b'{"a.b":{"it\'s":"x"}}', (), ("x", *GOOD[1:])),
    "header, the last of its name": ({"device_id": "$header.device-id"}, None, HEADER, ("pump-1", *GOOD[1:])),
    "header in another case": ({"device_id": "$header.Device-Id"}, None, HEADER, "no_device"),
    "header without a value": ({"device_id": "$header.none"}, None, HEADER, "no_device"),
    "record without headers": ({"device_id": "$header.device-id"}, None, (), "no_device"),
    "header that is not UTF-8": ({"device_id": "$header.id"}, None, (("id", b"\xff"),), "undecodable"),
    "header with a dot": ({"device_id": "$header.`ce.source`"}, None, (("ce.source", b"x"),), ("x", *GOOD[1:])),
    "header with a line feed": ({"device_id": "$header.id"}, None, (("id", b"a\nb"),), "bad_device"),
    "header of 1 MB": ({"device_id": "$header.id"}, None, (("id", b"x" * (1 << 20)),), "bad_device"),
    "time in a header": (
        {"event_time": "$header.at", "event_time_unit": "iso"},
        None,
        HEADER,
        ("d1", BASE_MS + 1_000, 20.5, "A"),
    ),
    "ms in a header": (
        {"event_time": "$header.ms"},
        None,
        (("ms", f"{BASE_MS + 7}".encode()),),
        ("d1", BASE_MS + 7, 20.5, "A"),
    ),
    "s in a header": (
        {"event_time": "$header.s", "event_time_unit": "s"},
        None,
        (("s", b"1790000040.123"),),
        ("d1", BASE_MS + 123, 20.5, "A"),
    ),
    "no time in a header": ({"event_time": "$header.at"}, None, HEADER, "no_time"),
    "s in the key": (
        {"event_time": "$key.s", "event_time_unit": "s"},
        b'{"s":1790000040.5}',
        (),
        ("d1", BASE_MS + 500, 20.5, "A"),
    ),
    "time in the key": ({"event_time": "$key.t", "event_time_unit": "iso"}, b'{"t":"2026-09-21T14:14:00Z"}', (), GOOD),
    "Kafka's time": ({"event_time": "$timestamp"}, None, (), ("d1", BASE_MS + 250, 20.5, "A")),
    "Kafka's time needs no unit": (
        {"event_time": "$timestamp", "event_time_unit": "iso"},
        None,
        (),
        ("d1", BASE_MS + 250, 20.5, "A"),
    ),
    "measure in a header": ({"measures": {"t": "$header.t"}}, None, HEADER, ("d1", BASE_MS, 21.5, "A")),
    "no measure in a header": ({"measures": {"t": "$header.x"}}, None, HEADER, ("d1", BASE_MS, None, "A")),
    "text for a measure": ({"measures": {"t": "$header.at"}}, None, HEADER, "not_finite"),
    "scaled measure in the key": (
        {"measures": {"t": {"path": "$key.t", "scale": 0.5, "offset": 1}}},
        b'{"t":"3"}',
        (),
        ("d1", BASE_MS, 2.5, "A"),
    ),
    "the key is the measure": ({"measures": {"t": "$key"}}, b"4e1", (), ("d1", BASE_MS, 40.0, "A")),
    "topic": ({"columns": {"line": "$topic"}}, None, (), ("d1", BASE_MS, 20.5, "TOPIC")),
    "part of the topic": ({"columns": {"line": "$topic/^t-(?P<n>.)/"}}, None, (), ("d1", BASE_MS, 20.5, "n")),
    "device in the topic": ({"device_id": "$topic/-(?P<n>[a-z]+)/"}, None, (), ("n", BASE_MS, 20.5, "A")),
    "partition": ({"columns": {"line": "$partition"}}, None, (), ("d1", BASE_MS, 20.5, "0")),
    "constant": ({"columns": {"line": "'it''s A'"}}, None, (), ("d1", BASE_MS, 20.5, "it's A")),
    "column in the key": ({"columns": {"line": "$key.l"}}, b'{"l":true}', (), ("d1", BASE_MS, 20.5, "true")),
    "fraction for a column": ({"columns": {"line": "$key.l"}}, b'{"l":0.5}', (), "undecodable"),
    "two parts": ({"device_id": ["line", "id"]}, None, (), ("A/d1", *GOOD[1:])),
    "a separator in a part": (
        {"device_id": ["$header.a", "$header.b"]},
        None,
        (("a", b"x/y"), ("b", b"\\z")),
        ("x\\/y/\\\\z", *GOOD[1:]),
    ),
    "a part is missing": ({"device_id": ["line", "$key"]}, None, (), "no_device"),
    "a part is blank": ({"device_id": ["line", "$key"]}, b" ", (), "no_device"),
    "parts of all kinds": (
        {"device_id": ["'plant 7'", "$topic/(?P<n>^.)/", "$key.i", "$header.h", "id"]},
        b'{"i":5}',
        (("h", b"h"),),
        ("plant 7/t/5/h/d1", *GOOD[1:]),
    ),
    "a field with the name of a word": ({"device_id": "`$key`"}, b"k", (), "no_device"),
}


@pytest.mark.thorough
def test_both_decoders_give_the_answer_that_was_computed_by_hand(spark: Any, tmp_path: Path) -> None:
    topics = {name: f"t-n{number}" for number, name in enumerate(CASES)}
    inputs = [
        {**FORM, **changed, "name": f"n{number}", "topics": [topics[name]]}
        for number, (name, (changed, *_)) in enumerate(CASES.items())
    ]
    # Few inputs at once: the plan has a decoder of each.
    for begin in range(0, len(inputs), 8):
        document = make_document(tmp_path, admission={"max_delay": "1 d", "max_ahead": "1 d"})
        del document["input"], document["kafka"]["topics"]
        document["views"] = [{"name": "lines", "by": ["line"], "window": "1 m"}]
        given = service_settings.parse({**document, "inputs": inputs[begin : begin + 8]})
        names = list(CASES)[begin : begin + 8]
        records = [
            Record(json.dumps(VALUE).encode(), BASE_MS + 250, CASES[name][1], CASES[name][2], n, topics[name])  # type: ignore[arg-type]
            for n, name in enumerate(names)
        ]
        frame = spark.createDataFrame([each.row() for each in records], KAFKA)
        rows = {row["offset"]: row for row in readings.admit(frame, given).toArrow().to_pylist()}
        for n, name in enumerate(names):
            expected = CASES[name][3]
            if isinstance(expected, tuple):
                expected = tuple(topics[name] if each == "TOPIC" else each for each in expected)
            row = rows[n]
            answer: Any = (row["device"], row["event_ms"], row["t"], row["line"])
            detail = ""
            if row["reject"] is not None:
                answer, detail = (readings.parsed(row["reject"])[each] for each in ("reason", "detail"))
            assert answer == expected, (name, detail)
            assert by_hand(given, records[n], answer, detail or "") == expected, name


def by_hand(given: Any, record: Record, reason: Any, detail: str) -> Any:
    form = given.of_topic(record.topic).form
    seen = dissect.dissect(record.value, form, {})
    metadata = Metadata(record.key, record.topic, 0, record.headers, record.at)
    found, _ = dissect.reason(seen, metadata, form)
    if found:
        reject = Reject(
            Coordinates(record.topic, 0, 0), reason, detail, record.at, 0, 0, record.key, record.value, record.headers
        )
        assert explain(reject, seen, given) not in {"", detail} or reason in {"bad_device", "not_finite"}
        return found
    made = dissect.reading(seen, metadata, form)
    return made.device, made.event_ms, made.measures["t"], made.columns["line"]


def test_avro_reads_the_same_sources(spark: Any, tmp_path: Path) -> None:
    """A record without a device, a time and a column: they are in the key, in Kafka's time and in a header."""
    form = {
        "device_id": ["$key.site", "$header.unit"],
        "event_time": "$timestamp",
        "measures": {"temperature": "temperature"},
        "columns": {"line": "$header.line"},
    }
    given = service_settings.parse(
        make_document(tmp_path, input=form, views=[{"name": "lines", "by": ["line"], "window": "1 m"}])
    )
    value = avro(device_id="ignored", event_time=0, temperature=3.5, humidity=None)
    record = Record(value, BASE_MS + 9, b'{"site":"s"}', (("unit", b"u"), ("line", b"L")))
    [row] = admitted(spark, given, [record])
    assert (row["device"], row["event_ms"], row["temperature"], row["line"]) == ("s/u", BASE_MS + 9, 3.5, "L")
    seen = dissect.dissect(value, given.form, dissect.writers(given.form))
    made = dissect.reading(seen, Metadata(record.key, headers=record.headers, broker_ms=record.at), given.form)
    assert (made.device, made.event_ms, made.measures, made.columns) == (
        "s/u",
        BASE_MS + 9,
        {"temperature": 3.5},
        {"line": "L"},
    )


def test_readings_of_an_array_have_the_headers_and_the_time_of_their_record(spark: Any, tmp_path: Path) -> None:
    form = {**FORM, "device_id": "$header.d", "event_time": "$timestamp", "array": True}
    given = service_settings.parse(
        make_document(tmp_path, input=form, views=[{"name": "l", "by": ["line"], "window": "1 m"}])
    )
    record = Record(b'[{"t":1,"line":"A"},{"t":2,"line":"B"}]', BASE_MS, None, (("d", b"x"),))
    rows = readings.admit(spark.createDataFrame([record.row()], KAFKA), given).toArrow().to_pylist()
    assert [(row["device"], row["event_ms"], row["t"], row["line"]) for row in rows] == [
        ("x", BASE_MS, 1.0, "A"),
        ("x", BASE_MS, 2.0, "B"),
    ]


def test_a_reject_is_admitted_again_with_its_headers(spark: Any, tmp_path: Path) -> None:
    given = service_settings.parse(make_document(tmp_path, input={**FORM, "device_id": "$header.d", "columns": {}}))
    reject = Reject(
        Coordinates("readings", 0, 5), "late", "", BASE_MS, 0, 0, None, json.dumps(VALUE).encode(), (("d", b"x"),)
    )
    frame = spark.createDataFrame(late.records([reject], has_headers=given.needs_headers))
    [row] = readings.admit(frame, given).toArrow().to_pylist()
    assert (row["device"], row["event_ms"]) == ("x", BASE_MS)


def test_the_stream_aggregates_by_the_header_and_kafkas_time(spark: Any, tmp_path: Path) -> None:
    form = {**FORM, "device_id": "$header.d", "event_time": "$timestamp", "columns": {}}
    given = service_settings.parse(make_document(tmp_path, input=form))

    def sent(device: bytes, seconds: int, t: float) -> Record:
        return Record(json.dumps({"t": t}).encode(), BASE_MS + seconds * 1000, None, (("d", device),))

    script: list[Any] = [
        Add(sent(b"a", 1, 1.0), sent(b"a", 2, 3.0), sent(b"b", 3, 5.0)),
        Expect(windows={("device", "t", "a", 0): (2, 2.0), ("device", "t", "b", 0): (1, 5.0)}, rejects=[]),
    ]
    run(spark, given, tmp_path, script)


def test_a_plan_without_such_sources_reads_no_headers(spark: Any, tmp_path: Path) -> None:
    given = service_settings.parse(
        make_document(tmp_path, input=FORM, views=[{"name": "l", "by": ["line"], "window": "1 m"}])
    )
    frame = spark.createDataFrame([], KAFKA).drop("headers")
    plan = readings.admit(frame, given)._jdf.queryExecution().optimizedPlan().toString()
    assert not given.needs_headers
    assert not [word for word in ("parse_json", "lambda", "replace(") if word in plan]


@pytest.mark.parametrize("form", ["json", "avro"])
def test_fields_that_differ_only_in_case_are_different_fields(spark: Any, tmp_path: Path, form: str) -> None:
    measures = {"small": "t", "large": "T", "both": "t + 10 * T", "one": "env.x", "two": "Env.x", "three": "Env.X"}
    columns = {"line": "line", "unit": "Line"}
    given = service_settings.parse(
        make_document(
            tmp_path,
            input={"format": form, "measures": measures, "columns": columns},
            views=[{"name": "l", "by": ["line", "unit"], "window": "1 m"}],
        )
    )
    kinds = {"t": "double", "T": "double", "line": "string", "Line": "string", "_t": "double"}
    env = {"type": "record", "name": "E", "fields": [{"name": name, "type": "double"} for name in ("x", "X")]}
    fields = [{"name": "device_id", "type": "string"}, {"name": "event_time", "type": "long"}]
    fields += [{"name": name, "type": kind} for name, kind in kinds.items()]
    fields += [{"name": "env", "type": env}, {"name": "Env", "type": ["null", "E"]}]
    schema: dict[str, Any] = {"type": "record", "name": "R", "fields": fields}
    record: dict[str, Any] = {"device_id": "d", "event_time": BASE_MS, "t": 1.0, "T": 2.0, "line": "a", "Line": "A"}
    record |= {"_t": 9.0, "env": {"x": 3.0, "X": 4.0}, "Env": {"x": 5.0, "X": 6.0}}
    value = json.dumps(record).encode() if form == "json" else avro(1, schema, **record)
    [row] = admitted(spark, given, [Record(value, BASE_MS)], schemas={"input": SchemaSet({1: schema}, schema)})
    expected = {
        "small": 1.0,
        "large": 2.0,
        "both": 21.0,
        "one": 3.0,
        "two": 5.0,
        "three": 6.0,
        "line": "a",
        "unit": "A",
    }
    assert {name: row[name] for name in expected} == expected
    seen = dissect.dissect(value, given.form, {1: schema})
    made = dissect.reading(seen, Metadata(), given.form)
    assert dissect.reason(seen, Metadata(), given.form) == ("", "")
    assert {**made.measures, **made.columns} == {name: each for name, each in expected.items() if name != "both"}


KEY = {"type": "record", "name": "K", "fields": [{"name": "site", "type": "string"}, {"name": "id", "type": "int"}]}
KEY_BODY = b"\x02s\x0e"  # site = "s", id = 7


@pytest.mark.parametrize("framing", ["confluent", "none"])
def test_fields_of_an_avro_key(spark: Any, tmp_path: Path, framing: str) -> None:
    (tmp_path / "key.avsc").write_text(json.dumps(KEY))
    head = b"\0\0\0\0\5" if framing == "confluent" else b""
    form = {"key_schema": str(tmp_path / "key.avsc"), "device_id": ["$key.site", "$key.id"], "framing": framing}
    form |= {"measures": {"t": "temperature", "id": "$key.id"}, "columns": {"site": "$key.site"}}
    given = service_settings.parse(
        make_document(tmp_path, input=form, views=[{"name": "l", "by": ["site"], "window": "1 m"}])
    )
    value = avro(device_id="x", event_time=BASE_MS, temperature=3.5, humidity=None)[0 if head else 5 :]
    good: Any = ("s/7", BASE_MS, 3.5, 7.0, "s")
    cases = {
        "good": (head + KEY_BODY, good),
        "no key": (None, "no_device"),
        "cut": (head + KEY_BODY[:-1], "no_device"),
        "more bytes": (head + KEY_BODY + b"\0", "no_device"),
        "JSON": (b'{"site":"s","id":7}', "no_device"),
        "no UTF-8": (head + b"\x02\xff\x0e", "undecodable"),
    }
    records = [Record(value, BASE_MS, key) for key, _ in cases.values()]
    rows = admitted(spark, given, records)
    found = {}
    for (name, (key, _)), row in zip(cases.items(), rows, strict=True):
        metadata = Metadata(key, broker_ms=BASE_MS)
        seen = dissect.dissect(value, given.form, dissect.writers(given.form))
        assert dissect.reason(seen, metadata, given.form)[0] == (reason(row) or ""), name
        made = dissect.reading(seen, metadata, given.form)
        single = (made.device, made.event_ms, *made.measures.values(), *made.columns.values())
        found[name] = reason(row) or (row["device"], row["event_ms"], row["t"], row["id"], row["site"])
        assert reason(row) or single == found[name], name
    assert found == {name: expected for name, (_, expected) in cases.items()}


def test_a_field_that_an_avro_key_lacks_is_refused_at_the_start(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "key.avsc").write_text(json.dumps(KEY))
    form = {"key_schema": str(tmp_path / "key.avsc"), "device_id": "$key.unit"}
    given = service_settings.parse(make_document(tmp_path, input=form))
    with pytest.raises(SchemaError, match=r"the schema of the key has no field unit; it has id, site"):
        readings.admit(spark.createDataFrame([], KAFKA), given)
    with pytest.raises(SettingsError, match=r"input\.key_schema: no setting reads a field of the key"):
        service_settings.parse(make_document(tmp_path, input={**form, "device_id": "$key"}))

"""The plan's decoder and the one for people (service/commands/dissect.py) give the same answer to every case of one table.

A case is a record's value and key. The answer is the reason of its reject, or device, event time, measures and columns. The cases
are generated: each shape of a value in the place of each mapped field, each type of a writer for each type of a reader, each cut
and changed byte. The inputs of a format are topics of one query.
"""

import copy
import io
import itertools
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from load.servers.schema_registry import Registry
from service import settings as service_settings
from service.admission import readings
from service.commands import dissect
from service.commands.explain import explain
from service.commands.metadata import Metadata
from service.rejects.reject_log import Coordinates, Reject
from service.settings import Input, Settings
from state.rules import EVENT_MS_LIMIT
from tests.stream import test_json, test_protobuf
from tests.stream.messages import ENV, FILE, READING_CLASS, text
from tests.stream.records import BASE_MS, Record, avro, make_document
from tests.stream.script import KAFKA, Add, Expect, run

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000
Cases = dict[str, tuple[str, bytes | None, bytes | None]]
"""Name -> topic, value, key."""

# Texts of JSON in the place of a value.
SHAPES = [
    *("null", "true", "false", "0", "-0", "-0.0", "1", "-7", "1.5", "1e2", "1E-3", "1e400", "-1e400", "1e-400"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "17.0"),
    *(f"{BASE_MS}", f"{BASE_MS}.4999", f"{BASE_MS}.5", f"{BASE_MS // 1000}", "9007199254740993", "1e300", "-1e300"),
    *('""', '" "', r'" \t\n"', '"a"', '"17"', '"?"', r'"\u0061"', r'"\u0000"', r'"\u0085"', r'"\u2028"', r'"\ud800"'),
    *(r'"\ud83c\udf21"', r'"\udf21\ud83c"', r'"a\ud800?"', r'"\\ud800?"', '"\u00e4\U0001f321"', '"' + "x" * 256 + '"'),
    *('"' + "x" * 257 + '"', '"' + "\u00e4" * 129 + '"', r'"\/\b\f"', r'"\x"', '"\t"', '"a\nb"', "'a'", "a", '"a'),
    *("NaN", "Infinity", "-Infinity", "INF", "+INF", "-INF", "+Infinity", "nan", "NaNs", "- Infinity"),
    *('"NaN"', '"Infinity"', '"-Infinity"', '"INF"', '"+INF"', '"-INF"', '"+Infinity"', '"nan"', '" NaN"'),
    *("{}", '{"id":"a"}', '{"humidity":3}', '{"humidity":NaN}', "[]", "[1.5]", '["a"]', "[{}]", "[NaN,{}]"),
    *("01", "-01", ".5", "1.", "+1", "1e", "0x10", "1_000", "--1", "nul", "True", "", "1 2", "1,", '"a" "b"', "/**/1"),
    *("1" * 400, "1" * 1_000, "1" * 1_001, "-" + "1" * 1_000),
    *("0." + "1" * 999, "0." + "1" * 1_000, "-0." + "1" * 1_001),
    *('"2026-09-21T14:14:00Z"', '"2026-09-21"', '"now"', '"1790000040000"'),
    *("[" * depth + "]" * depth for depth in (100, 998, 999, 1_000, 1_001, 3_000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (998, 999, 1_000)),
]
GOOD = (
    f'{{"id":"a","at":{BASE_MS},"iso":"2026-09-21T14:14:00Z","t":1.5,"air":{{"humidity":40}},"kind":"k",'
    '"free":1,"in":{"free":1}}'
)
PLACES = {
    "id": '"id":"a"',
    "at": f'"at":{BASE_MS}',
    "iso": '"iso":"2026-09-21T14:14:00Z"',
    "t": '"t":1.5',
    "humidity": '"humidity":40',
    "air": '"air":{"humidity":40}',
    "kind": '"kind":"k"',
    "free": '"free":1',
    "in.free": '"in":{"free":1}',
}
OTHERS = [
    *(GOOD + end for end in ("x", "}", "]", ",", " ", "\n", "\0", "\f", GOOD, "," + GOOD, "/**/", '},"s":{"a":1', '"')),
    *(begin + GOOD for begin in ("\ufeff", "x", "[", "{", " ", "\t\r\n", "\f", "\u00a0", "/**/")),
    *(
        "",
        " ",
        "{}",
        "{ \n}",
        "{",
        "}",
        "{,}",
        '{"a"}',
        '{"":1}',
        "[]",
        "null",
        "1",
        '"a"',
        '{"a":"}',
        '{"a":[}',
        "{}}",
    ),
    *(GOOD[:at] for at in range(1, len(GOOD), 7)),
    *(GOOD[:at] + "}" for at in range(1, len(GOOD), 5)),
    *(GOOD.replace(*pair) for pair in (('"id"', "'id'"), ('"id"', "id"), ('"id"', r'"\u0069d"'), ('"t"', '"T"'))),
    *(GOOD[:-1] + more + "}" for more in (',"tidemark_end":"x"', ',"tidemark_end":{}', ',"tidemark_corrupt":1', ",")),
    *(f'{{"{"n" * size}":1,{GOOD[1:]}' for size in (50_000, 50_001)),
    *(f"{GOOD[:-1]},{each}}}" for each in ('"t":2', '"t":null', '"t":"x"', '"id":1', '"id":{}', '"air":{}', '"air":5')),
    *(
        f"{{{each},{GOOD[1:]}"
        for each in ('"t":2', '"t":"x"', '"id":{}', '"air":{}', '"air":5', '"kind":[]', '"at":"x"')
    ),
    GOOD.replace('"id":"a"', '"id":"?"').replace('"free":1', r'"free":"\ud800"'),
]
JSON_FIELDS = {
    "format": "json",
    "device_id": "id",
    "event_time": "at",
    "measures": {"t": {"path": "t", "scale": 0.1, "offset": -4}, "h": "air.humidity"},
    "columns": {"kind": "kind"},
}


TEXTS = [
    json.dumps(each)
    for each in (
        *("21.5", " 21.5 ", "\t-3\r\n", "+7", "-0", "1e3", "1E-3", "1.", ".5", "007", "-.5e+2", "9007199254740993"),
        *("12d", "12f", "0x10", "0x1p3", "1_000", "1,5", "1 2", "--1", "-", "+", ".", "e5", "1e", "1e400", "-1e400"),
        *("true", "false", "TRUE", "True", "null", "NaN", "inf", "Infinity", "ON"),
        *("\u0661", "21.5\u00a0", "21.5 \u00b0C"),
        *(f"{BASE_MS}", f" {BASE_MS}.5", f"{BASE_MS}d", "it's", "\\b", "\v1\f", "\0001", "\u20031"),
    )
]
"""Texts of JSON in the place of a number."""
STATES = {"17": 3, "true": 2, "a": -1.5, "2026-09-21": 7, "it's": 1, "\\b": 1}


def json_values() -> Iterator[tuple[str, str]]:
    for place, old in PLACES.items():
        assert old in GOOD
        name = old.partition(":")[0]
        for shape in SHAPES:
            yield f"{place} = {shape[:40]} ({len(shape)})", GOOD.replace(old, f"{name}:{shape}")
        yield f"without {place}", GOOD.replace(old, '"other":1')
    for number, value in enumerate(OTHERS):
        yield f"{number}: {value[:30]!r}...{value[-30:]!r}", value


def json_cases() -> Cases:
    cases: Cases = {name: ("json", value.encode(), b"key") for name, value in json_values()}
    for name, (value, _) in test_json.CASES.items():
        changed = value.replace("device_id", "id").replace("event_time", "at").replace("temperature", "t")
        cases[f"of test_json: {name}"] = ("json", changed.encode(), None)
    times = {name: value for name, value in json_values() if name.startswith(("iso", "at", "without"))}
    cases |= {f"iso: {name}": ("iso", value.encode(), None) for name, value in times.items()}
    for each in test_json.ISO:
        cases[f"iso: {each!r}"] = ("iso", GOOD.replace("2026-09-21T14:14:00Z", json.dumps(each)[1:-1]).encode(), None)
    numbers = {
        name: value for name, value in json_values() if name.startswith(("t ", "at", "air", "humidity", "without"))
    }
    cases |= {
        f"{topic}: {name}": (topic, value.encode(), None)
        for topic in ("texts", "dropped", "states")
        for name, value in numbers.items()
    }
    for each in TEXTS:
        for name, value in {
            "t": GOOD.replace('"t":1.5', f'"t":{each}'),
            "at": GOOD.replace(f"{BASE_MS}", each),
        }.items():
            cases[f"{name} is the text {each}"] = ("texts", value.encode(), None)
            cases[f"{name} is the state {each}"] = ("states", value.encode(), None)
            cases[f"{name} is dropped or {each}"] = ("dropped", value.encode(), None)
    for unit in ("s", "us", "ns"):
        cases |= {f"{unit}: {name}": (unit, value.encode(), None) for name, value in times.items() if name[:2] == "at"}
    for unit, exact in (
        ("s", "1790000040.123"),
        ("s", "1790000040.9999999"),
        ("us", f"{BASE_MS}999.5"),
        ("ns", f"{BASE_MS}123456"),
    ):
        cases[f"{unit}: {exact}"] = (unit, GOOD.replace(f'"at":{BASE_MS}', f'"at":{exact}').encode(), None)
    for key in (None, b"", b" \t", b"k", b"\xff", b"a\nb", b"x" * 257, "\u00e4".encode(), "\u00e4".encode()[:1]):
        cases[f"key {key!r}"] = ("key", GOOD.encode(), key)
    for value in (b"\xff", GOOD.encode() + b"\xff", GOOD.encode().replace(b'"k"', b'"\xc3"'), GOOD.encode("utf-16")):
        cases[f"bytes {value[-10:]!r}"] = ("json", value, None)
    cases["no value"] = ("json", None, None)
    for value in (b"[%b]", b" [%b , %b]\n", b"%b", b"[%b", b"[5,%b]", b"[%b]x", b"5"):
        cases[f"array {value!r}"] = ("array", value.replace(b"%b", GOOD.encode()), None)
    return cases


def json_inputs() -> list[dict[str, Any]]:
    others: dict[str, dict[str, Any]] = {
        "iso": {"event_time": "iso", "event_time_unit": "iso"},
        "s": {"event_time_unit": "s"},
        "us": {"event_time_unit": "us"},
        "ns": {"event_time_unit": "ns"},
        "key": {"device_id": "$key"},
        "array": {"array": True},
        "texts": {"text_numbers": True},
        "dropped": {"on_bad_measure": "drop"},
        "states": {"measures": {"t": {"path": "t", "values": STATES}, "h": "air.humidity"}},
    }
    return [{**JSON_FIELDS, **more, "name": name, "topics": [name]} for name, more in {"json": {}, **others}.items()]


# Types of a writer, and a value of each.
TYPES: dict[str, tuple[Any, Any]] = {
    "null": ("null", None),
    "boolean": ("boolean", True),
    "int": ("int", -5),
    "long": ("long", 1 << 40),
    "float": ("float", 0.1),
    "double": ("double", 2.5),
    "NaN": ("double", float("nan")),
    "infinity": (["null", "float"], float("-inf")),
    "text": ("string", "17"),
    "bytes": ("bytes", b"17"),
    "bytes that are no text": ("bytes", b"\xff"),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
    "enum with a new symbol": ({"type": "enum", "name": "E", "symbols": ["A", "B", "NEW"]}, "NEW"),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
    "array": ({"type": "array", "items": "double"}, [1.0]),
    "map": ({"type": "map", "values": "double"}, {"x": 1.0}),
    "record": ({"type": "record", "name": "P", "fields": [{"name": "x", "type": "double"}]}, {"x": 1.0}),
    "null of a union": (["null", "double"], None),
    "text of a union": (["null", "string", "double"], "warm"),
    "number of a union": (["null", "string", "int"], 7),
    "uuid": ({"type": "string", "logicalType": "uuid"}, "no uuid"),
    "millis": ({"type": "long", "logicalType": "timestamp-millis"}, BASE_MS + 1),
    "micros": ({"type": "long", "logicalType": "timestamp-micros"}, BASE_MS * 1000 + 1999),
    "date": ({"type": "int", "logicalType": "date"}, 20_000),
}
# Inputs: the reader's type of the field that differs, and how it is mapped.
READERS: dict[str, tuple[Any, str]] = {
    "number": (["null", "double"], "measure"),
    "float": ("float", "measure"),
    "whole": (["int", "long"], "measure"),
    "time": ("long", "time"),
    "stamp": ({"type": "long", "logicalType": "timestamp-micros"}, "time"),
    "text": (["null", "string"], "device"),
    "number_text": (["null", "string"], "measure"),
    "time_text": ("string", "time"),
    "symbol": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "column"),
    "map": (["null", "int"], "map"),
    "unmapped": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "unmapped"),
}


def schema(kind: Any) -> dict[str, Any]:
    kind = copy.deepcopy(kind)
    inner = [{"name": "t", "type": "double"}, {"name": "deep", "type": kind}, {"name": "end", "type": "int"}]
    fields = [
        {"name": "id", "type": "string"},
        {"name": "at", "type": "long"},
        {"name": "env", "type": ["null", {"type": "record", "name": "Env", "namespace": "b", "fields": inner}]},
        {"name": "by", "type": {"type": "map", "values": "b.Env"}},
        {"name": "before", "type": ["null", "R"]},
    ]
    return {"type": "record", "name": "R", "namespace": "a", "fields": fields}


def avro_input(name: str, use: str, folder: Path) -> dict[str, Any]:
    return {
        "name": name,
        "topics": [name],
        "schemas": str(folder / name),
        "reader_schema": 1,
        "device_id": "env.deep" if use == "device" else "id",
        "event_time": "env.deep" if use == "time" else "at",
        "event_time_unit": "logical" if name == "stamp" else "ms",
        "measures": {"t": "env.t", **({"h": "env.deep"} if use == "measure" else {})},
        "columns": {"kind": "env.deep"} if use == "column" else {"kind": "by.x.end"} if use == "map" else {},
    }


def avro_bytes(number: int, kind: Any, value: Any, *, nests: bool = True) -> bytes:
    parsed = fastavro.parse_schema(schema(kind))
    inner = {"t": 1.5, "deep": value, "end": 3}
    record = {"id": "d\u00e4", "at": BASE_MS, "env": inner, "by": {"x": inner}, "before": None}
    if nests:
        record = {**record, "before": record}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, record)
    return b"\0" + struct.pack(">i", number) + out.getvalue()


def avro_inputs(folder: Path) -> tuple[list[dict[str, Any]], Cases]:
    inputs, cases = [], Cases()
    for name, (reader, use) in READERS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "1.avsc").write_text(json.dumps(schema(reader)))
        inputs.append(avro_input(name, use, folder))
        for number, (kind, (writer, value)) in enumerate(TYPES.items(), start=2):
            (folder / name / f"{number}.avsc").write_text(json.dumps(schema(writer)))
            cases[f"{name} <- {kind}"] = (name, avro_bytes(number, writer, value), b"k")
    good = avro_bytes(2 + list(TYPES).index("enum"), *TYPES["enum"])
    flat = avro_bytes(2 + list(TYPES).index("enum"), *TYPES["enum"], nests=False)
    for at, byte in itertools.product(range(len(good)), (0x00, 0x01, 0x7F, 0x80, 0xFF)):
        cases[f"byte {at} is {byte:#x}"] = ("unmapped", good[:at] + bytes([byte]) + good[at + 1 :], None)
    for at in range(len(good)):
        cases[f"cut at {at}"] = ("unmapped", good[:at], None)
    for levels in (100, 126, 127, 128, 129, 13_000):  # of records in the record, in a field that is not mapped
        deep = flat[:-1] + b"\2\0\0\0\0" * levels + b"\0"
        cases[f"{levels} levels"] = ("unmapped", deep, None)
    cases |= {f"{more!r} behind": ("unmapped", good + more, None) for more in (b"\0", b"x" * 8, good)}
    return inputs, cases


def protobuf_cases() -> Cases:
    made = READING_CLASS(device_id="a", kind=0, count=2)
    made.event_time.FromMilliseconds(BASE_MS)
    cases: Cases = {f"of test_protobuf: {n}": ("pb", value, None) for n, value in enumerate(test_protobuf.CASES)}
    whole = test_protobuf.framed(test_protobuf.body(temperature=20.5, pressure=1.5, kind=9), test_protobuf.NUMBER)
    for at, byte in itertools.product(range(len(whole)), (0x00, 0x7F, 0x80, 0xFF)):
        cases[f"byte {at} is {byte:#x}"] = ("pb", whole[:at] + bytes([byte]) + whole[at + 1 :], None)
    for device in ("?", "\u00e4", "a\nb", " ", "x" * 300, "\\ud800?"):
        value = test_protobuf.framed(test_protobuf.body(device_id=device), test_protobuf.NUMBER)
        cases[f"device {device[:9]!r}"] = ("pb", value, None)
    return cases


def by_plan(spark: Any, given: Settings, cases: Cases) -> dict[str, Any]:
    """Return the answer of the plan to each case; "one array" for a record that is cut into readings."""
    topics = {name: (topic, value, key) for name, (topic, value, key) in cases.items()}
    records = [
        Record(value, BASE_MS, key, offset=n, topic=topic) for n, (topic, value, key) in enumerate(topics.values())
    ]
    frame = spark.createDataFrame([record.row() for record in records], KAFKA).coalesce(2)
    names = list(cases)
    answers: dict[str, Any] = {}
    for row in readings.admit(frame, given).toArrow().to_pylist():
        form = given.of_topic(topics[names[row["offset"]]][0]).form
        if row["reject"] is not None:
            answer: Any = json.loads(row["reject"])["reason"]
        else:
            measures = {name: row[name] for name in form.measures}
            answer = (row["device"], row["event_ms"], measures, {name: row[name] for name in form.columns})
        answers[names[row["offset"]]] = "an array" if form.array and row["$index"] is not None else answer
    return answers


def by_hand(
    form: Input, schemas: dissect.Schemas, value: bytes | None, key: bytes | None
) -> tuple[Any, dissect.Dissected]:
    found = dissect.dissect(value, form, schemas)
    reason, _ = dissect.reason(found, Metadata(key), form)
    if reason:
        return reason, found
    made = dissect.reading(found, Metadata(key), form)
    time = made.event_ms or 0
    if time > BASE_MS + DAY_MS or time >= EVENT_MS_LIMIT:
        return "early", found
    if time < BASE_MS - DAY_MS or time < 0:
        return "late", found
    if any(abs(number) > 1e140 for number in made.measures.values() if number is not None):
        return "out_of_range", found
    return (made.device, made.event_ms, made.measures, made.columns), found


def compare(spark: Any, given: Settings, cases: Cases) -> None:
    plan = by_plan(spark, given, cases)
    known = {each.form.place: dissect.writers(each.form, each) for each in given.split()}
    differences, silent = {}, {}
    for name, (topic, value, key) in cases.items():
        one = given.of_topic(topic)
        answer, found = by_hand(one.form, known[one.form.place], value, key)
        if plan.get(name) == "an array":
            answer = "an array" if found.why.startswith("is an array") else answer
        if plan.get(name) != "oversized" and repr(plan.get(name)) != repr(answer):
            differences[name] = (plan[name], answer)
        if plan.get(name) == "undecodable" and value is not None:
            reject = Reject(Coordinates(topic, 0, 0), "undecodable", "STORED", BASE_MS, 0, 0, key, value, ())
            if explain(reject, found, given) == "STORED":
                silent[name] = value
    assert not differences, "\n".join(
        f"{name}: plan {left}, dissect {right}" for name, (left, right) in differences.items()
    )
    assert not silent, silent


def settings(folder: Path, inputs: list[dict[str, Any]], **sections: Any) -> Settings:
    document = make_document(folder, admission={"max_delay": "1 d", "max_ahead": "1 d"}, **sections)
    del document["input"], document["kafka"]["topics"]
    if any(each.get("columns") for each in inputs):
        document["views"] = [{"name": "kinds", "by": ["kind"], "window": "1 m"}]
    return service_settings.parse({**document, "inputs": inputs})


@pytest.mark.silent("1.9")
def test_a_field_that_is_not_mapped_does_not_decide_about_a_record(spark: Any, tmp_path: Path) -> None:
    """A nested enum with a new symbol, a nested count that became text, a NaN: none of them is mapped."""

    def of(status: list[str], count: str) -> dict[str, Any]:
        kinds = {"t": "double", "status": {"type": "enum", "name": "S", "symbols": status}, "count": count}
        inner = [{"name": name, "type": kind} for name, kind in kinds.items()]
        fields = [{"name": "id", "type": "string"}, {"name": "at", "type": "long"}]
        env = {"name": "env", "type": {"type": "record", "name": "Env", "fields": inner}}
        return {"type": "record", "name": "R", "fields": [*fields, env]}

    older, newer = of(["ON"], "int"), of(["ON", "SLEEPING"], "string")
    (tmp_path / "avro").mkdir()
    for number, each in enumerate((older, newer), start=1):
        (tmp_path / "avro" / f"{number}.avsc").write_text(json.dumps(each))

    def sent(number: int, each: dict[str, Any], **env: Any) -> Record:
        return Record(avro(number, each, id="d", at=BASE_MS, env=env), BASE_MS, topic="avro")

    shape = {"device_id": "id", "event_time": "at", "measures": {"t": "env.t"}}
    inputs = [
        {**shape, "name": "avro", "topics": ["avro"], "schemas": str(tmp_path / "avro"), "reader_schema": 1},
        {**shape, "name": "json", "topics": ["json"], "format": "json"},
    ]
    nan = b'{"id":"d","at":%d,"env":{"t":3,"rssi":NaN},"x":[-Infinity]}' % BASE_MS
    script: list[Any] = [
        Add(sent(1, older, t=1.0, status="ON", count=3), sent(2, newer, t=2.0, status="SLEEPING", count="three")),
        Add(Record(nan, BASE_MS, topic="json")),
        Expect(windows={("kinds", "t", "d", 0): (3, 2.0)}, rejects=[]),
    ]
    views = [{"name": "kinds", "by": ["device"], "window": "1 m"}]
    run(spark, settings(tmp_path, inputs, views=views), tmp_path, script)


@pytest.mark.silent("1.11")
def test_both_decoders_give_the_same_answer_to_json(spark: Any, tmp_path: Path) -> None:
    compare(spark, settings(tmp_path, json_inputs()), json_cases())


@pytest.mark.thorough
@pytest.mark.silent("1.11")
def test_both_decoders_give_the_same_answer_to_avro(spark: Any, tmp_path: Path) -> None:
    inputs, cases = avro_inputs(tmp_path)
    compare(spark, settings(tmp_path, inputs), cases)


@pytest.mark.silent("1.11")
def test_both_decoders_give_the_same_answer_to_protobuf_and_json_behind_an_id(spark: Any, tmp_path: Path) -> None:
    with Registry() as registry:
        registry.register("env", text(ENV), kind="PROTOBUF")
        references = [{"name": "env.proto", "subject": "env", "version": 1}]
        registry.register("pb-value", text(FILE), references, kind="PROTOBUF")
        number = registry.register("js-value", {"type": "object"}, kind="JSON")
        cases = protobuf_cases()
        head = b"\0" + number.to_bytes(4, "big")
        for name, value in itertools.islice(json_values(), 0, None, 9):
            cases[f"js: {name}"] = ("js", head + value.encode(), None)
        for value in (b"", head, head[:4], b"\1" + head[1:] + GOOD.encode(), GOOD.encode(), b"\0\0\0\0\x63{}"):
            cases[f"js bytes: {value[:8]!r}"] = ("js", value, None)
        protobuf = {
            **test_protobuf.INPUT,
            "measures": {"t": "temperature", "h": "env.pressure"},
            "columns": {"kind": "kind"},
        }
        inputs = [
            {**protobuf, "name": "pb", "topics": ["pb"]},
            {**JSON_FIELDS, "format": "json-schema", "name": "js", "topics": ["js"]},
        ]
        compare(spark, settings(tmp_path, inputs, registry={"url": registry.url}), cases)

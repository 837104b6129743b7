"""Admission: for every reason a record that earns it, the order of the reasons, and the limits to the millisecond."""

import itertools
import json
import random
import re
import struct
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from load.judge.oracle import may_be_named
from load.servers.kafka import KAFKA
from service.admission import readings
from service.admission.readings import DETAIL_LETTERS, REASONS
from service.aggregation import task_counters
from service.pipeline import builder
from service.reference import lookup
from service.reference.attributes import Index
from service.row_schemas import COUNTS, FOLDED, REJECT_TYPE, REJECTS
from service.settings import Reference, parse
from state import codec
from tests.examples import one_in
from tests.stream.decisions import by_oracle
from tests.stream.records import BASE_MS, SCHEMA, Record, avro, make_document, make_settings
from tests.stream.records import rows as rows_of

pytestmark = pytest.mark.spark

MEASURES = {"temperature": "temperature", "humidity": "humidity"}
LIMITS = {
    "max_delay": "20 s",
    "max_ahead": "5 s",
    "max_bytes": 200,
    "unknown_device": "reject",
    "ranges": {"temperature": [-40.0, 85.5]},
}
DELAY_MS, AHEAD_MS = 20_000, 5_000
LATEST_MS = 1 << 42
NAN, INF = float("nan"), float("inf")


def decide(spark, settings, records, known=None):
    """What readings.admit says of each record, in their order; `reject` as a dictionary.

    `known` are the devices of the reference, or rows of it.
    """
    if known is not None and settings.reference is None:
        settings = settings.model_copy(update={"reference": Reference(url="jdbc:sqlite:x", query="q")})
    frame = spark.createDataFrame(rows_of(records), KAFKA).coalesce(1)
    attributes = None
    if known is not None:
        columns = list(dict.fromkeys(["device", *lookup.bounds(settings).values()]))
        reference_rows = [(row,) if isinstance(row, str) else row for row in known]
        values = zip(*reference_rows, strict=True)
        attributes = Index(
            pa.table({name: pa.array(each, pa.string()) for name, each in zip(columns, values, strict=True)})
        )
    rows = [row.asDict(recursive=True) for row in readings.admit(frame, settings, attributes).collect()]
    for row in rows:
        if row["reject"] is not None:
            row["reject"] = dict.fromkeys(REJECT_TYPE.fieldNames()) | json.loads(row["reject"])
    assert len(rows) == len(records)
    if known is None:
        return rows
    # A join may change the order; there is only one way to tell admitted rows apart.
    by_offset = {row["reject"]["offset"]: row for row in rows if row["reject"]}
    admitted = iter([row for row in rows if not row["reject"]])
    return [by_offset.get(record.offset) or next(admitted) for record in records]


def value(ms=0, device="a", temperature=20.0, humidity=None):
    return avro(device_id=device, event_time=BASE_MS + ms, temperature=temperature, humidity=humidity)


def record(ms=0, **fields):
    """A reading `ms` after the broker's time for it."""
    return Record(value(ms, **fields), BASE_MS)


def reasons(rows):
    return [row["reject"] and row["reject"]["reason"] for row in rows]


def wire(schema_id, body=b""):
    return b"\0" + struct.pack(">i", schema_id) + body


# (record, reason or None, detail or None): each of the reasons, at its limit and one step beyond.
HOTSPOT_BYTES = 8_000

AT_THE_LIMITS = {
    "ordinary": (record(), None, None),
    "as late as allowed": (record(-DELAY_MS), None, None),
    "later by a millisecond": (record(-DELAY_MS - 1), "late", None),
    "as early as allowed": (record(AHEAD_MS), None, None),
    "earlier by a millisecond": (record(AHEAD_MS + 1), "early", None),
    "as cold as allowed": (record(temperature=-40.0), None, None),
    "as warm as allowed": (record(temperature=85.5), None, None),
    "a little too cold": (
        record(temperature=-40.000000000000007),
        "out_of_range",
        "temperature = -40.00000000000001, allowed -40.0 to 85.5 (admission.ranges.temperature)",
    ),
    "a little too warm": (
        record(temperature=85.75),
        "out_of_range",
        "temperature = 85.75, allowed -40.0 to 85.5 (admission.ranges.temperature)",
    ),
    "no temperature": (record(temperature=None), None, None),
    "a measure without a range": (record(humidity=1e140), None, None),
    "a measure without a range downwards": (record(humidity=-1e140), None, None),
    "a measure without a range that is too large": (
        record(humidity=1e300),
        "out_of_range",
        "humidity = 1.0E300, allowed -1e+140 to 1e+140 (the limit of every measure)",
    ),
    "a measure without a range that is a little too small": (record(humidity=-1.0000001e140), "out_of_range", None),
    "not a number": (record(temperature=NAN), "not_finite", "temperature = NaN"),
    "not a number in the second measure": (record(humidity=NAN), "not_finite", "humidity = NaN"),
    "infinite": (record(humidity=INF), "not_finite", "humidity = Infinity"),
    "infinite downwards": (record(temperature=-INF), "not_finite", "temperature = -Infinity"),
    "no device": (record(device=""), "no_device", "device_id: missing or blank"),
    "a blank device": (record(device=" \t\r\n"), "no_device", "device_id: missing or blank"),
    "a device that is not known": (record(device="b"), "unknown_device", "device b"),
    "a device that would clear a terminal": (
        record(device="a\x1b[2J"),
        "bad_device",
        "5 bytes, the limit is 256 and no control character: 0x611B5B324A",
    ),
    "a device with a blank": (record(device="a "), "unknown_device", "device a "),
    "as large as allowed": (Record(wire(1, b"\xff" * 195), BASE_MS), "undecodable", "200 bytes"),
    "larger by a byte": (
        Record(wire(1, b"\xff" * 196), BASE_MS),
        "oversized",
        "201 bytes, limit 200 (admission.max_bytes)",
    ),
    "no value": (Record(None, BASE_MS), "undecodable", "0 bytes"),
    "an empty value": (Record(b"", BASE_MS), "undecodable", "0 bytes"),
    "half a header": (Record(b"\0\0\0\0", BASE_MS), "undecodable", "4 bytes"),
    "a header and nothing else": (Record(wire(1), BASE_MS), "undecodable", "5 bytes"),
    "another magic byte": (Record(b"\1" + value()[1:], BASE_MS), "undecodable", f"{len(value())} bytes"),
    "cut in the middle": (Record(value()[:-3], BASE_MS), "undecodable", f"{len(value()) - 3} bytes"),
    "a schema that nobody knows": (Record(wire(258, value()[5:]), BASE_MS), "unknown_schema", "schema id 0x00000102"),
    "the highest schema": (
        Record(b"\0\xff\xff\xff\xff" + value()[5:], BASE_MS),
        "unknown_schema",
        "schema id 0xFFFFFFFF",
    ),
    "a device that is no text": (
        Record(value(device="xx").replace(b"xx", b"\xff\xfe"), BASE_MS),
        "undecodable",
        f"{len(value(device='xx'))} bytes",
    ),
    "a byte after the end": (Record(value() + b"\0", BASE_MS), "undecodable", f"{len(value()) + 1} bytes"),
    "a whole record after the end": (Record(value() + value()[5:], BASE_MS), "undecodable", None),
    "eight bytes after the end": (Record(value() + bytes(8), BASE_MS), "undecodable", f"{len(value()) + 8} bytes"),
    "a length below zero": (Record(wire(1, b"\x01"), BASE_MS), "undecodable", "6 bytes"),
    "a length beyond the record": (Record(wire(1, b"\x80\x80\x80\x80\x08"), BASE_MS), "undecodable", "10 bytes"),
    "a branch that the union lacks": (
        Record(value().replace(b"\x02\x00\x00\x00\x00\x00\x004@", b"\x7e"), BASE_MS),
        "undecodable",
        None,
    ),
    "the end of all integers": (
        Record(wire(1, b"\x02a" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\0\0"), BASE_MS),
        "undecodable",
        None,
    ),
}


@pytest.fixture(scope="module")
def at_the_limits(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    settings = make_settings(folder, input={"measures": MEASURES, "event_time_unit": "logical"}, admission=LIMITS)
    rows = decide(spark, settings, [each for each, _, _ in AT_THE_LIMITS.values()], known=["a"])
    return dict(zip(AT_THE_LIMITS, rows, strict=True))


@pytest.mark.parametrize("case", AT_THE_LIMITS)
def test_a_record_is_decided_by_the_limits_to_the_last_step(at_the_limits, case):
    sent, reason, detail = AT_THE_LIMITS[case]
    row = at_the_limits[case]
    assert row["broker_ms"] == BASE_MS
    if reason is None:
        assert row["reject"] is None
        assert row["device"] == "a"
        assert 0 <= row["bucket"] < 4
        return
    assert row["reject"]["reason"] == reason
    if detail is not None:
        assert row["reject"]["detail"] == detail
    assert row["reject"]["offset"] == sent.offset
    # Nothing downstream can count a rejected row by mistake.
    assert [row[name] for name in ("device", "event_ms", *MEASURES)] == [None] * 4
    # Early readings are counted by device, each device's in one place, and late ones if the broker's time is ahead.
    has_place = (0 <= row["bucket"] < 4, "a") if reason in {"early", "late"} else (row["bucket"] is None, None)
    assert has_place == (True, row["reject"]["device"])
    times = {"early": BASE_MS + AHEAD_MS + 1, "late": BASE_MS - DELAY_MS - 1}
    assert row["reject"]["event_ms"] == times.get(reason)


def test_the_oracle_decides_alike(tmp_path):
    """But for a number of more than 64 bits, of which fastavro takes a part."""
    cases = {name: case for name, case in AT_THE_LIMITS.items() if name != "the end of all integers"}
    document = make_document(
        tmp_path,
        input={"measures": MEASURES, "event_time_unit": "logical"},
        admission=LIMITS,
        reference={"url": "jdbc:sqlite:x", "query": "q"},
    )
    _, reasons = by_oracle(tmp_path, document, [each for each, _, _ in cases.values()], {"a": {}})
    assert dict(zip(cases, reasons, strict=True)) == {name: reason for name, (_, reason, _) in cases.items()}


IN_THE_FOLD = {"ahead", "replayed", "behind", "too_many_devices", "duplicate"}
"""Are decided behind admission: tests/integration/test_ahead.py, test_two_places.py, test_device_limit.py, test_distinct.py."""


def test_the_table_has_every_reason_but_those_of_a_missing_time():
    assert {reason for _, reason, _ in AT_THE_LIMITS.values() if reason} == set(REASONS) - {"no_time", *IN_THE_FOLD}


# A schema in which everything may be missing, to have several faults at once and the rarer types.
LOOSE = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device_id", "type": ["null", "string"]},
        {"name": "event_time", "type": ["null", "string"]},
        {"name": "temperature", "type": ["null", "double"]},
        {"name": "padding", "type": "bytes", "default": ""},
    ],
}


def iso(ms):
    """`ms` after BASE_MS as text."""
    return datetime.fromtimestamp((BASE_MS + ms) / 1000, UTC).isoformat(timespec="milliseconds")


def with_schemas(folder, *schemas, **settings_input):
    (folder / "own").mkdir(parents=True)
    for number, schema in enumerate(schemas, start=1):
        (folder / "own" / f"{number}.avsc").write_text(json.dumps(schema))
    return {"schemas": str(folder / "own"), "measures": {"temperature": "temperature"}, **settings_input}


def test_of_several_reasons_the_first_in_the_list_is_given(spark, tmp_path):
    """A record with all faults from each reason on; the one that comes first names it."""
    broken = {"device_id": "a", "event_time": iso(-DELAY_MS - 1), "temperature": 1.0, "padding": b""}
    faults = {
        "late": {},
        "out_of_range": {"temperature": 1e9},
        "not_finite": {"temperature": INF},
        "no_time": {"event_time": None},
        "unknown_device": {"device_id": "ghost"},
        "bad_device": {"device_id": "gho\nst"},
        "no_device": {"device_id": None},
        "undecodable": {},
        "unknown_schema": {},
        "oversized": {"padding": b"x" * 300},
    }
    records, wanted = [], []
    for reason, fault in faults.items():
        broken |= fault
        number = 7 if reason in {"unknown_schema", "oversized"} else 1
        data = avro(number, LOOSE, **broken)
        records.append(Record(data[:-1] if reason == "undecodable" else data, BASE_MS))
        wanted.append(reason)
    early = broken | {"event_time": iso(AHEAD_MS + 1), "device_id": "a", "temperature": 1.0, "padding": b""}
    records += [
        Record(avro(1, LOOSE, **early), BASE_MS),
        Record(avro(1, LOOSE, **early | {"temperature": 86.0}), BASE_MS),
        Record(avro(1, LOOSE, **early | {"device_id": "ghost"}), BASE_MS),
        Record(b"\0\0\0\0", BASE_MS),  # too short to name a schema
        Record(b"\7" * 300, BASE_MS),
    ]
    wanted += ["early", "out_of_range", "unknown_device", "undecodable", "oversized"]
    source = with_schemas(tmp_path, LOOSE, event_time_unit="iso")
    given = {"input": source, "admission": LIMITS, "reference": {"url": "jdbc:sqlite:x", "query": "q"}}
    document = make_document(tmp_path, **given)
    rows = decide(spark, parse(document), records, known=["a"])
    assert reasons(rows) == wanted
    assert by_oracle(tmp_path, document, records, {"a": {}})[1] == wanted
    assert set(wanted) == set(REASONS) - IN_THE_FOLD


def test_service_and_oracle_allow_the_same_characters_and_lengths_of_a_device_id(spark, tmp_path):
    """Every character up to U+2FFF, some beyond, and lengths on both sides of the limit, in bytes and in characters."""
    characters = [*range(1, 0x3000), 0xD7FF, 0xE000, 0xFEFF, 0xFFFC, 0xFFFF, 0x1D7D8, 0x1F600, 0xE0001, 0x10FFFF]
    names = [f"a{chr(code)}b" for code in characters]
    names += [
        "x" * 256,
        "x" * 257,
        "é" * 128,
        "é" * 128 + "x",
        "é" * 129,
        "\u2029" * 300,
        "x" * 40_000,
        "é" * 80 + "\x85",
    ]
    rows = decide(spark, make_settings(tmp_path), [record(device=name) for name in names])
    assert reasons(rows) == [None if may_be_named(name) else "bad_device" for name in names]
    details = [row["reject"]["detail"] for row in rows if row["reject"]]
    assert details[-1] == f"162 bytes, the limit is 256 and no control character: 0x{'C3A9' * 64}"


def test_a_missing_device_or_time_is_named_and_a_missing_measure_is_no_fault(spark, tmp_path):
    base = {"device_id": "a", "event_time": iso(0), "temperature": None, "padding": b""}
    records = [
        Record(avro(1, LOOSE, **base), BASE_MS),
        Record(avro(1, LOOSE, **base | {"device_id": None}), BASE_MS),
        Record(avro(1, LOOSE, **base | {"event_time": None}), BASE_MS),
    ]
    rows = decide(spark, make_settings(tmp_path, input=with_schemas(tmp_path, LOOSE, event_time_unit="iso")), records)
    assert reasons(rows) == [None, "no_device", "no_time"]
    assert [row["reject"]["detail"] for row in rows[1:]] == [
        "device_id: missing or blank",
        "event_time: missing, or not a time (iso)",
    ]
    assert (rows[0]["device"], rows[0]["event_ms"], rows[0]["temperature"]) == ("a", BASE_MS, None)


def test_a_reject_says_where_its_record_is_and_carries_nothing_of_it(spark, tmp_path):
    sent = [
        Record(b"\1junk", BASE_MS + 1, key=b"\xff\0", headers=(("trace", b"\xff"), ("trace", b""))),
        Record(None, BASE_MS + 2),
    ]
    rows = decide(spark, make_settings(tmp_path), sent)
    for row, each in zip(rows, sent, strict=True):
        assert list(row["reject"]) == REJECT_TYPE.fieldNames()
        assert row["reject"] | {"detail": None} == {
            "reason": "undecodable",
            "detail": None,
            "topic": "readings",
            "partition": 0,
            "offset": each.offset,
            "broker_ms": each.at,
            "device": None,
            "event_ms": None,
            "watermark_ms": None,
            "schema_id": None,
            "index": None,
        }


def test_what_the_pass_holds_of_a_reject_does_not_depend_on_what_was_sent(spark, tmp_path):
    large = bytes(1 << 20)
    settings = make_settings(tmp_path, admission={"unknown_device": "reject", "max_bytes": 1 << 20})
    records = [
        Record(large, BASE_MS),
        Record(large + b"x", BASE_MS),
        Record(value(), BASE_MS, key=large + b"x"),
        Record(value(), BASE_MS, headers=(("trace", large),)),
        Record(value(device="d" * 100_000), BASE_MS),
    ]
    frame = spark.createDataFrame(rows_of(records), KAFKA).coalesce(1)
    rows = readings.admit(frame, settings, Index(pa.table({"device": ["a"]}))).toArrow()
    rejects = [json.loads(text) for text in rows["reject"].to_pylist() if text is not None]
    assert sorted(each["reason"] for each in rejects) == ["bad_device", "oversized", "oversized", "unknown_schema"]
    assert max(len(each["detail"]) for each in rejects) <= DETAIL_LETTERS
    assert rows.nbytes < 10 * DETAIL_LETTERS


def test_a_reject_names_the_schema_id_that_is_not_known(spark, tmp_path):
    numbers = [0, 7, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
    records = [Record(b"\0" + struct.pack(">I", number) + b"body", BASE_MS) for number in numbers]
    rejects = [row["reject"] for row in decide(spark, make_settings(tmp_path), records)]
    assert [(each["reason"], each["schema_id"]) for each in rejects] == [("unknown_schema", each) for each in numbers]


def test_unknown_devices_are_kept_unless_the_settings_say_otherwise(spark, tmp_path):
    keep = make_settings(tmp_path / "keep")
    reject = make_settings(tmp_path / "reject", admission={"unknown_device": "reject"})
    records = [record(device="a"), record(device="b")]
    assert reasons(decide(spark, keep, records, known=["a"])) == [None, None]
    assert reasons(decide(spark, reject, records, known=["a"])) == [None, "unknown_device"]
    # Without reference data nobody is known, and nobody is unknown.
    assert reasons(decide(spark, reject, records)) == [None, None]


def timed(kind):
    return {**LOOSE, "fields": [LOOSE["fields"][0], {"name": "event_time", "type": kind}, LOOSE["fields"][2]]}


# (Avro type, unit, value) -> ms after BASE_MS, or a reason
TIMES = {
    ("long", "s", BASE_MS // 1000): 0,
    ("long", "ms", BASE_MS): 0,
    ("long", "us", BASE_MS * 1000): 0,
    ("long", "us", BASE_MS * 1000 + 999): 0,
    ("long", "us", BASE_MS * 1000 - 1): -1,
    ("long", "s", (1 << 63) - 1): "early",
    ("long", "ms", (1 << 63) - 1): "early",
    ("long", "us", (1 << 63) - 1): "early",
    ("long", "s", -(1 << 63)): "late",
    ("long", "ms", -(1 << 63)): "late",
    ("long", "us", -(1 << 63)): "late",
    ("long", "ms", BASE_MS // 1000): "late",  # seconds where milliseconds are promised
    ("long", "ms", BASE_MS * 1000): "early",
    ("int", "s", BASE_MS // 1000): 0,
    ("int", "s", -(1 << 31)): "late",
    ("double", "s", BASE_MS / 1000 + 0.123): 123,
    ("double", "s", BASE_MS / 1000 - 0.001): -1,
    ("double", "ms", BASE_MS + 0.9): 0,
    ("double", "us", BASE_MS * 1000.0 + 999): 0,
    ("double", "ms", NAN): "no_time",
    ("double", "ms", INF): "early",
    ("double", "s", -INF): "late",
    ("double", "s", 1.7e308): "early",
    ("string", "iso", "2026-09-21T14:14:00.250Z"): 250,
    ("string", "iso", "half past two"): "no_time",
    ("string", "ms", str(BASE_MS)): 0,
    ("string", "ms", "half past two"): "no_time",
    ("string", "ms", ""): "no_time",
    ("string", "ms", "NaN"): "no_time",
}
LOGICAL = {
    ("timestamp-millis", BASE_MS): 0,
    ("timestamp-micros", BASE_MS * 1000 + 1_999): 1,
    ("timestamp-micros", BASE_MS * 1000 - 1): -1,
    ("local-timestamp-millis", BASE_MS + 5): 5,
    ("timestamp-micros", (1 << 63) - 1): "early",
    ("timestamp-micros", -(1 << 63)): "late",
    ("timestamp-millis", 4_070_908_800_000): "early",
    ("timestamp-millis", 0): "late",
}


def by_kind(times):
    """The table by what needs settings of its own: (type, unit) -> [(value, wanted)]."""
    ordered = sorted(times.items(), key=lambda item: repr(item[0][:-1]))
    return [
        (key, [(k[-1], wanted) for k, wanted in group])
        for key, group in itertools.groupby(ordered, lambda item: item[0][:-1])
    ]


@pytest.mark.parametrize(
    ("kind", "unit", "cases"),
    one_in(
        3,
        [
            *[pytest.param(kind, unit, cases, id=f"{kind}-{unit}") for (kind, unit), cases in by_kind(TIMES)],
            *[
                pytest.param({"type": "long", "logicalType": name}, unit, cases, id=f"{name}-{unit}")
                for (name,), cases in by_kind(LOGICAL)
                for unit in ("logical", "ms")  # a type that says it all is believed whatever the settings say
            ],
        ],
    ),
)
def test_event_times_of_any_unit_and_type_become_whole_milliseconds(spark, tmp_path, kind, unit, cases):
    schema, plain = timed(kind), timed(kind["type"] if isinstance(kind, dict) else kind)
    settings = make_settings(tmp_path, input=with_schemas(tmp_path, schema, event_time_unit=unit))
    records = [Record(avro(1, plain, device_id="a", event_time=each, temperature=None), BASE_MS) for each, _ in cases]
    outcomes = [
        row["reject"]["reason"] if row["reject"] else row["event_ms"] - BASE_MS
        for row in decide(spark, settings, records)
    ]
    assert outcomes == [wanted for _, wanted in cases]


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        *[("long", unit) for unit in ("s", "ms", "us")],
        ({"type": "long", "logicalType": "timestamp-millis"}, "logical"),
        ("double", "s"),
        ("string", "ms"),
        ("string", "iso"),
    ],
)
def test_a_null_time_is_no_time_and_not_the_least_of_all(spark, tmp_path, kind, unit):
    schema = timed(["null", kind])
    plain = timed(["null", kind["type"] if isinstance(kind, dict) else kind])
    settings = make_settings(tmp_path, input=with_schemas(tmp_path, schema, event_time_unit=unit))
    sent = Record(avro(1, plain, device_id="a", event_time=None, temperature=1.0), BASE_MS)
    assert reasons(decide(spark, settings, [sent])) == ["no_time"]


# (event time, broker time) -> reason: where the broker's time is the producer's (CreateTime), both may be wrong alike.
BOTH_WRONG = {
    (-100, 5): "late",
    (-1, 0): "late",
    (-(1 << 62), 5): "late",
    (0, 0): None,
    (LATEST_MS - 1, LATEST_MS - 1): None,
    (LATEST_MS, LATEST_MS): "early",
    (LATEST_MS, LATEST_MS + 1_000): "early",
    (1 << 43, 1 << 43): "early",
    (1 << 43, 5): "early",
}


def test_times_that_the_state_cannot_keep_are_rejected_and_do_not_break_the_fold(spark, tmp_path):
    plain = {**SCHEMA, "fields": [SCHEMA["fields"][0], {"name": "event_time", "type": "long"}, *SCHEMA["fields"][2:]]}
    source = with_schemas(tmp_path, plain, event_time_unit="ms")
    document = make_document(tmp_path, input=source)
    settings = parse(document)
    records = [
        Record(avro(1, plain, device_id="a", event_time=event_ms, temperature=1.0), broker_ms)
        for event_ms, broker_ms in BOTH_WRONG
    ]
    assert reasons(decide(spark, settings, records)) == list(BOTH_WRONG.values())
    assert by_oracle(tmp_path, document, records)[1] == list(BOTH_WRONG.values())
    frame = spark.createDataFrame(rows_of(records), KAFKA).coalesce(1)
    folded = readings.admit(frame, settings).mapInArrow(builder.folding(settings, None), FOLDED).collect()
    payloads = [row["payload"] for row in folded if row["kind"] == REJECTS]
    rejects = [reject for payload in payloads for reject in codec.unpack(b"J", payload).to_pylist()]
    rejected = {each["offset"]: each["reason"] for each in rejects}
    assert rejected == {
        record.offset: reason for record, reason in zip(records, BOTH_WRONG.values(), strict=True) if reason
    }
    counts = task_counters.total([task_counters.unpack(row["payload"]) for row in folded if row["kind"] == COUNTS])
    assert counts.sum(task_counters.ADMITTED) == 2
    assert counts.sum(task_counters.REJECTED, REASONS.index("early")) == list(BOTH_WRONG.values()).count("early")


def test_a_writers_schema_with_an_added_field_is_read_by_readers_that_lack_it(spark, tmp_path):
    added = {"name": "firmware", "type": "string", "default": ""}
    second = {**SCHEMA, "fields": [SCHEMA["fields"][0], added, *SCHEMA["fields"][1:]]}
    fields = {"device_id": "a", "event_time": BASE_MS, "temperature": 21.5, "humidity": 3.0}
    records = [
        Record(avro(1, SCHEMA, **fields), BASE_MS),
        Record(avro(2, second, **fields, firmware="1.2.3"), BASE_MS),
        Record(avro(2, second, **fields, firmware="")[:-1], BASE_MS),
    ]
    for number in (1, 2, None):
        folder = tmp_path / str(number)
        source = with_schemas(folder, SCHEMA, second, event_time_unit="logical", measures=MEASURES)
        if number is not None:
            source["reader_schema"] = number
        rows = decide(spark, make_settings(folder, input=source), records)
        assert reasons(rows) == [None, None, "undecodable"]
        for row in rows[:2]:
            assert (row["device"], row["event_ms"], row["temperature"], row["humidity"]) == ("a", BASE_MS, 21.5, 3.0)


def test_a_measure_that_older_writers_lack_has_the_readers_default(spark, tmp_path):
    older = {**SCHEMA, "fields": SCHEMA["fields"][:3]}
    fields = {"device_id": "a", "event_time": BASE_MS, "temperature": 21.5}
    source = with_schemas(tmp_path, older, SCHEMA, measures=MEASURES)
    records = [Record(avro(1, older, **fields), BASE_MS), Record(avro(2, SCHEMA, **fields, humidity=3.0), BASE_MS)]
    rows = decide(spark, make_settings(tmp_path, input=source), records)
    assert reasons(rows) == [None, None]
    assert [(row["temperature"], row["humidity"]) for row in rows] == [(21.5, None), (21.5, 3.0)]


def test_a_number_that_a_writer_widened_is_read_as_before(spark, tmp_path):
    def of(kind):
        return timed("long") | {"fields": [*timed("long")["fields"][:2], {"name": "temperature", "type": kind}]}

    kinds = ["int", "long", "float", "double"]
    source = with_schemas(tmp_path, *[of(kind) for kind in kinds])
    records = [
        Record(avro(number, of(kind), device_id="a", event_time=BASE_MS, temperature=7), BASE_MS)
        for number, kind in enumerate(kinds, start=1)
    ]
    rows = decide(spark, make_settings(tmp_path, input=source), records)
    assert [row["temperature"] for row in rows] == [7.0] * 4


def test_the_device_id_may_be_the_records_key(spark, tmp_path):
    body = value(device="from the value")
    keys = [b"from the key", None, b"", b"  ", b"\xff\xfe", "S\u00fcd".encode()]
    document = make_document(tmp_path, input={"device_id": "$key", "event_time_unit": "logical"})
    records = [Record(body, BASE_MS, key=key) for key in keys]
    rows = decide(spark, parse(document), records)
    assert reasons(rows) == [None, "no_device", "no_device", "no_device", "undecodable", None]
    ledger, by_itself = by_oracle(tmp_path, document, records)
    assert (by_itself, [*ledger.close(0).devices]) == (reasons(rows), ["from the key", "S\u00fcd"])
    assert (rows[0]["device"], rows[-1]["device"]) == ("from the key", "S\u00fcd")


def test_measures_device_and_time_may_be_anywhere_in_a_nested_record(spark, tmp_path):
    def nested(name, *fields):
        return {"name": name, "type": ["null", {"type": "record", "name": name.title(), "fields": list(fields)}]}

    inner = nested("probe", {"name": "celsius", "type": ["null", "double"]}, {"name": "raw", "type": "int"})
    schema = {
        "type": "record",
        "name": "Reading",
        "fields": [
            nested("meta", {"name": "id", "type": "string"}, {"name": "at", "type": "long"}),
            nested("air", inner),
        ],
    }
    source = with_schemas(
        tmp_path,
        schema,
        device_id="meta.id",
        event_time="meta.at",
        measures={"temperature": "air.probe.celsius", "raw": "air.probe.raw"},
    )
    meta = {"id": "a", "at": BASE_MS}
    values = [
        {"meta": meta, "air": {"probe": {"celsius": 20.5, "raw": 3}}},
        {"meta": meta, "air": {"probe": {"celsius": None, "raw": 3}}},
        {"meta": meta, "air": {"probe": None}},
        {"meta": meta, "air": None},
        {"meta": None, "air": None},
    ]
    rows = decide(
        spark, make_settings(tmp_path, input=source), [Record(avro(1, schema, **each), BASE_MS) for each in values]
    )
    assert reasons(rows) == [None, None, None, None, "no_device"]
    assert [(row["temperature"], row["raw"]) for row in rows] == [
        (20.5, 3.0),
        (None, 3.0),
        (None, None),
        (None, None),
        (None, None),
    ]
    assert {row["device"] for row in rows[:4]} == {"a"}


def test_a_device_s_own_range_goes_before_that_of_all(spark, tmp_path):
    settings = make_settings(
        tmp_path,
        admission={**LIMITS, "unknown_device": "keep"},
        reference={"url": "jdbc:sqlite:x", "query": "q", "ranges": {"temperature": ["t_min", "t_max"]}},
    )
    known = [("narrow", "0", "10.5"), ("wide", "-1e3", "1000"), ("above", None, "10"), ("free", None, None)]
    right = {
        ("narrow", 10.5): None,
        ("narrow", 10.6): "out_of_range",
        ("narrow", -0.1): "out_of_range",
        ("wide", 999.0): None,
        ("wide", 1000.1): "out_of_range",
        ("above", -40.0): None,
        ("above", -40.1): "out_of_range",
        ("above", 10.1): "out_of_range",
        ("free", 85.5): None,
        ("free", 85.6): "out_of_range",
        ("nobody", 85.5): None,
        ("nobody", 85.6): "out_of_range",
    }
    records = [record(device=device, temperature=value) for device, value in right]
    rows = decide(spark, settings, records, known=known)
    assert dict(zip(right, reasons(rows), strict=True)) == right
    details = {row["reject"]["offset"]: row["reject"]["detail"] for row in rows if row["reject"]}
    assert details[records[1].offset] == "temperature = 10.6, allowed 0 to 10.5 (the device's own, from the reference)"


def test_python_is_asked_once_however_often_the_answer_is_used(spark, tmp_path):
    ranges = {"temperature": ["low", "high"], "humidity": ["low", "high"]}
    settings = make_settings(
        tmp_path,
        input={"measures": MEASURES},
        admission={"unknown_device": "reject"},
        reference={"url": "jdbc:sqlite:x", "query": "q", "ranges": ranges},
    )
    nobody = pa.table({name: pa.array([], pa.string()) for name in ("device", "low", "high")})
    frame = spark.createDataFrame(rows_of([record()]), KAFKA)
    admitted = readings.admit(frame, settings, Index(nobody))
    assert admitted._jdf.queryExecution().executedPlan().toString().count("ArrowEvalPython") == 1


def test_hotspot_compiles_what_is_generated_for_admission(spark, tmp_path):
    """It never compiles a longer method: docs/decisions/0012-no-generated-method-that-hotspot-refuses.md."""
    admitted = readings.admit(spark.createDataFrame([], KAFKA), make_settings(tmp_path))
    explanation = spark._jvm.PythonSQLUtils.explainString(admitted._jdf.queryExecution(), "codegen")
    sizes = [int(each) for each in re.findall(r"maxMethodCodeSize:(\d+)", explanation)]
    assert 0 < max(sizes) <= HOTSPOT_BYTES
    assert spark.conf.get("spark.sql.codegen.hugeMethodLimit") == str(HOTSPOT_BYTES)  # for settings that make it longer


def test_a_device_stays_in_its_bucket_and_many_spread_over_all(spark, tmp_path):
    names = [f"device-{number}" for number in range(200)] * 2
    rows = decide(spark, make_settings(tmp_path), [record(device=name) for name in names])
    buckets = {}
    for row in rows:
        assert buckets.setdefault(row["device"], row["bucket"]) == row["bucket"]
    assert set(buckets.values()) == {0, 1, 2, 3}


def test_a_measure_may_be_called_like_a_column_of_kafka(spark, tmp_path):
    names = ("offset", "partition", "timestamp", "topic", "key", "value", "headers", "record", "decoded", "known")
    rows = decide(
        spark,
        make_settings(tmp_path, input={"measures": dict.fromkeys(names, "temperature")}),
        [record(temperature=5.0)],
    )
    assert [rows[0][name] for name in names] == [5.0] * len(names)


def test_no_bytes_whatever_make_the_frame_throw(spark, tmp_path):
    """Half of the records are a good one with some bytes changed, added or cut; the seed is fixed."""
    rng = random.Random(11)
    good = avro(device_id="device", event_time=BASE_MS, temperature=20.0, humidity=40.0)
    sent = []
    for _ in range(1_500):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(5, len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        sent.append(bytes(data[: rng.randrange(5, len(data) + 1)]) + rng.randbytes(rng.choice((0, 0, 7))))
        sent.append(good[:5] + rng.randbytes(rng.randrange(60)))
    sent.append(good)
    settings = make_settings(
        tmp_path,
        input={"measures": MEASURES, "event_time_unit": "logical"},
        admission={"ranges": {"temperature": [-50, 50]}},
    )
    rows = decide(spark, settings, [Record(data, BASE_MS) for data in sent])
    assert set(reasons(rows)) <= {None, *REASONS}
    assert {"undecodable", "early", "late", "out_of_range"} <= set(reasons(rows))
    assert rows[-1]["reject"] is None
    for row in rows:
        if row["reject"] is None:
            assert -20_000 <= row["event_ms"] - BASE_MS <= 5_000
            assert row["temperature"] is None or -50 <= row["temperature"] <= 50
            assert row["device"].strip()

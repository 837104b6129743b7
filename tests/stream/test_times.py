"""Times in zones of people, and of nanoseconds: in the plan, and without Spark."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from service import settings as service_settings
from service.admission import times
from service.commands import dissect
from service.commands.metadata import Metadata
from service.settings import time_pattern
from tests.stream.decisions import admitted
from tests.stream.records import BASE_MS, Record, avro, make_document

pytestmark = pytest.mark.spark

ZONES = {
    # Zone, local text: the time in UTC. Clocks in Vienna go forward on 29 March 2026 at 2:00 and back on 25 October at 3:00.
    ("Europe/Vienna", "2026-09-21T16:14:00"): "2026-09-21T14:14:00",
    ("Europe/Vienna", "2026-01-21 16:14"): "2026-01-21T15:14:00",
    ("Europe/Vienna", "20260121T161400,5"): "2026-01-21T15:14:00.500",
    ("Europe/Vienna", "2026-09-21T14:14Z"): "2026-09-21T14:14:00",
    ("Europe/Vienna", "2026-09-21 16:14:00 +0100"): "2026-09-21T15:14:00",
    ("Europe/Vienna", "2026-03-29T01:59:59.999"): "2026-03-29T00:59:59.999",
    ("Europe/Vienna", "2026-03-29T02:00:00"): "2026-03-29T01:00:00",
    ("Europe/Vienna", "2026-03-29T02:30:00"): "2026-03-29T01:30:00",
    ("Europe/Vienna", "2026-03-29T03:00:00"): "2026-03-29T01:00:00",
    ("Europe/Vienna", "2026-10-25T01:59:59"): "2026-10-24T23:59:59",
    ("Europe/Vienna", "2026-10-25T02:30:00"): "2026-10-25T00:30:00",
    ("Europe/Vienna", "2026-10-25T03:00:00"): "2026-10-25T02:00:00",
    ("America/New_York", "2026-11-01T01:30:00"): "2026-11-01T05:30:00",
    ("Australia/Lord_Howe", "2026-04-05T01:45:00"): "2026-04-04T14:45:00",
    ("Asia/Kathmandu", "2026-09-21T19:59:00"): "2026-09-21T14:14:00",
    ("UTC", "2026-09-21T14:14"): "2026-09-21T14:14:00",
    ("UTC", "1969-12-31T23:59:59.5Z"): "1969-12-31T23:59:59.500",
    ("UTC", "2026-09-31T14:14Z"): None,
}


def ms(text: str | None) -> int | None:
    return None if text is None else round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_a_local_time_is_in_its_zone_by_one_rule(spark: Any) -> None:
    for zone in dict.fromkeys(zone for zone, _ in ZONES):
        texts = {text: ms(expected) for (each, text), expected in ZONES.items() if each == zone}
        frame = spark.createDataFrame([(text,) for text in texts], "x string")
        rows = frame.select("x", F.expr(times.sql("x", zone)).alias("ms")).collect()
        assert {row["x"]: row["ms"] for row in rows} == texts
        assert {text: times.of_text(text, zone) for text in texts} == texts


def both(spark: Any, given: Any, value: bytes, at: int) -> tuple[Any, Any]:
    [row] = admitted(spark, given, [Record(value, at)])
    seen = dissect.dissect(value, given.form, dissect.writers(given.form))
    return row["event_ms"], dissect.reading(seen, Metadata(), given.form).event_ms


def test_json_in_local_time_is_read_in_the_zone_of_the_settings(spark: Any, tmp_path: Path) -> None:
    form = {"format": "json", "event_time_unit": "iso", "time_zone": "Europe/Vienna", "measures": {"t": "t"}}
    given = service_settings.parse(make_document(tmp_path, input=form))
    for text in ("2026-09-21T16:14:00", "2026-09-21 16:14", "2026-09-21T14:14:00Z", "2026-09-21T14:14:00.0+00:00"):
        value = json.dumps({"device_id": "d", "event_time": text, "t": 1}).encode()
        assert both(spark, given, value, BASE_MS) == (BASE_MS, BASE_MS), text


@pytest.mark.parametrize(("kind", "factor"), [("local-timestamp-millis", 1), ("local-timestamp-micros", 1000)])
def test_a_local_timestamp_of_avro_is_in_the_zone(spark: Any, tmp_path: Path, kind: str, factor: int) -> None:
    fields = [
        {"name": "device_id", "type": "string"},
        {"name": "event_time", "type": {"type": "long", "logicalType": kind}},
    ]
    schema = {"type": "record", "name": "R", "fields": [*fields, {"name": "temperature", "type": "double"}]}
    (tmp_path / "avro").mkdir()
    (tmp_path / "avro" / "1.avsc").write_text(json.dumps(schema))
    plain = {**schema, "fields": [fields[0], {"name": "event_time", "type": "long"}, schema["fields"][2]]}
    value = avro(1, plain, device_id="d", event_time=(BASE_MS + 7_200_000) * factor, temperature=1.0)
    form = {"schemas": str(tmp_path / "avro"), "time_zone": "Europe/Vienna"}
    given = service_settings.parse(make_document(tmp_path, input=form))
    assert both(spark, given, value, BASE_MS) == (BASE_MS, BASE_MS)


@pytest.mark.parametrize("kind", ["long", "timestamp-nanos", "string"])
def test_nanoseconds_are_floored_to_the_millisecond(spark: Any, tmp_path: Path, kind: str) -> None:
    raw = "string" if kind == "string" else "long"
    of_time: Any = {"type": "long", "logicalType": kind} if kind == "timestamp-nanos" else kind
    fields = [{"name": "device_id", "type": "string"}, {"name": "event_time", "type": of_time}]
    schema = {"type": "record", "name": "R", "fields": [*fields, {"name": "temperature", "type": "double"}]}
    (tmp_path / "avro").mkdir()
    (tmp_path / "avro" / "1.avsc").write_text(json.dumps(schema))
    plain = {**schema, "fields": [fields[0], {"name": "event_time", "type": raw}, schema["fields"][2]]}
    form = {"schemas": str(tmp_path / "avro"), "event_time_unit": "ns"}
    given = service_settings.parse(make_document(tmp_path, input=form))
    for ns in (BASE_MS * 1_000_000, BASE_MS * 1_000_000 + 7_400_000):
        at: Any = str(ns) if kind == "string" else ns
        value = avro(1, plain, device_id="d", event_time=at, temperature=1.0)
        assert both(spark, given, value, BASE_MS) == (ns // 1_000_000,) * 2


def test_nanoseconds_of_json_are_numbers_and_texts(spark: Any, tmp_path: Path) -> None:
    for texts in (False, True):
        form = {"format": "json", "event_time_unit": "ns", "text_numbers": texts, "measures": {"t": "t"}}
        given = service_settings.parse(make_document(tmp_path, input=form))
        ns = f"{BASE_MS}123456"
        value = json.dumps({"device_id": "d", "event_time": ns if texts else int(ns), "t": 1}).encode()
        assert both(spark, given, value, BASE_MS) == (BASE_MS, BASE_MS)


PARTS: list[tuple[str, dict[str, Any], int | None]] = [
    # Unit, fields of the record, ms after BASE_MS.
    ("s", {"at": BASE_MS // 1000, "more": 250_999_999}, 250),
    ("s", {"at": BASE_MS // 1000}, 0),
    ("s", {"at": BASE_MS // 1000, "more": None}, 0),
    ("s", {"at": BASE_MS // 1000, "more": 1_000_000_000}, None),
    ("s", {"at": BASE_MS // 1000, "more": -1}, None),
    ("s", {"more": 5}, None),
    ("iso", {"at": "2026-09-21", "more": "14:14:00.5"}, 500),
    ("iso", {"at": "20260921", "more": "141401Z"}, 1000),
    ("iso", {"at": 20260921, "more": 141401}, 1000),
    ("iso", {"at": " 2026-09-21 ", "more": " 16:14:00+02 "}, 0),
    ("iso", {"at": "2026-09-21"}, None),
    ("iso", {"more": "14:14:00"}, None),
    ("iso", {"at": "2026-09-21T14:14:00Z", "more": ""}, None),
]


PATTERNS = [
    # Pattern, zone, text: the time in UTC.
    ("dd.MM.yyyy HH:mm:ss", "UTC", "21.09.2026 14:14:00", "2026-09-21T14:14:00"),
    ("dd.MM.yyyy HH:mm:ss", "Europe/Vienna", " 21.09.2026 16:14:00\n", "2026-09-21T14:14:00"),
    ("dd.MM.yyyy HH:mm:ss", "Europe/Vienna", "29.03.2026 02:30:00", "2026-03-29T01:30:00"),
    ("dd.MM.yyyy HH:mm:ss", "UTC", "2026-09-21 14:14:00", None),
    ("dd.MM.yyyy HH:mm:ss", "UTC", "31.09.2026 14:14:00", None),
    ("dd.MM.yyyy HH:mm:ss", "UTC", "21x09x2026 14:14:00", None),
    ("dd.MM.yyyy HH:mm:ss", "UTC", "21.09.2026 24:00:00", None),
    ("dd.MM.yyyy HH:mm:ss", "UTC", "21.09.2026 14:14:60", None),
    ("dd.MM.yyyy HH:mm:ss", "UTC", "21.09.0000 14:14:00", None),
    ("dd.MM.yyyy HH:mm:ss", "UTC", "21.09.2026 14:14:00 ", "2026-09-21T14:14:00"),
    ("dd.MM.yyyy HH:mm:ss", "UTC", "", None),
    ("M/d/yyyy h:mm:ss a", "UTC", "9/21/2026 2:14:00 PM", "2026-09-21T14:14:00"),
    ("M/d/yyyy h:mm:ss a", "UTC", "09/5/2026 12:00:00 am", "2026-09-05T00:00:00"),
    ("M/d/yyyy h:mm:ss a", "UTC", "9/21/2026 12:14:00 pm", "2026-09-21T12:14:00"),
    ("M/d/yyyy h:mm:ss a", "UTC", "9/21/2026 13:14:00 PM", None),
    ("M/d/yyyy, h:mm:ss a", "UTC", "9/21/2026, 2:14:00\u202fPM", "2026-09-21T14:14:00"),
    ("M/d/yyyy h:mm:ss a", "America/New_York", "9/21/2026 10:14:00 AM", "2026-09-21T14:14:00"),
    ("dd/MMM/yyyy:HH:mm:ss X", "UTC", "21/Sep/2026:16:14:00 +0200", "2026-09-21T14:14:00"),
    ("dd/MMM/yyyy:HH:mm:ss X", "Asia/Kathmandu", "21/DEC/2026:14:14:00 Z", "2026-12-21T14:14:00"),
    ("dd/MMM/yyyy:HH:mm:ss X", "UTC", "21/Okt/2026:14:14:00 Z", None),
    ("dd/MMM/yyyy:HH:mm:ss X", "UTC", "21/Jan/2026:14:14:00 -18:30", None),
    ("EEE, dd MMM yyyy HH:mm:ss X", "UTC", "Mon, 21 Sep 2026 14:14:00 GMT", "2026-09-21T14:14:00"),
    ("yyyyMMddHHmmss.SSS", "UTC", "20260921141400.257", "2026-09-21T14:14:00.257"),
    ("yyyyMMddHHmmssSSSSSS", "UTC", "20260921141400257999", "2026-09-21T14:14:00.257"),
    ("yyMMdd", "UTC", "260921", "2026-09-21T00:00:00"),
    ("d.M.yy H:m", "UTC", "1.2.26 3:4", "2026-02-01T03:04:00"),
    ("yyyy-MM-dd'T'HH'h''s'mm", "UTC", "2026-09-21T14h's14", "2026-09-21T14:14:00"),
    ("[dd/MM/yyyy HH:mm:ss.S]", "UTC", "[21/09/2026 14:14:00.5]", "2026-09-21T14:14:00.500"),
    ("dd.MM.yyyy\u00a0HH:mm", "UTC", "21.09.2026\u00a014:14", "2026-09-21T14:14:00"),
    ("dd.MM.yyyy HH:mm:ss", "UTC", "\u0662\u0661.09.2026 14:14:00", None),
]


@pytest.mark.parametrize(("pattern", "zone"), dict.fromkeys((pattern, zone) for pattern, zone, *_ in PATTERNS))
def test_the_plan_reads_texts_by_a_pattern(spark: Any, pattern: str, zone: str) -> None:
    texts = {text: ms(expected) for each, of, text, expected in PATTERNS if (each, of) == (pattern, zone)}
    frame = spark.createDataFrame([(text,) for text in texts], "x string")
    rows = frame.select("x", F.expr(times.sql("x", zone, time_pattern.parse(pattern))).alias("ms")).collect()
    assert {row["x"]: row["ms"] for row in rows} == texts


PATTERN_PARTS: list[tuple[dict[str, Any], int | None]] = [
    ({"at": "21/9/2026", "more": "14:14:00"}, 0),
    ({"at": " 21/9/2026 ", "more": " 14:14:01 "}, 1000),
    ({"at": "21/9/2026"}, None),
    ({"at": "2026-09-21", "more": "14:14:00"}, None),
    ({"at": None, "more": "14:14:00"}, None),
    ({"at": 21, "more": True}, None),
]


def test_a_pattern_reads_a_date_and_a_time_of_two_fields(spark: Any, tmp_path: Path) -> None:
    form = {"format": "json", "event_time": "at", "event_time_part": "more", "event_time_pattern": "d/M/yyyy HH:mm:ss"}
    given = service_settings.parse(make_document(tmp_path, input={**form, "measures": {"t": "t"}}))
    for fields, expected in PATTERN_PARTS:
        value = json.dumps({"device_id": "d", "t": 1, **fields}).encode()
        answer = None if expected is None else BASE_MS + expected
        assert both(spark, given, value, BASE_MS) == (answer, answer), fields


def test_a_number_of_json_is_a_text_for_a_pattern(spark: Any, tmp_path: Path) -> None:
    form = {"format": "json", "event_time_pattern": "yyyyMMddHHmmss", "time_zone": "Europe/Vienna"}
    given = service_settings.parse(make_document(tmp_path, input={**form, "measures": {"t": "t"}}))
    for at, expected in ((20260921161400, BASE_MS), ("20260921161400", BASE_MS), (2026092116140, None), (1.5, None)):
        value = json.dumps({"device_id": "d", "event_time": at, "t": 1}).encode()
        assert both(spark, given, value, BASE_MS) == (expected, expected), at


@pytest.mark.thorough
@pytest.mark.parametrize("texts", [False, True])
def test_a_time_may_be_in_two_fields(spark: Any, tmp_path: Path, texts: bool) -> None:
    for unit in ("s", "iso"):
        form = {"format": "json", "event_time": "at", "event_time_part": "more", "event_time_unit": unit}
        given = service_settings.parse(
            make_document(tmp_path, input={**form, "text_numbers": texts, "measures": {"t": "t"}})
        )
        for of, fields, expected in PARTS:
            if of == unit:
                sent = {name: str(each) if texts and each is not None else each for name, each in fields.items()}
                value = json.dumps({"device_id": "d", "t": 1, **sent}).encode()
                answer = None if expected is None else BASE_MS + expected
                assert both(spark, given, value, BASE_MS) == (answer, answer), fields

"""What stands before a record of Avro, in the plan: the same answers as without Spark (tests/unit/test_framings.py)."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from service.admission import guids, readings
from service.admission.formats.framings import FRAMINGS
from service.admission.schema_sources import SchemaSet
from service.commands import dissect
from service.commands.metadata import Metadata
from service.settings import Input, Settings
from tests.stream.messages import ENV, FILE, text
from tests.stream.records import BASE_MS
from tests.stream.test_public_shapes import RECORD
from tests.unit.test_framings import (
    FIRST,
    GUID,
    TEXT,
    TYPED,
    body,
    cases,
    message,
    of_headers,
    settings,
    typed,
    typed_cases,
)

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("framing", FRAMINGS)
def test_each_framing_is_read_by_the_plan(spark: Any, tmp_path: Path, framing: str) -> None:
    values = cases(framing)
    at = datetime.fromtimestamp(BASE_MS / 1000, UTC)
    rows = [(b"k", value, "topic", 0, number, at, []) for number, (value, _) in enumerate(values.values())]
    decided = readings.admit(spark.createDataFrame(rows, RECORD), settings(tmp_path, framing)).collect()
    found = {
        name: row["t"] if row["reject"] is None else readings.parsed(row["reject"])["reason"]
        for name, row in zip(values, sorted(decided, key=lambda row: int(row["offset"])), strict=True)
    }
    assert found == {name: expected for name, (_, expected) in values.items()}


FILES = {"files": [["env.proto", text(ENV)], ["x.proto", text(FILE)]]}
# By format: its schema, the body of a record, and what Protobuf's serializer adds to the id: the path of the second message.
BODIES: dict[str, tuple[dict[str, Any], bytes, bytes]] = {
    "avro": (FIRST, body(1, 1.5), b""),
    "json-schema": ({}, TEXT, b""),
    "protobuf": (FILES, message(), b"\2\2"),
}


def of_format(folder: Path, form: str, framing: str) -> Settings:
    given = settings(folder, framing)
    measure = {"avro": "t"}.get(form, "temperature")
    made = Input.model_validate({"format": form, "framing": framing, "reader_schema": 1, "measures": {"t": measure}})
    return given.model_copy(update={"input": made})


@pytest.mark.parametrize("form", BODIES)
def test_a_schema_may_be_named_in_a_header(spark: Any, tmp_path: Path, form: str) -> None:
    schema, first, more = BODIES[form]
    known = {1: schema, guids.number_of(GUID): schema}
    _compare(spark, of_format(tmp_path, form, "headers"), known, of_headers(first, more))


@pytest.mark.parametrize("form", ["json-schema", "protobuf"])
def test_apicurio_frames_other_formats_than_avro(spark: Any, tmp_path: Path, form: str) -> None:
    schema, first, _ = BODIES[form]
    head, name = b"\0" * 8 + b"\1", b"\x09\x0a\x07Reading" if form == "protobuf" else b""
    records = {
        "good": ([], head + name + first, 1.5),
        "unknown": ([], b"\0" * 8 + b"\2" + name + first, "unknown_schema"),
        "cut": ([], head[:-1], "undecodable"),
        **({} if not name else {f"name {n}": ([], head + name[:n] + first, "undecodable") for n in (0, 1, 5)}),
        **({} if not name else {"no such": ([], head + b"\x09\x0a\x07reading" + first, "undecodable")}),
    }
    _compare(spark, of_format(tmp_path, form, "apicurio"), {1: schema}, records)


def _compare(spark: Any, given: Settings, known: dict[int, Any], records: dict[str, Any]) -> None:
    """Compare the plan with what is expected, and with the decoder of a single record."""
    at = datetime.fromtimestamp(BASE_MS / 1000, UTC)
    rows = [(b"k", value, "topic", 0, n, at, headers) for n, (headers, value, _) in enumerate(records.values())]
    frame = spark.createDataFrame(rows, RECORD)
    schemas = {"input": SchemaSet(known, known[1])}
    decided = readings.admit(frame if given.needs_headers else frame.drop("headers"), given, schemas=schemas).collect()
    answers = {}
    for name, row in zip(records, sorted(decided, key=lambda row: int(row["offset"])), strict=True):
        reject = readings.parsed(row["reject"]) if row["reject"] else None
        answers[name] = row["t"] if reject is None else reject["reason"]
        headers, value, _ = records[name]
        found = dissect.dissect(value, given.form, known, headers)
        assert dissect.reason(found, Metadata(b"k"), given.form)[0] == (reject["reason"] if reject else ""), name
        assert reject is None or reject["reason"] != "unknown_schema" or reject["schema_id"] == found.schema, name
    assert answers == {name: expected for name, (_, _, expected) in records.items()}


@pytest.mark.parametrize("others", ["reject", "ignore"])
@pytest.mark.parametrize(("form", "framing"), TYPED)
def test_the_records_of_one_type_are_read(spark: Any, tmp_path: Path, form: str, framing: str, others: str) -> None:
    records = typed_cases(form, framing, others)
    at = datetime.fromtimestamp(BASE_MS / 1000, UTC)
    rows = [(b"k", value, "topic", 0, n, at, []) for n, (value, _) in enumerate(records.values())]
    decided = readings.admit(spark.createDataFrame(rows, RECORD), typed(tmp_path, form, framing, others)).collect()
    found = {
        name: row["t"] if row["reject"] is None else readings.parsed(row["reject"])["reason"]
        for name, row in zip(records, sorted(decided, key=lambda row: int(row["offset"])), strict=True)
    }
    assert found == {name: expected for name, (_, expected) in records.items()}


OTHER = {"type": "record", "name": "Alarm", "fields": [{"name": "code", "type": "int"}]}


@pytest.mark.parametrize("others", ["reject", "ignore"])
def test_records_of_other_types_are_filtered_where_they_are_ignored(spark: Any, tmp_path: Path, others: str) -> None:
    given = settings(tmp_path, "confluent", others=others)
    schemas = {"input": SchemaSet({1: FIRST, 3: OTHER}, FIRST)}
    at = datetime.fromtimestamp(BASE_MS / 1000, UTC)
    values = [b"\0\0\0\0\1" + body(1, 1.5), b"\0\0\0\0\3\x08", b"\0\0\0\0\x09x", b"\0\0\0\0\1x", b"\0\0"]
    rows = [(b"k", value, "topic", 0, n, at, []) for n, value in enumerate(values)]
    frame = spark.createDataFrame(rows, RECORD)

    def decided(**more: Any) -> list[Any]:
        found = readings.admit(frame, given, schemas=schemas, **more).collect()
        rows = sorted(found, key=lambda row: int(row["offset"]))
        return [row["device"] if row["reject"] is None else readings.parsed(row["reject"])["reason"] for row in rows]

    known, unknown = (None, None) if others == "ignore" else ("undecodable", "unknown_schema")
    assert decided() == ["d", known, unknown, "undecodable", "undecodable"]
    assert decided(asks=True) == ["d", known, "unknown_schema", "undecodable", "undecodable"]

"""What stands before a record of Avro, in the plan: the same answers as without Spark (tests/unit/test_framings.py)."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from service.admission import guids
from service.admission.catalogs import new_catalog
from service.admission.formats.framings import FRAMINGS
from service.admission.schema_sources import SchemaSet
from service.commands import dissect
from service.commands.metadata import Metadata
from service.errors import SchemaError
from service.settings import Input, Settings
from tests.stream.decisions import admitted, reason
from tests.stream.messages import ENV, FILE, text
from tests.stream.records import BASE_MS, Record
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


def rows_of(spark: Any, given: Settings, values: Iterable[tuple[bytes, Any]], **more: Any) -> list[dict[str, Any]]:
    """The rows of admission for these values with their headers."""
    records = [Record(value, BASE_MS, b"k", tuple(headers), topic="topic") for value, headers in values]
    return admitted(spark, given, records, **more)


def answers(spark: Any, given: Settings, named: dict[str, tuple[bytes, Any]]) -> dict[str, Any]:
    """By name the value of a record's measure, or the reason of its reject."""
    rows = rows_of(spark, given, ((value, ()) for value, _ in named.values()))
    return {name: reason(row) or row["t"] for name, row in zip(named, rows, strict=True)}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_each_framing_is_read_by_the_plan(spark: Any, tmp_path: Path, framing: str) -> None:
    values = cases(framing)
    found = answers(spark, settings(tmp_path, framing), values)
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
    schemas = {"input": SchemaSet(known, known[1])}
    rows = rows_of(spark, given, ((value, headers) for headers, value, _ in records.values()), schemas=schemas)
    for row, (name, (headers, value, expected)) in zip(rows, records.items(), strict=True):
        why = reason(row)
        assert (why or row["t"]) == expected, name
        found = dissect.dissect(value, given.form, known, headers)
        assert dissect.reason(found, Metadata(b"k"), given.form)[0] == (why or ""), name
        assert why != "unknown_schema" or json.loads(row["reject"])["schema_id"] == found.schema, name


@pytest.mark.parametrize("others", ["reject", "ignore"])
@pytest.mark.parametrize(("form", "framing"), TYPED)
def test_the_records_of_one_type_are_read(spark: Any, tmp_path: Path, form: str, framing: str, others: str) -> None:
    records = typed_cases(form, framing, others)
    found = answers(spark, typed(tmp_path, form, framing, others), records)
    assert found == {name: expected for name, (_, expected) in records.items()}


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"name": "tidemark_end", "type": "string"}, "Duplicate field tidemark_end"),
        ({"name": "x", "type": {"type": "fixed", "name": "tidemark_end", "size": 3}}, "Can't redefine: tidemark_end"),
        ({"name": "x", "type": "Nothing"}, "Nothing"),
    ],
)
def test_a_schema_that_the_plan_cannot_have_is_refused(spark: Any, tmp_path: Path, field: Any, why: str) -> None:
    check = new_catalog(spark, settings(tmp_path, "confluent")).catalogs["input"].check
    check(FIRST)
    with pytest.raises(SchemaError, match=why):
        check({**FIRST, "fields": [*FIRST["fields"], field]})


OTHER = {"type": "record", "name": "Alarm", "fields": [{"name": "code", "type": "int"}]}


@pytest.mark.parametrize("others", ["reject", "ignore"])
def test_records_of_other_types_are_filtered_where_they_are_ignored(spark: Any, tmp_path: Path, others: str) -> None:
    given = settings(tmp_path, "confluent", others=others)
    schemas = {"input": SchemaSet({1: FIRST, 3: OTHER}, FIRST)}
    values = [b"\0\0\0\0\1" + body(1, 1.5), b"\0\0\0\0\3\x08", b"\0\0\0\0\x09x", b"\0\0\0\0\1x", b"\0\0"]

    def decided(**more: Any) -> list[Any]:
        rows = rows_of(spark, given, ((value, ()) for value in values), schemas=schemas, **more)
        return [reason(row) or row["device"] for row in rows]

    known, unknown = (None, None) if others == "ignore" else ("undecodable", "unknown_schema")
    assert decided() == ["d", known, unknown, "undecodable", "undecodable"]
    assert decided(asks=True) == ["d", known, "unknown_schema", "undecodable", "undecodable"]

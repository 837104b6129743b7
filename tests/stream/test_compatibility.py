"""What `tidemark schemas check` says of a schema is what becomes of its records."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from service.cli import main
from service.commands import compatibility
from tests.stream.records import BASE_MS, SCHEMA, Record, avro, make_settings
from tests.stream.test_admission import decide, reasons

pytestmark = pytest.mark.spark

FIELDS: list[dict[str, Any]] = SCHEMA["fields"]  # type: ignore[assignment]
VALUES = {"device_id": "a", "event_time": BASE_MS, "temperature": 20.0, "humidity": None}


def typed(kind: Any, name: str = "temperature") -> list[dict[str, Any]]:
    return [{"name": name, "type": kind} if each["name"] == name else each for each in FIELDS]


def without(*names: str) -> list[dict[str, Any]]:
    return [each for each in FIELDS if each["name"] not in names]


# fields -> (status for its records, reason of a record)
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str, str | None]] = {
    "the same": (FIELDS, {}, "ok", None),
    "a field more": ([{"name": "room", "type": "string"}, *FIELDS], {"room": "hall"}, "ok", None),
    "another order": (FIELDS[::-1], {}, "ok", None),
    "a measure less": (without("temperature"), {}, "ok", None),
    "a measure widened": (typed("int"), {"temperature": 20}, "ok", None),
    "a measure that is text": (typed("string"), {"temperature": "warm"}, "fail", "undecodable"),
    "a measure that is a list": (
        typed({"type": "array", "items": "double"}),
        {"temperature": [1.0]},
        "fail",
        "undecodable",
    ),
    "no device": (without("device_id"), {}, "fail", "undecodable"),
    "a time that is text": (typed("string", "event_time"), {"event_time": "now"}, "fail", "undecodable"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_schema_is_judged_as_its_records_will_be(spark: SparkSession, tmp_path: Path, case: str) -> None:
    fields, values, status, reason = CASES[case]
    schema = {**SCHEMA, "fields": fields}
    given = make_settings(tmp_path, input={"event_time_unit": "logical", "reader_schema": 1})
    file = tmp_path / "new.avsc"
    file.write_text(json.dumps(schema))
    lines = {line.name: line for line in compatibility.check(given, [file])}
    assert lines[str(file)].status == status, lines
    (given.input.schemas / "2.avsc").write_text(json.dumps(schema))
    record = Record(avro(2, schema, **{**VALUES, **values}), BASE_MS)
    assert reasons(decide(spark, given, [record])) == [reason]


def test_what_would_become_of_the_schemas_in_use_is_said(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = make_settings(tmp_path, input={"measures": {"temperature": "temperature", "room": "room"}})
    lacks = compatibility.check(given, [])
    assert [(line.status, line.exit_status) for line in lacks] == [("fail", 3)]
    assert "has no field room" in lacks[0].detail

    given = make_settings(tmp_path)
    files = {"2": [*FIELDS, {"name": "room", "type": "string"}], "3": typed("string"), "4": without("temperature")}
    for name, fields in files.items():
        (tmp_path / f"{name}.avsc").write_text(json.dumps({**SCHEMA, "fields": fields}))
    (tmp_path / "5.avsc").write_text("{")
    (tmp_path / "6.avsc").write_text('{"type": "record", "name": "R", "fields": [{"name": "a b", "type": "int"}]}')
    lines = compatibility.check(given, [tmp_path / f"{number}.avsc" for number in range(2, 7)])
    statuses = {line.name.removeprefix(f"{tmp_path}/"): line.status for line in lines}
    assert statuses == {
        "schema 1": "ok",
        "2.avsc": "ok",
        "2.avsc: as the reader's": "ok",  # nothing is mapped to the field without a default
        "3.avsc": "fail",
        "3.avsc: as the reader's": "fail",  # it will be at the next start
        "4.avsc": "ok",
        "4.avsc: input.measures.temperature": "warn",
        "4.avsc: as the reader's": "fail",
        "5.avsc": "fail",
        "6.avsc": "fail",
    }
    config = tmp_path / "tidemark.toml"
    config.write_text(
        f"""
        [service]
        checkpoint = "{tmp_path}/checkpoint"
        [kafka]
        bootstrap = "127.0.0.1:1"
        topics = ["readings"]
        [input]
        schemas = "schemas"
        event_time_unit = "logical"
        measures = {{temperature = "temperature"}}
        [[views]]
        name = "device"
        window = "10 s"
        [redis]
        url = "redis://127.0.0.1:1"
        """
    )
    assert main(["schemas", "check", "--config", str(config), str(tmp_path / "2.avsc")]) == 0
    assert main(["schemas", "check", "--config", str(config), str(tmp_path / "3.avsc")]) == 3
    assert "is not" not in capsys.readouterr().err

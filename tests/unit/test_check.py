"""The lines of `tidemark check` that need no Kafka, Redis or Spark."""

import socket
from pathlib import Path
from typing import Any

import pytest

from load.servers.schema_registry import Registry
from service import settings
from service.admission.formats import avro
from service.commands import check, check_input
from service.errors import SetupError
from service.settings import Input
from tests import minimal
from tests.served import served
from tests.stream.records import make_settings


def test_a_port_that_another_service_or_program_holds_is_named(tmp_path: Path) -> None:
    with served() as service, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for port, name in ((service.port, "another"), (taken.getsockname()[1], "tidemark")):
            settings = make_settings(tmp_path, metrics={"port": port}, service={"name": name})
            with pytest.raises(SetupError, match=f"metrics.port = {port}"):
                next(check._metrics_port(settings))


def failures(fields: dict[str, Any], unit: str = "ms", **measures: Any) -> list[str]:
    """What check refuses of fields of an Avro schema, which has a device id and an event time, too."""
    types = {"device_id": "string", "event_time": {"type": "long", "logicalType": "timestamp-millis"}, **fields}
    schema = {
        "type": "record",
        "name": "R",
        "namespace": "com.x",
        "fields": [{"name": name, "type": kind} for name, kind in types.items()],
    }
    form = Input.model_validate({"measures": measures, "event_time_unit": unit})
    lines = check_input._paths(form, avro.reader_schema(schema, form))
    return [f"{line.name}: {line.detail}" for line in lines if line.status == "fail"]


def test_a_type_by_name_is_the_type() -> None:
    vector = {"type": "record", "name": "Vec", "fields": [{"name": "x", "type": "double"}]}
    named: dict[str, Any] = {"inner": vector, "outer": ["null", "Vec"], "other": {"type": "com.x.Vec"}}
    assert failures(named, a="inner.x", b="outer.x", c="other.x") == []
    assert failures(named, b="outer.x", c="other.x") == []
    assert failures(named, b="outer.y") == ["input.measures.b: the reader's schema has no field 'outer.y'"]
    assert failures(named, b="outer") == [
        "input.measures.b: 'outer' is record in the reader's schema, "
        "not boolean or decimal or double or float or int or long or string"
    ]


@pytest.mark.parametrize("kind", [["int", "long"], ["null", "double", "float"], ["null", "int"], ["long"]])
def test_a_union_that_spark_reads_as_a_number_is_one(kind: list[str]) -> None:
    assert failures({"temp": kind}, a="temp") == []


@pytest.mark.parametrize("kind", [["null", "long", "double"], ["int", "long", "double"], ["int", "string"]])
def test_a_union_of_several_types_is_no_field_that_spark_reads(kind: list[str]) -> None:
    [problem] = failures({"temp": kind}, a="temp")
    assert problem.startswith("input.measures.a: 'temp' is union in the reader's schema, not boolean or decimal or")
    [problem] = failures({"device_id": kind, "temp": "double"}, a="temp")
    assert problem.startswith("input.device_id: 'device_id' is union")


@pytest.mark.silent("1.9")
def test_decimals_and_keys_of_a_map_are_fields() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    fixed = {**decimal, "type": "fixed", "name": "F", "size": 4}
    inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "double"}]}
    fields: dict[str, Any] = {
        "temp": decimal,
        "hum": ["null", fixed],
        "tags": {"type": "map", "values": ["null", "double"]},
        "more": ["null", {"type": "map", "values": inner}],
        "texts": {"type": "map", "values": "string"},
    }
    assert failures(fields, a="temp", b="hum", c="tags.`p.x`", d="more.any.x") == []
    assert failures(fields, a="more.any.y") == ["input.measures.a: the reader's schema has no field 'more.any.y'"]
    assert failures(fields, a="texts.a") == []
    for path, kind in (("tags", "map"), ("more.any", "record")):
        [problem] = failures(fields, a=path)
        assert problem.startswith(f"input.measures.a: '{path}' is {kind} in the reader's schema")
    assert failures({"temp": {"type": "string", "logicalType": "decimal"}}, a="temp") == []
    [problem] = failures({"temp": {"type": "enum", "name": "E", "symbols": ["ON"]}}, a="temp")
    assert problem.startswith("input.measures.a: 'temp' is enum")
    assert (
        failures({"temp": {"type": "enum", "name": "E", "symbols": ["ON"]}}, a={"path": "temp", "values": {"ON": 1}})
        == []
    )


def test_a_field_of_a_union_of_records_is_none() -> None:
    records = [{"type": "record", "name": name, "fields": [{"name": "x", "type": "double"}]} for name in "AB"]
    assert failures({"env": ["null", records[0]]}, a="env.x") == []
    [problem] = failures({"env": ["null", *records]}, a="env.x")
    assert problem.startswith("input.measures.a: 'env.x' is union")


@pytest.mark.parametrize("unit", ["ms", "iso", "logical"])
def test_the_event_time_may_be_each_timestamp_that_spark_reads(unit: str) -> None:
    for kind in ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"):
        assert failures({"event_time": {"type": "long", "logicalType": kind}}, unit) == []
    [problem] = failures({"event_time": {"type": "long", "logicalType": "timestamp-nanos"}}, unit)
    assert problem.startswith("input.event_time: 'event_time' is timestamp-nanos in the reader's schema")


def test_a_logical_type_that_spark_ignores_is_the_type_below_it() -> None:
    own = {"device_id": {"type": "string", "logicalType": "uuid"}, "temp": {"type": "double", "logicalType": "celsius"}}
    assert failures(own, a="temp") == []
    for kind in ({"type": "int", "logicalType": "date"}, {"type": "int", "logicalType": "time-millis"}):
        [problem] = failures({"temp": kind}, a="temp")
        assert f"'temp' is {kind['logicalType']} in the reader's schema" in problem


def test_the_newest_schema_is_compared_also_where_guids_name_them(tmp_path: Path) -> None:
    with Registry() as registry:
        given = minimal.document()
        given["input"] = {"format": "json-schema", "framing": "headers", "measures": {"power": "power"}}
        loaded = settings.parse({**given, "registry": {"url": registry.url}})
        for version in range(1, 9):
            fields = ("device_id", "event_time", *(["power"] if version == 8 else []))
            schema = {
                "title": f"v{version}",
                "properties": {name: {} for name in fields},
                "additionalProperties": False,
            }
            registry.register("readings-value", schema, kind="JSON")
        lines = [*check_input.schemas_of(loaded)]
    assert [line.status for line in lines] == ["ok"], lines
    assert "has the ids 1, 2, 3, 4, 5, 6, 7, 8, " in lines[0].detail
    assert lines[0].detail.count("...") == 8, "GUIDs are shown by their begin"

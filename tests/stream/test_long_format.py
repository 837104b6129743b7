"""Records that name what their value is: one measure each, of the device that they name, and never mixed."""

import json
from typing import Any

import pytest

from service import settings
from service.admission import inputs
from service.admission.schema_sources import SchemaSet
from service.commands import dissect
from service.commands.metadata import Metadata
from tests.stream.records import BASE_MS, Record, avro, make_document, rows
from tests.stream.script import KAFKA, Add, Check, Expect, Restart, run

pytestmark = pytest.mark.spark

LONG = {"name": "metric", "value": "value", "only": ["temperature", "humidity"]}
SCHEMA = {
    "type": "record",
    "name": "Long",
    "fields": [
        {"name": "device_id", "type": "string"},
        {"name": "event_time", "type": "long"},
        {"name": "metric", "type": ["null", "string"], "default": None},
        {"name": "value", "type": ["null", "double"], "default": None},
    ],
}


def fields(device: str, seconds: float, metric: str | None, value: Any) -> dict[str, Any]:
    return {"device_id": device, "event_time": BASE_MS + int(seconds * 1000), "metric": metric, "value": value}


def sent(device: str, seconds: float, metric: str, value: Any) -> Record:
    text = json.dumps(fields(device, seconds, metric, value)).encode()
    return Record(text, BASE_MS + int(seconds * 1000), topic="json")


def in_avro(device: str, seconds: float, metric: str | None, value: float | None) -> Record:
    record = avro(1, SCHEMA, **fields(device, seconds, metric, value))
    return Record(record, BASE_MS + int(seconds * 1000), topic="avro")


def test_each_record_is_a_reading_of_one_measure_and_another_metric_is_counted(spark: Any, tmp_path: Any) -> None:
    (tmp_path / "avro").mkdir()
    (tmp_path / "avro" / "1.avsc").write_text(json.dumps(SCHEMA))
    shapes = [
        {"name": "json", "topics": ["json"], "format": "json", "measures_from": LONG},
        {"name": "avro", "topics": ["avro"], "schemas": str(tmp_path / "avro"), "measures_from": LONG},
    ]
    document = make_document(tmp_path, admission={"ranges": {"humidity": [0, 100]}})
    del document["input"], document["kafka"]["topics"]
    given = settings.parse({**document, "inputs": shapes})

    def counted(world: Any) -> None:
        device = world.devices["a"]
        assert (device["temperature.value"], device["humidity.value"]) == (22.0, 40.0)

    windows = {("device", "temperature", "a", 0): (2, 21.0), ("device", "humidity", "a", 0): (1, 40.0)}
    script: list[Any] = [
        Add(sent("a", 0, "temperature", 20), sent("a", 1, "humidity", 40), sent("a", 2, "temperature", 22)),
        Add(sent("a", 3, "pressure", 1013), sent("a", 4, "state", "on"), sent("b", 4, "state", {})),
        Add(sent("a", 5, "humidity", 400), sent("a", 6, "humidity", "dry")),
        Expect(windows=windows, rejects=["out_of_range", "undecodable"], devices={"a": ("online", 22.0)}),
        Check(counted),
        Restart(),
        Add(in_avro("c", 7, "temperature", 5.0), in_avro("c", 8, "pressure", 9.0), in_avro("c", 9, None, None)),
        Expect(
            windows={**windows, ("device", "temperature", "c", 0): (1, 5.0)},
            rejects=["out_of_range", "undecodable"],
        ),
    ]
    run(spark, given, tmp_path, script)
    form, record = given.inputs[1], in_avro("c", 7, "temperature", 5.0)
    found = dissect.dissect(record.value, form, dissect.writers(form))
    assert dissect.reading(found, Metadata(), form).measures == {"temperature": 5.0, "humidity": None}


def test_what_is_off_leaves_the_plan_as_it_is(spark: Any, tmp_path: Any) -> None:
    given = settings.parse(make_document(tmp_path, input={"format": "json"}))
    frame = spark.createDataFrame(rows([sent("a", 0, "temperature", 20)]), KAFKA)
    assert inputs.LISTED not in inputs.add(frame, given, {"input": SchemaSet({}, {})}, []).columns

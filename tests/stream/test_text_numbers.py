"""Numbers in texts: what is a number, what is no value, and what rejects the record by the measure's name.

tests/stream/test_decoders.py compares the plan with the decoder without Spark for each text.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from service import settings as service_settings
from service.admission import readings
from service.commands import dissect
from service.commands.metadata import Metadata
from tests.stream.decisions import admitted, reason
from tests.stream.records import BASE_MS, Record, avro, make_document
from tests.stream.script import KAFKA

pytestmark = pytest.mark.spark

MEASURES = {
    "u": "u",
    "p": "u * i",
    "high": "CASE WHEN u > 100 THEN 1 ELSE 0 END",
    "on": {"path": "state", "values": {"ON": 1, "OFF": 0, "true": 1, "7": 0.5}, "scale": 10},
}
# Fields of the record, and u, p, high, on; or the reason and the detail of the reject.
CASES: list[tuple[dict[str, Any], Any]] = [
    ({"u": "21.5", "i": "2", "state": "ON"}, (21.5, 43.0, 0.0, 10.0)),
    ({"u": " 230 ", "i": 0.5, "state": "OFF"}, (230.0, 115.0, 1.0, 0.0)),
    ({"u": 230, "i": "", "state": ""}, (230.0, None, 1.0, None)),
    ({"u": None, "i": "1", "state": None}, (None, None, 0.0, None)),
    ({"u": True, "i": "false", "state": True}, (1.0, 0.0, 0.0, 10.0)),
    ({"u": "1e2", "i": "-1", "state": 7}, (100.0, -100.0, 0.0, 5.0)),
    ({"u": "error", "i": "1"}, ("not_finite", "u = NaN")),
    ({"u": "1", "i": "12d"}, ("not_finite", "p = NaN")),
    ({"u": "1,5"}, ("not_finite", "u = NaN")),
    ({"u": "NaN"}, ("not_finite", "u = NaN")),
    ({"u": {}}, ("not_finite", "u = NaN")),
    ({"u": [1]}, ("not_finite", "u = NaN")),
    ({"u": "1", "state": "on"}, ("not_finite", "on = NaN")),
    ({"u": "1", "state": 1}, ("not_finite", "on = NaN")),
    ({"u": "1e999"}, ("not_finite", "u = Infinity")),
    ({"u": "1e200"}, ("out_of_range", "u = 1.0E200, allowed -1e+140 to 1e+140 (the limit of every measure)")),
]


def test_a_text_is_a_number_or_no_value_or_rejects_the_record_by_its_measure(spark: Any, tmp_path: Path) -> None:
    form = {"format": "json", "text_numbers": True, "measures": MEASURES}
    given = service_settings.parse(make_document(tmp_path, input=form))
    records = [
        Record(json.dumps({"device_id": "d", "event_time": str(BASE_MS), **fields}).encode(), BASE_MS, offset=n)
        for n, (fields, _) in enumerate(CASES)
    ]
    for row in admitted(spark, given, records):
        answer: Any = tuple(row[name] for name in MEASURES)
        if row["reject"] is not None:
            reject = readings.parsed(row["reject"])
            answer = (reject["reason"], reject["detail"])
        fields, expected = CASES[row["offset"]]
        assert answer == expected, fields


DECIMALS: list[tuple[str, Any]] = [
    # A value of JSON, and the number with two digits behind the point. 01 86 is 390, FF is -1, 80 is -128.
    ('"AYY="', 3.9),
    ('"/w=="', -0.01),
    ('"gA=="', -1.28),
    ('"AIA="', 1.28),
    ('"AA=="', 0.0),
    ('"f/////////8="', 92233720368547758.07),
    ('"gAAAAAAAAAA="', -92233720368547758.08),
    ('"AAAAAAAAAYY="', 3.9),
    ('"AQIDBAUG"', 11081521574.46),
    ("3.9", 3.9),
    ("1234", 1234.0),
    ("-1e2", -100.0),
    ("null", None),
    ('""', None),
    ('" "', None),
    ('"AYY"', "not_finite"),
    ('"AYY=\\n"', "not_finite"),
    ('" AYY="', "not_finite"),
    ('"A-_="', "not_finite"),
    ('"AAAAAAAAAAAA"', "not_finite"),
    ('"AQAAAAAAAAAAAA=="', "not_finite"),
    ('"3.90"', "not_finite"),
    ("true", "not_finite"),
    ("{}", "not_finite"),
    ('["AYY="]', "not_finite"),
]


@pytest.mark.parametrize("condition", [None, "kind = 'a'"])
def test_decimals_of_connect_are_read_from_base64(spark: Any, tmp_path: Path, condition: str | None) -> None:
    price = {"path": "price", "decimal_scale": 2} | ({} if condition is None else {"where": condition})
    given = service_settings.parse(
        make_document(tmp_path, input={"format": "json", "measures": {"price": price, "u": "u"}})
    )
    values = [
        f'{{"device_id":"d","event_time":{BASE_MS},"kind":"a","u":1,"price":{text}}}'.encode() for text, _ in DECIMALS
    ]
    for row in admitted(spark, given, [Record(value, BASE_MS, offset=n) for n, value in enumerate(values)]):
        text, expected = DECIMALS[row["offset"]]
        assert (reason(row) or row["price"]) == expected, text
        seen = dissect.dissect(values[row["offset"]], given.form, {})
        alone, _ = dissect.reason(seen, Metadata(), given.form)
        assert (alone or dissect.reading(seen, Metadata(), given.form).measures["price"]) == expected, text


@pytest.mark.parametrize("name", ["json", "avro"])
def test_a_bad_measure_may_be_dropped_alone(spark: Any, tmp_path: Path, name: str) -> None:
    """The reading is admitted without the measure, which counts among the missing ones."""
    measures = {"u": "u", "v": "v", "p": "u * v"}
    sent: list[tuple[Any, Any]] = [("21.5", "2"), ("error", "2"), ("", "1e999"), ("1", "n/a")]
    expected = [(21.5, 2.0, 43.0), (None, 2.0, None), (None, None, None), (1.0, None, None)]
    form: dict[str, Any] = {"on_bad_measure": "drop", "measures": measures}
    if name == "json":
        form["format"] = "json"
        values = [json.dumps({"device_id": "d", "event_time": BASE_MS, "u": u, "v": v}).encode() for u, v in sent]
    else:
        kinds = {"device_id": "string", "event_time": "long", "u": "string", "v": "string"}
        schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": kind} for n, kind in kinds.items()]}
        (tmp_path / "avro").mkdir()
        (tmp_path / "avro" / "1.avsc").write_text(json.dumps(schema))
        form["schemas"] = str(tmp_path / "avro")
        values = [avro(1, schema, device_id="d", event_time=BASE_MS, u=u, v=v) for u, v in sent]
    given = service_settings.parse(
        make_document(tmp_path, input=form, views=[{"name": "x", "by": ["device"], "window": "1 m"}])
    )
    rows = admitted(spark, given, [Record(value, BASE_MS) for value in values])
    assert [(row["u"], row["v"], row["p"], row["reject"]) for row in rows] == [(*each, None) for each in expected]


def test_texts_of_avro_are_numbers(spark: Any, tmp_path: Path) -> None:
    kinds = {"device_id": "string", "event_time": "string", "u": ["null", "string"], "i": "double", "state": "string"}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    schema = {"type": "record", "name": "R", "fields": fields}
    (tmp_path / "avro").mkdir()
    (tmp_path / "avro" / "1.avsc").write_text(json.dumps(schema))
    form = {"schemas": str(tmp_path / "avro"), "event_time_unit": "s", "measures": MEASURES}
    given = service_settings.parse(make_document(tmp_path, input=form))
    values = [
        avro(1, schema, device_id="d", event_time="1790000040.25", u=u, i=2.0, state=state)
        for u, state in (("21.5", "ON"), (None, "OFF"), ("", ""), ("x", "ON"), ("1", "off"))
    ]
    rows = admitted(spark, given, [Record(value, BASE_MS) for value in values])
    assert [tuple(row[name] for name in MEASURES) for row in rows[:3]] == [
        (21.5, 43.0, 0.0, 10.0),
        (None, None, 0.0, 0.0),
        (None, None, 0.0, None),
    ]
    assert rows[0]["event_ms"] == BASE_MS + 250
    assert [readings.parsed(row["reject"])["detail"] for row in rows[3:]] == ["u = NaN", "on = NaN"]


def test_json_without_texts_has_the_plan_of_numbers(spark: Any, tmp_path: Path) -> None:
    """A text costs nothing where there is none: fields are parsed as doubles."""
    given = service_settings.parse(make_document(tmp_path, input={"format": "json", "measures": {"u": "u"}}))
    plan = readings.admit(spark.createDataFrame([], KAFKA), given)._jdf.queryExecution().optimizedPlan().toString()
    assert "StructField(u,DoubleType" in plan
    assert "eE0-9" not in plan

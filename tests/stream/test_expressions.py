"""Measures that are expressions over fields, on real Spark: values, rejects, and what is refused by name."""

import json
import math
from decimal import Decimal

import pytest

from service.admission import readings
from service.commands import check_input
from service.commands.dissect import Dissector
from service.commands.explain import explain
from service.errors import SettingsError
from service.rejects.reject_log import Coordinates, Reject
from service.settings import parse
from tests.stream.decisions import admitted, by_oracle, frame_of, outcome, reason
from tests.stream.records import BASE_MS, SCHEMA, Record, avro, make_document, make_settings

pytestmark = pytest.mark.spark

MEASURES = {
    "power": "u * i",
    "ratio": {"expression": "u / nullif(i, 0)"},
    "weight": "abs(env.kg - coalesce(env.tare, 0.5)) / 2",
    "plain": "u",
}
RANGES = {"power": [-1e30, 1e30], "ratio": [0.8, 1000]}
CASES = {
    '{"u": 230, "i": 2, "env": {"kg": 3, "tare": 1}}': (460.0, 115.0, 1.0, 230.0),
    '{"u": 230.5, "env": {"kg": -1}}': (None, None, 0.75, 230.5),
    '{"u": 1, "i": 0}': (0.0, None, None, 1.0),
    '{"u": 2147483647, "i": 2147483647}': (2147483647.0**2, 1.0, None, 2147483647.0),
    '{"u": 1e200, "i": 1e200}': "not_finite",
    '{"u": "warm", "i": 2}': "undecodable",
    '{"u": 30, "i": 40}': "out_of_range",
    '{"env": 5}': "undecodable",
    '{"u": null, "i": null}': (None, None, None, None),
}


def document(folder, measures=MEASURES, **more):
    views = [{"name": "device", "by": ["device"], "window": "1 m"}]
    source = {"format": "json", "measures": measures, **more}
    ranges = {name: limits for name, limits in RANGES.items() if name in measures}
    return make_document(folder, input=source, admission={"ranges": ranges}, views=views)


def records_of(texts):
    fields = [{"device_id": "a", "event_time": BASE_MS, **json.loads(text)} for text in texts]
    return [Record(json.dumps(each).encode(), BASE_MS) for each in fields]


def test_a_value_is_computed_or_its_record_is_rejected_as_the_oracle_does(spark, tmp_path):
    given, records = document(tmp_path), records_of(CASES)
    outcomes = [outcome(row, *MEASURES) for row in admitted(spark, parse(given), records)]
    assert dict(zip(CASES, outcomes, strict=True)) == CASES
    _, reasons = by_oracle(tmp_path, given, records)
    assert reasons == [each if isinstance(each, str) else None for each in CASES.values()]


@pytest.mark.silent("1.7")
def test_an_operator_without_blanks_is_computed_and_is_no_part_of_a_path(spark, tmp_path):
    measures = {"negative": "-value", "tenth": "value/10", "minus": "value", "inverse": "1/value"}
    settings = parse(document(tmp_path, measures) | {"admission": {}})
    (row,) = admitted(spark, settings, records_of(['{"value": 20}']))
    assert {name: row[name] for name in measures} == {"negative": -20.0, "tenth": 2.0, "minus": 20.0, "inverse": 0.05}


@pytest.mark.silent("1.8")
def test_a_key_with_a_dot_or_a_blank_is_read_where_backticks_are_around_it(spark, tmp_path):
    dotted = {
        "device_id": "`dev.id`",
        "event_time": "meta.`event time`",
        "measures": {
            "flat": "`tank.level`",
            "nested": "tank.level",
            "deep": "`tank.level(mm)`.`a b`",
            "half": "`tank.level` / 2",
        },
        "columns": {"line": "`plant.line`"},
    }
    text = json.dumps(
        {
            "dev.id": "a",
            "dev": {"id": "b"},
            "meta": {"event time": BASE_MS, "event": {"time": 0}},
            "tank.level": 7,
            "tank": {"level": 5},
            "tank.level(mm)": {"a b": 3},
            "plant.line": "north",
        }
    )
    views = [{"name": "line", "by": ["line"], "window": "1 m"}]
    settings = make_settings(tmp_path, input={"format": "json", **dotted}, views=views)
    record = Record(text.encode(), BASE_MS)
    (row,) = admitted(spark, settings, [record])
    assert row["reject"] is None
    assert [row[name] for name in ("device", "event_ms", "flat", "nested", "deep", "half", "line")] == [
        *("a", BASE_MS, 7.0, 5.0, 3.0, 3.5, "north")
    ]
    seen = Dissector(settings)("readings", record.value)
    paths = [settings.form.event_time, *(path for each in settings.form.measures.values() for path in each.paths)]
    assert [seen.at(path) for path in paths] == [BASE_MS, 7, 5, 3, 7]
    wrong = Record(text.replace(": 7", ': "wet"').encode(), BASE_MS)
    (row,) = admitted(spark, settings, [wrong])
    fields = readings.parsed(row["reject"])
    reject = Reject(Coordinates("readings", 0, 1), fields["reason"], "", BASE_MS, 0, 0, None, wrong.value, ())
    assert explain(reject, Dissector(settings)("readings", wrong.value), settings).startswith(
        '`tank.level` = "wet": expected a number'
    )


def test_a_reject_names_the_fields_their_values_and_the_expression(spark, tmp_path):
    settings = parse(document(tmp_path))
    texts = {
        '{"u": 1e200, "i": 1e200}': "u = 1e+200, i = 1e+200 (measure power = u * i = Infinity): expected a finite number",
        '{"u": 30, "i": 40}': "u = 30, i = 40 (measure ratio = u / nullif(i, 0) = 0.75): allowed 0.8 to 1000.0",
        '{"u": "warm", "i": 2}': 'u = "warm": expected a number',
    }
    records = records_of(texts)
    for row, record, expected in zip(admitted(spark, settings, records), records, texts.values(), strict=True):
        fields = readings.parsed(row["reject"])
        place = Coordinates("readings", 0, 1)
        reject = Reject(place, fields["reason"], fields["detail"] or "", BASE_MS, 0, 0, None, record.value, ())
        assert explain(reject, Dissector(settings)("readings", record.value), settings).startswith(expected)


@pytest.mark.thorough
def test_a_division_by_zero_is_rejected_unless_the_expression_may_be_null(spark, tmp_path):
    for text, expected in {
        "u / i": "not_finite",
        "u % i": "not_finite",
        "ln(i)": "not_finite",
        "pow(10, u) * 1e308": "not_finite",
        "sqrt(i - u)": "not_finite",
        "u / nullif(i, 0)": None,
        "case when i <> 0 then u / i end": None,
        "if(i = 0, 7, u / i)": 7.0,
        "2147483647 * 2147483647 * u": 2147483647.0**2,
        "u - -1": 2.0,
        "greatest(u, i, 3)": 3.0,
        "`u` + .5": 1.5,
    }.items():
        settings = parse(document(tmp_path, {"power": {"expression": text}}) | {"admission": {}})
        (row,) = admitted(spark, settings, records_of(['{"u": 1, "i": 0}']))
        assert (reason(row) or row["power"]) == expected, text


@pytest.mark.silent("1.9")
def test_decimals_and_keys_of_maps_in_avro_are_numbers(spark, tmp_path):
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    kinds = {
        "price": ["null", decimal],
        "fixed": {**decimal, "type": "fixed", "name": "F", "size": 4},
        "tags": {"type": "map", "values": ["null", "double"]},
        "at": {"type": "map", "values": "long"},
    }
    schema = {**SCHEMA, "fields": [*SCHEMA["fields"][:1], *({"name": n, "type": kind} for n, kind in kinds.items())]}
    measures = {"price": "price", "fixed": "fixed", "tag": "tags.`p.1`", "half": "price / 2"}
    settings = make_settings(tmp_path, input={"measures": measures, "event_time": "at.taken"})
    (settings.input.schemas / "1.avsc").write_text(json.dumps(schema))
    fields = {"device_id": "a", "price": Decimal("12.50"), "fixed": Decimal("-0.25"), "at": {"taken": BASE_MS}}
    values = [avro(schema=schema, **fields, tags=tags) for tags in ({"p.1": 7.5, "p": 1.0}, {})]
    rows = admitted(spark, settings, [Record(value, BASE_MS) for value in values])
    assert [[row[name] for name in ("event_ms", *measures)] for row in rows] == [
        [BASE_MS, 12.5, -0.25, 7.5, 6.25],
        [BASE_MS, 12.5, -0.25, None, 6.25],
    ]
    assert [line.status for line in check_input.mapping(settings)] == ["ok"] * 7


def test_an_expression_of_an_avro_record_reads_the_fields_that_it_names(spark, tmp_path):
    settings = make_settings(tmp_path, input={"measures": {"sum": "temperature + humidity"}})
    values = [avro(device_id="a", event_time=BASE_MS, temperature=20.5, humidity=h) for h in (40.0, None)]
    rows = admitted(spark, settings, [Record(value, BASE_MS) for value in values])
    assert [row["sum"] for row in rows] == [60.5, None]
    assert [row["device"] for row in rows] == ["a", "a"]
    with pytest.raises(Exception, match="has no field pressure"):
        admitted(spark, make_settings(tmp_path, input={"measures": {"sum": "temperature + pressure"}}), [])
    assert "pressure" not in [each["name"] for each in SCHEMA["fields"]]


@pytest.mark.parametrize(
    ("text", "why"),
    {
        "rand() * u": "the function rand is not allowed",
        "u * sum(i)": "the function sum is not allowed",
        "round(u * 2)": "the function round is not allowed",
        "a.b(u)": "the function a.b is not allowed",
        "u *": "[PARSE_SYNTAX_ERROR]",
        "abs(u, i)": "[WRONG_NUM_ARGS",
        "(" * 490 + "u" + ")" * 490: None,
    }.items(),
    ids=lambda value: str(value)[:20],
)
def test_an_expression_that_could_differ_or_is_no_number_is_refused_by_name(spark, tmp_path, text, why):
    settings = parse(document(tmp_path, {"power": text}) | {"admission": {}})
    if why is None:
        (row,) = admitted(spark, settings, records_of(['{"u": 1}']))
        assert row["power"] == 1
        return
    with pytest.raises(SettingsError) as refusal:
        admitted(spark, settings, [])
    assert str(refusal.value).startswith(f"input.measures.power = {text!r}: ")
    assert why in str(refusal.value)


def test_a_comparison_is_one_or_zero_and_nothing_where_a_field_is_missing(spark, tmp_path):
    measures = {"running": "u > 5", "either": "u > 5 or i > 5", "within": "u between 2 and 5"}
    settings = parse(document(tmp_path, measures) | {"admission": {}})
    texts = {
        '{"u": 6, "i": 1}': (1.0, 1.0, 0.0),
        '{"u": 5, "i": 1}': (0.0, 0.0, 1.0),
        '{"i": 1}': (None, None, None),
        '{"i": 7}': (None, 1.0, None),
    }
    rows = admitted(spark, settings, records_of(texts))
    assert [tuple(row[name] for name in measures) for row in rows] == list(texts.values())


@pytest.mark.parametrize(
    "text", ["temperature > 5", "case when temperature > 5 then 1 else 0 end", "least(temperature, 9)"]
)
def test_a_comparison_of_what_is_no_number_is_rejected(spark, tmp_path, text):
    settings = make_settings(tmp_path, input={"measures": {"warm": text}})
    values = [avro(device_id="a", event_time=BASE_MS, temperature=value, humidity=1.0) for value in (math.nan, 7.0)]
    bad, good = admitted(spark, settings, [Record(value, BASE_MS) for value in values])
    assert reason(bad) == "not_finite"
    assert good["warm"] in {1.0, 7.0}


def test_no_number_makes_an_expression_throw(spark, tmp_path):
    settings = parse(
        document(tmp_path, {"power": "pow(u, i) / (u % i) - exp(u) * pmod(i, u) + ln(u / i)"}) | {"admission": {}}
    )
    numbers = [0, -0.0, 1e308, -1e308, 5e-324, 1, -1, 2**63, None]
    rows = admitted(spark, settings, records_of(json.dumps({"u": u, "i": i}) for u in numbers for i in numbers))
    assert len(rows) == len(numbers) ** 2
    assert all(row["power"] is None or math.isfinite(row["power"]) for row in rows)


def test_a_path_has_the_same_plan_as_text_and_as_a_table(spark, tmp_path):
    frame = frame_of(spark, [])
    plain = readings.admit(frame, parse(document(tmp_path, {"power": "u"})))
    same = readings.admit(frame, parse(document(tmp_path, {"power": {"path": "u"}})))
    assert plain.sameSemantics(same)

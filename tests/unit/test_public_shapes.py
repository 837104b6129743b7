"""Topics in the shapes of other people's systems, decoded without Spark."""

import json
from typing import cast

import pytest
from confluent_kafka import Message

from service.admission.formats import FORMATS
from service.commands import records
from service.settings import Input
from tests.public_shapes import CASES, by_hand, sent, settings


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.shapes(name)) for name in CASES])
def test_the_decoder_without_spark_gives_the_values_computed_by_hand(name: str) -> None:
    given = settings(CASES[name])
    records = sent(CASES[name])
    assert [by_hand(given, each) for each in records] == [each.expected for each in records]


def test_each_shape_names_its_public_source() -> None:
    assert all("." in case["source"] for case in CASES.values())
    assert len({case["source"] for case in CASES.values()}) == len(CASES)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.shapes(name)) for name in CASES])
def test_init_finds_the_format_and_the_path_of_the_readings_or_none(name: str) -> None:
    wanted = CASES[name]["input"]
    values = [each.value for each in sent(CASES[name]) if not isinstance(each.expected[0], str)]
    messages = cast("list[Message]", [Sample(value) for value in values])
    assert records.format_of(messages[:1]) == (None if wanted["format"] == "json" else wanted["format"])
    if wanted["format"] == "json":
        found = records.array_of(messages)
        # `False` is not sure: beside the array the record has numbers that may be a reading's.
        assert found in {False, wanted.get("array", False)} or name in {
            "collectd-write-kafka",
            "datadog-series",
            "graphite-render",
        }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.", 1.0),
        (".5", 0.5),
        ("-.5e+2", -50.0),
        ("+1", 1.0),
        ("007i", 7.0),
        ("18446744073709551615u", 18446744073709551615),
        ("2e3", 2000.0),
        ("1_0", None),
        ("0x10", None),
        ("1e", None),
        ("i", None),
        ("NaN", None),
    ],
)
def test_line_protocol_has_the_numbers_that_go_writes(text: str, expected: float | None) -> None:
    [made] = (
        FORMATS["line-protocol"].cut(f"m value={text} 1790000000000000000".encode(), Input(format="line-protocol")).each
    )
    if expected is None:
        assert made.startswith(b"no line protocol: ")
    else:
        assert json.loads(made)["fields"] == {"value": expected}


def test_a_measurement_of_senml_without_a_value_that_is_read_is_a_reading_without_a_value() -> None:
    pack = [
        {"bn": "urn:dev:a:", "bt": 1_790_000_000},
        {"n": "lock", "vlo": "3:0"},
        {"n": "air", "v": 21.5},
        {"bv": 20, "n": "soil", "v": 1.5},
        {"n": "soil", "t": 5},
        {"n": "rain", "s": 3, "bs": 10},
        {"n": "rain", "s": 4, "t": 5},
    ]
    cut = FORMATS["senml"].cut(json.dumps(pack).encode(), Input(format="senml"), 0)
    found = [(each["measure"], each["time"], each.get("value"), each.get("sum")) for each in map(json.loads, cut.each)]
    assert found == [
        ("lock", 1_790_000_000, None, None),
        ("air", 1_790_000_000, 21.5, None),
        ("soil", 1_790_000_000, 21.5, None),
        ("soil", 1_790_000_005, 20, None),
        ("rain", 1_790_000_000, None, 13),
        ("rain", 1_790_000_005, None, 14),
    ]


def test_conditions_of_csv_read_texts_as_they_are() -> None:
    form = Input.model_validate(
        {"format": "csv", "measures": {"flow": {"path": "value", "where": "id = '1.50'"}}, "device_id": "unit"}
    )
    cut = FORMATS["csv"].cut(b"unit,id,value\n007,1.50,3\n", form)
    assert list(map(json.loads, cut.each)) == [{"unit": "007", "id": "1.50", "value": 3}]


class Sample:
    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def value(self) -> bytes | None:
        return self._value

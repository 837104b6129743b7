"""Topics in the shapes of other people's systems, decoded without Spark."""

from typing import cast

import pytest
from confluent_kafka import Message

from service.commands import records
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


class Sample:
    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def value(self) -> bytes | None:
        return self._value

"""Topics in the shapes of other people's systems, decoded without Spark."""

import json
from typing import cast

import pytest
from confluent_kafka import Message

from service.admission.formats import FORMATS
from service.commands import records
from service.proposal.envelopes import envelope_of
from service.proposal.proposal import propose
from service.settings import Input
from tests.public_shapes import BROKER_MS, CASES, by_hand, sent, settings


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


ENVELOPES = {
    "opc-ua-pubsub": "OPC UA PubSub",
    "thingsboard-gateway": "ThingsBoard gateway",
    "sitewise-batch-put": "AWS IoT SiteWise",
    "things-stack-uplink": "The Things Stack v3",
    "chirpstack-up": "ChirpStack v4",
    "owntracks-location": None,  # one of the two records is another message
    "telegraf-json": "Telegraf, JSON",
    "aws-iot-shadow": "AWS IoT, shadow",
    "azure-iot-hub-event": "Azure IoT Hub, by Event Grid",
    "cloudevents-structured": "CloudEvents, structured",
    "cloudevents-binary": "CloudEvents, binary",
    "debezium-envelope": "Debezium, with its envelope and schema",
    "kepserver-iot-gateway": "KEPServerEX, IoT Gateway",
    "zigbee2mqtt-state": "Zigbee2MQTT",
    "shelly-notify-status": "Shelly, RPC notifications",
}
"""The envelopes of the cases; no other case has one."""


def decoded(name: str) -> records.Decoded:
    form = settings(CASES[name]).form
    shape = {"format": form.format, **({"array": form.array} if form.array else {})}
    messages = [Sample(each.value, each.key, each.headers) for each in sent(CASES[name])]
    return records.decode(cast("list[Message]", messages), shape, None)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.shapes(name)) for name in CASES])
def test_init_names_the_envelope_or_none(name: str) -> None:
    assert envelope_of(decoded(name).sample) == ENVELOPES.get(name)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.shapes(name)) for name in CASES])
def test_what_init_proposes_of_few_records_is_right_or_not_sure(name: str) -> None:
    form, made = settings(CASES[name]).form, propose(decoded(name).sample)
    unsure = {*made.doubts, *made.open}
    if "input.device_id" not in unsure:
        assert made.device is not None
        assert made.device.path == form.device_id
    if "input.event_time" not in unsure:
        assert made.clock is not None
        assert made.clock.path == form.event_time
        assert (made.clock.unit, made.clock.pattern) == (form.event_time_unit, form.event_time_pattern)
    if "input.measures" not in unsure:
        assert {each.path for each in made.measures} >= {*form.measure_fields}


class Sample:
    def __init__(
        self, value: bytes | None, key: bytes | None = None, headers: tuple[tuple[str, bytes], ...] = ()
    ) -> None:
        self._value, self._key, self._headers = value, key, headers

    def value(self) -> bytes | None:
        return self._value

    def key(self) -> bytes | None:
        return self._key

    def headers(self) -> list[tuple[str, bytes]]:
        return list(self._headers)

    def timestamp(self) -> tuple[int, int]:
        return 1, BROKER_MS

    def topic(self) -> str:
        return "topic"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

"""Topics in the shapes of other people's systems, decoded without Spark."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from service.admission.formats import FORMATS
from service.commands import records
from service.proposal.columns import Seen
from service.proposal.envelopes import envelope_of
from service.proposal.proposal import propose
from service.settings import Input, field_path, source
from tests.public_shapes import CASES, Sent, by_hand, sent, settings
from tests.samples import sample


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
    messages = [sample(value) for value in values]
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


def decoded(name: str, given: Sequence[Sent] | None = None) -> records.Decoded:
    form = settings(CASES[name]).form
    shape = {"format": form.format, **({"array": form.array} if form.array else {})}
    messages = [sample(each.value, each.key, [*each.headers]) for each in given or sent(CASES[name])]
    return records.decode(messages, shape, None)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.shapes(name)) for name in CASES])
def test_init_names_the_envelope_or_none(name: str) -> None:
    assert envelope_of(decoded(name).sample) == ENVELOPES.get(name)


def varied(name: str, count: int = 120, devices: int = 12) -> list[Seen]:
    """Return a sample as a topic would give it: the admitted readings of a case, of several devices, with other values."""
    form, admitted = (
        settings(CASES[name]).form,
        [
            each
            for each in sent(CASES[name])
            if not any(isinstance(one, str) and one != "filtered" for one in each.expected)
        ],
    )
    seen, made = decoded(name, admitted).sample, []
    for number in range(count):
        one, device = seen[number % len(seen)], number // len(seen) % devices
        record, words, key = copy.deepcopy(dict(one.record)), dict(one.words), one.key
        for path in form.device_sources:
            if source.in_record(path):
                _change(
                    record, path, lambda value, by=device: value + by if isinstance(value, int) else f"{value}-{by}"
                )
            elif path == source.RECORD_KEY:
                key = f"{key}-{device}"
            elif path in words:
                words[path] = f"{words[path]}-{device}"
        for path in form.measure_fields:
            _change(record, path, lambda value, by=number % 7: value + by / 4 if is_number(value) else value)
        made.append(replace(one, record=record, words=words, key=key))
    return made


def _change(record: dict[str, Any], path: str, change: Callable[[Any], Any]) -> None:
    *parents, last = field_path.parts(path)
    node: Any = record
    for name in parents:
        node = node.get(name) if isinstance(node, dict) else None
    if isinstance(node, dict) and node.get(last) is not None:
        node[last] = change(node[last])


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@cache
def wrong(name: str, *, is_varied: bool) -> tuple[frozenset[str], frozenset[str]]:
    """Return the settings in which the proposal for a case differs from it, and those of which init is not sure."""
    form = settings(CASES[name]).form
    made = propose(varied(name) if is_varied else decoded(name).sample)
    found = set()
    if made.device is None or made.device.path != form.device_id:
        found.add("input.device_id")
    if made.clock is None or made.clock.path != form.event_time:
        found.add("input.event_time")
    elif form.event_time != source.TIMESTAMP:
        pattern = made.clock.pattern or ""
        given = "M/d/yyyy h:mm:ss a" if form.event_time_pattern == "MM/dd/yyyy hh:mm:ss a" else form.event_time_pattern
        if (made.clock.unit, pattern) != (form.event_time_unit, given or ""):
            found.add("input.event_time")
    if not {each.path for each in made.measures} >= {*form.measure_fields}:
        found.add("input.measures")
    return frozenset(found), frozenset({*made.doubts, *made.open})


@pytest.mark.parametrize("is_varied", [True, False])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.shapes(name)) for name in CASES])
def test_what_init_proposes_is_right_or_not_sure(
    name: str, is_varied: bool, record_property: Callable[[str, str], None]
) -> None:
    differs, unsure = wrong(name, is_varied=is_varied)
    if is_varied and not differs:
        record_property("proposed_right", name)
    assert differs <= unsure


def test_init_proposes_most_shapes_right() -> None:
    right = [name for name in CASES if not wrong(name, is_varied=True)[0]]
    assert len(CASES) >= 60
    assert len(right) >= 45, sorted(CASES.keys() - right)

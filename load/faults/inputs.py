"""The inputs of a run: one, of Avro; two; or three. Each has its topic, and the devices of all are the same.

The second one has a filter, and arrays of JSON objects, every full one gzip'd. The third one has Protobuf, and needs a registry
that has the schema of load/fleet/protobuf.py under its id. A run with a hostile fleet has more, by their formats, of which no
record is good: BOMBED.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load.demo import INPUTS, METERS
from load.testbed import TOPIC

GAUGES = "gauges"
"""The topic of the third input."""
BOMBED = {
    "senml-cbor": {"format": "senml-cbor", "device_id": "device", "event_time": "time", "event_time_unit": "s"},
    "sparkplug-b": {"format": "sparkplug-b", "device_id": "$key", "event_time": "timestamp"},
    "csv": {"format": "csv"},
    "times": {"format": "json", "event_time_unit": "iso"},
}
"""By topic, settings of inputs to which only bombs are sent."""
ARRAY = 5
"""Readings in a record of the second input, as far as they follow each other."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of a generator to a topic: its share of a load's readings, and their form."""

    topic: str = TOPIC
    share: float = 1.0
    value_format: str = "avro"
    array: int = 1

    @property
    def options(self) -> list[str]:
        return ["--format", self.value_format, "--array", str(self.array)]


HOSTILE = 4
"""In the place of their number: three inputs, and those of BOMBED."""
_ALL = (Traffic(share=0.6), Traffic(METERS, 0.2, "json", ARRAY), Traffic(GAUGES, 0.2, "protobuf"))
TRAFFIC: Mapping[int, Sequence[Traffic]] = {
    1: (Traffic(),),
    2: (Traffic(share=0.75), Traffic(METERS, 0.25, "json", ARRAY)),
    3: _ALL,
    HOSTILE: _ALL,
}
"""By the number of inputs that the generator sends to."""


def sections(given: Mapping[str, Any], inputs: int) -> dict[str, Any]:
    """Return sections of the settings with so many inputs; a row's own settings have one."""
    if inputs == 1:
        return dict(given)
    others = {name: section for name, section in given.items() if name != "input"}
    arrays = {**INPUTS[1], "array": True}
    messages = {"name": GAUGES, "topics": [GAUGES], "format": "protobuf", "measures": {"humidity": "humidity"}}
    bombed = [
        {"name": topic.replace("-", "_"), "topics": [topic], "measures": {"power": "value"}, **form}
        for topic, form in BOMBED.items()
    ]
    return {
        **others,
        "inputs": [
            dict(each) for each in (INPUTS[0], arrays, messages, *bombed)[: None if inputs == HOSTILE else inputs]
        ],
    }

"""The inputs of a run: one, of Avro; or two, of which the second has another topic, another format and a filter.

Its records are arrays of JSON objects, every full one gzip'd. The devices of both are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load.demo import INPUTS, METERS
from load.testbed import TOPIC

MOST = len(INPUTS)
ARRAY = 5
"""Readings in a record of the second input, as far as they follow each other."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a generator sends to a topic: its share of a load's readings, and in which form."""

    topic: str = TOPIC
    share: float = 1.0
    value_format: str = "avro"
    array: int = 1

    @property
    def options(self) -> list[str]:
        """Those of the generator's command line."""
        return ["--topic", self.topic, "--format", self.value_format, "--array", str(self.array)]


TRAFFIC: Mapping[int, Sequence[Traffic]] = {
    1: (Traffic(),),
    2: (Traffic(share=0.75), Traffic(METERS, 0.25, "json", ARRAY)),
}
"""By the number of inputs."""


def sections(given: Mapping[str, Any], inputs: int) -> dict[str, Any]:
    """Return sections of the settings with so many inputs; those of a row have one."""
    if inputs == 1:
        return dict(given)
    others = {name: section for name, section in given.items() if name != "input"}
    first, second = INPUTS
    return {**others, "inputs": [dict(first), {**second, "array": True}]}

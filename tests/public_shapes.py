"""Topics in the shapes of other people's systems (public_shapes.yaml): settings, records of our own, and values computed by hand.

Each case names the public description of its shape. Its records say what the settings make of them: a list of readings (device,
event time in ms, measures, columns), or a reason instead of a reading. Both decoders are compared with that: the one without
Spark in tests/unit/test_public_shapes.py, the plan in tests/stream/test_public_shapes.py.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from service.admission import long_format
from service.admission.arrays import EMPTY, UnreadableArrayError
from service.admission.formats import FORMATS
from service.commands import dissect
from service.commands.metadata import Metadata
from service.settings import Settings, parse

BROKER_MS = 1_790_000_000_000
"""The time in Kafka of all records: 2026-09-21T14:13:20Z."""
CASES: Mapping[str, Mapping[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Sent:
    """A record, and what is expected of it."""

    key: bytes | None
    value: bytes | None
    expected: list[Any]
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def metadata(self) -> Metadata:
        return Metadata(self.key, "topic", headers=self.headers, broker_ms=BROKER_MS)


def settings(case: Mapping[str, Any]) -> Settings:
    """Return the settings of a case, which admit every time."""
    columns = list(case["input"].get("columns", ()))
    return parse(
        {
            "service": {"checkpoint": "checkpoint"},
            "kafka": {"bootstrap": "broker:9092", "topics": ["topic"]},
            "input": case["input"],
            "admission": {"max_delay": "1 d", "max_ahead": "1 d", **case.get("admission", {})},
            "views": [{"name": "of", "window": "1 m", "by": [*columns, "device"]}],
            "redis": {"url": "redis://redis:6379/0"},
        },
        where="public_shapes.yaml",
    )


def sent(case: Mapping[str, Any]) -> list[Sent]:
    return [
        Sent(
            each["key"].encode() if each.get("key") is not None else None,
            _bytes(each),
            [_expected(one) for one in each["readings"]],
            tuple((name, str(value).encode()) for name, value in each.get("headers", {}).items()),
        )
        for each in case["records"]
    ]


def _bytes(record: Mapping[str, Any]) -> bytes | None:
    if "base64" in record:
        return base64.b64decode(record["base64"])
    if "hex" in record:
        return bytes.fromhex(record["hex"])
    if "text" in record:
        return str(record["text"]).encode()
    return None if record["value"] is None else json.dumps(record["value"]).encode()


def _expected(each: Any) -> Any:
    if isinstance(each, str):
        return each
    device, event_ms, measures, *columns = each
    return (
        device,
        event_ms,
        {name: round(float(value), 9) for name, value in measures.items()},
        columns[0] if columns else {},
    )


def plain(device: str | None, event_ms: int | None, measures: Mapping[str, Any], columns: Mapping[str, Any]) -> Any:
    """Return a reading as `Sent.expected` has it: without what the record lacks."""
    present = {name: round(value, 9) for name, value in measures.items() if value is not None}
    return device, event_ms, present, {name: value for name, value in columns.items() if value is not None}


def by_hand(given: Settings, each: Sent) -> list[Any]:
    """Return what the decoder without Spark makes of a record."""
    form = given.form
    texts: list[bytes | None] = [each.value]
    if each.value is None and form.tombstones == "ignore":
        return ["filtered"]
    if form.is_cut and each.value is not None:
        try:
            texts = [*FORMATS[form.format].cut(each.value, form, BROKER_MS).each]
        except UnreadableArrayError as error:
            return ["filtered" if error.reason == EMPTY else error.reason]
    return [_decided(dissect.dissect(text, form, {}), each.metadata, given) for text in texts]


def _decided(found: dissect.Dissected, metadata: Metadata, given: Settings) -> Any:
    is_listed = any(long_format.holds_for(each, found.at) for each in given.form.measures.values())
    if found.whole and not found.problems and given.form.is_long and not is_listed:
        return "filtered"
    reason, _ = dissect.reason(found, metadata, given.form)
    if reason:
        return reason
    made = dissect.reading(found, metadata, given.form)
    for name, (low, high) in given.limits.items():
        value = made.measures.get(name)
        if value is not None and not low <= value <= high:
            return "out_of_range"
    return plain(made.device, made.event_ms, made.measures, made.columns)

"""Recognise the envelopes of other systems by the fields of their records, for what `init` says of a sample.

An envelope is recognised by names that stand in nearly every record. It changes nothing of the proposal: that comes from the
values. It tells a reader where the description of the fields is, and that the sample is what he takes it for.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.admission import json_record
from service.proposal.columns import Seen
from service.proposal.times import MOSTLY


@dataclass(frozen=True, slots=True)
class Looks:
    """Paths that each record of an envelope has, and values that some of them have; `only` if the record has no other names."""

    paths: tuple[str, ...] = ()
    values: Mapping[str, Collection[Any]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    only: bool = False

    def are_of(self, seen: Seen) -> bool:
        record = seen.record
        if self.only and len(record) != len(self.paths):
            return False
        return (
            all(_has(record, path) for path in self.paths)
            and all(_at(record, path) in among for path, among in self.values.items())
            and all(word in seen.words for word in self.words)
        )


_OPERATIONS = ("c", "r", "u", "d", "t", "m")
ENVELOPES: Mapping[str, Looks] = {
    "Debezium, with its envelope and schema": Looks(
        ("schema", "payload.before", "payload.after"), {"payload.op": _OPERATIONS}
    ),
    "Debezium, with its envelope": Looks(("before", "after", "source"), {"op": _OPERATIONS}),
    "Debezium, flat": Looks((), {"__deleted": ("true", "false")}),
    "Kafka Connect's JSON with a schema": Looks(("schema.type", "payload"), only=True),
    "CloudEvents, structured": Looks(("id", "source", "type"), {"specversion": ("1.0", "0.3")}),
    "CloudEvents, binary": Looks(words=("$header.ce_specversion", "$header.ce_source")),
    "The Things Stack v3": Looks(("end_device_ids.device_id", "uplink_message")),
    "ChirpStack v4": Looks(("deviceInfo.devEui", "fCnt")),
    "ThingsBoard gateway": Looks(("ts", "values", "^key")),
    "Zigbee2MQTT": Looks(("linkquality", "device.ieeeAddr")),
    "AWS IoT, shadow": Looks(("state.reported", "version", "timestamp")),
    "AWS IoT SiteWise": Looks(("value", "timestamp.timeInSeconds", "^.propertyAlias")),
    "Azure IoT Hub, by Event Grid": Looks(("data.systemProperties", "eventType")),
    "Telegraf, JSON": Looks(("fields", "name", "tags", "timestamp"), only=True),
    "OPC UA PubSub": Looks(("Payload", "^.PublisherId"), {"^.MessageType": ("ua-data",)}),
    "KEPServerEX, IoT Gateway": Looks(("id", "v", "q", "t", "^.timestamp")),
    "Home Assistant": Looks(("entity_id", "state", "attributes", "last_changed")),
    "Eclipse Ditto": Looks(("topic", "path", "value", "revision")),
    "OwnTracks": Looks(("tst",), {"_type": ("location",)}),
    "Shelly, RPC notifications": Looks(("src", "params"), {"method": ("NotifyStatus", "NotifyEvent")}),
}
"""The first one that fits is named."""


def envelope_of(sample: Sequence[Seen]) -> str | None:
    """Return the name of the envelope that nearly all records have, None without one."""
    counts = Counter(next((name for name, looks in ENVELOPES.items() if looks.are_of(seen)), "") for seen in sample)
    name, count = counts.most_common(1)[0] if counts else ("", 0)
    return name if name and count >= MOSTLY * len(sample) else None


def _at(record: Mapping[str, Any], path: str) -> Any:
    value = json_record.at(record, path)
    return value if isinstance(value, str | int | float | bool) else None


def _has(record: Mapping[str, Any], path: str) -> bool:
    """Whether a record has a field at a path, also one that is null."""
    node: Any = record
    for name in path.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return False
        node = node[name]
    return True

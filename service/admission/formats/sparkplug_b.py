"""Sparkplug B (Eclipse Sparkplug 3.0): a payload of Protobuf with the metrics of an edge node or a device.

    {"name": "Temp", "alias": 5, "timestamp": 1790000000000, "value": 21.5, "historical": false, "seq": 7}

That is how the settings see a metric. `timestamp` is in ms: the metric's, else the payload's. A metric that is null has no value.
A DATA message may leave out the names and send the aliases of the BIRTH message before it: a condition on `alias` reads these.
"""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from service.admission.arrays import UNDECODABLE, UnreadableArrayError
from service.admission.formats.plain_json import Several
from service.settings import Input

_KINDS = descriptor_pb2.FieldDescriptorProto
_METRIC = {
    "name": (1, _KINDS.TYPE_STRING),
    "alias": (2, _KINDS.TYPE_UINT64),
    "timestamp": (3, _KINDS.TYPE_UINT64),
    "datatype": (4, _KINDS.TYPE_UINT32),
    "is_historical": (5, _KINDS.TYPE_BOOL),
    "is_null": (7, _KINDS.TYPE_BOOL),
    "int_value": (10, _KINDS.TYPE_UINT32),
    "long_value": (11, _KINDS.TYPE_UINT64),
    "float_value": (12, _KINDS.TYPE_FLOAT),
    "double_value": (13, _KINDS.TYPE_DOUBLE),
    "boolean_value": (14, _KINDS.TYPE_BOOL),
    "string_value": (15, _KINDS.TYPE_STRING),
}
_VALUES = tuple(name for name in _METRIC if name.endswith("_value"))
_SIGNED = {1: 8, 2: 16, 3: 32, 4: 64}
"""Bits of the data types Int8 to Int64, which are sent as unsigned numbers."""


class SparkplugB(Several):
    """Each metric is a reading. Data sets, templates, files and properties are not read: such a metric has no value."""

    def readings(self, packed: bytes, _form: Input, broker_ms: int | None) -> Iterator[bytes]:
        payload = _parsed(_classes()[0], packed)
        return (_reading(each, payload, broker_ms) for each in _metrics(payload))

    def looks_alike(self, value: bytes) -> bool:
        try:
            metrics = [*_metrics(_parsed(_classes()[0], value))] if value[:1] == b"\x08" else []
        except UnreadableArrayError:
            return False
        return len(metrics) > 0 and all(each.HasField("datatype") for each in metrics)


def _metrics(payload: Any) -> Iterator[Any]:
    """Yield the metrics, each parsed when it is asked for: an empty one is two bytes, and a hundred once it is parsed."""
    return (_parsed(_classes()[1], each) for each in payload.metrics)


def _parsed(kind: Any, value: bytes) -> Any:
    try:
        return kind.FromString(value)
    except DecodeError as error:
        why = " ".join(str(error).split())
        raise UnreadableArrayError(UNDECODABLE, f"is no payload of Sparkplug B: {why}") from error


def _reading(metric: Any, payload: Any, broker_ms: int | None) -> bytes:
    made = {name: getattr(metric, name) for name in ("name", "alias") if metric.HasField(name)}
    made["timestamp"] = next((each.timestamp for each in (metric, payload) if each.HasField("timestamp")), broker_ms)
    name = next((each for each in _VALUES if metric.HasField(each)), None)
    made["value"] = None if name is None or metric.is_null else _plain(getattr(metric, name), metric.datatype)
    made["historical"] = metric.is_historical
    if payload.HasField("seq"):
        made["seq"] = payload.seq
    try:
        return json.dumps(made).encode()
    except TypeError as error:  # the parser gives such a text as bytes
        raise UnreadableArrayError(UNDECODABLE, "is no payload of Sparkplug B: a text is not UTF-8") from error


def _plain(value: Any, datatype: int) -> Any:
    """Return a value with its sign. NaN and infinities stay: the service reads them, and rejects them as not finite."""
    bits = _SIGNED.get(datatype)
    if bits is not None and isinstance(value, int) and not isinstance(value, bool):
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value
    return value


@cache
def _classes() -> tuple[Any, Any]:
    """Return the classes of a payload and a metric, with the fields that are read. Others are skipped, as the parser does."""
    file = descriptor_pb2.FileDescriptorProto(name="tidemark_sparkplug_b.proto", package="tidemark", syntax="proto2")
    metric = file.message_type.add(name="Metric")
    for name, (number, kind) in _METRIC.items():
        metric.field.add(name=name, number=number, type=kind, label=_KINDS.LABEL_OPTIONAL)
    payload = file.message_type.add(name="Payload")
    for name, number in (("timestamp", 1), ("seq", 3)):
        payload.field.add(name=name, number=number, type=_KINDS.TYPE_UINT64, label=_KINDS.LABEL_OPTIONAL)
    payload.field.add(name="metrics", number=2, type=_KINDS.TYPE_BYTES, label=_KINDS.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"tidemark.{name}") for name in ("Payload", "Metric"))
    payload_class, metric_class = map(message_factory.GetMessageClass, found)
    return payload_class, metric_class

"""Readings as Protobuf messages in the framing of Confluent's serializer, written byte by byte; and the file of their schema.

syntax = "proto3";
package fleet;
message Reading {
  string device_id = 1;
  int64 event_time = 2;             // milliseconds
  optional double temperature = 3;  // and the other measures, up to 6
  Reading next = 8;                 // which the fleet never has
}
"""

import base64
import struct
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from load.fleet.fleet import MEASURES, Fleet, Ints, Readings

SCHEMA_ID = 3
"""Under which a run has to register `schema`: the ids before it are of the Avro schemas."""
NEXT = 8
"""The number of the field that is a reading again."""
_UNKNOWN_SCHEMA = 999_983
_FIRST_MEASURE = 3
_F = descriptor_pb2.FieldDescriptorProto


def schema() -> str:
    """Return the file as a registry keeps it: a FileDescriptorProto in base64."""
    return base64.b64encode(_file().SerializeToString()).decode()


def message() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fleet.Reading"))()


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="reading.proto", package="fleet", syntax="proto3")
    message = file.message_type.add(name="Reading")
    for number, (name, kind) in enumerate((("device_id", _F.TYPE_STRING), ("event_time", _F.TYPE_INT64)), start=1):
        message.field.add(name=name, number=number, label=_F.LABEL_OPTIONAL, type=kind)
    for at, name in enumerate(MEASURES):
        message.oneof_decl.add(name=f"_{name}")
        of_measure = {"type": _F.TYPE_DOUBLE, "proto3_optional": True, "oneof_index": at}
        message.field.add(name=name, number=_FIRST_MEASURE + at, label=_F.LABEL_OPTIONAL, **of_measure)
    of_message = {"type": _F.TYPE_MESSAGE, "type_name": ".fleet.Reading"}
    message.field.add(name="next", number=NEXT, label=_F.LABEL_OPTIONAL, **of_message)
    return file


class ProtobufEncoder:
    """Messages of the only type of `schema`, under SCHEMA_ID. What is damaged can be no message."""

    def __init__(self, fleet: Fleet) -> None:
        self._head = framing(SCHEMA_ID)
        self._devices = [self._head + _text(name) + b"\x10" for name in fleet.names]
        self._measures = [
            [(column, _tag(column)) for column in range(len(MEASURES)) if fleet.has[device, column]]
            for device in range(len(fleet.names))
        ]

    def ordinary(self, readings: Readings, event_ms: Ints) -> list[bytes]:
        """The records of `readings` as if all were ordinary."""
        rows = zip(readings.device.tolist(), event_ms.tolist(), readings.values.tolist(), strict=True)
        return [
            self._devices[device]
            + varint(time)
            + b"".join([tag + struct.pack("<d", values[column]) for column, tag in self._measures[device]])
            for device, time, values in rows
        ]

    def one(self, _device: int, record: Mapping[str, object]) -> bytes:
        """A record that is not as the device would write it."""
        content = self._head + _text(str(record["device_id"])) + b"\x10" + varint(int(str(record["event_time"])))
        for column, name in enumerate(MEASURES):
            if name in record:
                content += _tag(column) + struct.pack("<d", record[name])
        return content

    def unknown_schema(self, whole: bytes, _random: bytes) -> bytes:
        """An id beyond all that are known."""
        return whole[:1] + struct.pack(">I", _UNKNOWN_SCHEMA) + whole[5:]

    def huge_length(self, whole: bytes, _random: bytes) -> bytes:
        """A device id of 2^40 bytes, by its length."""
        return self._head + b"\x0a" + varint(1 << 40) + whole[len(self._head) + 2 :]

    def truncated(self, whole: bytes, random: bytes) -> bytes:
        """Cut inside the device id."""
        return whole[: len(self._head) + 2 + random[0] % 4]

    def trailing(self, whole: bytes, random: bytes) -> bytes:
        """A field after the end that is longer than the record."""
        return whole + b"\xfa\x01\x7f" + random[: 1 + random[0] % 7]

    def noise(self, _whole: bytes, random: bytes) -> bytes:
        """Random bytes that do not start as the framing does."""
        return b"\xff" + random * 4


def framing(number: int) -> bytes:
    """Return what is before a message: zero, the schema's id, and 0 for the file's first message."""
    return b"\0" + struct.pack(">I", number) + b"\0"


def varint(number: int) -> bytes:
    """Return the bytes of a number of at least 0."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _text(text: str) -> bytes:
    """Field 1."""
    content = text.encode()
    return b"\x0a" + varint(len(content)) + content


def _tag(column: int) -> bytes:
    """Of a measure: eight bytes follow."""
    return varint((_FIRST_MEASURE + column) << 3 | 1)

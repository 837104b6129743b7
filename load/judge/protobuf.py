"""Protobuf messages as the oracle reads them: by google.protobuf, with the schema's file from the registry.

The file is a FileDescriptorProto in base64. The oracle's schemas have no enums, groups, wrappers, imports or repeated fields.
"""

import base64
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

_METRICS = 2
"""The field of a payload of Sparkplug B."""
_GROUP = 3
"""The type of a group on the wire."""


class NoMessageError(ValueError):
    """Raised for bytes that are no message of their schema."""


class Messages:
    """The messages of a schema's file."""

    def __init__(self, serialized: str) -> None:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(serialized))
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self._types = list(pool.FindFileByName(file.name).message_types_by_name.values())

    def read(self, value: bytes) -> dict[str, Any]:
        """The fields of a record behind its schema id: the path of its message, then the message. Raises NoMessageError."""
        count, at = _varint(value, 0)
        path = [0]
        if count:
            path = []
            for _ in range(_zigzag(count)):
                number, at = _varint(value, at)
                path.append(_zigzag(number))
        types, found = self._types, None
        for number in path:
            if not 0 <= number < len(types):
                raise NoMessageError(f"there is no message {number}")
            found, types = types[number], types[number].nested_types
        if found is None:
            raise NoMessageError("there is no path")
        return _plain(_parsed(message_factory.GetMessageClass(found), value[at:]))


def metrics_of(value: bytes) -> int:
    """How many metrics a payload of Sparkplug B has, 0 for what is no payload."""
    try:
        fields = UnknownFieldSet(_parsed(empty_pb2.Empty, value))
    except NoMessageError:
        return 0
    return sum(each.field_number == _METRICS and each.wire_type != _GROUP for each in fields)


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise NoMessageError(str(error)) from error


def _plain(message: Any) -> dict[str, Any]:
    """The fields, None for those that a message does not have; a field without presence is 0, "" or false then."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name) if not field.has_presence or message.HasField(field.name) else None
        if field.type == field.TYPE_STRING and isinstance(value, bytes):  # of proto2, and not UTF-8
            raise NoMessageError(f"{field.name} is no text")
        found[field.name] = value if value is None or field.message_type is None else _plain(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(10):
        if at + place >= len(data):
            break
        byte = data[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number & (1 << 64) - 1, at + place + 1
    raise NoMessageError("a number does not end")


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)

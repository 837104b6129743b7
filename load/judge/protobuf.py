"""Protobuf messages as the oracle reads them: by the wire format, field by field.

The schema's file comes from the registry, as a FileDescriptorProto in base64, and is all that is read by google.protobuf.
Fields are numbers, texts, truth values and messages; the oracle's schemas have no enums, groups, wrappers or imports.
"""

import base64
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import descriptor_pb2

_F = descriptor_pb2.FieldDescriptorProto
_VARINT, _EIGHT, _TEXT, _BEGIN, _END, _FOUR = range(6)
_FIXED: Mapping[int, tuple[int, str]] = {
    _F.TYPE_DOUBLE: (_EIGHT, "<d"),
    _F.TYPE_FIXED64: (_EIGHT, "<Q"),
    _F.TYPE_SFIXED64: (_EIGHT, "<q"),
    _F.TYPE_FLOAT: (_FOUR, "<f"),
    _F.TYPE_FIXED32: (_FOUR, "<I"),
    _F.TYPE_SFIXED32: (_FOUR, "<i"),
}
_BITS = {_F.TYPE_INT64: 64, _F.TYPE_UINT64: 64, _F.TYPE_SINT64: 64, _F.TYPE_INT32: 32, _F.TYPE_UINT32: 32}
_SIGNED = {_F.TYPE_INT64, _F.TYPE_INT32}
_DEEPEST = 100
_METRICS = 2
"""The field of a payload of Sparkplug B."""


class NoMessageError(ValueError):
    """Raised for bytes that are no message of their schema."""


class Messages:
    """The messages of a schema's file."""

    def __init__(self, serialized: str) -> None:
        self._file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(serialized))
        self._types: dict[str, Any] = {}
        self._name(f".{self._file.package}" if self._file.package else "", self._file.message_type)

    def read(self, value: bytes) -> dict[str, Any]:
        """The fields of a record behind its schema id: the path of its message, then the message. Raises NoMessageError."""
        count, at = _varint(value, 0)
        path = [0]
        if count:
            path = []
            for _ in range(_zigzag(count)):
                number, at = _varint(value, at)
                path.append(_zigzag(number))
        types, found = self._file.message_type, None
        for number in path:
            if not 0 <= number < len(types):
                msg = f"there is no message {number}"
                raise NoMessageError(msg)
            found, types = types[number], types[number].nested_type
        if found is None:
            msg = "there is no path"
            raise NoMessageError(msg)
        return self._filled(found, self._message(found, value[at:], _DEEPEST))

    def _name(self, scope: str, types: Any) -> None:
        for each in types:
            self._types[f"{scope}.{each.name}"] = each
            self._name(f"{scope}.{each.name}", each.nested_type)

    def _message(self, kind: Any, data: bytes, depth: int) -> dict[str, Any]:
        """The fields that a message has; messages of a field that comes twice are merged."""
        if depth < 0:
            msg = "messages in messages are too deep"
            raise NoMessageError(msg)
        fields = {field.number: field for field in kind.field}
        found: dict[str, Any] = {}
        for number, wire, content in _fields(data):
            field = fields.get(number)
            if field is None:
                continue
            if field.type == _F.TYPE_MESSAGE and wire == _TEXT:
                inner = self._message(self._types[field.type_name], content, depth - 1)
                found[field.name] = _merged(found.get(field.name, {}), inner)
            elif field.type in _FIXED and wire == _FIXED[field.type][0]:
                (found[field.name],) = struct.unpack(_FIXED[field.type][1], content)
            elif field.type == _F.TYPE_STRING and wire == _TEXT:
                try:
                    found[field.name] = content.decode()
                except UnicodeDecodeError as error:
                    raise NoMessageError(str(error)) from error
            elif wire == _VARINT and (field.type in _BITS or field.type == _F.TYPE_BOOL):
                found[field.name] = _integer(field.type, content)
        return found

    def _filled(self, kind: Any, found: Mapping[str, Any]) -> dict[str, Any]:
        """With the values of the fields that a message does not have."""
        filled = {}
        for field in kind.field:
            value = found.get(field.name, self._default(field))
            filled[field.name] = (
                self._filled(self._types[field.type_name], value) if isinstance(value, Mapping) else value
            )
        return filled

    def _default(self, field: Any) -> Any:
        if self._file.syntax != "proto3" or field.HasField("oneof_index") or field.type == _F.TYPE_MESSAGE:
            return None
        return "" if field.type == _F.TYPE_STRING else False if field.type == _F.TYPE_BOOL else 0


def metrics_of(value: bytes) -> int:
    """How many metrics a payload of Sparkplug B has, 0 for what is no payload."""
    try:
        return sum(number == _METRICS for number, _, _ in _fields(value))
    except NoMessageError:
        return 0


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and content of each field, groups left out."""
    at, groups = 0, list[int]()
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not number or tag >= 1 << 32 or wire > _FOUR:
            msg = f"no field has the tag {tag}"
            raise NoMessageError(msg)
        content: Any = None
        if wire == _VARINT:
            content, at = _varint(data, at)
        elif wire in {_EIGHT, _FOUR}:
            size = 8 if wire == _EIGHT else 4
            content, at = _cut(data, at, size)
        elif wire == _TEXT:
            size, at = _varint(data, at)
            content, at = _cut(data, at, size)
        elif wire == _BEGIN:
            groups.append(number)
        elif not groups or groups.pop() != number:
            msg = f"group {number} ends and has not begun"
            raise NoMessageError(msg)
        if not groups and wire != _END:
            yield number, wire, content
    if groups:
        msg = f"groups {groups} do not end"
        raise NoMessageError(msg)


def _merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        name: _merged(before[name], each) if isinstance(each, dict) and name in before else each
        for name, each in after.items()
    }
    return {**before, **both}


def _cut(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        msg = f"{at + size - len(data)} bytes are missing"
        raise NoMessageError(msg)
    return data[at : at + size], at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(10):
        if at + place >= len(data):
            break
        byte = data[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number & (1 << 64) - 1, at + place + 1
    msg = "a number does not end"
    raise NoMessageError(msg)


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _integer(kind: int, number: int) -> int | bool:
    if kind == _F.TYPE_BOOL:
        return number != 0
    bits = _BITS[kind]
    number &= (1 << bits) - 1
    if kind == _F.TYPE_SINT64:
        return _zigzag(number)
    return number - (1 << bits) if kind in _SIGNED and number >> (bits - 1) else number

"""Protobuf for tests: the files of a schema, its class, and records in the wire format of Confluent's serializer."""

import base64
import struct
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

F = descriptor_pb2.FieldDescriptorProto
Fields = Mapping[str, tuple[int, Any]]
READING: Fields = {
    "device_id": (1, F.TYPE_STRING),
    "event_time": (2, ".google.protobuf.Timestamp"),
    "temperature": (3, ".google.protobuf.DoubleValue"),
    "env": (4, ".fleet.Env"),
    "kind": (5, ".fleet.Kind"),
    "count": (6, F.TYPE_INT64),
    "raw": (7, F.TYPE_BYTES),
    "next": (8, ".fleet.Reading"),
}


def message(name: str, fields: Fields) -> descriptor_pb2.DescriptorProto:
    made = descriptor_pb2.DescriptorProto(name=name)
    for field, (number, kind) in fields.items():
        new = made.field.add(name=field, number=number, label=F.LABEL_OPTIONAL)
        if isinstance(kind, str):
            new.type, new.type_name = F.TYPE_ENUM if kind.endswith("Kind") else F.TYPE_MESSAGE, kind
        else:
            new.type = kind
    return made


ENV = descriptor_pb2.FileDescriptorProto(name="env.proto", package="fleet", syntax="proto3")
ENV.message_type.append(message("Env", {"pressure": (1, F.TYPE_DOUBLE), "line": (2, F.TYPE_STRING)}))
ENV.enum_type.add(name="Kind").value.add(name="METER", number=0)
FILE = descriptor_pb2.FileDescriptorProto(name="x.proto", package="fleet", syntax="proto3")
FILE.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto", "env.proto"])
FILE.message_type.append(message("Other", {"text": (1, F.TYPE_STRING)}))
FILE.message_type.append(message("Reading", READING))
FILE.message_type[1].nested_type.append(message("Inner", {"device_id": (1, F.TYPE_STRING)}))


def text(file: descriptor_pb2.FileDescriptorProto) -> str:
    """A file as a registry has it."""
    return base64.b64encode(file.SerializeToString()).decode()


def _class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for each in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    pool.Add(ENV)
    pool.Add(FILE)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fleet.Reading"))


READING_CLASS = _class()


def framed(content: bytes, number: int = 1, path: bytes = b"\x02\x02") -> bytes:
    """`path` has the number 1, of the file's second message."""
    return b"\0" + struct.pack(">I", number) + path + content

"""Decode Protobuf in the tasks: Python gives the mapped fields of a record as a struct of Arrow, numbers and texts.

A record is a header with the schema id (formats/framings.py), what names the message in its file, the message. Confluent's
serializer names it by its path (numbers of messages, as varints), Apicurio's by its name, that of AWS Glue by its number in the
sorted list of all messages. Without a header it is `input.record_type`. A schema is kept as
{"files": [[name, FileDescriptorProto in base64], ...]}, each file after those that it imports, the schema last.

The parser of google.protobuf refuses more than 100 nested messages and text that is not UTF-8. What it allocates is bounded by
the record's size, and so by admission.max_bytes. Fields that a schema lacks are ignored: a newer producer may send them.

A field may have the name of a method of its message, and then takes its place (protobuf 7.36: `HasField`, `DESCRIPTOR`). So
methods are called on the class.
"""

import base64
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as of_dataclass
from functools import lru_cache, reduce
from operator import attrgetter
from typing import Any, Literal, Self

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from service.admission import json_record, mapped
from service.admission.formats import framings
from service.admission.formats.format import END
from service.admission.formats.framings import Framing
from service.errors import SchemaError
from service.settings import Input, field_path

_DEEPEST = 16
"""The most numbers in the path of a message."""
_NAME_TAG = b"\n"
_GLUE = ("glue", "glue-zlib")
_MOST_READERS = 64
_WELL_KNOWN = frozenset(
    f"google/protobuf/{name}.proto"
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
)
_TIMESTAMP = "google.protobuf.Timestamp"
_MICROSECOND = {"s": (1, 1_000_000), "ms": (1, 1_000), "us": (1, 1), "ns": (1_000, 1)}
"""In each unit: a quotient of whole numbers, which is rounded once."""
_WHOLE = (
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
)
_FRACTIONS = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)
_NO_VALUE = "a value that is no number, text or truth value, or not the one that is mapped"
_WRAPPERS = "google.protobuf."

Role = Literal["number", "text", "device", "column", "any"]
"""What a value is read as: a double, or a text of what may be a number in a text, a part of a device id, a column or what a
condition asks. For people a value is left as it is.
"""
File = tuple[str, str]
"""Name and content of a file, the content as base64 of a FileDescriptorProto."""
Place = tuple[int, ...] | str | int | None
"""What names a message in its file: its path, its name, its number in the sorted list of all, or nothing."""


class UnreadableError(ValueError):
    """Raised for bytes that are no message of their schema, and for a mapped field that has no single value."""


@dataclass(frozen=True, slots=True)
class Unpacker:
    """Turns values of one input into the mapped fields, null where they cannot be decoded; it is pickled for the tasks."""

    files: Mapping[bytes, tuple[File, ...]]
    """The files by what tells the schema of a record: nothing without a header."""
    roles: Mapping[tuple[str, ...], Role]
    """What the value at each path is read as."""
    unit: str
    framing: Framing
    record_type: str | None = None
    readers: dict[bytes, "Reader"] = of_dataclass(default_factory=dict, compare=False)
    """The readers by what stands before a message: they are made once in each task."""

    @classmethod
    def of(cls, form: Input, schemas: Mapping[int, Mapping[str, Any]]) -> "Unpacker":
        framing = framings.of(form)
        if framing.heads:
            heads = {framing.header(form, number, schema): schema for number, schema in schemas.items()}
        else:
            heads = {b"": schemas[framings.reader_id(form, schemas)]}
        files = {head: files_of(schema) for head, schema in heads.items() if head is not None}
        if b"" in files:
            require(files[b""], form)
        return cls(files, roles(form), form.event_time_unit, framing, form.record_type)

    def column(self, value: Column, form: Input) -> Column:
        """Return the mapped fields of a value, a struct with END, which is true."""
        tree: dict[str, Any] = {}
        for number, path in enumerate(self.roles):
            *parents, leaf = form.names_in_plan(path)
            reduce(lambda node, name: node.setdefault(name, {}), parents, tree)[leaf] = number
        kinds = [t.DoubleType() if role == "number" else t.StringType() for role in self.roles.values()]

        def kind(node: dict[str, Any]) -> t.StructType:
            each = ((name, kind(of) if isinstance(of, dict) else kinds[of]) for name, of in node.items())
            return t.StructType([t.StructField(name, of) for name, of in each])

        def unpack(values: pa.Array) -> pa.Array:
            rows = [None if each is None else self.row(each) for each in values.to_pylist()]
            nothing = (None,) * len(kinds)
            columns = list(zip(*[row or nothing for row in rows], strict=True)) or [()] * len(kinds)
            end = pa.array([row is not None for row in rows], pa.bool_())

            def struct(node: dict[str, Any]) -> list[pa.Array]:
                return [
                    of_struct(of) if isinstance(of, dict) else pa.array(columns[of], types[of]) for of in node.values()
                ]

            def of_struct(node: dict[str, Any]) -> pa.Array:
                return pa.StructArray.from_arrays(struct(node), [*node])

            return pa.StructArray.from_arrays([*struct(tree), end], [*tree, END])

        types = [to_arrow_type(each) for each in kinds]
        # Spark 4.1.1 puts a deterministic call in place of each use of its result: with two more inputs the plan had 13,000
        # expressions instead of 4,000, and the JVM spent its time on generated code.
        made = F.arrow_udf(unpack, kind(tree).add(END, t.BooleanType())).asNondeterministic()  # type: ignore[attr-defined]
        found: Column = made(value)
        return found

    def row(self, value: bytes) -> tuple[Any, ...] | None:
        """Return the mapped fields of a record in the order of `roles`, None for one that cannot be decoded."""
        try:
            for head, reader in self.readers.items():  # no head begins with another one
                if value.startswith(head):
                    return reader.row(_parsed(reader.kind, value[len(head) :]))
            return self._first(value)
        except UnreadableError:
            return None

    def _first(self, value: bytes) -> tuple[Any, ...] | None:
        """Return the same of a record whose message has no reader yet."""
        files = next((files for head, files in self.files.items() if value.startswith(head)), None)
        if files is None or (self.framing.heads and self.framing.head_at(value) is None):
            return None
        place, at = _place(value, self.framing)
        reader = Reader.of(_message(files, place, self.record_type), self.roles, self.unit)
        if len(self.readers) < _MOST_READERS:
            self.readers[value[:at]] = reader
        return reader.row(_parsed(reader.kind, value[at:]))


def mapped_fields(message: Message, form: Input) -> dict[str, Any]:
    """Return the mapped fields of a message, as an object of JSON would have them. Raises UnreadableError."""
    paths = roles(form)
    row = Reader.of(type(message), paths, form.event_time_unit, is_shown=True).row(message)
    found = dict[str, Any]()
    for (*parents, leaf), value in zip(paths, row, strict=True):
        reduce(lambda node, name: node.setdefault(name, {}), parents, found)[leaf] = value
    return found


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the mapped fields of the messages of a class: what is known of the fields is looked up once."""

    kind: Any
    fields: tuple[Callable[[Any], Any], ...]

    @classmethod
    def of(cls, kind: Any, roles: Mapping[tuple[str, ...], Role], unit: str, *, is_shown: bool = False) -> Self:
        """`unit` is that of times; a Timestamp in a device id or a column is a text.

        With `is_shown` values are left as they are.
        """

        def read(path: tuple[str, ...], role: Role) -> Callable[[Any], Any]:
            return _field(kind, path, "any" if is_shown else role, "iso" if role in {"device", "column"} else unit)

        return cls(kind, tuple(read(path, role) for path, role in roles.items()))

    def row(self, message: Message) -> tuple[Any, ...]:
        """Return the mapped fields. Raises UnreadableError."""
        return tuple([read(message) for read in self.fields])


def roles(form: Input) -> dict[tuple[str, ...], Role]:
    """Return what each mapped field is read as."""
    asked = {each.path for measure in form.measures.values() for each in measure.conditions}
    texts = {*form.text_fields, *(form.time_fields if form.event_time_unit == "iso" or form.text_numbers else ())}

    def role(path: str) -> Role:
        if path in form.device_fields:
            return "device"
        return "column" if path in form.column_fields or path in asked else "text" if path in texts else "number"

    return {tuple(field_path.parts(path)): role(path) for path in mapped.paths(form)}


def files_of(schema: Mapping[str, Any]) -> tuple[File, ...]:
    return tuple((str(name), str(content)) for name, content in schema["files"])


def check(schema: Mapping[str, Any]) -> None:
    """Raise SchemaError for a schema whose files do not fit together."""
    _file(files_of(schema))


def require(files: tuple[File, ...], form: Input) -> None:
    """Raise SchemaError for a schema without the message that all records are."""
    try:
        _message(files, None, form.record_type)
    except UnreadableError as error:
        msg = f"{form.place}.record_type = {form.record_type!r}: {error}"
        raise SchemaError(msg, remedy="Name a message of the schema, with its package") from error


def parsed(value: bytes, files: tuple[File, ...], framing: Framing, record_type: str | None = None) -> Message:
    """Return the message of a record by its schema. Raises UnreadableError."""
    place, at = _place(value, framing)
    return _parsed(_message(files, place, record_type), value[at:])


def _parsed(kind: Any, body: bytes) -> Message:
    message: Message = kind()
    try:
        kind.ParseFromString(message, body)
    except DecodeError as error:
        raise UnreadableError(" ".join(str(error).split())) from error
    return message


def head(value: bytes, framing: Framing) -> bytes:
    """Return what is before the message in a record: schema id and what names it. Raises UnreadableError."""
    return value[: _place(value, framing)[1]]


def fields(message: Message) -> dict[str, Any]:
    """Return the fields that a message has, by name, for people: messages as dicts, enums by name."""
    return {field.name: _shown(field, value) for field, value in type(message).ListFields(message)}


def plain(message: Message) -> dict[str, Any]:
    """Return the fields of a message, by name, with the values that a mapped field would have; lists stay lists.

    A number of proto3 is 0 where the record lacks it, as in the service; an empty text is left out. A value that a mapped field
    could not have, such as bytes, is None.
    """
    kind, found = type(message), dict[str, Any]()
    for field in kind.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        is_present = (
            kind.HasField(message, field.name) if field.has_presence else bool(value) or isinstance(value, int | float)
        )
        if is_present:
            found[field.name] = _plain(field, value)
    return found


def _plain(field: Any, value: Any) -> Any:
    if field.is_repeated:
        return [str(each) for each in value]
    if field.message_type is not None and not _has_value(field.message_type):
        return plain(value)
    try:
        return _value(field, value)
    except UnreadableError:
        return None


def _has_value(kind: Any) -> bool:
    return kind.full_name == _TIMESTAMP or (kind.full_name.startswith(_WRAPPERS) and "value" in kind.fields_by_name)


def has_path(files: tuple[File, ...], path: Sequence[str], record_type: str | None = None) -> bool:
    """Whether a message of the schema's file, outside of other messages or of this type, has a field at a path."""

    def has(message: Any, parts: Sequence[str]) -> bool:
        field = message.fields_by_name.get(parts[0])
        if field is None or len(parts) == 1:
            return field is not None
        return field.message_type is not None and has(field.message_type, parts[1:])

    messages = _file(files).message_types_by_name.values()
    if record_type is not None:
        messages = [each for each in _all(messages) if each.full_name == record_type]
    return any(has(message, path) for message in messages)


def other_messages(files: tuple[File, ...], form: Input) -> list[bytes]:
    """Return what names the messages of a file that are not of `record_type`, between a record's header and the message."""
    made = []

    def walk(types: Any, path: tuple[int, ...]) -> None:
        for number, each in enumerate(types):
            if each.full_name != form.record_type:
                made.extend(_named(each, (*path, number), files, form))
            walk(each.nested_types, (*path, number))

    walk(_file(files).message_types_by_name.values(), ())
    return made


def _named(message: Any, path: tuple[int, ...], files: tuple[File, ...], form: Input) -> list[bytes]:
    if form.framing in _GLUE:
        return [_written(sorted(each.full_name for each in _all(_types(files))).index(message.full_name))]
    if form.framing == "apicurio":
        name = message.name.encode()
        named = _NAME_TAG + _written(len(name)) + name
        return [_written(len(named)) + named] if len(path) == 1 else []
    written = b"".join(_written(number << 1) for number in (len(path), *path))
    return [written, *([b"\0"] if path == (0,) else [])]


def _all(types: Iterable[Any]) -> Iterator[Any]:
    """Yield messages, and those within them."""
    for each in types:
        yield each
        yield from _all(each.nested_types)


def _types(files: tuple[File, ...]) -> list[Any]:
    """Return the messages of a file outside of others, in its order, which message_types_by_name keeps."""
    return list(_file(files).message_types_by_name.values())


def _place(value: bytes, framing: Framing) -> tuple[Place, int]:
    """Return what names a record's message, and the byte where the message begins."""
    begin = framing.begin(value)
    if not framing.heads:
        return None, 0
    if framing in (framings.FRAMINGS[name] for name in _GLUE):
        return _unsigned(value, begin)
    if framing != framings.FRAMINGS["apicurio"]:
        return _path(value, begin)
    # A message of Apicurio's own behind its length; its field 1 is the name.
    size, at = _unsigned(value, begin)
    length, first = _unsigned(value, at + 1)
    end = at + size
    name = value[first:end]
    if value[at : at + 1] != _NAME_TAG or first + length != end or len(value) < end or not name.isascii():
        raise UnreadableError("the name of the message is damaged")
    return name.decode(), end


def _path(value: bytes, begin: int) -> tuple[tuple[int, ...], int]:
    """Return the path of a record's message, and the byte where the message begins."""
    count, at = _varint(value, begin)
    if count == 0:  # short for the first message
        return (0,), at
    if not 0 < count <= _DEEPEST:
        raise UnreadableError(f"the path of the message has {count} numbers")
    numbers = []
    for _ in range(count):
        number, at = _varint(value, at)
        numbers.append(number)
    return tuple(numbers), at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint, and the byte after it."""
    number, end = _unsigned(value, at)
    return (number >> 1) ^ -(number & 1), end


def _unsigned(value: bytes, at: int) -> tuple[int, int]:
    """Return a varint of at most 5 bytes, and the byte after it."""
    number = 0
    for place in range(5):
        if at + place >= len(value):
            break
        byte = value[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise UnreadableError("the path of the message is damaged")


def _written(number: int) -> bytes:
    """Return a number below 2^14 as a varint."""
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80, number >> 7])


@lru_cache(maxsize=128)
def _file(files: tuple[File, ...]) -> Any:
    """Return the descriptor of the last file. Raises SchemaError."""
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(proto: Any) -> None:
        for name in proto.dependency:
            if name in _WELL_KNOWN and name not in added:
                module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
                well_known = descriptor_pb2.FileDescriptorProto()
                module.DESCRIPTOR.CopyToProto(well_known)
                add(well_known)
        if proto.name not in added:
            added.add(proto.name)
            pool.Add(proto)

    try:
        for name, content in files:
            proto = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(content, validate=True))
            proto.name = name
            add(proto)
        return pool.FindFileByName(files[-1][0])
    except Exception as error:  # the pool raises TypeError and KeyError, the parser DecodeError
        raise SchemaError(f"the Protobuf schema cannot be used: {' '.join(str(error).split())}") from error


@lru_cache(maxsize=512)
def _message(files: tuple[File, ...], place: Place, record_type: str | None = None) -> Any:
    """Return the class of the message that a record names, which has to be of a type if one is given. Raises UnreadableError."""
    types, path = _types(files), place if isinstance(place, tuple) else (0,)
    if isinstance(place, str):
        types = [each for each in types if each.name == place]
    elif isinstance(place, int):
        types = sorted(_all(types), key=lambda each: str(each.full_name))[place : place + 1]
    elif place is None:
        types = [each for each in _all(types) if each.full_name == record_type]
    found = None
    for number in path:
        if not 0 <= number < len(types):
            named = (
                record_type if place is None else place if not isinstance(place, tuple) else ".".join(map(str, path))
            )
            raise UnreadableError(f"the schema has no message {named}")
        found = types[number]
        types = list(found.nested_types)
    if record_type is not None and found is not None and found.full_name != record_type:
        raise UnreadableError(f"is a {found.full_name}, and {record_type} is read")
    return message_factory.GetMessageClass(found)


def _field(kind: Any, path: Sequence[str], role: Role, unit: str, at: int = 0) -> Callable[[Any], Any]:
    """Return a function that reads a field of a message: None without one.

    It raises UnreadableError for a field whose values cannot have the role.
    """
    part, name = path[at], ".".join(path[: at + 1])
    field = kind.DESCRIPTOR.fields_by_name.get(part)
    if field is None:
        return lambda _message: None
    has = kind.HasField if field.has_presence else None
    if field.is_repeated:
        inner: Callable[[Any], Any] | None = _refusing(f"{name} is repeated")
    elif at + 1 == len(path):
        inner = _reading(field, role, unit)
    elif field.message_type is None:
        inner = _refusing(f"{name} is no message")
    else:
        inner = _field(message_factory.GetMessageClass(field.message_type), path, role, unit, at + 1)
    get = attrgetter(part)
    if has is None:
        return get if inner is None else lambda message: inner(get(message))
    if inner is None:
        return lambda message: get(message) if has(message, part) else None
    return lambda message: inner(get(message)) if has(message, part) else None


def _refusing(why: str) -> Callable[[Any], str]:
    def refuse(_value: Any) -> str:
        raise UnreadableError(why)

    return refuse


def _reading(field: Any, role: Role, unit: str) -> Callable[[Any], Any] | None:
    """Return a function that makes the value of a role of that of a field; None where they are the same."""
    convert, kind = _CONVERSIONS[role], field.message_type
    if kind is not None and kind.full_name == _TIMESTAMP and unit in _MICROSECOND:
        times, by = _MICROSECOND[unit]
        return lambda value: convert((value.seconds * 1_000_000 + value.nanos // 1_000) * times / by)
    if kind is not None or field.enum_type is not None:
        return lambda value: convert(_value(field, value))
    if role == "number" and field.type in _FRACTIONS:
        return None
    return float if role == "number" and field.cpp_type in _WHOLE else convert


def _number(value: Any) -> float | None:
    try:
        return json_record.as_number(value)
    except TypeError as error:
        raise UnreadableError(_NO_VALUE) from error


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        raise UnreadableError(_NO_VALUE)
    return value if isinstance(value, str) else json.dumps(value)


def _device(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value >= 1 << 63:
        raise UnreadableError(_NO_VALUE)
    return str(value)


def _column(value: Any) -> str:
    return _text(value) if isinstance(value, bool) else _device(value)


def _any(value: Any) -> Any:
    if isinstance(value, bytes):
        raise UnreadableError(_NO_VALUE)
    return value


_CONVERSIONS: Mapping[Role, Callable[[Any], Any]] = {
    "number": _number,
    "text": _text,
    "device": _device,
    "column": _column,
    "any": _any,
}


def _value(field: Any, value: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.full_name == _TIMESTAMP:
        return _iso(value)
    if kind is not None and kind.full_name.startswith(_WRAPPERS) and "value" in kind.fields_by_name:
        value = value.value
    elif field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    if isinstance(value, bytes) or not isinstance(value, int | float | str):
        raise UnreadableError(f"{field.name}: {_NO_VALUE}")
    return value


def _iso(value: Any) -> str:
    try:
        return str(value.ToJsonString())
    except ValueError as error:
        raise UnreadableError(str(error)) from error


def _shown(field: Any, value: Any) -> Any:
    if field.is_repeated:
        return [str(each) for each in value]
    if field.message_type is not None:
        return fields(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    return value.hex() if isinstance(value, bytes) else value

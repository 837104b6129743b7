"""Read an Avro record without Spark, by the rules of the JVM's reader (Avro 1.12), for people.

fastavro is not used: it takes a union's index and an enum's from the end when they are negative, and integers of any length, and
it checks text and logical types that the service does not look at.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from service.admission import avro_types

_VARINT_BYTES = {"int": 5, "long": 10}
_TOO_LONG = {kind: f"an integer of more than {size} bytes" for kind, size in _VARINT_BYTES.items()}
_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Types of a reader that a writer's values may become."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
_TICKS = {"millis": timedelta(milliseconds=1), "micros": timedelta(microseconds=1)}
_RAW: Any = object()
"""In the place of a reader's schema: the value as it was written."""


class DamagedError(ValueError):
    """Raised where bytes are not what Avro allows; `path` is that of the field."""

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(f"{path if len(path) <= 80 else path[:80] + '...'}: {what}" if path else what)
        self.what, self.path = what, path


@dataclass
class AvroRecord:
    """Reads a value of a writer's schema from the byte `at` on.

    `reader` is the schema that fields are read into; without one they are read as they were written. `problems` has a line for
    each field that cannot be read into it. `spans` are the bytes of the top-level fields.
    """

    data: bytes
    writer: Mapping[str, Any]
    reader: Mapping[str, Any] | None = None
    at: int = 0
    problems: list[str] = field(default_factory=list)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    def read(self) -> Mapping[str, Any]:
        """Return the fields by name. Raises DamagedError; then `fields` are those before the damage, and `at` is its byte."""
        self._named = avro_types.definitions(self.writer)
        self._targets = avro_types.definitions(self.reader or {})
        begin = self.at
        try:
            return self._record(self.writer, self.reader or _RAW, "", self.fields, self.spans)
        except (DamagedError, RecursionError) as error:
            self.at = max((end for _, end in self.spans.values()), default=begin)
            raise error if isinstance(error, DamagedError) else DamagedError("is nested too deeply") from error

    def _record(
        self,
        writer: Any,
        reader: Any,
        path: str,
        into: dict[str, Any],
        spans: dict[str, tuple[int, int]] | None = None,
    ) -> dict[str, Any]:
        wanted = {} if reader is _RAW else {each["name"]: each for each in reader["fields"]}
        names = {alias: name for name, each in wanted.items() for alias in (*each.get("aliases", ()), name)}
        space, of_reader = _space(writer), "" if reader is _RAW else _space(reader)
        for each in writer["fields"]:
            begin, name = self.at, names.get(each["name"], "")
            inner = f"{path}.{name or each['name']}".lstrip(".")
            try:
                if reader is _RAW or not name:
                    value = self._value(each["type"], _RAW, inner, space, "")
                else:
                    value = self._value(each["type"], wanted.pop(name)["type"], inner, space, of_reader)
            except DamagedError as error:
                raise DamagedError(error.what, error.path or inner) from error
            if reader is _RAW or name:
                into[name or each["name"]] = value
            if spans is not None:
                spans[each["name"]] = (begin, self.at)
        for name, each in wanted.items():
            if "default" in each:
                into[name] = each["default"]
            else:
                at = f"{path}.{name}".lstrip(".")
                self.problems.append(f"{at} is missing: the writer's schema lacks it, and the reader's has no default")
        return into

    def _value(self, writer: Any, reader: Any, path: str, space: str, of_reader: str) -> Any:
        writer, space = _resolved(writer, space, self._named)
        if isinstance(writer, list):
            number = self._varint("int")
            if not 0 <= number < len(writer):
                raise DamagedError(f"the union has no branch {number}")
            return self._value(writer[number], reader, path, space, of_reader)
        if reader is not _RAW:
            reader, of_reader = _resolved(reader, of_reader, self._targets)
            found = self._branch(writer, reader, of_reader)
            if found is None:
                value = self._value(writer, _RAW, path, space, "")
                shown, expected = _shown(value), avro_kinds(reader)
                self.problems.append(f"{path} = {shown}: is {avro_kinds(writer)}, the reader's schema has {expected}")
                return None
            reader, of_reader = _resolved(found, of_reader, self._targets)
        return self._of_kind(_kind(writer), writer, reader, path, space, of_reader)

    def _of_kind(self, kind: str, writer: Any, reader: Any, path: str, space: str, of_reader: str) -> Any:
        is_raw = reader is _RAW
        if kind == "record" and writer["name"] == avro_types.TOO_DEEP:
            raise DamagedError(f"more than {avro_types.MAX_LEVELS} records in one another")
        if kind in {"record", "error"}:
            return self._record(writer, reader, path, {})
        if kind in {"array", "map"}:
            return self._blocks(kind, writer, reader, path, space, of_reader)
        if kind == "enum":
            return self._enum(writer, reader, path)
        value: Any = self._text(is_raw) if kind in {"string", "bytes"} else None
        if value is None:
            value = _PRIMITIVES[kind](self) if kind in _PRIMITIVES else self._taken(writer["size"])
        logical = writer if is_raw else reader
        target = kind if is_raw else _kind(reader)
        if target in {"float", "double"} and isinstance(value, int):
            value = float(value)
        if target == "float" and not is_raw:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        if target == "string":
            value = value.decode(errors="surrogateescape")
        return _logical(value, logical)

    def _enum(self, writer: Any, reader: Any, path: str) -> Any:
        number = self._varint("int")
        symbols = writer["symbols"]
        if not 0 <= number < len(symbols):
            if reader is _RAW:  # Avro does not look at the number of a field that it skips
                return number
            raise DamagedError(f"the enum has no symbol {number}")
        symbol = symbols[number]
        if reader is _RAW or symbol in reader["symbols"]:
            return symbol
        if "default" not in reader:
            self.problems.append(f"{path} = {_shown(symbol)}: the reader's schema has no such symbol, and no default")
        return reader.get("default")

    def _blocks(self, kind: str, writer: Any, reader: Any, path: str, space: str, of_reader: str) -> Any:
        inner = "values" if kind == "map" else "items"
        target = _RAW if reader is _RAW else reader[inner]
        listed: list[Any] = []
        keyed: dict[str, Any] = {}
        while count := self._varint("long"):
            if count < 0:
                self._varint("long")
            for _ in range(abs(count)):
                begin = self.at
                name = self._text(reader is _RAW).decode(errors="surrogateescape") if kind == "map" else ""
                value = self._value(writer[inner], target, path, space, of_reader)
                if kind == "map":
                    keyed[name] = value
                else:
                    listed.append(value)
                if self.at == begin:  # items without bytes: any number of them is there
                    break
        return keyed if kind == "map" else listed

    def _branch(self, writer: Any, reader: Any, space: str) -> Any:
        """Return the reader's type that takes a writer's value, None without one."""
        options = reader if isinstance(reader, list) else [reader]
        resolved = [_resolved(each, space, self._targets)[0] for each in options]
        kind = _kind(writer)
        same = [each for each in resolved if _kind(each) == kind]
        if kind in {"enum", "fixed"}:
            same = [each for each in same if each["name"].rpartition(".")[2] == writer["name"].rpartition(".")[2]]
        if kind == "fixed":
            same = [each for each in same if each["size"] == writer["size"]]
        if kind == "record" and len(options) > 1:
            named = [each for each in same if each["name"].rpartition(".")[2] == writer["name"].rpartition(".")[2]]
            same = named or same
        promoted = [each for each in resolved if _kind(each) in _PROMOTED.get(kind, ())]
        return next(iter((*same, *promoted)), None)

    def _varint(self, kind: str) -> int:
        number = 0
        for place in range(_VARINT_BYTES[kind]):
            if self.at >= len(self.data):
                raise DamagedError("the record ends early")
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise DamagedError(_TOO_LONG[kind])

    def _taken(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise DamagedError(f"has a length of {size} bytes, and {len(self.data) - self.at} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def _text(self, is_raw: bool) -> bytes:
        size = self._varint("long")
        return self._taken(max(size, 0) if is_raw else size)  # where Avro skips a text, a negative length is 0


_PRIMITIVES: Mapping[str, Callable[[AvroRecord], Any]] = {
    "null": lambda _: None,
    "boolean": lambda record: record._taken(1) == b"\1",
    "int": lambda record: record._varint("int"),
    "long": lambda record: record._varint("long"),
    "float": lambda record: struct.unpack("<f", record._taken(4))[0],
    "double": lambda record: struct.unpack("<d", record._taken(8))[0],
}


def avro_kinds(schema: Any) -> str:
    """Return the names of a type, or of the types of a union."""
    return " or ".join(map(_kind, schema)) if isinstance(schema, list) else _kind(schema)


def _kind(schema: Any) -> str:
    while isinstance(schema, Mapping):
        schema = schema["type"]
    return str(schema)


def _space(record: Mapping[str, Any]) -> str:
    return avro_types.namespace_of(avro_types.full_name(record, ""))


def _resolved(schema: Any, space: str, named: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a type with its definition in the place of its name, and the namespace in it."""
    while isinstance(schema, Mapping) and not avro_types.is_definition(schema) and not isinstance(schema["type"], str):
        schema = schema["type"]
    name = schema["type"] if isinstance(schema, Mapping) else schema
    if isinstance(name, str) and (full := avro_types.referred(name, space, named)) is not None:
        return named[full], avro_types.namespace_of(full)
    if isinstance(schema, Mapping) and avro_types.is_definition(schema):
        full = avro_types.full_name(schema, space)
        return named.get(full, schema), avro_types.namespace_of(full)
    return schema, space


def _logical(value: Any, schema: Any) -> Any:
    """Return a time or a decimal for the number that stands for it; other logical types are those below them, as in Spark."""
    logical = schema.get("logicalType") if isinstance(schema, Mapping) else None
    if logical is None or value is None:
        return value
    try:
        if logical in avro_types.TIMESTAMPS and _kind(schema) == "long":
            at = _EPOCH + value * _TICKS[logical.rpartition("-")[2]]
            return at if logical.startswith("local-") else at.replace(tzinfo=UTC)
        if logical == "date" and _kind(schema) == "int":
            return date(1970, 1, 1) + timedelta(days=value)
        if logical == "decimal" and isinstance(value, bytes):
            return Decimal(int.from_bytes(value, signed=True)).scaleb(-schema.get("scale", 0))
    except OverflowError:  # a time beyond those of Python
        pass
    return value


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 80 else f"{text[:80]}..."

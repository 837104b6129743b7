"""The oracle's decoders: a record's bytes become a mapping, and its fields a device, a time and numbers.

Avro is read by fastavro, with two things added. fastavro takes a union's index as Python does, so -1 is the last
branch, and an integer of any length; by Avro both are damage. A record is therefore written again, and where the bytes
differ it is walked by the writer's schema (`walk`), which refuses both. And logical types are taken off: times stay
integers.
"""

import io
import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro

from load.judge import arrays
from load.judge.predicates import Formula
from load.judge.protobuf import Messages, NoMessageError, metrics_of
from load.judge.rules import Shape
from load.servers.web import answer

UNDECODABLE = "undecodable"
UNKNOWN_SCHEMA = "unknown_schema"
BLANKS = " \t\n\v\f\r"
"""What is cut off at both ends of a time, and makes no device id."""
UNITS = {"s": Decimal(1000), "ms": Decimal(1), "us": Decimal("0.001"), "ns": Decimal("0.000001")}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK = r"(?:\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?|\d{4}(?:\d\d(?:[.,]\d+)?)?)"
_ISO = re.compile(rf"(\d{{4}}-\d\d-\d\d|\d{{8}})[Tt ]({_CLOCK})(?: ?(\S[^\[]*)(?:\[[\w/+:-]+\])?)?", re.ASCII)
_OFFSET = re.compile(r"([+-](?:(?:0\d|1[0-7])(?::?[0-5]\d)?|18(?::?00)?))(?: [A-Z]{3,5})?")
_LOGICAL = {"timestamp-millis": "ms", "timestamp-micros": "us"}
_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_HEADER_BYTES = 5
_NOT_FINITE = ("NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF")
_VARINT_BYTES = {"int": 5, "long": 10}


class RejectedError(Exception):
    """A record cannot be used; the argument is the reason."""


class Json:
    """One JSON object a record, UTF-8. NaN and infinities may be in it."""

    time_unit = None

    def read(self, value: bytes) -> Mapping[str, Any]:
        """The record; raises RejectedError."""
        try:
            record: Any = json.loads(value.decode())
        except (ValueError, RecursionError):
            raise RejectedError(UNDECODABLE) from None
        if not isinstance(record, dict):
            raise RejectedError(UNDECODABLE)
        return record


class JsonSchema(Json):
    """JSON objects behind 0x00 and four bytes of the id of a schema of the subjects."""

    def __init__(self, rules: Shape) -> None:
        self._ids = schema_ids(rules.registry.partition(",")[0], rules.subjects)

    def read(self, value: bytes) -> Mapping[str, Any]:
        """The record; raises RejectedError."""
        if _schema_id(value) not in self._ids:
            raise RejectedError(UNKNOWN_SCHEMA)
        return super().read(value[_HEADER_BYTES:])


class Pack:
    """Formats whose records hold several readings, as far as a hostile fleet sends them: none of its records is read."""

    time_unit = None

    def __init__(self, _rules: Shape) -> None:
        pass

    def read(self, value: bytes) -> Mapping[str, Any]:
        """Raise RejectedError: a payload of Sparkplug B with too many metrics is oversized, any other record undecodable."""
        raise RejectedError("oversized" if metrics_of(value) > arrays.MOST else UNDECODABLE)


class Protobuf:
    """Messages behind 0x00, four bytes of the id of a schema of the subjects, and their place in its file."""

    time_unit = None

    def __init__(self, rules: Shape) -> None:
        registry = rules.registry.partition(",")[0]
        self._messages = {
            number: Messages(_ask(registry, f"schemas/ids/{number}?format=serialized")["schema"])
            for number in schema_ids(registry, rules.subjects)
        }

    def read(self, value: bytes) -> Mapping[str, Any]:
        """The record; raises RejectedError."""
        messages = self._messages.get(_schema_id(value))
        if messages is None:
            raise RejectedError(UNKNOWN_SCHEMA)
        try:
            return messages.read(value[_HEADER_BYTES:])
        except NoMessageError:
            raise RejectedError(UNDECODABLE) from None


class Avro:
    """Records in the Confluent wire format: 0x00, four bytes of schema id, the record by that writer's schema.

    `time_unit` is what the reader's schema says of the event time by a logical type, None when it says nothing.
    """

    def __init__(self, rules: Shape) -> None:
        self._registry = rules.registry.partition(",")[0]
        raw: dict[int, Any] = {}
        if self._registry:  # an id of another subject's counts as none
            raw = {
                number: json.loads(_ask(self._registry, f"schemas/ids/{number}")["schema"])
                for number in schema_ids(self._registry, rules.subjects)
            }
        else:
            raw = {int(path.stem): json.loads(path.read_text("utf-8")) for path in rules.schemas.glob("*.avsc")}
        number = max(raw) if rules.reader_schema is None else rules.reader_schema
        whole = raw[number]
        self.time_unit = _LOGICAL.get(_logical_type(whole, rules.event_time.split(".")))
        # A field that nothing is taken from cannot make a record undecodable.
        paths = [rules.device_id, rules.event_time, *rules.measures.values(), *rules.columns.values()]
        paths += [field for text in rules.derived.values() for field in Formula(text).fields]
        self._whole = whole
        cut = _cut(whole, {tuple(path.split(".")) for path in paths})
        self._reader = fastavro.parse_schema(_without_logical_types(cut))
        self._writers = {each: self._parsed(schema) for each, schema in raw.items()}

    def read(self, value: bytes) -> Mapping[str, Any]:
        """The record by the reader's schema; raises RejectedError, also when bytes follow it."""
        parsed = self._writers.get(_schema_id(value))
        if parsed is None:
            raise RejectedError(UNKNOWN_SCHEMA)
        writer, names, is_reader = parsed
        body = io.BytesIO(value)
        body.seek(_HEADER_BYTES)
        try:
            # Avro's readers on the JVM do not look into text: only a device id has to be UTF-8.
            record: Any = fastavro.schemaless_reader(body, writer, None, handle_unicode_errors="surrogateescape")
            end: int = body.tell()
            if not _writes_back(writer, record, value[_HEADER_BYTES:end]):
                end = walk(writer, names, value, _HEADER_BYTES)
            if not is_reader:
                body.seek(_HEADER_BYTES)
                record = fastavro.schemaless_reader(body, writer, self._reader, handle_unicode_errors="surrogateescape")
        except Exception:  # fastavro raises whatever the bytes make it raise
            raise RejectedError(UNDECODABLE) from None
        if end < len(value):
            raise RejectedError(UNDECODABLE)
        whole: Mapping[str, Any] = record
        return whole

    def _parsed(self, schema: Any) -> tuple[Any, dict[str, Any], bool]:
        names: dict[str, Any] = {}
        return fastavro.parse_schema(_without_logical_types(schema), named_schemas=names), names, schema == self._whole


def _schema_id(value: bytes) -> int:
    """The id of a record's schema: 0x00, then four bytes."""
    if len(value) < _HEADER_BYTES or value[0] != 0:
        raise RejectedError(UNDECODABLE)
    return int.from_bytes(value[1:_HEADER_BYTES], "big")


def _cut(schema: Any, paths: Set[tuple[str, ...]]) -> Any:
    """A schema without the fields that no path leads to; a type that a path ends at stays."""
    if isinstance(schema, list) and sum(each != "null" for each in schema) == 1:
        return [_cut(each, paths) for each in schema]
    if not isinstance(schema, dict) or schema["type"] != "record" or () in paths:
        return schema
    fields = []
    for field in schema["fields"]:
        below = {path[1:] for path in paths if path[0] == field["name"]}
        if below:
            fields.append({**field, "type": _cut(field["type"], below)})
    return {**schema, "fields": fields}


def schema_ids(registry: str, subjects: Sequence[str]) -> set[int]:
    """Of all versions of the subjects; an error where the registry does not answer."""
    ids = set()
    for subject in subjects:
        for version in _ask(registry, f"subjects/{subject}/versions") or ():
            ids.add(_ask(registry, f"subjects/{subject}/versions/{version}")["id"])
    return ids


def _ask(registry: str, path: str) -> Any:
    """What the registry answers, None when it has no such thing. Raises OSError."""
    status, text = answer(f"{registry}/{path}", 10)
    if status not in {200, 404}:
        raise OSError(f"{registry}/{path}: status {status} (0: no answer): {text}")
    return json.loads(text) if status == 200 else None


def at(record: Mapping[str, Any], path: Sequence[str]) -> object:
    """The value at a path, None where the record ends before; RejectedError where no record is on the way."""
    value: Any = record
    for name in path:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise RejectedError(UNDECODABLE)
        value = value.get(name)
    return value


def as_number(value: object) -> float | None:
    """A measure; a number too large for a double is infinite. RejectedError for anything but a number."""
    if value is None or type(value) is float:
        return value
    if value in _NOT_FINITE:  # as texts, too
        return float(str(value))
    if type(value) is not int:
        raise RejectedError(UNDECODABLE)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def as_device(value: object) -> str:
    """A device id, "" when it is missing: text in UTF-8 or an integer of 64 bits. RejectedError for anything else."""
    if value is None:
        return ""
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return str(value)
    try:
        if type(value) is str:
            value.encode()
            return value
        if type(value) is bytes:
            return value.decode()
    except UnicodeError:
        pass
    raise RejectedError(UNDECODABLE)


def as_column(value: object) -> str | None:
    """A column of the record as text: as a device id, and true or false; None when it is missing."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else as_device(value)


def to_ms(value: object, unit: str) -> int | None:
    """An event time in ms, floored; a number with a fraction is meant as its decimals say. None when it is no time.

    A time without a zone is UTC. RejectedError when the value is not of the unit's type.
    """
    if value is None:
        return None
    if unit == "iso":
        if type(value) is not str:
            raise RejectedError(UNDECODABLE)
        return _iso_ms(value.strip(BLANKS))
    if type(value) is int:
        return value * 1000 if unit == "s" else value // {"ms": 1, "us": 1_000, "ns": 1_000_000}[unit]
    if value in _NOT_FINITE:
        value = float(str(value))
    if type(value) is float and math.isinf(value):  # JSON's 1e400 is beyond all times
        return (1 << 62) if value > 0 else -(1 << 62)
    if type(value) is float:
        return None if math.isnan(value) else math.floor(Decimal(repr(value)) * UNITS[unit])
    raise RejectedError(UNDECODABLE)


def walk(schema: Any, names: Mapping[str, Any], data: bytes, begin: int) -> int:
    """Where a value by `schema` ends in `data`; raises ValueError or IndexError where Avro forbids the bytes."""
    if isinstance(schema, str):
        schema = names.get(schema, schema)
    kind = schema if isinstance(schema, str) else "union" if isinstance(schema, list) else schema["type"]
    if kind in _WIDTHS or kind == "fixed":
        return _within(begin + (schema["size"] if kind == "fixed" else _WIDTHS[kind]), data)
    if kind in {"record", "error"}:
        for field in schema["fields"]:
            begin = walk(field["type"], names, data, begin)
        return begin
    if kind in {"array", "map"}:
        return _walk_blocks(schema, names, data, begin)
    number, begin = _varint(data, begin, _VARINT_BYTES.get(kind, 10 if kind in {"string", "bytes"} else 5))
    if kind in {"string", "bytes"}:
        return _within(begin + _not_negative(number), data)
    if kind == "union":
        return walk(schema[_not_negative(number)], names, data, begin)
    if kind == "enum" and not 0 <= number < len(schema["symbols"]):
        raise ValueError(f"there is no symbol {number}")
    return begin


def _walk_blocks(schema: Any, names: Mapping[str, Any], data: bytes, begin: int) -> int:
    while True:
        count, begin = _varint(data, begin, 10)
        if count == 0:
            return begin
        if count < 0:
            _, begin = _varint(data, begin, 10)
        for _ in range(abs(count)):
            if schema["type"] == "map":
                begin = walk("string", names, data, begin)
            before, begin = begin, walk(schema.get("items", schema.get("values")), names, data, begin)
            if before == begin:  # items of no bytes: any count of them is there
                break


def _varint(data: bytes, begin: int, limit: int) -> tuple[int, int]:
    number = 0
    for index in range(limit):
        byte = data[begin + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), begin + index + 1
    raise ValueError(f"an integer of more than {limit} bytes")


def _within(end: int, data: bytes) -> int:
    if end > len(data):
        raise ValueError(f"{end - len(data)} bytes are missing")
    return end


def _not_negative(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def _writes_back(schema: Any, record: Any, data: bytes) -> bool:
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, schema, record)
    except (ValueError, TypeError, OverflowError):  # damaged text, a number too long
        return False
    return out.getvalue() == data


def _iso_ms(text: str) -> int | None:
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    date, clock, zone = found.groups(default="Z")
    if zone not in {"Z", "z", "UTC", "GMT"}:
        offset = _OFFSET.fullmatch(zone)
        if offset is None:
            return None
        zone = offset[1]
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{zone if zone[0] in '+-' else ''}")
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        kept = {
            name: _without_logical_types(each)
            for name, each in schema.items()
            if name not in {"logicalType", "default"}
        }
        return {**kept, "default": schema["default"]} if "default" in schema else kept
    return schema


def _logical_type(schema: Any, path: Sequence[str]) -> str:
    """The logical type of the field at a path, through unions with null; "" when it has none."""
    for name in path:
        branches = schema if isinstance(schema, list) else [schema]
        records = [b for b in branches if isinstance(b, dict) and isinstance(b.get("fields"), list)]
        types = [field["type"] for record in records for field in record["fields"] if field["name"] == name]
        if not types:
            return ""
        schema = types[0]
    branches = schema if isinstance(schema, list) else [schema]
    return next((b["logicalType"] for b in branches if isinstance(b, dict) and "logicalType" in b), "")

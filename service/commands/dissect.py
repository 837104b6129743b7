"""Show a record's bytes to people: the decodable fields, where and why decoding stops, and the bytes its reject is about.

The service decodes otherwise (admission/decode.py, in Spark). This module decodes as much as possible of a record that the
service could not use.
"""

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

import fastavro
from google.protobuf import json_format

from service.admission import arrays, protobuf
from service.admission.schema_sources import load_set
from service.errors import SchemaError
from service.settings import RECORD_KEY, Input, Settings

HEADER_BYTES = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN_ROWS = 16
_ROW = 16
_JSON_BLANKS = " \t\n\r"
_KINDS = {list: "an array", str: "text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}

Schemas = Mapping[int, Mapping[str, Any]]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Dissected:
    """The decoded part of a record.

    `fields` are the decoded fields by name, in the record's order. `spans` has the bytes of each, as far as they are known.
    `stop` is the byte at which decoding stopped, for the reason `why`; None when the complete record decodes.
    """

    fields: Mapping[str, Any]
    spans: Mapping[str, Span]
    schema: int | None = None
    stop: int | None = None
    why: str = ""

    @property
    def whole(self) -> bool:
        return self.stop is None

    def at(self, path: str) -> Any:
        """The value at a path with dots, None without it."""
        value: Any = self.fields
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


class Dissector:
    """Dissects records of all topics, each by its topic's input. The schemas of an input are read once, when they are needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._schemas: dict[str, Schemas] = {}

    def __call__(self, topic: str, value: bytes | None) -> Dissected:
        """Decode as much as possible of a value. Raises SchemaError."""
        return dissect(value, self._settings.of_topic(topic).form, self._writers(topic))

    def device(self, topic: str, dissected: Dissected, key: bytes | None) -> str | None:
        return device(dissected, key, self._settings.of_topic(topic).form)

    def encode(self, topic: str, value: bytes, record: Mapping[str, Any]) -> bytes:
        return encode(value, record, self._settings.of_topic(topic).form, self._writers(topic))

    def _writers(self, topic: str) -> Schemas:
        each = self._settings.of_topic(topic)
        if each.form.place not in self._schemas:
            self._schemas[each.form.place] = writers(each.form, each)
        return self._schemas[each.form.place]


def writers(settings: Input, everything: Settings | None = None) -> Schemas:
    """Return the writers' schemas by id, of the folder or the registry's subjects; {} for JSON without ids. Raises SchemaError.

    `everything` are settings with this input alone.
    """
    if not settings.has_schemas:
        return {}
    if everything is not None and everything.registry is not None:
        in_use: Schemas = load_set(everything).schemas
        return in_use
    by_id = {}
    for path in settings.schemas.glob("*.avsc"):
        try:
            by_id[int(path.stem)] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            msg = f"{path}: is not <id>.avsc with an Avro schema: {error}"
            raise SchemaError(msg) from error
    return by_id


def dissect(value: bytes | None, settings: Input, schemas: Schemas) -> Dissected:
    """Decode as much as possible of a value; `schemas` are the writers' by id, empty for JSON without schema ids."""
    if value is None:
        return Dissected({}, {}, stop=0, why="there is no value")
    if settings.array:
        return _array(value, settings)
    if not settings.has_schemas:
        return _json(value)
    if stopped := _framing(value, schemas):
        return stopped
    if settings.format == "protobuf":
        return _protobuf(value, schemas)
    return _json_behind_id(value) if settings.is_json else _avro(value, schemas)


def offending(
    dissected: Dissected, reason: str, detail: str, settings: Input, max_bytes: int, size: int
) -> Span | None:
    """The bytes that the reason is about, None when they are not known."""
    if reason == "oversized":
        return (max_bytes, size) if size > max_bytes else None
    if reason == "unknown_schema":
        return 1, HEADER_BYTES
    path = settings.event_time if reason in {"early", "late", "behind", "no_time"} else None
    if reason in {"no_device", "bad_device", "unknown_device"} and settings.device_id != RECORD_KEY:
        path = settings.device_id
    if reason in {"not_finite", "out_of_range"}:
        measure = settings.measures.get(detail.partition(" = ")[0])
        path = measure.paths[0] if measure else None
    span = dissected.spans.get(path.partition(".")[0]) if path else None
    if span is None and dissected.stop is not None:
        return dissected.stop, max(size, dissected.stop + 1)
    return span


def device(dissected: Dissected, key: bytes | None, settings: Input) -> str | None:
    """The device id, if it decodes; else the record's key, which is usually the device id."""
    named = None if settings.device_id == RECORD_KEY else dissected.at(settings.device_id)
    if isinstance(named, str | int | UUID) and not isinstance(named, bool) and named != "":
        return str(named)
    return key.decode(errors="backslashreplace") if key else None


def event_ms(dissected: Dissected, settings: Input) -> int | None:
    """The event time in ms, None without a readable one."""
    value, unit = dissected.at(settings.event_time), settings.event_time_unit
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return math.floor(value * {"s": 1000, "us": 0.001}.get(unit, 1))
    except (ValueError, OverflowError):
        return None


def encode(value: bytes, record: Mapping[str, Any], settings: Input, schemas: Schemas) -> bytes:
    """A record in the place of `value`'s: of the same schema, in the same format. ValueError says what does not fit."""
    if settings.format == "protobuf":
        message = protobuf.parsed(value, protobuf.files_of(schemas[_schema_id(value)]))
        message.Clear()
        try:
            json_format.ParseDict(record, message)
        except json_format.ParseError as error:
            msg = f"does not fit schema {_schema_id(value)}: {error}"
            raise ValueError(msg) from error
        return protobuf.head(value) + bytes(message.SerializeToString())
    if settings.is_json:
        head = value[:HEADER_BYTES] if settings.has_schemas else b""
        return head + json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    out = io.BytesIO(value[:HEADER_BYTES])
    out.seek(HEADER_BYTES)
    try:
        schema: Any = fastavro.parse_schema(dict(schemas[_schema_id(value)]))
        fastavro.schemaless_writer(out, schema, dict(record), strict=True)
    except Exception as error:  # fastavro raises errors of many classes
        msg = f"does not fit schema {_schema_id(value)}: {error}"
        raise ValueError(msg) from error
    return out.getvalue()


def hexdump(value: bytes, span: Span | None) -> Iterator[str]:
    """Lines of sixteen bytes, with what `span` has of each marked below it; a long value is shown around the span only."""
    begin, end = span or (0, 0)
    rows = max(1, -(-len(value) // _ROW))
    first = max(0, min(begin // _ROW - 2, rows - 1)) if len(value) > _SHOWN_ROWS * _ROW else 0
    last = min(rows, first + _SHOWN_ROWS)
    if first:
        yield f"  ... {first * _ROW} bytes before"
    for row in range(first, last):
        at = row * _ROW
        part = value[at : at + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"  {at:08x}  {part.hex(' '):<47}  |{text}|"
        if begin < at + _ROW and end > at:
            marks = "".join("^^ " if begin <= at + i < end else "   " for i in range(_ROW))
            yield f"            {marks.rstrip()}"
    if last < rows:
        yield f"  ... {len(value) - last * _ROW} bytes after"


def _array(value: bytes, settings: Input) -> Dissected:
    """Decode a record that is one reading, and say of another one why it holds no readings."""
    try:
        text = arrays.unpacked(value, int(settings.max_array_bytes), settings.place)
        found = arrays.elements(text)
    except arrays.UnreadableArrayError as error:
        return Dissected({}, {}, stop=0, why=str(error))
    if found is None:
        return _json(text)
    return Dissected({}, {}, stop=0, why=f"is an array of {len(found)} readings")


def _json(value: bytes) -> Dissected:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return Dissected({}, {}, stop=error.start, why=f"is not UTF-8: 0x{value[error.start]:02x}")
    try:
        document = json_value(text.strip(_JSON_BLANKS))
    except json.JSONDecodeError as error:
        stop = len(text) - len(text.lstrip(_JSON_BLANKS)) + error.pos
        return Dissected({}, {}, stop=len(text[:stop].encode()), why=f"is not JSON: {error.msg}")
    except (ValueError, RecursionError) as error:
        return Dissected({}, {}, stop=0, why=str(error))
    if not isinstance(document, dict):
        return Dissected({}, {}, stop=0, why=f"is {_KINDS[type(document)]} in JSON, expected an object")
    return Dissected(document, {})


def json_value(text: str) -> Any:
    """Return the value of a JSON text. Raises RecursionError, and ValueError, also for NaN and infinities."""
    return json.loads(text, parse_constant=_refused)


def _refused(constant: str) -> NoReturn:
    msg = f"is not JSON: {constant} is not a number of JSON"
    raise ValueError(msg)


def _schema_id(value: bytes) -> int:
    return int.from_bytes(value[1:HEADER_BYTES])


def _framing(value: bytes, schemas: Schemas) -> Dissected | None:
    """Return why a value is not decoded at all; None for one that begins with a known schema id."""
    if len(value) < HEADER_BYTES or value[0] != 0:
        return Dissected({}, {}, stop=0, why="does not begin with a zero byte and a schema id")
    number = _schema_id(value)
    if number not in schemas:
        why = f"schema {number} is not known; known: {', '.join(map(str, sorted(schemas)))}"
        return Dissected({}, {}, number, stop=1, why=why)
    return None


def _protobuf(value: bytes, schemas: Schemas) -> Dissected:
    number = _schema_id(value)
    try:
        message = protobuf.parsed(value, protobuf.files_of(schemas[number]))
    except protobuf.UnreadableError as error:
        return Dissected({}, {}, number, stop=HEADER_BYTES, why=str(error))
    return Dissected(protobuf.fields(message), {}, number)


def _json_behind_id(value: bytes) -> Dissected:
    body = _json(value[HEADER_BYTES:])
    stop = None if body.stop is None else body.stop + HEADER_BYTES
    return replace(body, schema=_schema_id(value), stop=stop)


def _avro(value: bytes, schemas: Schemas) -> Dissected:
    number = _schema_id(value)
    body, fields = io.BytesIO(value[HEADER_BYTES:]), schemas[number]["fields"]
    record: dict[str, Any] = {}
    spans: dict[str, Span] = {}
    reached = HEADER_BYTES
    # As many of the first fields as decode: each time from the beginning, as a later one may use an earlier one's types.
    for many in range(1, len(fields) + 1):
        name = fields[many - 1]["name"]
        try:
            record, end = _first(schemas[number], fields[:many], body), HEADER_BYTES + body.tell()
        except Exception as error:  # fastavro raises errors of many classes for a device's bytes
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            return Dissected(record, spans, number, stop=reached, why=f"{name}: {reason}")
        spans[name], reached = (reached, end), end
    if reached < len(value):
        why = f"{len(value) - reached} bytes after the record"
        return Dissected(record, spans, number, stop=reached, why=why)
    return Dissected(record, spans, number)


def _first(schema: Mapping[str, Any], fields: Sequence[Any], body: io.BytesIO) -> dict[str, Any]:
    try:
        parsed = fastavro.parse_schema({**schema, "fields": list(fields)})
    except Exception as error:
        msg = f"the writer's schema cannot be used: {error}"
        raise SchemaError(msg) from error
    body.seek(0)
    read: Any = fastavro.schemaless_reader(body, parsed, None)
    return dict(read)

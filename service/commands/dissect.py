"""Decode a record without Spark, for people: its fields, where and why decoding stops, and what the service reads of it.

The service decodes in Spark (service/admission/decode.py). `reading` returns the same device, time, measures and columns, and
`reason` the same reason for a reject: tests/stream/test_decoders.py compares the two
(docs/decisions/0050-a-decoder-without-spark.md).
"""

import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import fastavro
from google.protobuf import json_format

from service.admission import arrays, avro_types, decode, device_ids, protobuf
from service.admission.schema_sources import load_set
from service.commands import json_record
from service.commands.avro_record import AvroRecord, DamagedError
from service.errors import SchemaError
from service.settings import RECORD_KEY, Input, Settings, field_path

HEADER_BYTES = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN_ROWS = 16
_ROW = 16
_JSON_BLANKS = " \t\n\r"
_BLANKS = " \t\n\v\f\r"
_ISO = re.compile(decode.ISO_TIME.replace(r"\z", r"\Z"), re.ASCII)
_FAR_MS = 9_000_000_000_000_000
"""The largest event time, as in service/admission/decode.py."""
_KINDS = {list: "an array", str: "text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}

Schemas = Mapping[int, Mapping[str, Any]]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Dissected:
    """The decoded part of a record.

    `fields` are the decoded fields by name, in the record's order. `spans` has the bytes of each, as far as they are known.
    `stop` is the byte at which decoding stopped, for the reason `why`; None when the complete record decodes. Then `read` has the
    mapped fields as the service reads them, and `problems` a line for each of them that it cannot read.
    """

    fields: Mapping[str, Any]
    spans: Mapping[str, Span]
    schema: int | None = None
    stop: int | None = None
    why: str = ""
    read: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return self.stop is None

    @property
    def used(self) -> Mapping[str, Any]:
        """The fields as the service reads them, those that decode of a record that it cannot read."""
        return self.fields if self.read is None else self.read

    def at(self, path: str) -> Any:
        """The value at a path with dots, None without it."""
        return json_record.at(self.used, path)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the service takes from a record: texts and times of admission, measures with their scale. Expressions are left out."""

    device: str | None
    event_ms: int | None
    measures: Mapping[str, float | None]
    columns: Mapping[str, str | None]


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
    found = fields(value, settings, schemas)
    if value is None or not found.whole:
        return found
    try:
        if settings.format == "avro":
            return _read_avro(found, value, settings, schemas)
        return _read_json(found, _json_text(found, value, settings, schemas), settings)
    except (protobuf.UnreadableError, DamagedError) as error:
        return replace(found, problems=(str(error),))


def fields(value: bytes | None, settings: Input, schemas: Schemas) -> Dissected:
    """Decode as much as possible of a value, for settings that may map no fields: `read` and `problems` are empty."""
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


def reason(dissected: Dissected, key: bytes | None, settings: Input) -> tuple[str, str]:
    """Return the reason for which admission rejects a record by its content, and its text; two empty texts without one.

    Not decided: sizes, filters, ranges, the reference, and where the event time lies.
    """
    if dissected.stop is not None:
        is_unknown = dissected.stop == 1 and dissected.schema is not None
        return "unknown_schema" if is_unknown else "undecodable", f"{dissected.why} (byte {dissected.stop})"
    problems = dissected.problems
    if settings.device_id == RECORD_KEY and not _is_text(key):
        problems = (*problems, f"the key {key!r} is not UTF-8; {settings.place}.device_id is the record's key")
    if problems:
        return "undecodable", "; ".join(problems)
    found = reading(dissected, key, settings)
    device = found.device or ""
    if not device.strip(_BLANKS):
        return "no_device", f"{settings.device_id}: missing or blank"
    infinite = [f"{name} = {value}" for name, value in found.measures.items() if not math.isfinite(value or 0)]
    checks = {
        "bad_device": device_ids.problem(device),
        "no_time": "" if found.event_ms is not None else f"{settings.event_time}: missing, or not a time",
        "not_finite": "; ".join(infinite),
    }
    return next(((each, text) for each, text in checks.items() if text), ("", ""))


def reading(dissected: Dissected, key: bytes | None, settings: Input) -> Reading:
    """Return what the service takes from a record that it can decode."""
    measures = {name: each for name, each in settings.measures.items() if each.expression is None}
    columns = {name: _text(dissected.at(column.path)) for name, column in settings.columns.items()}
    own = (key or b"").decode(errors="backslashreplace") if key is not None else None
    return Reading(
        own if settings.device_id == RECORD_KEY else _text(dissected.at(settings.device_id)),
        event_ms(dissected, settings),
        {name: _scaled(dissected.at(each.path), each.scale, each.offset) for name, each in measures.items()},
        {name: decode.OTHER if text and device_ids.problem(text) else text for name, text in columns.items()},
    )


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
    span = dissected.spans.get(field_path.parts(path)[0]) if path else None
    if span is None and dissected.stop is not None:
        return dissected.stop, max(size, dissected.stop + 1)
    return span


def device(dissected: Dissected, key: bytes | None, settings: Input) -> str | None:
    """The device id, if it decodes; else the record's key, which is usually the device id."""
    named = None if settings.device_id == RECORD_KEY else dissected.at(settings.device_id)
    if isinstance(named, str | int) and not isinstance(named, bool) and named != "":
        return str(named)
    return key.decode(errors="backslashreplace") if key else None


def event_ms(dissected: Dissected, settings: Input) -> int | None:
    """The event time in ms, None without a readable one. It is floored, and at most 9e15, as in admission/decode.py."""
    value, unit = dissected.at(settings.event_time), settings.event_time_unit
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(milliseconds=1)
    if unit == "iso":
        return _iso_ms(value) if isinstance(value, str) and _ISO.match(value) else None
    if isinstance(value, int) and not settings.is_json:
        value = min(max(value, -_FAR_MS), _FAR_MS)
        return {"s": value * 1000, "us": value // 1000}.get(unit, value)
    try:
        number = json_record.as_number(value)
    except TypeError:
        return None
    if number is None or math.isnan(number):
        return None
    us = min(max(number * {"s": 1e6, "us": 1.0}.get(unit, 1e3), -9e18), 9e18)
    return int(Decimal(repr(us)).to_integral_value(ROUND_HALF_UP)) // 1000


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
        return head + json.dumps(record, separators=(",", ":")).encode()
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
        document = json_record.value_of(text.strip(_JSON_BLANKS))
    except json.JSONDecodeError as error:
        stop = len(text) - len(text.lstrip(_JSON_BLANKS)) + error.pos
        return Dissected({}, {}, stop=len(text[:stop].encode()), why=f"is not JSON: {error.msg}")
    except (ValueError, RecursionError) as error:
        return Dissected({}, {}, stop=0, why=str(error))
    if not isinstance(document, dict):
        return Dissected({}, {}, stop=0, why=f"is {_KINDS[type(document)]} in JSON, expected an object")
    return Dissected(document, {})


def _json_text(found: Dissected, value: bytes, settings: Input, schemas: Schemas) -> bytes:
    """Return the JSON text that the service reads of a value that decodes. Raises protobuf.UnreadableError."""
    if settings.format == "protobuf":
        message = protobuf.parsed(value, protobuf.files_of(schemas[found.schema or 0]))
        return protobuf.Unpacker.of(settings, {}).mapped(message).encode()
    if settings.array:
        return arrays.unpacked(value, int(settings.max_array_bytes), settings.place)
    return value[HEADER_BYTES:] if settings.has_schemas else value


def _read_json(found: Dissected, text: bytes, settings: Input) -> Dissected:
    document = _json(text).fields if settings.format == "protobuf" else found.fields
    found = replace(found, read=document)
    problems = [*json_record.wrong_types(document, settings)]
    # Spark reads half of a character as "?": the service cannot tell the two apart.
    if any("?" in (_text(found.at(path)) or "") for path in _texts(settings)) and json_record.HALF.search(
        text.decode()
    ):
        problems.append('the record has an escape for half of a character, and a device id or a column has a "?"')
    return replace(found, problems=tuple(problems))


def _texts(settings: Input) -> list[str]:
    device = [] if settings.device_id == RECORD_KEY else [settings.device_id]
    return [*device, *(column.path for column in settings.columns.values())]


def _text(value: Any) -> str | None:
    """Return the text that Spark makes of a device id or a column."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return None if value is None else str(value)


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _scaled(value: Any, scale: float, offset: float) -> float | None:
    number = float(value) if isinstance(value, bool | Decimal) else json_record.as_number(value)
    if number is None:
        return None
    scaled = number if scale == 1 else number * scale
    return scaled if offset == 0 else scaled + offset


def _iso_ms(text: str) -> int | None:
    text = re.sub(r"(\.\d{6})\d+", r"\1", text.strip(_BLANKS))
    try:
        found = datetime.fromisoformat(text)
        return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None


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
    record = AvroRecord(value, avro_types.bounded(schemas[number]), at=HEADER_BYTES)
    try:
        found = record.read()
    except DamagedError as error:
        return Dissected(record.fields, record.spans, number, stop=record.at, why=str(error))
    except (KeyError, TypeError, AttributeError) as error:
        msg = f"the writer's schema cannot be used: {error!r}"
        raise SchemaError(msg) from error
    if record.at == len(value):
        return Dissected(found, record.spans, number)
    why = f"{len(value) - record.at} bytes after the record"
    return Dissected(found, record.spans, number, stop=record.at, why=why)


def _read_avro(found: Dissected, value: bytes, settings: Input, schemas: Schemas) -> Dissected:
    """Resolve a record to the reader's schema. Raises DamagedError."""
    reader = schemas[max(schemas) if settings.reader_schema is None else settings.reader_schema]
    writer = avro_types.bounded(schemas[found.schema or 0])
    used = AvroRecord(value, writer, decode.reader_schema(reader, settings), at=HEADER_BYTES)
    found = replace(found, read=used.read())
    broken = [
        f"{path} is not UTF-8: {text!r}"
        for path in _texts(settings)
        if (text := _text(found.at(path))) is not None and not _is_text(text.encode(errors="surrogateescape"))
    ]
    return replace(found, problems=(*used.problems, *broken))

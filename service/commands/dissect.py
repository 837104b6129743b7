"""Decode a record without Spark, for people: its fields, where and why decoding stops, and what the service reads of it.

The service decodes in Spark (service/admission/decode.py). `reading` returns the same device, time, measures and columns, and
`reason` the same reason for a reject: tests/stream/test_decoders.py compares the two
(docs/decisions/0050-a-decoder-without-spark.md).
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any
from zoneinfo import ZoneInfo

from service.admission import decimals, decode, device_ids, formats, json_record, long_format, numbers, times
from service.admission.formats import framings
from service.admission.formats.format import Dissected, Schemas, Span
from service.admission.formats.framings import HEADER_BYTES, Headers
from service.admission.schema_sources import FolderSource, load_set
from service.commands.metadata import Metadata
from service.errors import SchemaError
from service.settings import Input, Measure, Settings, field_path, source, time_pattern

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN_ROWS = 16
_ROW = 16
_BLANKS = " \t\n\v\f\r"
_ISO = re.compile(decode.ISO_TIME.replace(r"\z", r"\Z"), re.ASCII)
_ISO_WITH_ZONE = re.compile(decode.ISO_TIME_WITH_ZONE.replace(r"\z", r"\Z"), re.ASCII)
_FAR_MS = 9_000_000_000_000_000
"""The largest event time, as in service/admission/decode.py."""


UNREAD = Dissected({}, {}, stop=0, why="the schemas of its input cannot be read")
"""Of a record whose input lacks its schemas."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the service takes from a record: texts and times of admission, measures with their scale. Expressions are left out."""

    device: str | None
    event_ms: int | None
    measures: Mapping[str, float | None]
    columns: Mapping[str, str | None]


class Dissector:
    """Dissects records of all topics, each by its topic's input. The schemas of an input are read once, when they are needed."""

    def __init__(self, settings: Settings, lacking: Callable[[SchemaError], object] | None = None) -> None:
        """Where the schemas of an input cannot be read, `lacking` gets the error once, and its records are UNREAD."""
        self._settings, self._lacking = settings, lacking
        self._schemas: dict[str, Schemas | None] = {}

    def __call__(self, topic: str, value: bytes | None, headers: Headers = ()) -> Dissected:
        """Decode as much as possible of a value. Raises SchemaError without `lacking`."""
        schemas = self._writers(topic)
        return UNREAD if schemas is None else dissect(value, self._settings.form_of(topic), schemas, headers)

    def device(self, dissected: Dissected, metadata: Metadata) -> str | None:
        return device(dissected, metadata, self._settings.form_of(metadata.topic))

    def encode(self, topic: str, value: bytes, record: Mapping[str, Any], headers: Headers = ()) -> bytes:
        return encode(value, record, self._settings.form_of(topic), self._writers(topic) or {}, headers)

    def _writers(self, topic: str) -> Schemas | None:
        form = self._settings.form_of(topic)
        if form.place not in self._schemas:
            try:
                self._schemas[form.place] = writers(form, self._settings.of_topic(topic))
            except SchemaError as error:
                if self._lacking is None:
                    raise
                self._schemas[form.place] = None
                self._lacking(error)
        return self._schemas[form.place]


def writers(settings: Input, everything: Settings | None = None) -> Schemas:
    """Return the writers' schemas by id, of the folder or the registry's subjects; {} for JSON without ids. Raises SchemaError.

    `everything` are settings with this input alone.
    """
    if not settings.has_schemas:
        return {}
    if everything is not None and everything.registry is not None:
        return load_set(everything).schemas
    return FolderSource(settings.schemas, settings.format).all()


def dissect(value: bytes | None, settings: Input, schemas: Schemas, headers: Headers = ()) -> Dissected:
    """Decode as much as possible of a value; `schemas` are the writers' by id, empty for JSON without schema ids.

    With framing = "headers" the bytes of fields and faults are counted from the begin of the schema id in the header.
    """
    value = None if value is None else framings.framed(value, headers, settings)
    found = fields(value, settings, schemas)
    if value is None or not found.whole:
        return found
    format_ = formats.of(settings)
    found = format_.read(found, value, settings, schemas)
    texts = {
        path: text
        for path in (*settings.device_fields, *settings.column_fields)
        if (text := _text(found.at(path))) is not None
    }
    return replace(found, problems=(*found.problems, *format_.text_problems(texts, value, settings, schemas)))


def fields(value: bytes | None, settings: Input, schemas: Schemas) -> Dissected:
    """Decode as much as possible of a value, for settings that may map no fields: `read` and `problems` are empty."""
    if value is None:
        return Dissected({}, {}, stop=0, why="there is no value")
    return formats.of(settings).fields(value, settings, schemas)


def value_at(dissected: Dissected, path: str, metadata: Metadata | None = None, form: Input | None = None) -> Any:
    """Return the value of a source, None without it; of a source that is no field it is in the metadata."""
    return dissected.at(path) if source.in_record(path) else (metadata or Metadata()).at(path, form)


def reason(dissected: Dissected, metadata: Metadata, settings: Input) -> tuple[str, str]:
    """Return the reason for which admission rejects a record by its content, and its text; two empty texts without one.

    Not decided: sizes, filters, ranges, the reference, and where the event time lies.
    """
    if dissected.stop is not None:
        is_unknown = dissected.stop == 1 and dissected.schema is not None
        return "unknown_schema" if is_unknown else "undecodable", f"{dissected.why} (byte {dissected.stop})"
    if problems := (*dissected.problems, *_bad_texts(metadata, settings)):
        return "undecodable", "; ".join(problems)
    found = reading(dissected, metadata, settings)
    device = found.device or ""
    if not device:
        return "no_device", f"{settings.device_text}: missing or blank"
    infinite = [f"{name} = {value}" for name, value in found.measures.items() if not math.isfinite(value or 0)]
    checks = {
        "bad_device": device_ids.problem(device),
        "no_time": "" if found.event_ms is not None else f"{settings.event_time}: missing, or not a time",
        "not_finite": "; ".join(infinite),
    }
    return next(((each, text) for each, text in checks.items() if text), ("", ""))


def _bad_texts(metadata: Metadata, settings: Input) -> Iterator[str]:
    """Yield a line for each part of the device id and each column that is no text, and no field of the record."""
    columns = [column.path for column in settings.columns.values()]
    for path, is_column in (*((each, True) for each in columns), *((each, False) for each in settings.device_sources)):
        if source.in_record(path):
            continue
        value, setting = metadata.at(path, settings), "columns" if is_column else "device_id"
        if isinstance(value, bytes):
            name = "the key" if path == source.RECORD_KEY else path
            yield f"{name} {value!r} is not UTF-8; {settings.place}.{setting} reads it"
        elif source.parse(path).in_document and settings.key_schema is not None:
            yield from formats.FORMATS["avro"].text_problems({path: str(value)}, b"", settings, {})
        elif source.parse(path).in_document:
            if wrong := json_record.wrong_text(path, value, is_column=is_column):
                yield wrong
            elif "?" in (_text(value) or "") and json_record.HALF.search((metadata.key or b"").decode()):
                yield f'the key has an escape for half of a character, and {path} has a "?"'


def reading(dissected: Dissected, metadata: Metadata, settings: Input) -> Reading:
    """Return what the service takes from a record that it can decode."""
    plain = {name: each for name, each in settings.measures.items() if each.expression is None}
    measures = {
        name: _scaled(_number(dissected, metadata, each, settings), each.scale, each.offset)
        if long_format.holds_for(each, dissected.at)
        else None
        for name, each in plain.items()
    }
    if settings.on_bad_measure == "drop":
        measures = {name: value if math.isfinite(value or 0) else None for name, value in measures.items()}
    columns = {
        name: _text(value_at(dissected, column.path, metadata, settings)) for name, column in settings.columns.items()
    }
    return Reading(
        _device(dissected, metadata, settings),
        event_ms(dissected, settings, metadata),
        measures,
        {name: decode.OTHER if text and device_ids.problem(text) else text for name, text in columns.items()},
    )


def _device(dissected: Dissected, metadata: Metadata, settings: Input) -> str | None:
    """Return the device id, None when it or a part of it is missing or blank."""
    parts = [_text(value_at(dissected, path, metadata, settings)) for path in settings.device_sources]
    if not all((part or "").strip(_BLANKS) for part in parts):
        return None
    return parts[0] if len(parts) == 1 else source.SEPARATOR.join(source.escaped(part or "") for part in parts)


def _number(dissected: Dissected, metadata: Metadata, measure: Measure, settings: Input) -> Any:
    """Return a measure's value, of a text its number."""
    value, path = value_at(dissected, measure.path, metadata, settings), measure.path
    if measure.decimal_scale is not None:
        return decimals.of_value(value, measure.decimal_scale)
    is_text = path in settings.text_fields if settings.is_json else isinstance(value, str | bytes)
    is_text = is_text or measure.values is not None
    if value is None or (source.in_record(path) and not is_text):
        return value
    return numbers.of_text(_spark_text(value), measure.values)


def offending(
    dissected: Dissected, reason: str, detail: str, settings: Input, max_bytes: int, size: int
) -> Span | None:
    """The bytes that the reason is about, None when they are not known."""
    if reason == "oversized":
        return (max_bytes, size) if size > max_bytes else None
    if reason == "unknown_schema":
        return 1, HEADER_BYTES
    path = settings.time_field if reason in {"early", "late", "behind", "no_time"} else None
    if reason in {"no_device", "bad_device", "unknown_device"}:
        path = next(iter(settings.device_fields), None)
    if reason in {"not_finite", "out_of_range"}:
        measure = settings.measures.get(detail.partition(" = ")[0])
        path = measure.paths[0] if measure else None
    span = dissected.spans.get(field_path.parts(path)[0]) if path and source.in_record(path) else None
    if span is None and dissected.stop is not None:
        return dissected.stop, max(size, dissected.stop + 1)
    return span


def device(dissected: Dissected, metadata: Metadata, settings: Input) -> str | None:
    """The device id, if it decodes; else the record's key, which is usually the device id."""
    values = [value_at(dissected, path, metadata, settings) for path in settings.device_sources]
    if all(isinstance(each, str | int) and not isinstance(each, bool) for each in values):
        found = _device(dissected, metadata, settings)
        if found is not None:
            return found
    return metadata.key.decode(errors="backslashreplace") if metadata.key else None


def event_ms(dissected: Dissected, settings: Input, metadata: Metadata | None = None) -> int | None:
    """The event time in ms, None without a readable one. It is floored, and at most 9e15, as in admission/decode.py."""
    part = settings.event_time_part
    if part is None or settings.event_time_unit == "iso":
        return _whole_ms(dissected, settings, metadata)
    whole, ns = _whole_ms(dissected, settings, metadata), dissected.at(part)
    if ns is not None and _is_time_in_text(ns, settings):
        ns = numbers.of_text(_spark_text(ns))
    if ns is None or whole is None:
        return whole
    return whole + int(ns // 1_000_000) if 0 <= ns <= 999_999_999 else None


def _whole_ms(dissected: Dissected, settings: Input, metadata: Metadata | None) -> int | None:
    """Return the event time without its nanoseconds."""
    value, unit = value_at(dissected, settings.event_time, metadata, settings), settings.event_time_unit
    if settings.event_time == source.TIMESTAMP:
        unit = "ms"
    elif unit != "iso" and value is not None and _is_time_in_text(value, settings):
        value = numbers.of_text(_spark_text(value))
    if isinstance(value, datetime):
        zoned = value if value.tzinfo else value.replace(tzinfo=ZoneInfo(settings.time_zone))
        return (zoned.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
    if unit == "iso":
        return _text_ms(value, dissected, settings)
    if isinstance(value, int) and not settings.is_json and settings.time_field is not None:
        exact, value = value, min(max(value, -_FAR_MS), _FAR_MS)
        return {"s": value * 1000, "us": value // 1000, "ns": exact // 1_000_000}.get(unit, value)
    try:
        number = json_record.as_number(value)
    except TypeError:
        return None
    if number is None or math.isnan(number):
        return None
    us = min(max(number * {"s": 1e6, "us": 1.0, "ns": 1e-3}.get(unit, 1e3), -9e18), 9e18)
    return int(Decimal(repr(us)).to_integral_value(ROUND_HALF_UP)) // 1000


def _text_ms(value: Any, dissected: Dissected, settings: Input) -> int | None:
    """Return the event time of a text, or of two."""
    pattern = settings.event_time_pattern
    if settings.is_json and isinstance(value, int | float):
        value = _spark_text(value)  # a date such as 20260921
    if settings.event_time_part is not None:
        part = dissected.at(settings.event_time_part)
        part = _spark_text(part) if isinstance(part, int | float) else part
        value = _joined(value, part, "T" if pattern is None else " ")
    if not isinstance(value, str):
        return None
    if pattern is None:
        return _iso_ms(value, settings.time_zone)
    return times.of_text(value, settings.time_zone, time_pattern.parse(pattern))


def _joined(date: Any, time: Any, between: str) -> str | None:
    return f"{date.strip(' ')}{between}{time.strip(' ')}" if isinstance(date, str) and isinstance(time, str) else None


def _is_time_in_text(value: Any, settings: Input) -> bool:
    if settings.is_json or settings.time_field is None:
        return settings.time_field is None or settings.text_numbers
    return isinstance(value, str | bytes)


def encode(value: bytes, record: Mapping[str, Any], settings: Input, schemas: Schemas, headers: Headers = ()) -> bytes:
    """A record in the place of `value`'s: of the same schema, in the same format. ValueError says what does not fit."""
    framed = framings.framed(value, headers, settings)
    return formats.of(settings).encode(framed, record, settings, schemas)[len(framed) - len(value) :]


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


def _text(value: Any) -> str | None:
    """Return the text that Spark makes of a device id or a column."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return None if value is None else str(value)


def _spark_text(value: Any) -> str:
    """Return the text that Spark makes of a value of JSON, with bytes that are no UTF-8 as letters that no number has."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else json.dumps(value)


def _scaled(value: Any, scale: float, offset: float) -> float | None:
    number = float(value) if isinstance(value, bool | Decimal) else json_record.as_number(value)
    if number is None:
        return None
    scaled = number if scale == 1 else number * scale
    return scaled if offset == 0 else scaled + offset


def _iso_ms(text: str, zone: str) -> int | None:
    usual = _ISO if zone == "UTC" else _ISO_WITH_ZONE
    if not usual.match(text):
        return times.of_text(text, zone)
    text = re.sub(r"(\.\d{6})\d+", r"\1", text.strip(_BLANKS))
    try:
        found = datetime.fromisoformat(text)
        return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None

"""Decode a Kafka record's value to device, event time, measures and columns, with Spark's native expressions.

Avro has the Confluent wire format: 0x00, four bytes of schema id, the body. Every schema in the plan is resolved by Avro's rules
to one reader schema, cut down to the fields that the settings map. JSON is parsed with a schema of the same fields, with or
without the same five bytes before it. No content of a record raises an error; a value that cannot be decoded is null.
"""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.avro.functions import from_avro

from service.admission import avro_types, device_ids, expressions, mapped, protobuf
from service.admission.schema_sources import SchemaSet
from service.errors import SchemaError
from service.settings import RECORD_KEY, Input, Measure, field_path

_END = "tidemark_end"
"""The end mark: a field at the end of every writer's schema and the reader's; its bytes are added to every record.

Spark's decoder ignores bytes after the record (4.1.1). With the mark it decodes such bytes as the mark, and they differ from it:
the mark is a hash of the record's value. A failed decode is a record of nulls, without a mark.

In JSON the mark takes the place of the last brace, with the brace behind it. Spark's parser ignores text after the first value
(4.1.4): if that ends before the last brace, it has no mark.
"""
_END_TYPE = {"type": "fixed", "name": _END, "namespace": "", "size": 8}
_CORRUPT = "tidemark_corrupt"
_DEVICE_KINDS = ("STRING", "BIGINT", "VOID")
"""The types of a device id in JSON: text, or an integer of 64 bits; null is a missing id."""
_COLUMN_KINDS = (*_DEVICE_KINDS, "BOOLEAN")
OTHER = "(other)"
"""Key of the values of a column that are not listed (service/admission/column_values.py), and of texts that can be in no key."""
TEXT = "text_"
_HEADER_BYTES = 5
# The forms that Spark's parser accepts: a zone of up to 18 hours, only after seconds. Year 0000 does not exist in Python.
_ZONE = r"(Z|[+-]((0\d|1[0-7]):?[0-5]\d|18:?00))?"
ISO_TIME = rf"^\s*(?!0000)\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?{_ZONE})?\s*\z"
"""The texts that are read as a time, as a regular expression of Java."""
_BLANKS = " \t\n\v\f\r"
_JSON_BLANKS = " \t\n\r"
_EMPTY_OBJECT = r"^\{[ \t\n\r]*\}$"
HALF = r"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB]\w\w(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]\w\w)\\u[dD][c-fC-F])"
"""An escape of JSON for half of a character, which is no text, as a regular expression of Java."""


def reader_schema(schema: Mapping[str, Any], settings: Input) -> dict[str, Any]:
    """Return the reader schema without the fields that the settings do not name, at every level.

    Avro skips what a reader lacks: a field that is not mapped does not decide whether a record can be decoded. Raises SchemaError
    when the schema lacks a mapped field.
    """
    place, paths = settings.place, mapped.paths(settings)
    present = {field["name"] for field in schema["fields"]}
    missing = [path for path in paths if field_path.parts(path)[0] not in present]
    if missing:
        msg = f"The reader's schema of {place} has no field {', '.join(missing)}; it has {', '.join(sorted(present))}"
        raise SchemaError(msg, remedy=f"Correct {place} or the schema, or set {place}.reader_schema to another schema")
    return avro_types.projection(schema, map(field_path.parts, paths))


class Decoder:
    """Makes the columns of a decoded record from the Kafka columns.

    Select `record` under the name `name` first: the other columns, except `framing`, read it, so a record is decoded once.
    """

    def __init__(self, settings: Input, max_bytes: int, schemas: SchemaSet, name: str = "record") -> None:
        self._settings = settings
        self._name = name
        self._max_bytes = max_bytes
        self._value = F.when(F.length("value") <= max_bytes, F.col("value"))
        self._schemas = schemas
        self._reader = (
            json.dumps(with_end(reader_schema(schemas.reader, settings))) if settings.format == "avro" else ""
        )

    def framing(self) -> Column:
        """Return the reason not to decode a record: `undecodable`, `unknown_schema` or null."""
        if not self._settings.has_schemas:
            return F.when(F.col("value").isNull(), "undecodable")
        head = F.substring("value", 1, _HEADER_BYTES)
        since = self._schemas.since
        is_known = head.isin(
            *[F.lit(_header(schema_id)) for schema_id in self._schemas.schemas if schema_id not in since]
        )
        for schema_id in since:
            is_known = is_known | self._has_id(schema_id, head)
        framed = (F.length("value") >= _HEADER_BYTES) & (F.substring("value", 1, 1) == F.lit(b"\0"))
        return F.when(F.coalesce(~framed, F.lit(True)), "undecodable").when(~is_known, "unknown_schema")

    def record(self) -> Column:
        """Return the decoded record, a struct; null or a struct of nulls when the value cannot be decoded."""
        if self._settings.is_json:
            text = F.col(TEXT + self._name)
            is_object = text.startswith("{") & text.endswith("}")
            content = text.cast("binary")
            comma = F.when(text.startswith('{"') | ~text.rlike(_EMPTY_OBJECT), ",").otherwise("")
            marked = F.concat(
                F.substring(content, F.lit(1), F.length(content) - 1).cast("string"),
                comma,
                F.lit(f'"{_END}":"'),
                _json_mark(),
                F.lit('"}'),
            )
            options = {
                "mode": "PERMISSIVE",
                "columnNameOfCorruptRecord": _CORRUPT,
                "allowSingleQuotes": "false",
                # A number that is not finite is no JSON, but in a field that is not mapped it must not decide about the record.
                "allowNonNumericNumbers": "true",
            }
            return F.when(is_object, F.from_json(marked, _json_type(self._settings), options))
        head = F.substring(self._value, 1, _HEADER_BYTES)
        body = F.concat(F.expr("substring(value, 6)"), _mark())
        choice: Column | None = None
        for schema_id, writer in self._schemas.schemas.items():
            decoded = from_avro(body, json.dumps(with_end(writer)), {"mode": "PERMISSIVE", "avroSchema": self._reader})
            matches = self._has_id(schema_id, head)
            choice = F.when(matches, decoded) if choice is None else choice.when(matches, decoded)
        assert choice is not None  # noqa: S101
        return choice

    def text(self, is_mine: Column | None) -> Column | None:
        """Return the JSON text of a record, for the column TEXT + the decoder's name; None for Avro.

        `is_mine` is whether the record is of this input, None with one input. The text has a column, so that it is made once.
        """
        if not self._settings.is_json:
            return None
        if self._settings.format == "protobuf":
            value = self._value if is_mine is None else F.when(is_mine, self._value)
            return protobuf.Unpacker.of(self._settings, self._schemas.schemas).column(value)
        body = F.expr("substring(value, 6)") if self._settings.has_schemas else F.col("value")
        is_read = F.length("value") <= self._max_bytes
        text = F.when(is_read if is_mine is None else is_mine & is_read, body).cast("string")
        return F.trim(F.try_validate_utf8(text), F.lit(_JSON_BLANKS))

    def _has_id(self, schema_id: int, head: Column) -> Column:
        """Whether a record has this schema id, and an offset from which on the id is decoded."""
        matches = head == F.lit(_header(schema_id))
        since = self._schemas.since.get(schema_id)
        if since is None:
            return matches
        begins = {f"{topic}/{partition}": offset for topic, each in since.items() for partition, offset in each.items()}
        place = F.concat("topic", F.lit("/"), F.col("partition").cast("string"))
        table = F.create_map(*[F.lit(each) for pair in begins.items() for each in pair])
        return matches & F.coalesce(F.col("offset") >= F.element_at(table, place), F.lit(True))

    def decoded(self) -> Column:
        """Whether the record was decoded to its last byte, and device id and columns are valid text or missing; never null."""
        # Avro and Spark do not check that a string is UTF-8. Python and the readers of Redis do. is_valid_utf8 would cost
        # 0.35 s of a start: to generate its code, the planner loads Scala's reflection (Spark 4.1.1).
        device = self._device_text()
        is_text = self._is_text(device)
        for column in self._settings.columns.values():
            is_text = is_text & self._is_text(self._text(column.path))
            if self._settings.is_json:
                kind = F.schema_of_variant(self._field(column.path))
                is_text = is_text & F.coalesce(kind.isin(*_COLUMN_KINDS), F.lit(True))
        if self._settings.is_json:
            if self._settings.device_id != RECORD_KEY:
                # A cast would make text of any JSON value, also of an object or a fraction.
                kind = F.schema_of_variant(self._field(self._settings.device_id))
                is_text = is_text & F.coalesce(kind.isin(*_DEVICE_KINDS), F.lit(True))
            is_text = is_text & F.col(f"{self._name}.{_CORRUPT}").isNull()
        mark = _json_mark() if self._settings.is_json else _mark()
        return F.coalesce(F.col(f"{self._name}.{_END}") == mark, F.lit(False)) & is_text

    def _is_text(self, text: Column) -> Column:
        """Whether a text is missing or valid; never null."""
        is_text: Column = text.isNull() | F.try_validate_utf8(text).isNotNull()
        if self._settings.format not in {"json", "json-schema"}:
            return is_text
        # Spark reads "\\ud800" as "?" (4.1.1): two such devices would be one. Few texts have a "?", and only these are searched.
        return is_text & ~F.coalesce(text.contains("?") & F.col(TEXT + self._name).rlike(HALF), F.lit(False))

    def has(self, path: str) -> Column:
        """Whether a decoded record has a value at a mapped path; never null."""
        texts = {self._settings.device_id, *(column.path for column in self._settings.columns.values())}
        return (self._text(path) if path in texts else self._field(path)).isNotNull()

    def device(self) -> Column:
        """Return the device id as text, null when it is missing or blank."""
        text = self._device_text()
        # Nearly every id begins with a character above the blanks: the comparison saves the trim.
        return F.when(text >= "!", text).when(F.trim(text, F.lit(_BLANKS)) != "", text)

    def _device_text(self) -> Column:
        if self._settings.device_id == RECORD_KEY:
            return F.col("key").cast("string")
        return self._text(self._settings.device_id)

    def _text(self, path: str) -> Column:
        field = self._field(path)
        return F.try_variant_get(field, "$", "string") if self._settings.is_json else field.cast("string")

    def event_ms(self, record_type: t.StructType) -> Column:
        """Return the event time in ms since the epoch, floored; null when it is missing or unreadable. It never overflows."""
        column, unit = self._field(self._settings.event_time), self._settings.event_time_unit
        kind = _type_at(record_type, self._settings)
        if isinstance(kind, t.TimestampType | t.TimestampNTZType):
            return F.unix_millis(column.cast("timestamp"))
        if unit == "iso":
            # Spark would give a time without a date today's date, and a replay tomorrow would decide otherwise.
            return F.when(column.rlike(ISO_TIME), F.unix_millis(F.try_to_timestamp(column)))
        if unit == "logical":
            place, path = self._settings.place, self._settings.event_time
            msg = f"{place}.event_time = {path!r}: has no timestamp logical type but {kind.simpleString()}"
            raise SchemaError(msg, remedy=f"Set {place}.event_time_unit to s, ms, us or iso")
        if isinstance(kind, t.LongType | t.IntegerType):
            # Clamped, so that the extreme integers are early or late and do not overflow.
            limit = 9_000_000_000_000_000
            value = F.least(F.greatest(column.cast("long"), F.lit(-limit)), F.lit(limit))
            ms = {"s": value * 1000, "ms": value, "us": F.floor(value / 1000)}[unit]
            return F.when(column.isNotNull(), ms)  # least and greatest ignore nulls
        # Whole microseconds before the floor: 1790000000.123 s is a little less than its last digit as a double.
        us = F.round(column.cast("double") * {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0}[unit])
        return F.when(
            us.isNotNull() & ~F.isnan(us), F.floor(F.least(F.greatest(us, F.lit(-9e18)), F.lit(9e18)) / 1000)
        ).cast("long")

    def measures(self) -> dict[str, Column]:
        """Return the measures by name, as doubles in the unit of the views; null where the record lacks one."""
        return {name: self._scaled(measure) for name, measure in self._settings.measures.items()}

    def columns(self) -> dict[str, Column]:
        """Return the columns by name, as text; null where the record lacks one, OTHER where device_ids.py forbids the text."""
        texts = {name: self._text(column.path) for name, column in self._settings.columns.items()}
        return {name: F.when(device_ids.is_bad(text), OTHER).otherwise(text) for name, text in texts.items()}

    def _scaled(self, measure: Measure) -> Column:
        if measure.expression is not None:
            return expressions.value(measure, self._name)
        value = self._field(measure.path).cast("double")
        # Without a scale and an offset the plan has neither, and -0.0 stays -0.0.
        scaled = value if measure.scale == 1 else value * F.lit(measure.scale)
        return scaled if measure.offset == 0 else scaled + F.lit(measure.offset)

    def _field(self, path: str) -> Column:
        return F.col(field_path.sql(path, self._name))


def with_end(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's schema with the end mark, for records that do not contain themselves without end (avro_types.bounded)."""
    schema = avro_types.bounded(schema)
    return {**schema, "fields": [*schema["fields"], {"name": _END, "type": _END_TYPE}]}


def _mark() -> Column:
    return F.xxhash64("value").cast("binary")


def _json_mark() -> Column:
    return F.xxhash64("value").cast("string")


def _header(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def _type_at(record: t.StructType, settings: Input) -> t.DataType:
    """Return the type of the event time's field."""
    kind: t.DataType = record
    for part in field_path.parts(settings.event_time):
        if isinstance(kind, t.MapType):
            kind = kind.valueType
            continue
        if not isinstance(kind, t.StructType) or part not in kind.fieldNames():
            msg = f"{settings.place}: the record has no field {settings.event_time!r}"
            raise SchemaError(msg, remedy=f"Correct {settings.place} or the schema")
        kind = kind[part].dataType
    return kind


def _json_type(settings: Input) -> t.StructType:
    """Return a schema of the fields that the settings name: numbers, text for an ISO time, a variant for the device id."""
    tree: dict[str, Any] = {}

    def put(path: str, kind: t.DataType) -> None:
        node = tree
        *parents, leaf = field_path.parts(path)
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = kind

    put(settings.event_time, t.StringType() if settings.event_time_unit == "iso" else t.DoubleType())
    if settings.device_id != RECORD_KEY:
        put(settings.device_id, t.VariantType())
    for measure in settings.measures.values():
        for path in measure.paths:
            put(path, t.DoubleType())
    for column in settings.columns.values():
        put(column.path, t.VariantType())

    def struct(node: dict[str, Any]) -> t.StructType:
        return t.StructType([t.StructField(k, struct(v) if isinstance(v, dict) else v) for k, v in node.items()])

    return struct(tree).add(_END, t.StringType()).add(_CORRUPT, t.StringType())

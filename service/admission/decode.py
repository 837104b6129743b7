"""Decode a Kafka record's value to device, event time, measures and columns, with Spark's native expressions.

The format of the input (service/admission/formats) makes a struct of the value, with the fields that the settings map. No content
of a record raises an error; a value that cannot be decoded is null.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as t

from service.admission import (
    decimals,
    device_ids,
    expressions,
    formats,
    json_record,
    kafka_columns,
    long_format,
    numbers,
    times,
)
from service.admission.formats.format import CORRUPT, END, KEY, TEXT, Plan
from service.admission.schema_sources import SchemaSet
from service.errors import SchemaError
from service.settings import Input, Measure, field_path, source, time_pattern

_DEVICE_KINDS = ("STRING", "BIGINT", "VOID")
"""The types of a device id in JSON: text, or an integer of 64 bits; null is a missing id."""
_COLUMN_KINDS = (*_DEVICE_KINDS, "BOOLEAN")
OTHER = "(other)"
"""Key of the values of a column that are not listed (service/admission/column_values.py), and of texts that can be in no key."""
# The forms that Spark's parser accepts: a zone of up to 18 hours, only after seconds. Year 0000 does not exist in Python.
_ZONE = r"(Z|[+-]((0\d|1[0-7]):?[0-5]\d|18:?00))?"
_DATE_TIME = r"^\s*(?!0000)\d{4}-\d\d-\d\d[T ]\d\d:\d\d"
ISO_TIME = rf"{_DATE_TIME}(:\d\d(\.\d+)?{_ZONE})?\s*\z"
"""The texts that Spark reads as a time, as a regular expression of Java; times.py reads more."""
ISO_TIME_WITH_ZONE = rf"{_DATE_TIME}:\d\d(\.\d+)?{_ZONE.removesuffix('?')}\s*\z"
_BLANKS = " \t\n\v\f\r"


class Decoder:
    """Makes the columns of a decoded record from the Kafka columns.

    Select `record` under the name `name` first: the other columns, except `framing`, read it, so a record is decoded once.
    """

    def __init__(
        self, settings: Input, max_bytes: int, schemas: SchemaSet, name: str = "record", topics: Sequence[str] = ()
    ) -> None:
        self._settings = settings
        self._topics = topics
        self.record_type: t.StructType | None = None
        """The type of the record's column, once it is there. Event time and measures need it."""
        self._name = name
        self._format = formats.of(settings)
        self._plan = Plan(settings, schemas, max_bytes, name, lambda: _json_type(settings))

    def framing(self) -> Column:
        """Return the reason not to decode a record: `undecodable`, `unknown_schema` or null."""
        return self._format.framing(self._plan)

    def record(self) -> Column:
        """Return the decoded record, a struct; null or a struct of nulls when the value cannot be decoded."""
        return self._format.record(self._plan)

    def text(self, is_mine: Column | None) -> Column | None:
        """Return the JSON text of a record, as Format.text."""
        return self._format.text(self._plan, is_mine)

    def decoded(self) -> Column:
        """Whether the record was decoded to its last byte, and device id and columns are valid text or missing; never null."""
        # Avro and Spark do not check that a string is UTF-8. Python and the readers of Redis do. is_valid_utf8 would cost
        # 0.35 s of a start: to generate its code, the planner loads Scala's reflection (Spark 4.1.1).
        is_text = reduce(and_, map(self._is_text, self._settings.device_sources))
        for column in self._settings.columns.values():
            is_text = is_text & self._is_text(column.path)
            if self._is_variant(column.path):
                is_text = is_text & self._has_kind(column.path, _COLUMN_KINDS)
        for path in self._settings.device_sources:
            if self._is_variant(path):
                # A cast would make text of any JSON value, also of an object or a fraction.
                is_text = is_text & self._has_kind(path, _DEVICE_KINDS)
        if self._settings.has_variants:
            is_text = is_text & F.col(f"{self._name}.{CORRUPT}").isNull()
            if (are_numbers := long_format.are_numbers(self._settings, self._text, self._kind)) is not None:
                is_text = is_text & are_numbers
        mark = self._format.mark()
        return F.coalesce(F.col(f"{self._name}.{END}") == mark, F.lit(False)) & is_text

    def _is_variant(self, path: str) -> bool:
        """Whether a text is read from a value of JSON."""
        each = source.parse(path)
        return self._is_in_json_key(each) or (each.in_record and self._settings.has_variants)

    def _is_in_json_key(self, each: source.Source) -> bool:
        return each.in_document and self._settings.key_schema is None

    def _has_kind(self, path: str, kinds: Sequence[str]) -> Column:
        return F.coalesce(self._kind(path).isin(*kinds), F.lit(True))

    def _is_text(self, path: str) -> Column:
        """Whether the text of a source is missing or valid; never null."""
        text, each = self._text(path), source.parse(path)
        is_text: Column = text.isNull() | F.try_validate_utf8(text).isNotNull()
        if self._is_in_json_key(each):
            return is_text & ~_has_half(text, F.col("key").cast("string"))
        if not each.in_record or not self._format.has_escapes:
            return is_text
        return is_text & ~_has_half(text, F.col(TEXT + self._name))

    def _kind(self, path: str) -> Column:
        return F.schema_of_variant(self._field(path))

    def _holds(self, measure: Measure) -> Column:
        return long_format.holds(measure, self._text, self._kind if self._settings.has_variants else None)

    def is_listed(self) -> Column | None:
        """Whether the record has one of the measures; None for an input that filters no record for that."""
        return long_format.is_listed(self._settings, self._text, self._kind if self._settings.has_variants else None)

    def has(self, path: str) -> Column:
        """Whether a decoded record has a value at a source; never null."""
        texts = {*self._settings.device_sources, *(column.path for column in self._settings.columns.values())}
        return (self._text(path) if path in texts else self._field(path)).isNotNull()

    def device(self) -> Column:
        """Return the device id as text, null when it or a part of it is missing or blank."""
        parts = [_without_blanks(self._text(path)) for path in self._settings.device_sources]
        if len(parts) == 1:
            return parts[0]
        return reduce(lambda one, other: F.concat(one, F.lit(source.SEPARATOR), other), map(_escaped, parts))

    def _text(self, path: str) -> Column:
        return F.expr(self._text_sql(path))

    def _text_sql(self, path: str) -> str:
        field = self._sql(path)
        return f"try_variant_get({field}, '$', 'string')" if self._is_variant(path) else f"CAST({field} AS STRING)"

    def event_ms(self) -> Column:
        """Return the event time in ms since the epoch, floored; null when it is missing or unreadable. It never overflows."""
        part = self._settings.event_time_part
        if self._settings.event_time == source.TIMESTAMP:
            return F.unix_millis("timestamp")
        if part is None or self._settings.event_time_unit == "iso":
            return self._whole_ms()
        ns = self._number(part)
        ms = F.when(ns.isNull(), F.lit(0)).when(ns.between(0, 999_999_999), F.floor(ns / 1_000_000))
        return self._whole_ms() + ms

    def _whole_ms(self) -> Column:
        """Return the event time without its nanoseconds."""
        path, unit = self._settings.event_time, self._settings.event_time_unit
        is_field = source.in_record(path)
        column, kind = (self._field(path), self._type_at(path)) if is_field else (self._text(path), t.StringType())
        zone = self._settings.time_zone
        if isinstance(kind, t.TimestampType | t.TimestampNTZType):
            at = column.cast("timestamp")
            is_local = isinstance(kind, t.TimestampNTZType) and zone != "UTC"
            return F.unix_millis(F.to_utc_timestamp(at, zone) if is_local else at)
        if unit == "iso":
            # Spark would give a time without a date today's date, and a replay tomorrow would decide otherwise.
            text = self._sql(path) if is_field else self._text_sql(path)
            if self._settings.event_time_part is not None:
                between = "T" if self._settings.event_time_pattern is None else " "
                text = f"concat(trim({text}), '{between}', trim({self._sql(self._settings.event_time_part)}))"
                column = F.expr(text)
            if self._settings.event_time_pattern is not None:
                return F.expr(times.sql(text, zone, time_pattern.parse(self._settings.event_time_pattern)))
            usual = column.rlike(ISO_TIME if zone == "UTC" else ISO_TIME_WITH_ZONE)
            return F.when(usual, F.unix_millis(F.try_to_timestamp(column))).otherwise(F.expr(times.sql(text, zone)))
        if unit == "logical":
            place = self._settings.place
            msg = f"{place}.event_time = {path!r}: has no timestamp logical type but {kind.simpleString()}"
            raise SchemaError(msg, remedy=f"Set {place}.event_time_unit to s, ms, us, ns or iso")
        if isinstance(kind, t.LongType | t.IntegerType):
            # Clamped, so that the extreme integers are early or late and do not overflow.
            limit = 9_000_000_000_000_000
            value = F.least(F.greatest(column.cast("long"), F.lit(-limit)), F.lit(limit))
            # A double has 53 bits, and nanoseconds need 61.
            ns = F.expr(f"CAST(floor(CAST({self._sql(path)} AS DECIMAL(19, 0)) / 1000000) AS BIGINT)")
            ms = {"s": value * 1000, "ms": value, "us": F.floor(value / 1000), "ns": ns}[unit]
            return F.when(column.isNotNull(), ms)  # least and greatest ignore nulls
        # Whole microseconds before the floor: 1790000000.123 s is a little less than its last digit as a double.
        us = F.round(self._number(path) * {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 0.001}[unit])
        return F.when(
            us.isNotNull() & ~F.isnan(us), F.floor(F.least(F.greatest(us, F.lit(-9e18)), F.lit(9e18)) / 1000)
        ).cast("long")

    def measures(self) -> dict[str, Column]:
        """Return the measures by name, as doubles in the unit of the views; null where the record lacks one."""
        values = {name: self._scaled(measure) for name, measure in self._settings.measures.items()}
        if self._settings.on_bad_measure == "reject":
            return values
        return {name: F.when(F.abs(value) < F.lit(float("inf")), value) for name, value in values.items()}

    def columns(self) -> dict[str, Column]:
        """Return the columns by name, as text; null where the record lacks one, OTHER where device_ids.py forbids the text."""
        texts = {name: self._text(column.path) for name, column in self._settings.columns.items()}
        return {name: F.when(device_ids.is_bad(text), OTHER).otherwise(text) for name, text in texts.items()}

    def _scaled(self, measure: Measure) -> Column:
        if measure.expression is not None:
            return expressions.value(measure, self._sql, set(filter(self._is_number_in_text, measure.paths)))
        value = self._measured(measure)
        if measure.conditions:
            value = F.when(self._holds(measure), value)
        # Without a scale and an offset the plan has neither, and -0.0 stays -0.0.
        scaled = value if measure.scale == 1 else value * F.lit(measure.scale)
        return scaled if measure.offset == 0 else scaled + F.lit(measure.offset)

    def _measured(self, measure: Measure) -> Column:
        """Return the value of a measure without its conditions."""
        if measure.decimal_scale is not None:
            return F.expr(decimals.sql(self._sql(measure.path), measure.decimal_scale))
        if not measure.conditions or not self._settings.has_variants:
            return self._number(measure.path, measure.values)
        if measure.path in self._settings.text_fields:
            return F.expr(numbers.sql(f"try_variant_get({self._sql(measure.path)}, '$', 'string')", measure.values))
        return F.try_variant_get(self._field(measure.path), "$", "double").cast("double")

    def _number(self, path: str, values: Mapping[str, float] | None = None) -> Column:
        """Return the value of a source as a double; of a text its number, NaN for a text that is none."""
        if values is not None or self._is_number_in_text(path):
            # A field of JSON that is a number in a text is parsed as a text, not as a variant.
            text = f"CAST({self._sql(path)} AS STRING)" if source.in_record(path) else self._text_sql(path)
            return F.expr(numbers.sql(text, values))
        return self._field(path).cast("double")

    def _is_number_in_text(self, path: str) -> bool:
        return not source.in_record(path) or isinstance(self._type_at(path), t.StringType)

    def _type_at(self, path: str) -> t.DataType:
        assert self.record_type is not None  # noqa: S101
        return _type_at(self.record_type, path, self._settings)

    def _field(self, path: str) -> Column:
        return F.expr(self._sql(path))

    def _sql(self, path: str) -> str:
        """Return SQL for the value of a source: a variant where `_is_variant`, a text of another word."""
        each = source.parse(path)
        if each.in_document and self._settings.key_schema is not None:
            return field_path.sql(each.names, KEY + self._name)
        if not each.in_record:
            return kafka_columns.sql(each, self._topics)
        return field_path.sql(self._settings.names_in_plan(each.names), self._name)


def _without_blanks(text: Column) -> Column:
    """Return a text, null when it is blank."""
    # Nearly every id begins with a character above the blanks: the comparison saves the trim.
    return F.when(text >= "!", text).when(F.trim(text, F.lit(_BLANKS)) != "", text)


def _escaped(part: Column) -> Column:
    """Return a part of a device id as source.escaped does."""
    return F.replace(F.replace(part, F.lit("\\"), F.lit("\\\\")), F.lit("/"), F.lit("\\/"))


def _has_half(text: Column, document: Column) -> Column:
    """Whether a text may have been made of half of a character; never null.

    Spark reads "\\ud800" as "?" (4.1.1): two such devices would be one. Few texts have a "?", and only these are searched.
    """
    return F.coalesce(text.contains("?") & document.rlike(json_record.HALF_ESCAPE), F.lit(False))


def _type_at(record: t.StructType, path: str, settings: Input) -> t.DataType:
    """Return the type of a field."""
    kind: t.DataType = record
    for part in settings.names_in_plan(field_path.parts(path)):
        if isinstance(kind, t.MapType):
            kind = kind.valueType
            continue
        if not isinstance(kind, t.StructType) or part not in kind.fieldNames():
            msg = f"{settings.place}: the record has no field {path!r}"
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

    for path in settings.time_fields:
        is_text = settings.event_time_unit == "iso" or settings.text_numbers
        put(path, t.StringType() if is_text else t.DoubleType())
    for path in settings.device_fields:
        put(path, t.VariantType())
    for path in settings.measure_fields:
        put(path, t.StringType() if path in settings.text_fields else t.DoubleType())
    for measure in settings.measures.values():
        for path in (measure.path, *(each.path for each in measure.conditions)) if measure.conditions else ():
            put(path, t.VariantType())
        if measure.decimal_scale is not None:
            put(measure.path, t.VariantType())
    for path in settings.column_fields:
        put(path, t.VariantType())

    def struct(node: dict[str, Any]) -> t.StructType:
        return t.StructType([t.StructField(k, struct(v) if isinstance(v, dict) else v) for k, v in node.items()])

    return struct(tree).add(END, t.StringType()).add(CORRUPT, t.StringType())

"""Decode a Kafka record's value to device, event time, measures and columns, with Spark's native expressions.

The format of the input (service/admission/formats) makes a struct of the value, with the fields that the settings map. No content
of a record raises an error; a value that cannot be decoded is null.
"""

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as t

from service.admission import device_ids, expressions, formats, json_record, long_format
from service.admission.formats.format import CORRUPT, END, TEXT, Plan
from service.admission.schema_sources import SchemaSet
from service.errors import SchemaError
from service.settings import RECORD_KEY, Input, Measure, field_path

_DEVICE_KINDS = ("STRING", "BIGINT", "VOID")
"""The types of a device id in JSON: text, or an integer of 64 bits; null is a missing id."""
_COLUMN_KINDS = (*_DEVICE_KINDS, "BOOLEAN")
OTHER = "(other)"
"""Key of the values of a column that are not listed (service/admission/column_values.py), and of texts that can be in no key."""
# The forms that Spark's parser accepts: a zone of up to 18 hours, only after seconds. Year 0000 does not exist in Python.
_ZONE = r"(Z|[+-]((0\d|1[0-7]):?[0-5]\d|18:?00))?"
ISO_TIME = rf"^\s*(?!0000)\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?{_ZONE})?\s*\z"
"""The texts that are read as a time, as a regular expression of Java."""
_BLANKS = " \t\n\v\f\r"


class Decoder:
    """Makes the columns of a decoded record from the Kafka columns.

    Select `record` under the name `name` first: the other columns, except `framing`, read it, so a record is decoded once.
    """

    def __init__(self, settings: Input, max_bytes: int, schemas: SchemaSet, name: str = "record") -> None:
        self._settings = settings
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
            is_text = is_text & F.col(f"{self._name}.{CORRUPT}").isNull()
            if (are_numbers := long_format.are_numbers(self._settings, self._text, self._kind)) is not None:
                is_text = is_text & are_numbers
        mark = self._format.mark()
        return F.coalesce(F.col(f"{self._name}.{END}") == mark, F.lit(False)) & is_text

    def _is_text(self, text: Column) -> Column:
        """Whether a text is missing or valid; never null."""
        is_text: Column = text.isNull() | F.try_validate_utf8(text).isNotNull()
        if not self._format.has_escapes:
            return is_text
        # Spark reads "\\ud800" as "?" (4.1.1): two such devices would be one. Few texts have a "?", and only these are searched.
        return is_text & ~F.coalesce(
            text.contains("?") & F.col(TEXT + self._name).rlike(json_record.HALF_ESCAPE), F.lit(False)
        )

    def _kind(self, path: str) -> Column:
        return F.schema_of_variant(self._field(path))

    def _holds(self, measure: Measure) -> Column:
        return long_format.holds(measure, self._text, self._kind if self._settings.is_json else None)

    def is_listed(self) -> Column | None:
        """Whether the record has one of the measures; None for an input that filters no record for that."""
        return long_format.is_listed(self._settings, self._text, self._kind if self._settings.is_json else None)

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
        value = self._field(measure.path)
        if measure.conditions and self._settings.is_json:
            value = F.try_variant_get(value, "$", "double")
        value = value.cast("double")
        if measure.conditions:
            value = F.when(self._holds(measure), value)
        # Without a scale and an offset the plan has neither, and -0.0 stays -0.0.
        scaled = value if measure.scale == 1 else value * F.lit(measure.scale)
        return scaled if measure.offset == 0 else scaled + F.lit(measure.offset)

    def _field(self, path: str) -> Column:
        return F.col(field_path.sql(path, self._name))


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
            put(path, t.VariantType() if measure.conditions else t.DoubleType())
        for each in measure.conditions:
            put(each.path, t.VariantType())
    for column in settings.columns.values():
        put(column.path, t.VariantType())

    def struct(node: dict[str, Any]) -> t.StructType:
        return t.StructType([t.StructField(k, struct(v) if isinstance(v, dict) else v) for k, v in node.items()])

    return struct(tree).add(END, t.StringType()).add(CORRUPT, t.StringType())

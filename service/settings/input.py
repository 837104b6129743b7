"""[input], [[inputs]], [registry] and [admission]: how a record becomes a reading."""

import re
import zoneinfo
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, field_validator, model_validator

from service.settings import condition, field_path, source, time_pattern
from service.settings.condition import Condition
from service.settings.expression import Expression
from service.settings.formats import TRAITS, Traits
from service.settings.section import LARGEST, Client, Name, NotNegative, Positive, Section, check_name, rule
from service.settings.topics_pattern import Topics, TopicsPattern, with_topics

T = TypeVar("T")

RESERVED_MEASURES = frozenset(
    {"device", "bucket", "event_ms", "broker_ms", "reject", "status", "last_seen", "session", "reference"}
) | {"epoch", "batch", "updated", "from_partition", "early", "skewed"}
"""Columns of the pass and fields of a device's hash, which are no names for a measure."""
RESERVED_COLUMNS = RESERVED_MEASURES | {"known"}
"""The same, and a column of the reference's look-up: no names for a column."""
EVENT_TIME = "event_time"
"""The name of the event time in `admission.distinct`."""


def _read_by(parse: Callable[[str], object]) -> AfterValidator:
    """Return a check of a text, which raises what `parse` does."""

    def check(value: str | None) -> str | None:
        if value is not None:
            parse(value)
        return value

    return AfterValidator(check)


def _names(reserved: Collection[str], kind: str) -> AfterValidator:
    """Return a check of the names of measures or columns."""

    def check(value: Mapping[str, T]) -> Mapping[str, T]:
        for name in value:
            check_name(name)
            if name in reserved:
                msg = (
                    f"{name!r} is a name of Tidemark's own; call the {kind} something else, its field may keep the name"
                )
                raise ValueError(msg)
        return value

    return AfterValidator(check)


_SCALE = rule(bool, "must not be 0: every value would be the offset")
_TIME_PART = AfterValidator(partial(source.normal, kinds=("field",), of="a part of the event time"))


class Measure(Section):
    """A number of the record, in the unit of the views: the field times `scale`, plus `offset`, in doubles; or an expression.

    Settings may give the path or the expression alone.
    """

    path: str = Field(examples=["temperature"])
    """The field's path in the record, or another source: "$key.PATH", "$header.NAME"."""
    expression: Annotated[str | None, _read_by(Expression.parse)] = Field(default=None, examples=["u * i"])
    """SQL over fields of the record, computed in doubles, in place of a path. Default: none."""
    values: Mapping[str, Annotated[float, Field(ge=-LARGEST, le=LARGEST)]] | None = Field(
        default=None, min_length=1, max_length=1_000, examples=[{"ON": 1, "OFF": 0}]
    )
    """The number of each text that the field may have: { path = "state", values = { ON = 1, OFF = 0 } }. true, false and
    numbers count as their texts. A record with another text is rejected. Default: none.
    """
    scale: Annotated[float, _SCALE] = Field(default=1.0, allow_inf_nan=False)
    """The field's value is multiplied by it."""
    offset: float = Field(default=0.0, allow_inf_nan=False)
    """It is added to the product. Ranges are of the result."""

    decimal_scale: int | None = Field(default=None, ge=0, le=22, examples=[2])
    """With JSON: the field is a decimal of Kafka Connect, base64 of a whole number, with so many digits behind the point.
    Debezium writes it with decimal.handling.mode = precise. A number of JSON is taken as it is. Default: none.
    """
    where: Annotated[str | None, _read_by(condition.parse)] = Field(default=None, examples=["metric = 'temperature'"])
    """The path is this measure only in records whose other field has this text: "metric = 'temperature'", "metric in
    ('t', 'temp')", several with AND. Where all measures have a condition, a record of which none holds is counted as
    filtered. Default: none.
    """

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return () if self.where is None else condition.parse(self.where)

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_path(cls, value: object) -> object:
        if not isinstance(value, str | Mapping):
            msg = 'must be a path, an expression, or a table such as { path = "t", scale = 0.1, offset = -40 }'
            raise ValueError(msg)
        if isinstance(value, str):
            is_path = field_path.is_plain(value) or source.is_word(value)
            value = {"path": value} if is_path else {"expression": value}
        if "expression" not in value:
            return _normalised(value, source.NUMBER, "a measure")
        if len(value) > 1:
            msg = "has an expression and other keys. Put the path, the scale and the offset into the expression"
            raise ValueError(msg)
        return {"path": "", **value}

    @property
    def parsed(self) -> Expression:
        return Expression.parse(self.expression or "")

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if self.expression is None else self.parsed.fields


class Column(Section):
    """A text of the record that views group by. Settings may give the path alone."""

    path: str = Field(examples=["env.line"])
    """The field's path in the record, or another source, as for device_id; or "$partition"."""
    max_values: int = Field(default=10_000, gt=0, le=100_000)
    """The number of different values that become keys of views; readings with another value count as "(other)"."""

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_path(cls, value: object) -> object:
        if not isinstance(value, str | Mapping):
            raise ValueError('must be a path, or a table such as { path = "env.line", max_values = 100 }')
        if isinstance(value, str):
            return {"path": source.normal(value, source.COLUMN, "a column")}
        return _normalised(value, source.COLUMN, "a column")


def _normalised(table: Mapping[str, Any], kinds: tuple[source.Kind, ...], of: str) -> Mapping[str, Any]:
    """Return a table of the settings with its `path` in the one spelling. Raises ValueError."""
    path = table.get("path")
    return {**table, "path": source.normal(path, kinds, of, in_table=True)} if isinstance(path, str) else table


def _predicate(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise ValueError("is blank. Give a predicate such as \"kind = 'meter' and temperature > -40\", or leave it out")
    return value


Predicate = Annotated[str | None, AfterValidator(_predicate)]
"""A SQL predicate over the device, measures, columns and attributes: service/admission/filters.py."""


def _device_sources(value: object) -> object:
    """Return one source as a text, several as a tuple. Raises ValueError."""
    if isinstance(value, str):
        return source.normal(value, source.DEVICE, "a device id")
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        return value
    if not value or len(value) > _MOST_PARTS:
        raise ValueError(f"has {len(value)} parts; a device id has 1 to {_MOST_PARTS}")
    parts = tuple(source.normal(each, source.DEVICE, "a part of a device id") for each in value)
    return parts if len(parts) > 1 else parts[0]


def _zone(value: str) -> str:
    if value not in zoneinfo.available_timezones():
        raise ValueError(f"{value!r} is no time zone; one is Europe/Vienna, America/New_York or UTC")
    return value


_MOST_PARTS = 8
"""The most parts of a device id."""
MOST_MEASURES = 950
"""A session has four fields of each in Redis, and Lua gives a command some 7,900 arguments at most (5.1, in Redis 6.2 to 8)."""


class MeasuresFrom(Section):
    """Records that name what their value is: one field has the measure's name, another its value."""

    name: Annotated[str, AfterValidator(field_path.of_field)] = Field(examples=["metric"])
    """Path of the field with the measure's name."""
    value: Annotated[str, AfterValidator(field_path.of_field)] = Field(examples=["value"])
    """Path of the field with its value."""
    only: Mapping[str, str] = Field(min_length=1, examples=[["temperature", "humidity"]])
    """The names that are measures. Where a name has other signs than lower-case letters, digits and _: a table of
    measure = name, { temperature = "Temp [C]" }. Records with another name are counted as filtered.
    """

    @field_validator("only", mode="before")
    @classmethod
    def _may_be_a_list(cls, value: object) -> object:
        return {str(each): str(each) for each in value} if isinstance(value, list | tuple) else value

    @property
    def measures(self) -> dict[str, dict[str, str]]:
        """The measures as settings have them."""
        return {
            measure: {"path": self.value, "where": condition.spelled(self.name, name)}
            for measure, name in self.only.items()
        }


def _array_path(value: bool | str) -> bool | str:
    if isinstance(value, bool):
        return value
    if field_path.AROUND in field_path.parts(value):
        raise ValueError(f"{value!r} begins at the record, and {field_path.AROUND!r} is what is around a reading")
    return field_path.spelled(field_path.parts(value))


class Input(Section):
    format: Literal[
        "avro",
        "json",
        "json-schema",
        "protobuf",
        "senml",
        "senml-cbor",
        "ndjson",
        "csv",
        "line-protocol",
        "sparkplug-b",
    ] = "avro"
    """"avro": Confluent's wire format (0, four bytes of schema id, body). "json": one object per record. "json-schema",
    "protobuf": in the wire format of Confluent's serializers. Several readings a record: "ndjson", "csv" with a header
    row, InfluxDB's "line-protocol", "senml" and "senml-cbor" of RFC 8428, "sparkplug-b".
    """
    schemas: Path = Path("schemas/avro")
    """Folder with one file for each schema id that writers use: <id>.avsc of Avro, <id>.json of JSON Schema, <id>.desc of
    Protobuf, a set of descriptors of protoc --include_imports --descriptor_set_out. Not used for JSON, nor with a [registry].
    """
    reader_schema: int | None = Field(default=None, examples=[2])
    """The id whose schema the records are read with. Default: the highest one in the folder; with a [registry] there is
    none.
    """
    framing: Literal["confluent", "headers", "apicurio", "glue", "glue-zlib", "single-object", "none"] = "confluent"
    """What stands before a record that has a schema. "confluent": 0 and four bytes of schema id. "headers": the id or the
    schema's GUID is in Confluent's header __value_schema_id, or else before the record. "apicurio": 0 and eight bytes.
    "glue": the header of AWS Glue, with schema_versions; "glue-zlib" also reads compressed values, through Python.
    Only with Avro and Protobuf: "none", nothing, and all records are of the reader_schema, or of the highest id in the
    folder. Only with Avro: "single-object", Avro's own, C3 01 and the fingerprint.
    """
    record_type: str | None = Field(default=None, min_length=1, examples=["acme.Reading"])
    """The full name of the records that are read: of a message of Protobuf, and of a record of an Avro schema that is a union
    of several. Records of other types are undecodable; others = "ignore" counts them as filtered. Default: the only type; of
    Protobuf the type that each record names.
    """
    schema_versions: Mapping[int, str] = Field(
        default_factory=dict, examples=[{"1": "b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63"}]
    )
    """With framing = "glue" and "glue-zlib": schema id = the UUID of its version in AWS Glue. The file of the id has the
    schema.
    """
    others: Literal["reject", "ignore"] = "reject"
    """Records of other types than this input reads, in a topic of several types: "ignore" counts them as filtered, "reject"
    rejects them. With Avro they are of a schema with another record's name than the reader's; and, of every format, of a
    schema id that the folder or the subjects do not have, once it was looked up.
    """
    schema_retry_ms: Positive = Field(default=60_000, alias="schema_retry")
    """How long a schema id that could not be resolved is not looked up again; its records are rejected meanwhile."""
    device_id: Annotated[str | tuple[str, ...], BeforeValidator(_device_sources)] = "device_id"
    """Path of the field with the device id. Dots go into nested records. A name with a dot, a blank or another sign is
    between backticks: "`tank.level`". Other sources: "$key" is the Kafka record's key, "$key.PATH" a field of a key that
    is JSON, "$header.NAME" a header, "$topic" the topic, "$topic/PATTERN/" the part of it that a named group matches,
    "'text'" a constant. Several parts make one id with / between them: ["site", "unit"]. More is in docs/sources.md.
    """
    key_schema: Path | None = Field(default=None, examples=["schemas/key.avsc"])
    """File with the Avro schema of the record's key, for $key.PATH; `framing` says what stands before the key, too. Of all
    keys the one schema is read, whatever id they name. Default: none, the key is JSON.
    """
    event_time: Annotated[str, AfterValidator(partial(source.normal, kinds=source.TIME, of="an event time"))] = (
        "event_time"
    )
    """Path of the field with the event time; or "$timestamp", the record's time in Kafka, which needs no unit;
    "$key.PATH" or "$header.NAME".
    """
    event_time_part: Annotated[str, _TIME_PART] | None = Field(default=None, examples=["ts.nanos"])
    """Path of a second field of the event time: with "s" the nanoseconds beside the seconds, 0 where they are missing; with
    "iso" the time of day beside the date. Default: none.
    """
    event_time_unit: Literal["logical", "s", "ms", "us", "ns", "iso"] = "ms"
    """"s", "ms", "us", "ns" since the epoch, "iso" text, or "logical" for an Avro timestamp. An Avro timestamp is
    recognised anyway, but for one of nanoseconds, which needs "ns".
    """
    event_time_pattern: Annotated[str | None, _read_by(time_pattern.parse)] = Field(
        default=None, examples=["dd.MM.yyyy HH:mm:ss"]
    )
    """The form of texts that are not of ISO 8601, with Java's letters: yyyy yy, MM M MMM, dd d, HH H, hh h a, mm m, ss s, S
    for each digit of a fraction, X for an offset. event_time_unit is then "iso"; of two fields the pattern has a blank
    between them. Default: none.
    """
    time_zone: Annotated[str, AfterValidator(_zone)] = Field(default="UTC", examples=["Europe/Vienna"])
    """The zone of texts without a zone, and of Avro's local timestamps. A local time that clocks leave out is moved forward
    by as much; of one that comes twice the first is taken.
    """
    measures: Annotated[Mapping[str, Measure], _names(RESERVED_MEASURES, "measure")] = Field(
        default_factory=dict, examples=[{"temperature": "temperature"}]
    )
    """Measure name = the field's path in the record: "temperature"; with a unit of its own: { path = "temperature_f",
    scale = 0.5555555555555556, offset = -17.77777777777778 }; computed from several fields: "u * i" or { expression =
    "u * i" }. A name is lower-case letters, digits and _. Default: none; then every view has measures = [].
    """
    measures_from: MeasuresFrom | None = Field(
        default=None, examples=[{"name": "metric", "value": "value", "only": ["temperature"]}]
    )
    """Records that have one value, and a name that says what it is: { name = "metric", value = "value", only =
    ["temperature", "humidity"] }. Each name of `only` is a measure, as if [input.measures] had it. Default: none.
    """
    columns: Annotated[Mapping[str, Column], _names(RESERVED_COLUMNS, "column")] = Field(
        default_factory=dict, examples=[{"line": "env.line"}]
    )
    """Column name = the field's path in the record: text, a whole number, true or false; or { path = "env.line",
    max_values = 10000 }. Views group by columns. Default: none.
    """
    where: Predicate = Field(default=None, examples=["kind = 'meter' and temperature > -40"])
    """A SQL predicate over device, measures, columns and attributes. Records that do not meet it are counted as
    filtered, and have no other effect. Default: none.
    """
    text_numbers: bool = False
    """With JSON and Protobuf: measures and a time in s, ms or us may be texts with a number, such as " 21.5", or true
    and false; an empty text is no value. Without it a record with such a text is rejected. Texts of Avro are read anyway.
    """
    on_bad_measure: Literal["reject", "drop"] = "reject"
    """What becomes of a measure that is no finite number: "reject" rejects the record, "drop" admits the reading without
    this measure. tidemark_measure_missing_readings_total counts it. Texts with numbers are read with "drop", too.
    """
    array: Annotated[bool | str, AfterValidator(_array_path)] = Field(default=False, examples=["values"])
    """With format = "json": a record is a JSON array of readings, plain or compressed by gzip, or one reading. A path is
    that of the array in the record: "values", "data.values"; "*" stands for all members of an object whose keys are
    names. A field beside the array is then "^.ts", one further out "^.^.ts", the key of a member "^key".
    """
    tombstones: Literal["reject", "ignore"] = "reject"
    """Records without a value: a topic with log compaction has them for keys that were deleted. "ignore" counts them as
    filtered, "reject" rejects them as undecodable.
    """
    max_array_bytes: ByteSize = Field(default=ByteSize(8 << 20), gt=0, le=256 << 20)
    """The most bytes that such a record unpacks to. admission.max_bytes is the limit of one reading."""

    @model_validator(mode="before")
    @classmethod
    def _adds_measures(cls, value: object) -> object:
        if not isinstance(value, Mapping) or not isinstance(value.get("measures_from"), Mapping | MeasuresFrom):
            return value
        given = value["measures_from"]
        named = given if isinstance(given, MeasuresFrom) else MeasuresFrom.model_validate(given)
        own = value.get("measures") or {}
        if isinstance(own, Mapping) and (twice := sorted(named.measures.keys() & own.keys())):
            raise ValueError(f"measures_from.only: {', '.join(twice)} is in measures, too. Give each name once")
        return {**value, "measures": {**named.measures, **own}}

    @model_validator(mode="before")
    @classmethod
    def _reads_texts(cls, value: object) -> object:
        if not isinstance(value, Mapping) or value.get("event_time_pattern") is None:
            return value
        if value.get("event_time_unit", "iso") != "iso":
            raise ValueError("event_time_pattern: is for texts. Remove event_time_unit")
        return {**value, "event_time_unit": "iso"}

    @property
    def time_form(self) -> str:
        """The pattern of the event time, or its unit, for messages."""
        return self.event_time_pattern or self.event_time_unit

    @property
    def is_long(self) -> bool:
        """Whether each measure has conditions, so that a record of which none holds is filtered."""
        return bool(self.measures) and all(each.conditions for each in self.measures.values())

    @property
    def traits(self) -> Traits:
        """What the format has, apart from its decoder."""
        return TRAITS[self.format]

    @property
    def is_json(self) -> bool:
        """Whether fields are read by the rules of JSON, as those of Protobuf are."""
        return self.traits.is_json

    @property
    def has_variants(self) -> bool:
        """Whether a field may have another type in each record: it is read as a variant of Spark where its type decides."""
        return not self.traits.has_types

    @property
    def has_schemas(self) -> bool:
        return self.traits.kind is not None

    @property
    def is_cut(self) -> bool:
        """Whether a record may hold several readings."""
        return bool(self.array) or self.traits.is_cut

    @property
    def place(self) -> str:
        """The section, for messages: `input`, or `inputs.<name>` for one of several."""
        return "input"

    @property
    def label(self) -> str:
        """The name in metrics: `input`, or that of one of several."""
        return self.place.rpartition(".")[2]

    @field_validator("schema_versions")
    @classmethod
    def _are_uuids(cls, value: Mapping[int, str]) -> Mapping[int, str]:
        for number, version in value.items():
            try:
                UUID(version)
            except ValueError as error:
                msg = f"{number} = {version!r} is no UUID, such as 'b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63'"
                raise ValueError(msg) from error
        return value

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Each setting that names a field of the record, with its path; a measure once for each field of its expression."""
        return tuple((setting, path) for setting, path in self.sources if source.in_record(path))

    @property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """Each setting that has a source, with the source; a measure once for each field of its expression."""
        place = self.place
        return (
            *((f"{place}.device_id", path) for path in self.device_sources),
            (f"{place}.event_time", self.event_time),
            *([] if self.event_time_part is None else [(f"{place}.event_time_part", self.event_time_part)]),
            *((f"{place}.measures.{name}", path) for name, measure in self.measures.items() for path in measure.paths),
            *(
                (f"{place}.measures.{name}.where", each.path)
                for name, measure in self.measures.items()
                for each in measure.conditions
            ),
            *((f"{place}.columns.{name}", column.path) for name, column in self.columns.items()),
        )

    def misplaced_paths(self) -> list[str]:
        """Return a problem for each path that leads around a reading, where records are not cut at a path."""
        return [
            f"{setting}: {path!r} is a field around a reading: set {self.place}.array to the path of the readings"
            for setting, path in self.fields
            if field_path.parts(path)[0] in {field_path.AROUND, field_path.KEY} and not isinstance(self.array, str)
        ]

    def conditional_paths(self) -> list[str]:
        """Return a problem for each field that is a number here and a text or another measure's number there."""
        place = self.place
        values = {m.path: f"{place}.measures.{name}" for name, m in self.measures.items() if m.conditions}
        plain = {
            path: f"{place}.measures.{name}"
            for name, m in self.measures.items()
            if not m.conditions
            for path in m.paths
        } | {self.event_time: f"{place}.event_time"}
        asked = {
            each.path: f"{place}.measures.{name}.where" for name, m in self.measures.items() for each in m.conditions
        }
        return [
            f"{values[path]}: {path!r} is read as {plain[path]}, too, without a condition"
            for path in values.keys() & plain.keys()
        ] + [
            f"{asked[path]}: {path!r} is read as {(plain | values)[path]}, a number; a condition is about a text"
            for path in asked.keys() & (plain | values).keys()
        ]

    @property
    def device_sources(self) -> tuple[str, ...]:
        """The sources of the device id's parts, one of most inputs."""
        return (self.device_id,) if isinstance(self.device_id, str) else self.device_id

    @property
    def device_text(self) -> str:
        """The sources of the device id, for messages."""
        return ", ".join(self.device_sources)

    @property
    def device_fields(self) -> tuple[str, ...]:
        """The paths in the record of the device id's parts."""
        return tuple(filter(source.in_record, self.device_sources))

    @property
    def column_fields(self) -> tuple[str, ...]:
        """The paths in the record of the columns."""
        return tuple(column.path for column in self.columns.values() if source.in_record(column.path))

    @property
    def measure_fields(self) -> tuple[str, ...]:
        """The paths in the record of the measures, also those in expressions; each once."""
        paths = (path for measure in self.measures.values() for path in measure.paths)
        return tuple(dict.fromkeys(filter(source.in_record, paths)))

    @property
    def text_fields(self) -> tuple[str, ...]:
        """The paths in the record of JSON whose measures are read from texts."""
        if self.text_numbers or self.on_bad_measure == "drop":
            return self.measure_fields
        return tuple(
            measure.path
            for measure in self.measures.values()
            if measure.values is not None or measure.decimal_scale is not None
        )

    def decimal_problems(self) -> list[str]:
        """Return a problem for each measure with a decimal that cannot be read as one."""
        decimals = {name: each for name, each in self.measures.items() if each.decimal_scale is not None}
        problems = [
            f"{self.place}.measures.{name}.decimal_scale: is for fields of JSON; Avro has it in the schema, Protobuf has none"
            for name, each in decimals.items()
            if not self.has_variants or not source.in_record(each.path)
        ]
        problems += [
            f"{self.place}.measures.{name}: has decimal_scale and values. Give one of them"
            for name, each in decimals.items()
            if each.values is not None
        ]
        paths = {each.path: name for name, each in decimals.items()}
        return problems + [
            f"{setting}: {path!r} is a decimal of {self.place}.measures.{paths[path]}, and is read otherwise here"
            for setting, path in self.fields
            if path in paths
            and self.measures.get(setting.removeprefix(f"{self.place}.measures.")) not in decimals.values()
        ]

    @property
    def time_field(self) -> str | None:
        """The path in the record of the event time, None if it has another source."""
        return self.event_time if source.in_record(self.event_time) else None

    @property
    def time_fields(self) -> tuple[str, ...]:
        """The paths in the record of the event time and its second part."""
        return tuple(path for path in (self.time_field, self.event_time_part) if path is not None)

    @property
    def needs_headers(self) -> bool:
        """Whether a value, or the schema, comes from a header."""
        words = (path for _, path in self.sources if source.is_word(path))
        return self.framing == "headers" or any(source.parse(path).kind == "header" for path in words)

    @property
    def key_paths(self) -> tuple[tuple[str, ...], ...]:
        """The paths of the fields of the key."""
        sources = (source.parse(path) for _, path in self.sources if source.is_word(path))
        return tuple(each.names for each in sources if each.in_document)

    def topic_problems(self, topics: Iterable[str]) -> list[str]:
        """Return a problem for each of the input's topics that a pattern does not match."""
        return [
            f"{setting}: {path!r} does not match the topic {topic!r}"
            for setting, path in self.sources
            if source.is_word(path)
            for topic in topics
            if (each := source.parse(path)).kind == "topic" and each.of_topic(topic) is None
        ]

    def shared_paths(self) -> list[str]:
        """Return a problem for each column that reads a field that is read as a number or a time, too."""
        place = self.place
        paths = {
            path: f"{place}.measures.{name}" for name, m in self.measures.items() for path in m.paths
        } | dict.fromkeys((self.event_time, *self.time_fields), f"{place}.event_time")
        of_texts = dict.fromkeys(self.time_fields, "event_time") if self.event_time_unit == "iso" else {}
        of_texts |= dict.fromkeys(self.device_fields, "device_id")
        taken = [
            f"{place}.measures.{name}: the expression reads {path!r}, which is {place}.{of_texts[path]} and no number"
            for name, measure in self.measures.items()
            if measure.expression is not None
            for path in measure.paths
            if path in of_texts
        ]
        return taken + [
            f"{place}.columns.{name}: {column.path!r} is read as {paths[column.path]}, too; a column is a text of its own"
            for name, column in self.columns.items()
            if column.path in paths and source.in_record(column.path)
        ]

    @property
    def has_twins(self) -> bool:
        """Whether two names of mapped fields, in the same record, differ only in case: Spark ignores case."""
        paths = (field_path.parts(path) for _, path in self.fields)
        names = {names[:many] for names in paths for many in range(1, len(names) + 1)}
        return len({tuple(each.lower() for each in path) for path in names}) < len(names)

    def names_in_plan(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names of a field's path as the decoded record has them in Spark."""
        return list(map(field_path.without_case, names)) if self.has_twins else names

    def crossing_paths(self) -> list[str]:
        """Return a problem for each path that lies in another one."""
        fields = dict[str, str]()
        for setting, path in self.fields:
            fields.setdefault(path, setting)
        inner = ((key, path, field_path.parts(path)) for path, key in fields.items())
        return [
            f"{key}: {path!r} lies in {outer!r}, which {fields[outer]} reads as a value"
            for key, path, names in inner
            for many in range(1, len(names))
            if (outer := field_path.spelled(names[:many])) in fields
        ]


class NamedInput(Input):
    """One of [[inputs]]: topics whose records have one shape."""

    name: Name = Field(examples=["climate"])
    """The name, in messages and in the checkpoint: lower-case letters, digits and _."""
    topics_pattern: TopicsPattern = Field(default=None, examples=["climate-.*"])
    """More topics, or all, as kafka.topics_pattern: those that no other input names, nor matches before. Default: none.
    """
    topics: Topics = Field(examples=[["climate"]])
    """The topics whose records have this shape. A topic has one input."""
    subjects: tuple[str, ...] = Field(default=(), examples=[["climate-value"]])
    """With a [registry]: subjects whose versions are decoded. Default: <topic>-value of each topic of the input."""

    @model_validator(mode="before")
    @classmethod
    def _may_have_a_pattern_alone(cls, value: object) -> object:
        return with_topics(value)

    @property
    def place(self) -> str:
        return f"inputs.{self.name}"


class Registry(Client):
    url: str = Field(examples=["https://registry.example.com"])
    """Addresses of one registry with commas between, tried in order, without user and password. No redirect is
    followed.
    """
    subjects: tuple[str, ...] = Field(default=(), examples=[["readings-value"]])
    """Subjects whose versions are decoded, present and future ones. No other id is decoded. Not with [[inputs]], which
    have subjects of their own. Default: <topic>-value of each topic.
    """
    timeout_ms: Positive = Field(default=2_000, alias="timeout")
    """Limit of one answer."""
    options: Mapping[str, str] = Field(
        default_factory=dict, repr=False, examples=[{"bearer.auth.credentials.source": "OAUTHBEARER"}]
    )
    """More options of Confluent's Python client. For OAuth; user and password are then the client's id and secret.
    Default: none.
    """

    @field_validator("url")
    @classmethod
    def _are_addresses(cls, value: str) -> str:
        for each in value.split(","):
            if not re.match(r"^https?://[^/@\s]+(/[^@\s]*)?\Z", each.strip()):
                msg = "must be http:// or https:// and a host, without user and password, which have keys of their own"
                raise ValueError(msg)
        if len({each.strip().partition(":")[0] for each in value.split(",")}) > 1:
            raise ValueError("must be all https:// or all http://: the password would go to both")
        return value


class Admission(Section):
    max_delay_ms: NotNegative = Field(default=60_000, alias="max_delay")
    """A reading whose event time is further behind the broker's time for it is rejected as late. The watermark's delay
    is max_delay + max_ahead.
    """
    max_ahead_ms: NotNegative = Field(default=10_000, alias="max_ahead")
    """A reading whose event time is further ahead of the broker's time for it is rejected as early."""
    max_hold_ms: NotNegative = Field(default=3_600_000, alias="max_hold")
    """Partitions with unread records hold the watermark back until they are read, however far behind they are. A
    partition with unread records of which none is read for this long, by the service's clock, no longer does: its
    readings may become late.
    """
    idle_after_ms: Positive = Field(default=60_000, alias="idle_after")
    """When nothing has arrived for this long, and all records are counted, the clock closes windows and sessions this
    long after their end, with closed_by = idle. If this is max_delay or longer, no later reading can change a closed
    value.
    """
    skewed_after: int = Field(default=5, gt=0)
    """A device is marked skewed when so many of its readings were early, each within skewed_for of the one before."""
    skewed_for_ms: Positive = Field(default=600_000, alias="skewed_for")
    """The mark stays until the device's readings have been admitted for that long since the last early one."""
    max_devices: int = Field(default=1_000_000, ge=0)
    """While the state has so many devices, no others are admitted; 0 for no limit."""
    max_bytes: ByteSize = Field(default=ByteSize(65_536), gt=0, le=(1 << 31) - 1)
    """Largest record value."""
    ranges: Mapping[str, tuple[float, float]] = Field(default_factory=dict, examples=[{"temperature": [-60.0, 120.0]}])
    """Measure = its lowest and highest value, both included. Default: any finite number."""
    unknown_device: Literal["keep", "reject"] = "keep"
    """What becomes of a device that the reference lacks: "keep" (attributes are "(none)") or "reject". Needs
    [reference].
    """
    distinct: tuple[str, ...] = Field(default=(), examples=[["device", "event_time"]])
    """What two different readings never share: "device", and "event_time" or columns of [input.columns]; a column alone
    is an id of its device. Another reading with the same values is rejected as duplicate. Default: none, nothing is
    looked for.
    """
    distinct_for_ms: Positive = Field(default=3_600_000, alias="distinct_for")
    """How far behind the newest event time readings are remembered for that, at most; never longer than until the
    watermark passes. While the watermark is held back, all readings that it has not passed are remembered.
    """

    @field_validator("distinct", mode="before")
    @classmethod
    def _may_be_a_column(cls, value: object) -> object:
        return ("device", value) if isinstance(value, str) else value

    @field_validator("ranges")
    @classmethod
    def _are_ranges(cls, value: Mapping[str, tuple[float, float]]) -> Mapping[str, tuple[float, float]]:
        for measure, (low, high) in value.items():
            if not -LARGEST <= low <= high <= LARGEST:
                msg = (
                    f"{measure}: [{low}, {high}] must be two numbers from {-LARGEST} to {LARGEST}, the lower one first"
                )
                raise ValueError(msg)
        return value

    def duplicate_problems(self) -> list[str]:
        """Return a problem if `distinct` does not tell the readings of a device apart."""
        names = self.distinct
        if not names or ("device" in names and len(set(names)) == len(names) > 1):
            return []
        return [
            f"admission.distinct: {list(names)} must name 'device', and once each what tells its readings apart: "
            f"{EVENT_TIME!r} or columns of [input]"
        ]

    @property
    def watermark_delay_ms(self) -> int:
        """The delay with which, in steady flow, an admitted reading is never behind the watermark."""
        return self.max_delay_ms + self.max_ahead_ms

"""`tidemark check`: the input's schemas, and the fields that the settings map."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import fastavro

from service.admission import avro_types, formats, guids
from service.admission.formats.avro import reader_schema
from service.admission.schema_sources import schema_source, with_reader
from service.commands.finding import Line, failed, ok
from service.errors import SchemaError
from service.settings import Input, Settings, field_path, source
from service.spark import session

_TIMES = frozenset({"int", "long", "float", "double"})
_TEXTS = frozenset({"string", "enum", "int", "long", "boolean", "decimal"})
_LOGICAL = re.compile(r"decimal|date|time-\w+|(local-)?timestamp-\w+")
"""Logical types of times, which are no measures and no texts, and decimals. Spark ignores others, such as uuid (4.1.1)."""
_MERGED = ({"int", "long"}, {"float", "double"})
"""The unions of which Spark makes one number; of another one of several types it makes a struct (4.1.1, SchemaConverters)."""


def mapping(settings: Settings) -> Iterator[Line]:
    for each in settings.split():
        yield from schemas_of(each)
    limit = _avro_limit()
    if settings.admission.max_bytes > limit:
        yield Line(
            "admission.max_bytes",
            "warn",
            f"{settings.admission.max_bytes} bytes are admitted, a field is decoded up to {limit} bytes",
            "Raise the Avro limits in deploy/spark-defaults.conf, or lower admission.max_bytes",
        )


def schemas_of(settings: Settings) -> Iterator[Line]:
    """Check the schemas and the mapped fields of settings with one input."""
    form = settings.form
    name = "schemas" if form.place == "input" else f"{form.place}: schemas"
    if not form.has_schemas:
        yield ok(name, "JSON needs none")
    elif form.is_json:
        yield from _schemas_of_names(settings, name)
    else:
        place = schema_source(settings)
        known = with_reader(place.all(), place, settings)
        unusable = dict(place.unusable)
        for number, schema in known.schemas.items():
            try:
                for _, each in avro_types.records_of(schema).values():
                    fastavro.parse_schema(dict(avro_types.bounded(each)))
            except Exception as error:  # fastavro raises exceptions of its own and plain ones
                what = f"{place}: {number} is no Avro schema: {error}"
                refused = SchemaError(what, remedy="Correct it, or remove it if no producer writes with it")
                if not place.is_remote or schema is known.reader:
                    raise refused from error
                unusable[number] = refused
        yield from _unusable(unusable, name)
        reader = reader_schema(known.reader, form)
        yield ok(name, f"{place} has the ids {', '.join(map(guids.shown, known.schemas))}")
        yield from _paths(form, reader)


def _schemas_of_names(settings: Settings, name: str) -> Iterator[Line]:
    """Check that the newest JSON Schema or Protobuf schema has the mapped fields."""
    place, form = schema_source(settings), settings.form
    schemas = with_reader(place.all(), place, settings).schemas
    yield from _unusable(place.unusable, name)
    if not schemas:
        remedy = "Register the schema, or set registry.subjects; until then all records are unknown_schema"
        yield Line(name, "warn", f"{place} has no schema for {form.format} of these topics", remedy)
        return
    newest = max(schemas, key=place.age)
    yield ok(name, f"{place} has the ids {', '.join(map(guids.shown, sorted(schemas)))}")
    for key, path in form.fields:
        parts, schema = field_path.parts(path), schemas[newest]
        if not formats.of(form).describes(schema, parts, form):
            what = f"schema {guids.shown(newest)} does not describe {path!r}"
            yield Line(key, "warn", what, "Correct the path, if no record has this field")


def _unusable(unusable: Mapping[int | None, SchemaError], name: str) -> Iterator[Line]:
    """A warning for each schema that the source has and the service does not use."""
    for number, error in unusable.items():
        what = f"{f'schema {number}' if number is not None else 'a schema'} is not used: {error.what}"
        remedy = "Its records are unknown_schema. Correct it, or remove it if no producer writes with it"
        yield Line(name, "warn", what, error.remedy or remedy)


def _paths(form: Input, reader: dict[str, Any]) -> Iterator[Line]:
    place = form.place
    for path in form.device_fields:
        yield _fits(f"{place}.device_id", path, reader, {"string", "enum", "int", "long"})
    others = {"logical": set(), "iso": {"string"}}.get(form.event_time_unit, _TIMES | {"string"})
    if form.time_field is not None:
        nanos = {"timestamp-nanos"} if form.event_time_unit == "ns" else set()
        stamps = avro_types.TIMESTAMPS if form.event_time_part is None else set()
        yield _fits(f"{place}.event_time", form.time_field, reader, stamps | others | nanos)
    if form.event_time_part is not None:
        yield _fits(f"{place}.event_time_part", form.event_time_part, reader, others)
    for name, measure in form.measures.items():
        for path in filter(source.in_record, measure.paths):
            expected = avro_types.NUMBERS | {"string", "boolean"} | ({"enum"} if measure.values else set())
            yield _fits(f"{place}.measures.{name}", path, reader, expected)
        for each in measure.conditions:
            yield _fits(f"{place}.measures.{name}.where", each.path, reader, _TEXTS)
    for name, column in form.columns.items():
        if source.in_record(column.path):
            yield _fits(f"{place}.columns.{name}", column.path, reader, _TEXTS)


def _fits(key: str, path: str, reader: dict[str, Any], expected: Set[str]) -> Line:
    found = kinds(reader, field_path.parts(path))
    if not found:
        return failed(
            key, SchemaError(f"the reader's schema has no field {path!r}", remedy="Mend [input] or the schema")
        )
    if not found <= expected:
        what = f"{path!r} is {' or '.join(sorted(found))} in the reader's schema, not {' or '.join(sorted(expected))}"
        return failed(key, SchemaError(what, remedy="Map another field, or set input.event_time_unit to what it is"))
    return ok(key, f"{path} is {' or '.join(sorted(found))}")


def kinds(schema: Any, path: Sequence[str]) -> set[str]:
    """Return the types at a path, without null; a logical type of a time or a decimal by its name. Empty without such a field.

    A name within a map is one of its keys. A union of several types is {"union"}, unless Spark makes one number of it.
    """
    types = avro_types.definitions(schema)

    def at(node: Any, path: Sequence[str], namespace: str) -> set[str]:
        if isinstance(node, list):
            branches = [at(branch, path, namespace) for branch in node if branch != "null"]
            found = set().union(*branches)
            return {"union"} if found and len(branches) > 1 and found not in _MERGED else found
        if isinstance(node, str):
            name = avro_types.referred(node, namespace, types)
            return at(types[name], path, "") if name is not None else set() if path else {node}
        if path and avro_types.is_definition(node):
            namespace = avro_types.namespace_of(avro_types.full_name(node, namespace))
            fields = (each["type"] for each in node.get("fields", ()) if each["name"] == path[0])
            return set().union(*(at(field, path[1:], namespace) for field in fields))
        if path and node["type"] == "map":
            return at(node["values"], path[1:], namespace)
        logical, kind = str(node.get("logicalType", "")), node["type"]
        is_logical = _LOGICAL.fullmatch(logical) and (logical != "decimal" or kind in ("bytes", "fixed"))
        if not path and isinstance(kind, str) and is_logical:
            return {logical}
        return at(node["type"], path, namespace)

    return at(schema, path, "")


def _avro_limit() -> int:
    options = session.conf().get("spark.executor.defaultJavaOptions", "")
    limit = re.search(r"avro\.limits\.bytes\.maxLength=(\d+)", options)
    return int(limit[1]) if limit else 1 << 31

"""Avro behind a header that names its schema (framings.py), or without one.

Every schema in the plan is resolved by Avro's rules to one reader schema, cut down to the fields that the settings map.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import fastavro
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from service.admission import avro_types, mapped
from service.admission.avro_record import AvroRecord, DamagedError
from service.admission.formats import framings
from service.admission.formats.format import END, Dissected, Format, Plan, Schemas
from service.admission.formats.framings import Headers
from service.admission.registry import record
from service.admission.schema_sources import read_schema, reader_record
from service.errors import SchemaError
from service.settings import Input, field_path

Writer = tuple[bytes, Mapping[str, Any]]
"""The schema of a record, and the bytes that stand before it: of a union, which of its types it is."""
_END_TYPE = {"type": "fixed", "name": END, "namespace": "", "size": 8}


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


def with_end(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's schema with the end mark, for records that do not contain themselves without end (avro_types.bounded)."""
    schema = avro_types.bounded(schema)
    return {**schema, "fields": [*schema["fields"], {"name": END, "type": _END_TYPE}]}


class Avro(Format):
    """The end mark is a field at the end of every writer's schema and the reader's; its bytes are added to every record.

    Spark's decoder ignores bytes after the record (4.1.1). With the mark it decodes such bytes as the mark, and they differ from
    it: the mark is a hash of the record's value. A failed decode is a record of nulls, without a mark.
    """

    suffix = "avsc"

    def framing(self, plan: Plan) -> Column:
        return framings.of(plan.form).framing(plan, _others(plan))

    def record(self, plan: Plan) -> Column:
        reader_type = reader_schema(plan.schemas.reader, plan.form)
        if plan.form.has_twins:
            reader_type = avro_types.without_case(reader_type)
        reader, writers = json.dumps(with_end(reader_type)), _writers(plan)
        framing = framings.of(plan.form)
        body = F.concat(framing.body(plan), self.mark())
        if not framing.heads:
            body = F.when(F.length("value") <= plan.max_bytes, body)
            [writer] = writers.values()
            return _decoded(body, writer, reader)
        head = framing.head_of(plan)
        choices: dict[str, tuple[Writer, Column]] = {}
        for schema_id, writer in writers.items():  # a GUID has the schema of its id
            matches, text = framing.has_id(plan, schema_id, head), json.dumps(writer[1])
            choices[text] = (writer, choices[text][1] | matches if text in choices else matches)
        choice: Column | None = None
        for writer, matches in choices.values():
            decoded = _decoded(body, writer, reader)
            choice = F.when(matches, decoded) if choice is None else choice.when(matches, decoded)
        assert choice is not None  # noqa: S101
        return choice

    def mark(self) -> Column:
        return F.xxhash64("value").cast("binary")

    def fields(self, value: bytes, form: Input, schemas: Schemas) -> Dissected:
        framing = framings.of(form)
        if stopped := framing.stopped(value, form, schemas):
            return stopped
        number = framing.id_of(value, form, schemas) or 0
        begin, found_writer = framing.begin(value), _writer_of(value, form, schemas)
        if found_writer is None:
            why = f"is of no record of schema {number}" + (f" that is {form.record_type}" if form.record_type else "")
            return Dissected({}, {}, number, stop=begin, why=why)
        before, writer = found_writer
        decoder = AvroRecord(value, avro_types.bounded(writer), at=begin + len(before))
        try:
            found = decoder.read()
        except DamagedError as error:
            return Dissected(decoder.fields, decoder.spans, number, stop=decoder.at, why=str(error))
        except (KeyError, TypeError, AttributeError) as error:
            raise SchemaError(f"the writer's schema cannot be used: {error!r}") from error
        if decoder.at == len(value):
            return Dissected(found, decoder.spans, number)
        why = f"{len(value) - decoder.at} bytes after the record"
        return Dissected(found, decoder.spans, number, stop=decoder.at, why=why)

    def read(self, found: Dissected, value: bytes, form: Input, schemas: Schemas) -> Dissected:
        reader = reader_record(schemas[framings.reader_id(form, schemas)], form)
        before, writer = _writer_of(value, form, schemas) or (b"", {})
        begin = framings.of(form).begin(value) + len(before)
        used = AvroRecord(value, avro_types.bounded(writer), reader_schema(reader, form), at=begin)
        try:
            return replace(found, read=used.read(), problems=tuple(used.problems))
        except DamagedError as error:
            return replace(found, problems=(str(error),))

    def text_problems(self, texts: Mapping[str, str], _value: bytes, _form: Input, _schemas: Schemas) -> Iterator[str]:
        for path, text in texts.items():
            try:
                text.encode(errors="surrogateescape").decode()
            except UnicodeDecodeError:
                yield f"{path} is not UTF-8: {text!r}"

    def encode(self, value: bytes, record: Mapping[str, Any], form: Input, schemas: Schemas) -> bytes:
        framing = framings.of(form)
        before, writer = _writer_of(value, form, schemas) or (b"", {})
        out, number = io.BytesIO(value[: framing.begin(value)] + before), framing.id_of(value, form, schemas) or 0
        out.seek(0, io.SEEK_END)
        try:
            schema: Any = fastavro.parse_schema(dict(writer))
            fastavro.schemaless_writer(out, schema, dict(record), strict=True)
        except Exception as error:  # fastavro raises errors of many classes
            raise ValueError(f"does not fit schema {number}: {error}") from error
        return out.getvalue()

    def refusal(self, found: Dissected) -> str:
        return framings.refusal(found) or f"does not fit schema {found.schema}"

    def check(self, schema: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], None]) -> None:
        parse(schema)

    def check_sample(self, number: int, schema: Mapping[str, Any]) -> None:
        try:
            fastavro.parse_schema(dict(schema))
        except Exception as error:  # fastavro raises errors of many classes
            msg = f"schema {number} is no Avro schema: {error}"
            raise SchemaError(msg, remedy="Correct it, or remove it if no producer writes with it") from error

    def stored(self, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
        return record(schema, place)


def key(form: Input) -> Column:
    """Return the mapped fields of an Avro key, a struct; null for a key that cannot be decoded to its last byte."""
    schema = key_schema(form)
    mark = F.xxhash64("key").cast("binary")
    reader = json.dumps(with_end(avro_types.projection(schema, form.key_paths)))
    found = _decoded(F.concat(framings.key_body(form), mark), (b"", schema), reader)
    return F.when(found.getField(END) == mark, found)


def key_of(value: bytes | None, form: Input, headers: Headers = ()) -> Mapping[str, Any]:
    """Return the fields of an Avro key, {} for a key that cannot be decoded."""
    value = framings.framed(value or b"", headers, form, framings.KEY_HEADER)
    begin = framings.of(form).begin(value)
    decoder = AvroRecord(value, avro_types.bounded(key_schema(form)), at=begin)
    try:
        found = decoder.read()
    except DamagedError:
        return {}
    return found if decoder.at == len(value) else {}


@lru_cache(maxsize=16)
def _key_schema(path: Path, paths: tuple[tuple[str, ...], ...]) -> dict[str, Any]:
    schema = read_schema(path)
    present = {field["name"] for field in schema["fields"]}
    if missing := [names[0] for names in paths if names[0] not in present]:
        msg = f"{path}: the schema of the key has no field {', '.join(missing)}; it has {', '.join(sorted(present))}"
        raise SchemaError(msg, remedy="Correct the source, such as $key.id, or key_schema")
    return schema


def key_schema(form: Input) -> dict[str, Any]:
    """Return the schema of the keys. Raises SchemaError."""
    assert form.key_schema is not None  # noqa: S101
    return _key_schema(form.key_schema, form.key_paths)


def _writers(plan: Plan) -> dict[int, Writer]:
    """Return what the plan decodes of each schema.

    That is its record with the reader's name, or its only one if the input does not ignore records of other types.
    """
    name, found = avro_types.full_name(plan.schemas.reader, ""), dict[int, Writer]()
    schemas, form = plan.schemas.schemas, plan.form
    if not framings.of(form).heads:
        schemas = {framings.reader_id(form, schemas): schemas[framings.reader_id(form, schemas)]}
    for number, schema in schemas.items():
        records = avro_types.records_of(schema)
        if name in records or (form.others == "reject" and len(records) == 1):
            found[number] = records.get(name) or next(iter(records.values()))
    return found


def _others(plan: Plan) -> dict[int, Column | None]:
    """Return the schemas that have records of other types, for an input that ignores these, with the condition of the records."""
    if plan.form.others == "reject":
        return {}
    writers, body = _writers(plan), framings.of(plan.form).body(plan)
    others = dict.fromkeys(plan.schemas.schemas.keys() - writers.keys()) if framings.of(plan.form).heads else {}
    return others | {
        number: framings.begins(body, avro_types.others_of(plan.schemas.schemas[number], before))
        for number, (before, _) in writers.items()
        if before
    }


def _writer_of(value: bytes, form: Input, schemas: Schemas) -> Writer | None:
    """Return the schema that a record of a known schema is of; None for a record of a union that the input does not read."""
    framing = framings.of(form)
    records = avro_types.records_of(schemas[framing.id_of(value, form, schemas) or 0])
    wanted = records if len(records) == 1 else {form.record_type: records.get(form.record_type or "")}
    writer = next(iter(wanted.values()))
    return writer if writer is not None and value.startswith(writer[0], framing.begin(value)) else None


def _decoded(body: Column, writer: Writer, reader: str) -> Column:
    before, record = writer
    if before:
        body = F.when(framings.begins(body, [before]), F.substr(body, F.lit(len(before) + 1)))
    return from_avro(body, json.dumps(with_end(record)), {"mode": "PERMISSIVE", "avroSchema": reader})

"""`tidemark schemas check`: whether records of a new schema, or sample records of JSON, can be read, before anyone writes them.

Avro's SchemaCompatibility compares, in the JVM that decodes the records: the new schema with the reader's schema, cut down to
the mapped fields; and the schemas in use with the new one, which may become the reader's.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from service.admission import arrays, avro_types, formats
from service.admission.formats.avro import reader_schema
from service.admission.formats.format import Dissected
from service.admission.json_record import quoted
from service.admission.registry import record
from service.admission.schema_sources import SchemaSet, load_set
from service.commands import dissect
from service.commands.explain import time_form
from service.commands.finding import Line, failed, ok
from service.commands.metadata import Metadata
from service.errors import SchemaError, SettingsError, TidemarkError
from service.printing import counted
from service.settings import Input, Settings, field_path, source
from service.spark import session
from service.spark.internals import jvm

_SHOWN = 10
"""Problems of a file that are listed."""
_REMEDY = "Give new fields a default, and keep the types and names of those that are mapped"


def check(settings: Settings, files: Sequence[Path], name: str | None = None) -> list[Line]:
    """The schemas in use, and then each of the files; a failed line says that records would be rejected.

    `name` is that of the input whose records they are; with one input it is not needed. Raises SettingsError.
    """
    settings = _of_input(settings, name)
    try:
        compared_by = settings.form.traits.compared_by
        if compared_by == "registry":
            what = f"{settings.form.place}: the format is {settings.form.format}, whose schemas the registry compares"
            raise SchemaError(what, remedy="Ask the registry whether a schema is compatible with its subject")
        if compared_by == "samples":
            return [line for file in files for line in _samples(settings, file)]
        known = load_set(settings)
        lines = [*in_use(settings, known)]
        for file in files:
            lines += _new(settings, known, file)
    except TidemarkError as error:
        return [failed("schemas", error)]
    return lines


def _of_input(settings: Settings, name: str | None) -> Settings:
    """Return settings with the input of this name alone."""
    names = [form.name for form in settings.inputs]
    if name is None and len(settings.forms) == 1:
        return settings.split()[0]
    if name not in names:
        what = (
            f"--input: {'there are' if name is None else f'{name!r} is none of'} {', '.join(names) or '[input] alone'}"
        )
        raise SettingsError(what, remedy="Name the input that has the records, as in [[inputs]]")
    return settings.split()[names.index(name)]


def _samples(settings: Settings, file: Path) -> Iterator[Line]:
    """Lines about a file of JSON records: one record, or one on each line."""
    try:
        content = file.read_bytes()
    except OSError as error:
        yield failed(str(file), SchemaError(f"cannot be read: {error.strerror}"))
        return
    is_one = dissect.dissect(content, settings.form, {}).whole or _readings(content, settings.form) != [content]
    values = [content] if is_one else [line for line in content.splitlines() if line.strip()]
    records = [dissect.dissect(each, settings.form, {}) for value in values for each in _readings(value, settings.form)]
    problems = [f"record {n}: {text}" for n, each in enumerate(records, 1) for text in _problems(settings, each)]
    for problem in problems[:_SHOWN]:
        yield failed(str(file), SchemaError(problem, remedy="Correct the record, or the paths in [input]"))
    if len(problems) > _SHOWN:
        yield failed(str(file), SchemaError(f"{len(problems) - _SHOWN} more problems"))
    if not records:
        yield failed(str(file), SchemaError("has no record"))
    elif not problems:
        yield ok(str(file), f"{counted(len(records), 'record')} can be decoded")
    for setting, kind, paths, outcome in _optional(settings.form, "all of them"):
        if records and not any(all(record.at(path) is not None for path in paths) for record in records):
            what = f"no record has {' and '.join(paths)}: {outcome}"
            yield Line(f"{file}: {setting}", "warn", what, f"Correct the path, or remove the {kind}")


def _readings(value: bytes, form: Input) -> list[bytes]:
    """The readings of a record: the record itself, unpacked, or the elements of its array."""
    if not form.is_cut:
        return [value]
    try:
        return formats.of(form).cut(value, form).each
    except arrays.UnreadableArrayError:
        return [value]


def _problems(settings: Settings, record: Dissected) -> Iterator[str]:
    """Yield why a record of JSON would be rejected for its form: the types of the mapped fields, its time and device."""
    form = settings.form
    if record.problems:
        yield from record.problems
        return
    reason, text = dissect.reason(record, Metadata(b"any key"), form)
    if reason == "no_device":
        text = f"{form.device_id} is missing or null: expected a device id"
    elif reason == "no_time":
        time = record.at(form.event_time)
        shown = "is missing or null" if time is None else f"= {quoted(time)}"
        text = f"{form.event_time} {shown}: expected {time_form(form)}"
    if reason:
        yield text


def in_use(settings: Settings, known: SchemaSet) -> Iterator[Line]:
    """Whether the reader's schema reads every known one."""
    reader = reader_schema(known.reader, settings.form)
    for number, writer in known.schemas.items():
        why = incompatible(reader, _read_of(writer, known))
        if why:
            what = f"the reader's schema does not read all of its records: {why}"
            yield Line(f"schema {number}", "warn", what, "Those records are rejected as undecodable")
        else:
            yield ok(f"schema {number}", "is read by the reader's schema")


def _read_of(schema: Mapping[str, Any], known: SchemaSet) -> Mapping[str, Any]:
    """Return the record of a schema that the reader's schema is to read: of a union the one with its name."""
    records = avro_types.records_of(schema)
    found = records.get(avro_types.full_name(known.reader, "")) or next(iter(records.values()))
    return found[1]


def incompatible(reader: Mapping[str, Any], writer: Mapping[str, Any]) -> str:
    """Why records of the one cannot all be read into the other; "" when they can. Raises SchemaError for what is no schema."""
    checker = _avro().SchemaCompatibility
    problems = (
        checker.checkReaderWriterCompatibility(_parsed(reader), _parsed(writer)).getResult().getIncompatibilities()
    )
    return "; ".join(f"{each.getLocation()}: {each.getType()}, {each.getMessage()}" for each in problems)


def _new(settings: Settings, known: SchemaSet, file: Path) -> Iterator[Line]:
    try:
        schema = _read_of(record(json.loads(file.read_text(encoding="utf-8")), str(file)), known)
        why = incompatible(reader_schema(known.reader, settings.form), schema)
    except (OSError, ValueError) as error:
        yield failed(str(file), SchemaError(f"cannot be read: {error}"))
        return
    except SchemaError as error:
        yield failed(str(file), error)
        return
    if why:
        yield failed(str(file), SchemaError(f"the reader's schema does not read its records: {why}", remedy=_REMEDY))
    else:
        yield ok(str(file), "its records are read by the reader's schema")
    yield from _mapped(settings.form, file, schema)
    yield _as_reader(settings, known, file, schema)


def _mapped(form: Input, file: Path, schema: Mapping[str, Any]) -> Iterator[Line]:
    """The fields that the settings name: what a writer leaves out is null or a default in each of its readings."""
    there = {field["name"] for field in schema["fields"]} | {
        alias for field in schema["fields"] for alias in field.get("aliases", ())
    }
    needed = [(f"{form.place}.event_time", form.time_field)] if form.time_field is not None else []
    needed += [(f"{form.place}.device_id", path) for path in form.device_fields]
    for key, path in needed:
        if field_path.parts(path)[0] not in there:
            what = f"it lacks {path}: none of its records can be admitted"
            yield failed(f"{file}: {key}", SchemaError(what, remedy=_REMEDY))
    for setting, _, paths, outcome in _optional(form, "its readings"):
        if absent := [path for path in filter(source.in_record, paths) if field_path.parts(path)[0] not in there]:
            what = f"it lacks {' and '.join(absent)}: {outcome}"
            yield Line(f"{file}: {setting}", "warn", what, "So it must be, or keep the field")


def _optional(form: Input, where: str) -> Iterator[tuple[str, str, Sequence[str], str]]:
    """Yield the setting, the kind and the paths of each measure and column, and what follows if records lack them."""
    for name, measure in form.measures.items():
        yield f"{form.place}.measures.{name}", "measure", measure.paths, "its readings do not have this measure"
    for name, column in form.columns.items():
        yield f"{form.place}.columns.{name}", "column", (column.path,), f"the column is (none) in {where}"


def _as_reader(settings: Settings, known: SchemaSet, file: Path, schema: Mapping[str, Any]) -> Line:
    """Whether it could take the reader's place. With a folder and no `reader_schema`, the highest id does so at a start."""
    name, form = f"{file}: as the reader's", settings.form
    number = int(file.stem) if file.stem.isdigit() else -1
    will_be = settings.registry is None and form.reader_schema is None and number > max(known.schemas)
    try:
        reader = reader_schema(schema, form)
        problems = [
            f"id {each}: {why}" for each, writer in known.schemas.items() if (why := incompatible(reader, writer))
        ]
    except SchemaError as error:
        problems = [error.what]
    if not problems:
        return ok(name, f"it reads the ids {', '.join(map(str, known.schemas))}")
    what = "; ".join(problems)
    if will_be:
        return failed(
            name,
            SchemaError(
                f"it will be at the next start, and {what}", remedy=f"{_REMEDY}, or set {form.place}.reader_schema"
            ),
        )
    return Line(name, "warn", what, f"Do not name it in {form.place}.reader_schema")


def _parsed(schema: Mapping[str, Any]) -> Any:
    try:
        return _avro().Schema.Parser().parse(json.dumps(schema))
    except Py4JJavaError as error:
        java: Any = error.java_exception
        raise SchemaError(f"is no Avro schema: {java.getMessage()}") from error


def _avro() -> Any:
    """Avro in the JVM, which is started without a Spark session if there is none."""
    session.prepare()
    return jvm.started().org.apache.avro

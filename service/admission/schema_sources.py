"""Sources of writers' schemas: a folder of files, or subjects of a schema registry.

    <id>.avsc    Avro
    <id>.json    JSON Schema
    <id>.desc    Protobuf: a set of descriptors, as `protoc --include_imports --descriptor_set_out` writes it

Any device can send any schema id. A query decodes an id only if the operator has put its schema into the folder or into a subject
of the settings, or has set it as input.reader_schema.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from service.admission import avro_types, guids
from service.admission.registry import KINDS, Client, parsed, record
from service.errors import SchemaError
from service.micro_batch import Offsets
from service.settings import Input, Settings

Schemas = Mapping[int, dict[str, Any]]
"""Avro records, JSON Schemas, or files of Protobuf (protobuf.py), by schema id."""


@dataclass(frozen=True, slots=True)
class SchemaSet:
    """The schemas in a query's plan: `schemas` by id, and `reader`, the schema that records are read into.

    `since` has the offsets from which on an id is decoded, if it was learned while the query ran; all other ids are decoded at
    every offset.
    """

    schemas: Schemas
    reader: dict[str, Any]
    since: Mapping[int, Offsets] = field(default_factory=dict)


SchemaSets = Mapping[str, SchemaSet]
"""The schemas of each input, by its `place` in the settings; an empty set for JSON without schema ids."""


class FolderSource:
    """Files named by schema id in a folder of the driver's machine. Methods raise SchemaError."""

    is_remote = False
    """Whether the checkpoint keeps copies of the schemas, and others than the operator may add them."""
    unusable: Mapping[int | None, SchemaError] = MappingProxyType({})
    """Why an id cannot be used; None for an id that is not known."""

    def __init__(self, path: Path, format_name: str = "avro") -> None:
        self._path = path
        self._suffix, self._read = _FILES[format_name]

    def __str__(self) -> str:
        return str(self._path)

    def all(self) -> Schemas:
        """Return every schema that records may have."""
        schemas = {}
        for path in sorted(self._path.glob(f"*.{self._suffix}")):
            if (schema_id := _id_of(path)) is None:
                raise SchemaError(f"{path}: a schema's file name must be its id, such as 1.{self._suffix}")
            schemas[schema_id] = self._read(path)
        if not schemas:
            msg = f"{self}: the folder has no schema"
            remedy = f"Put the writers' schemas there as <id>.{self._suffix}, or set input.schemas, or a [registry]"
            raise SchemaError(msg, remedy=remedy)
        return dict(sorted(schemas.items()))

    def find(self, schema_id: int) -> dict[str, Any] | None:
        """Return the schema of an id that records may have, None for any other id."""
        path = self._path / f"{schema_id}.{self._suffix}"
        return self._read(path) if path.exists() else None

    def age(self, schema_id: int) -> int:
        """Return a number that is larger for a newer schema."""
        return schema_id

    def newer(self, known: Iterable[int]) -> list[int]:
        """Return the ids of schemas that are newer than all of these, ascending."""
        newest = max(known, default=-1)
        ids = map(_id_of, self._path.glob(f"*.{self._suffix}"))
        return sorted(each for each in ids if each is not None and each > newest)

    reader = find


class RegistrySource:
    """All versions of some subjects of a registry, which an object reads once. Methods raise RegistryError, SchemaError."""

    is_remote = True

    def __init__(self, client: Client, subjects: Iterable[str]) -> None:
        self._client = client
        self._subjects = tuple(subjects)
        self._schemas: dict[int, dict[str, Any]] | None = None
        self._ids: dict[int, int] = {}  # by the number of a GUID, which tells no age, the id of its version
        self.unusable: dict[int | None, SchemaError] = {}

    def __str__(self) -> str:
        return str(self._client)

    def all(self) -> Schemas:
        if self._schemas is None:
            schemas: dict[int, dict[str, Any]] = {}
            for subject in self._subjects:
                versions = self._client.subject(subject, self.unusable.setdefault)
                for number, following in pairwise(versions):
                    if following >= guids.FIRST:
                        self._ids[following] = number
                schemas |= versions
            self._schemas = schemas
        return self._schemas

    def find(self, schema_id: int) -> dict[str, Any] | None:
        schema = self.all().get(schema_id)
        error = self.unusable.get(schema_id)
        if schema is None and error is None and None in self.unusable:
            own = set(self._subjects).intersection(self._client.subjects_of(schema_id))
            error = self.unusable[None] if own else None
        if error is not None:
            raise error
        return schema

    def age(self, schema_id: int) -> int:
        """Return a number that is larger for a newer schema, of those that `all` has read; -1 for another GUID."""
        return self._ids.get(schema_id, schema_id if schema_id < guids.FIRST else -1)

    def newer(self, known: Iterable[int]) -> list[int]:
        """Return the ids of schemas that are newer than all of these, ascending, of those that `all` has read."""
        newest = max(map(self.age, known), default=-1)
        return sorted(each for each in self._schemas or () if self.age(each) > newest)

    def reader(self, schema_id: int) -> dict[str, Any] | None:
        """Return a reader schema, which may be of another subject."""
        return self.all().get(schema_id) or self._client.schema(schema_id)


Source = FolderSource | RegistrySource


def schema_source(settings: Settings) -> Source:
    """Return the source of settings with one input: the registry if there is one, else the folder."""
    if settings.registry is None:
        return FolderSource(settings.form.schemas, settings.form.format)
    subjects = settings.registry.subjects or [f"{topic}-value" for topic in settings.kafka.topics]
    has_guids = settings.form.framing == "headers"
    return RegistrySource(Client(settings.registry, KINDS[settings.form.format], has_guids=has_guids), subjects)


def load_schemas(settings: Settings) -> SchemaSets:
    """Return every schema that the inputs' sources have, for a query without a checkpoint. Raises as `load_set`."""
    return {each.form.place: load_set(each) for each in settings.split()}


def load_set(settings: Settings) -> SchemaSet:
    """Return every schema of the source of settings with one input; an empty set for JSON.

    Raises RegistryError when the registry does not answer, SchemaError when a schema is missing or is no Avro record.
    """
    if not settings.form.has_schemas:
        return SchemaSet({}, {})
    source = schema_source(settings)
    return with_reader(source.all(), source, settings)


def with_reader(schemas: Schemas, source: Source, settings: Settings) -> SchemaSet:
    """Add the reader schema: input.reader_schema, from the source if `schemas` lacks it; without that setting the highest id.

    JSON and Protobuf have no reader schema: their fields have names. But without a header all records are of it.
    """
    form = settings.form
    if form.is_json and form.framing != "none":
        return SchemaSet(schemas, {})
    reader_id = max(schemas) if form.reader_schema is None else form.reader_schema
    reader = schemas.get(reader_id) or source.reader(reader_id)
    if reader is None:
        ids = ", ".join(map(str, schemas)) or "none"
        msg = f"{form.place}.reader_schema = {reader_id}: {source} has no such schema; ids of these topics: {ids}"
        mend = f"Set {form.place}.reader_schema to one of them, or add the schema there"
        raise SchemaError(msg, remedy=mend if schemas else "Check [registry] url and the subjects")
    return SchemaSet({**schemas, reader_id: reader}, {} if form.is_json else reader_record(reader, form))


def reader_record(schema: Mapping[str, Any], form: Input) -> dict[str, Any]:
    """Return the record that an input reads, of the schema that is the reader's. Raises SchemaError."""
    records = avro_types.records_of(schema)
    name = form.record_type or next(iter(records))
    if name not in records or (form.record_type is None and len(records) > 1):
        msg = f"The reader's schema of {form.place} has the records {', '.join(records)}"
        raise SchemaError(msg, remedy=f"Set {form.place}.record_type to one of them")
    return dict(records[name][1])


def read_schema(path: Path) -> dict[str, Any]:
    """Return the Avro record of a file. Raises SchemaError."""
    return record(_read_json(path), str(path))


def _id_of(path: Path) -> int | None:
    """Return the schema id that a file is named by, None for another name. A header has 31 bits for an id."""
    name = path.stem
    return int(name) if name.isascii() and name.isdigit() and int(name) < 1 << 31 else None


def _read_json_schema(path: Path) -> dict[str, Any]:
    schema = _read_json(path)
    return schema if isinstance(schema, dict) else {}  # true allows every value


def _read_descriptors(path: Path) -> dict[str, Any]:
    """Return the files of a set of descriptors as protobuf.py has them."""
    try:
        files = FileDescriptorSet.FromString(path.read_bytes()).file
    except OSError as error:
        raise SchemaError(f"{path}: cannot be read ({error.strerror})") from error
    except DecodeError:
        files = []
    if not files:
        msg = f"{path}: is no set of descriptors"
        raise SchemaError(msg, remedy="Make it by protoc --include_imports --descriptor_set_out=FILE")
    return {"files": [[each.name, base64.b64encode(each.SerializeToString()).decode()] for each in files]}


def _read_json(path: Path) -> Any:
    try:
        return parsed(path.read_text(encoding="utf-8"), f"{path}: ")
    except OSError as error:
        raise SchemaError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise SchemaError(f"{path}: is not JSON: {error}") from error


_FILES: Mapping[str, tuple[str, Callable[[Path], dict[str, Any]]]] = MappingProxyType(
    {
        "avro": ("avsc", read_schema),
        "json-schema": ("json", _read_json_schema),
        "protobuf": ("desc", _read_descriptors),
    }
)
"""Suffix and reader of the files in a folder, by format."""

"""Read what the command line of `tidemark init` names: the newest records, the writers' schemas, the reference."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from service.admission import avro_types, guids
from service.admission.formats.framings import HEADER
from service.admission.registry import KINDS, Client
from service.admission.schema_sources import Schemas, schema_source
from service.commands import check_input, records
from service.errors import ReferenceDataError, SchemaError, SettingsError, SourceError
from service.kafka import scan
from service.pipeline.command_session import started
from service.proposal.proposal import Table
from service.quality import sample
from service.reference import database
from service.reference.expectations import check_columns
from service.settings import Kafka, Reference, Settings, parse
from service.settings.formats import TRAITS

_IDS = 5
"""Schema ids that a message names."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line says: the file to write, and sections of settings as the file will have them."""

    out: Path
    kafka: Mapping[str, Any]
    redis: Mapping[str, Any]
    count: int
    watch: scan.Watch | None = None
    service: Mapping[str, Any] = field(default_factory=lambda: {"checkpoint": "checkpoint"})
    metrics: Mapping[str, Any] = field(default_factory=dict)
    schemas: str | None = None
    """The folder of the writers' schemas."""
    registry: Mapping[str, Any] = field(default_factory=dict)
    reference: Mapping[str, Any] = field(default_factory=dict)

    def draft(self, form: str = "avro", framing: str = "confluent", **registry: Any) -> Settings:
        """Return settings with these sections, for the connections; their fields are not proposed yet. Raises SettingsError.

        `form` is the format of records behind a schema id, and `framing` what is before them.
        """
        document: dict[str, Any] = {
            "service": dict(self.service),
            "kafka": dict(self.kafka),
            "input": {"measures": {"m": "m"}, "reader_schema": 0, "format": form, "framing": framing},
            "views": [{"name": "device", "window": "1 m"}],
            "redis": dict(self.redis),
        }
        if self.schemas is not None:
            document["input"]["schemas"] = self.schemas
        if self.registry:
            document["registry"] = {**self.registry, **registry}
        if self.reference:
            document["reference"] = dict(self.reference)
        return parse(document, where="init", folder=self.out.absolute().parent)


@dataclass(frozen=True, slots=True)
class Form:
    """How the records are encoded: JSON without `schemas`, else behind ids of these; Avro is read into the schema `reader`.

    `input` and `registry` are the settings of these sections that say so.
    """

    input: Mapping[str, Any]
    schemas: Schemas | None = None
    reader: int = 0
    registry: Mapping[str, Any] = field(default_factory=dict)
    doubts: Mapping[str, str] = field(default_factory=dict)
    """By setting, as those of a Proposal."""

    @property
    def is_avro(self) -> bool:
        return self.schemas is not None and "format" not in self.input

    def types(self, parts: Sequence[str]) -> set[str]:
        """Return the Avro types of a path in the reader's schema; empty without such a field."""
        named = avro_types.records_of((self.schemas or {})[self.reader])
        _, record = named[self.input.get("record_type", next(iter(named)))]
        return check_input.kinds(record, parts)


def newest(kafka: Kafka, request: Request) -> Sequence[Message]:
    """Return the newest records of all partitions. Raises SourceError."""
    source = sample.require_newest(kafka, request.count, "look at")
    begin = {
        (topic, partition): offset
        for topic, partitions in source.begin.items()
        for partition, offset in partitions.items()
    }
    with closing(scan.messages(kafka, kafka.topics, begin=begin, watch=request.watch)) as found:
        # A topic with a high rate has more by now.
        messages = list(islice(found, 2 * request.count))
    if not messages:
        what = f"{', '.join(kafka.topics)}: there is no record to look at"
        raise SourceError(what, remedy="Wait until there are readings, then run it again")
    return messages


def form(messages: Sequence[Message], request: Request) -> Form:
    """Return how the records are encoded. Raises SchemaError when they need schemas that are not named or not known."""
    tombstones = {"tombstones": "ignore"} if any(message.value() is None for message in messages) else {}
    chosen = _form(messages, request)
    return replace(chosen, input={**chosen.input, **tombstones})


def _form(messages: Sequence[Message], request: Request) -> Form:
    framing = records.framing_of(messages)
    if (name := records.format_of(messages)) is not None:
        why = f"the records look like {TRAITS[name].label}: {records.sample_line(messages)}"
        return Form({"format": name}, doubts={"input.format": why})
    if framing is None:
        array = records.array_of(messages)
        doubts: Mapping[str, str] = {}
        if isinstance(array, str):
            doubts = {"input.array": f"the readings seem to be the elements at {array}"}
        return Form({"format": "json", **({"array": array} if array else {})}, doubts=doubts)
    if framing == "headers" and not request.registry:
        what = (
            f"the records name their schemas in the header {HEADER}, as those of Confluent's HeaderSchemaIdSerializer"
        )
        raise SchemaError(what, remedy="Give --registry URL")
    if framing in {"glue", "glue-zlib"}:
        what = "the records begin with the UUID of a schema version, as those of AWS Glue"
        raise SchemaError(
            what, remedy=f'Put the schemas into a folder as <id>.avsc, set framing = "{framing}" and schema_versions'
        )
    ids = records.ids(messages, framing)
    shown = ", ".join(str(number) for number, _ in ids.most_common(_IDS))
    if not request.registry and request.schemas is None:
        header = f"a schema id ({shown})" if ids else "the fingerprint of a schema"
        what = f"the records begin with {header}, and no schemas are named"
        raise SchemaError(what, remedy="Give --registry URL, or --schemas DIR with files such as 1.avsc")
    settings = request.draft()
    source = schema_source(settings)
    ids = ids or records.ids(messages, framing, source.all())
    if not ids:
        what = f"the records begin with the fingerprint of a schema, and {source} has no schema with this fingerprint"
        raise SchemaError(what, remedy="Add the writers' schemas")
    if settings.registry is None:
        schemas = source.all()
        folder: dict[str, Any] = {} if request.schemas == "schemas/avro" else {"schemas": request.schemas}
        folder |= {} if framing == "confluent" else {"framing": framing}
        reader, doubts = _reader(ids, schemas, schemas)
        if reader != max(schemas):
            folder["reader_schema"] = reader
        chosen = Form(folder, schemas, reader, doubts=doubts)
    else:
        chosen = _registered(settings, request, ids, framing)
    if chosen.schemas is not None and not ids.keys() & chosen.schemas.keys():
        known = ", ".join(map(str, sorted(chosen.schemas)))
        what = f"the records have the schema ids {shown}, {source} has {known}"
        raise SchemaError(what, remedy="Add the writers' schemas under these ids")
    types = records.types(messages, framing, chosen.schemas or {})
    if not types:
        return chosen
    name = types.most_common(1)[0][0]
    listed = ", ".join(f"{each} ({count} records)" for each, count in types.most_common())
    doubt = {} if len(types) == 1 else {"input.record_type": f"the records are of several types: {listed}"}
    return replace(chosen, input={**chosen.input, "record_type": name}, doubts={**chosen.doubts, **doubt})


def _registered(settings: Settings, request: Request, ids: Counter[int], framing: str) -> Form:
    assert settings.registry is not None  # noqa: S101
    first = ids.most_common(1)[0][0]
    if first < guids.FIRST:
        word = Client(settings.registry).kind_of(first)
        kind = next((name for name, each in KINDS.items() if each == word), "avro")
    else:  # a registry finds a version by its GUID, but not its subjects
        found = (name for name in KINDS if first in schema_source(request.draft(name, framing)).all())
        kind = next(found, "avro")
    client = Client(settings.registry, KINDS[kind])
    schemas = schema_source(request.draft(kind, framing)).all()
    ids = _by_id(ids, schemas)
    before = {} if framing == "confluent" else {"framing": framing}
    subjects: list[str] = []
    if not ids.keys() & schemas.keys():
        known = [number for number, _ in ids.most_common(_IDS) if number < guids.FIRST]
        subjects = sorted({each for number in known for each in client.subjects_of(number)})
        if not subjects:
            what = (
                f"the records have the schema ids {', '.join(map(str, sorted(ids)[:_IDS]))}, {client} has none of them"
            )
            raise SchemaError(what, remedy="Name the registry that the producers use")
        schemas = schema_source(request.draft(kind, framing, subjects=subjects)).all()
        if not schemas:
            client.schema(ids.most_common(1)[0][0])  # raises: it is of another kind
    registry = {**request.registry, **({"subjects": subjects} if subjects else {})}
    if kind != "avro":
        return Form({"format": kind, **before}, schemas, 0, registry)
    reader, doubts = _reader(ids, schemas, ids.keys() & schemas.keys())
    return Form({"reader_schema": reader, **before}, schemas, reader, registry, doubts)


def _by_id(ids: Counter[int], schemas: Schemas) -> Counter[int]:
    """Return the counts of GUIDs under the schema ids of their versions."""
    found = Counter[int]()
    for number, count in ids.items():
        same = (each for each, schema in schemas.items() if schema is schemas.get(number))
        found[min(same, default=number)] += count
    return found


def _reader(ids: Counter[int], schemas: Schemas, choice: Collection[int]) -> tuple[int, Mapping[str, str]]:
    """Return the highest id of `choice` whose schema is of the type that most records have, and the doubt if there are others."""
    types, numbers = Counter[str](), dict[str, list[int]]()
    for number in sorted(schemas):
        name = avro_types.full_name(schemas[number], "") if "name" in schemas[number] else ""
        types[name] += ids[number]
        numbers.setdefault(name, []).append(number)
    first = types.most_common(1)[0][0] if types.total() else next(iter(types))
    reader = max((number for number in numbers[first] if number in choice), default=max(schemas, default=0))
    found = [(name, count) for name, count in types.most_common() if count]
    if len(found) < 2:
        return reader, {}
    listed = ", ".join(
        f"{name} ({count} records, id {', '.join(str(each) for each in numbers[name] if ids[each])})"
        for name, count in found
    )
    why = (
        f"the records are of several types: {listed}. All are read as {first}: those of another type lack what only they have, "
        "or are undecodable. A schema of your own with the fields of all types may be the reader's"
    )
    return reader, {"input.reader_schema": why}


def reference(request: Request) -> Table | None:
    """Return the reference's rows, None if the command line names none. Raises ReferenceDataError."""
    options = request.draft().reference
    if options is None:
        return None
    with started(request.draft(), master="local[1]", is_brief=True) as spark:
        rows = database.fetch_any(spark, options)
    if not rows.num_rows:
        what = f"the reference at {database.address(options.url)} has no row"
        raise ReferenceDataError(what, remedy="Correct --query")
    return Table({name: rows[name].to_pylist() for name in rows.column_names})


def require_columns(options: Mapping[str, Any], key: str, columns: Sequence[str]) -> None:
    """Raise SettingsError if the service could not use the query's columns with this key."""
    reference = Reference.model_validate({**options, "key": key})
    try:
        check_columns(columns, reference, database.address(reference.url))
    except ReferenceDataError as error:
        raise SettingsError(error.what, remedy="Rename a column with AS in --query") from error

"""Schemas: which writers' schemas the query decodes, where they come from, and how one that is new gets into a running query.

The plan of a query holds a decoder for each known id, and no other can be added to it. A record with another id is met in the
fold, before anything of its batch is written:

    fold meets ids without a verdict -> UndecidedError -> SchemaCatalog.ask looks them up in the folder or the registry's subjects
        found:     NewSchemaError ends the query; the driver starts the next one with them, and the batch runs again
        not found: the ids are refused for `input.schema_retry`; the batch runs again, and their records are rejected

A batch that rejects for that reason is noted before it is published (`decided`), so that a replay of it rejects the same
records, whatever can be found by then. And a schema that is learned on the way is noted with where its batch begins: records
before that were rejected, and stay so when the topic is read again to republish or to rebuild a value.

Any device can name any id. So an id counts only where the operator has put it: a file of the folder, a version of a subject of
the settings, or input.reader_schema. And a plan has at most MOST_KNOWN of them. Where there are more, those that were decoded up
to now stay, the newest others fill up half of the places, and the rest come in when they are met, while there is room. An id
without a place is refused.

All of it lies in the checkpoint's folder `schemas`: `index.json` and, of a registry's schemas, `<id>.avsc`. A registry that is
away is needed for nothing that is there.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pydantic import BaseModel, ConfigDict, ValidationError
from pyspark.sql import SparkSession

from service import clock
from service.admission.registry import Client, record
from service.admission.unknown_schemas import ALL, shown
from service.checkpoint import resume
from service.checkpoint.logs import RESTORE, Position
from service.errors import CheckpointError, RegistryError, SchemaError
from service.micro_batch import Offsets
from service.settings import Settings
from service.spark import files

FOLDER = "schemas"
INDEX = f"{FOLDER}/index.json"
MOST_REFUSED = 256
"""When so many ids are refused at a time, it is noise, and nothing more is looked up until some of it is forgotten."""
MOST_KNOWN = 64
"""Schemas that a plan decodes. With each the plan grows, and a batch takes longer to plan."""
LOOK_UPS = ("found", "missing", "unusable", "failed", "full")
REST_MS = 10_000
"""A registry that did not answer is left alone for as long."""

_FULL = "Delete versions that no device uses from the subjects, or files from the folder, and restart"
_log = logging.getLogger(__name__)


class NewSchemaError(Exception):
    """Ends a query whose plan lacks a schema that is known by now; it is no error, and nothing of the batch is written."""


@dataclass(frozen=True, slots=True)
class SchemaSet:
    """What a plan decodes: writers' schemas by id, and the one that they are read into.

    `since` is for those that were learned on the way: a record at an earlier offset of a partition is not decoded.
    """

    schemas: Mapping[int, dict[str, Any]]
    reader: dict[str, Any]
    since: Mapping[int, Offsets] = field(default_factory=dict)


class Source(Protocol):
    """Where schemas come from."""

    keeps: bool
    """Whether what it says is to be stored."""

    def all(self) -> Mapping[int, dict[str, Any]]:
        """What to begin with, by id; raises RegistryError, SchemaError."""

    def find(self, number: int) -> dict[str, Any] | None:
        """The schema of an id that records may have, None for another; raises RegistryError, SchemaError."""

    def newer(self, number: int) -> Iterable[int]:
        """Ids above this one; of a registry those that it had when an id was looked up."""

    def reader(self, number: int) -> dict[str, Any] | None:
        """A schema that the settings name, None when there is none; raises RegistryError, SchemaError."""


class Folder:
    """`<id>.avsc` in a folder of this machine."""

    keeps = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def all(self) -> Mapping[int, dict[str, Any]]:
        schemas = {}
        for path in sorted(self._path.glob("*.avsc")):
            if not path.stem.isdigit() or not 0 <= int(path.stem) < 1 << 31:
                msg = f"{path}: a schema's file name must be its id, such as 1.avsc"
                raise SchemaError(msg)
            schemas[int(path.stem)] = _read(path)
        if not schemas:
            msg = f"{self}: holds no schema"
            raise SchemaError(msg, remedy="Put the writers' Avro schemas there as <id>.avsc, or set input.schemas")
        return dict(sorted(schemas.items()))

    def find(self, number: int) -> dict[str, Any] | None:
        path = self._path / f"{number}.avsc"
        return _read(path) if path.exists() else None

    def newer(self, number: int) -> Iterable[int]:
        names = (path.stem for path in self._path.glob("*.avsc"))
        return sorted(int(name) for name in names if name.isdigit() and int(name) > number)

    reader = find


class Registry:
    """The versions of some subjects of a registry. They are read once: another object has those of another time."""

    keeps = True

    def __init__(self, client: Client, subjects: Iterable[str]) -> None:
        self._client = client
        self._subjects = tuple(subjects)
        self._found: dict[int, dict[str, Any]] | None = None

    def __str__(self) -> str:
        return str(self._client)

    def all(self) -> Mapping[int, dict[str, Any]]:
        if self._found is None:
            found: dict[int, dict[str, Any]] = {}
            for subject in self._subjects:
                found |= self._client.subject(subject)
            self._found = found
        return self._found

    def find(self, number: int) -> dict[str, Any] | None:
        return self.all().get(number)

    def newer(self, number: int) -> Iterable[int]:
        return sorted(each for each in self._found or () if each > number)

    def reader(self, number: int) -> dict[str, Any] | None:
        return self.find(number) or self._client.schema(number)


def source(settings: Settings) -> Source:
    """Where these settings have their schemas."""
    if settings.registry is None:
        return Folder(settings.input.schemas)
    subjects = settings.registry.subjects or [f"{topic}-value" for topic in settings.kafka.topics]
    return Registry(Client(settings.registry), subjects)


def known(settings: Settings, schemas: Mapping[int, dict[str, Any]] | None = None) -> SchemaSet:
    """What a plan decodes that goes on with no checkpoint: all that the source has."""
    if settings.input.format == "json":
        return SchemaSet({}, {})
    place = source(settings)
    found = dict(place.all() if schemas is None else schemas)
    number = settings.input.reader_schema
    if number is None:
        number = max(found)
    if number not in found:
        reader = place.reader(number)
        if reader is None:
            there = ", ".join(map(str, found)) or "none"
            msg = f"input.reader_schema = {number}: {place} does not have it; of these topics there are {there}"
            raise SchemaError(msg)
        found[number] = reader
    return SchemaSet(found, found[number])


class Index(BaseModel):
    """`index.json`. `since` has every id that was decoded up to now: {} for those known from the beginning, else where a
    topic's partitions were when it was learned. `decided` is the newest batch that may have been published with
    ids refused: those in `refused`, with until when (ms), or all, where `all` is set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    decided: int = -1
    refused: Mapping[int, int] = {}
    all: bool = False

    def refuses(self, number: int, batch: int) -> bool:
        """Whether a batch may have been published without the records of an id: a replay rejects them again."""
        return batch <= self.decided and (self.all or number in self.refused)

    since: Mapping[int, Mapping[str, Mapping[int, int]]] = {}


class Files(Protocol):
    """A checkpoint's folder: service/spark/files.py."""

    def read(self, name: str) -> bytes: ...

    def replace(self, name: str, content: bytes) -> None: ...


@dataclass(slots=True)
class SchemaCatalog:
    """The driver's book of schemas, for all queries of a process. Used by one thread at a time: a query's, or between two.

    `check` raises SchemaError for what the engine cannot decode with; `count` is told how each look-up ended, one of LOOK_UPS.
    """

    settings: Settings
    files: Files
    check: Callable[[Mapping[str, Any]], None]
    count: Callable[[str], None] = lambda _result: None
    plan: SchemaSet = field(default_factory=lambda: SchemaSet({}, {}))
    _index: Index | None = None
    _found: dict[int, dict[str, Any]] = field(default_factory=dict)
    _refused: dict[int, int] = field(default_factory=dict)
    _rests_until_ms: int = 0
    _batches: int = 0

    def open(self, position: Position | None) -> SchemaSet:
        """Before a query starts: what its plan decodes. `position` is where it goes on, None for a new checkpoint.

        Raises RegistryError when a schema is needed that is neither stored nor to be had, SchemaError, CheckpointError.
        """
        self._batches = 0
        if self.settings.input.format == "json":
            return self.plan
        index = self._index or self._read()
        # A checkpoint without an index is new, or from a version that had none: nothing was learned on the way.
        from_the_beginning = position is None or index is None
        index = index or Index()
        if not self._found:
            self._refused = dict(index.refused)
            self._found = self._everything(index)
        since = dict(index.since)
        for number in self._found.keys() - since.keys():
            # A batch that was published with ids refused, and is to be replayed, is replayed with the same ones.
            if from_the_beginning or (position is not None and not index.refuses(number, position.batch)):
                since[number] = {} if from_the_beginning or position is None else position.offsets
                self._refused.pop(number, None)
        if self._index is None or since != index.since:
            self._write(index.model_copy(update={"since": since}))
        self.plan = self._plan(self._found, since)
        return self.plan

    def look(self) -> SchemaSet | None:
        """What the checkpoint's queries decode, for who works beside one: nothing is learned and nothing written.

        None where nothing was noted. Raises as `open` does.
        """
        index = self._read()
        if self.settings.input.format == "json" or index is None:
            return None
        place = source(self.settings)
        return self._plan(self._stored(index) if place.keeps else place.all(), index.since)

    def _plan(self, found: Mapping[int, dict[str, Any]], since: Mapping[int, Offsets]) -> SchemaSet:
        in_use = {number: schema for number, schema in sorted(found.items()) if number in since}
        learned = {number: offsets for number, offsets in since.items() if offsets and number in in_use}
        return SchemaSet(in_use, known(self.settings, found).reader, learned)

    def begins(self) -> None:
        """A batch begins; raises NewSchemaError when it need not begin without a schema that is there.

        Not before the first one, which may be a replay.
        """
        waiting = self._found.keys() - self.plan.schemas.keys()
        if self._batches and waiting:
            raise NewSchemaError(shown(waiting))
        self._batches += 1

    def refused(self, batch: int) -> str:
        """What the tasks of a batch are told (verdicts.REFUSED)."""
        now_ms = clock.now_ms()
        self._refused = {number: until for number, until in self._refused.items() if until > now_ms}
        numbers = set(self._refused)
        if self._index is not None and batch <= self._index.decided:
            if self._index.all:
                return ALL
            numbers |= self._index.refused.keys()
        return ALL if len(numbers) >= MOST_REFUSED else ",".join(map(str, sorted(numbers)))

    def ask(self, numbers: Sequence[int]) -> None:
        """Look ids up. Raises NewSchemaError when there is one; all others are refused from now on.

        What the source has got since it was read is taken along: among so much noise that nothing more is looked up
        (MOST_REFUSED), nobody would ask for it.
        """
        place = source(self.settings)
        until_ms = clock.now_ms() + self.settings.input.schema_retry_ms
        before = set(self._found)
        for number in numbers:
            self._learn(place, number, until_ms)
        for number in place.newer(max(before)):
            if number not in self._found and number not in self._refused:
                self._learn(place, number, until_ms)
        missing = [number for number in numbers if number in self._refused]
        if missing:
            _log.warning("%s: their records are rejected as unknown_schema for now", shown(missing))
        learned = self._found.keys() - before
        if learned:
            raise NewSchemaError(shown(sorted(learned)))

    def _learn(self, place: Source, number: int, until_ms: int) -> None:
        schema = self._look_up(place, number)
        if schema is None:
            self._refused[number] = until_ms
        else:
            self._found[number] = schema

    def decide(self, batch: int, refused: str) -> None:
        """Note, before it is published, which schema ids a batch may reject records for: what `refused` said. It may still ask
        for others, and then has published nothing. Raises CheckpointError."""
        index = self._index
        if index is None or batch < index.decided:
            return
        before = index.refused if batch == index.decided else {}
        noted = {"decided": batch, "refused": {**before, **self._refused}, "all": refused == ALL}
        if noted != index.model_dump(include=set(noted)):
            self._write(index.model_copy(update=noted))

    def _look_up(self, place: Source, number: int) -> dict[str, Any] | None:
        if clock.now_ms() < self._rests_until_ms:
            return None
        try:
            schema = place.find(number)
            if schema is not None and len(self._found) >= MOST_KNOWN:
                self.count("full")
                _log.error("schema id %d: %d others are in use. %s", number, MOST_KNOWN, _FULL)
                return None
            if schema is not None:
                self.check(schema)
                self._store(place, number, schema)
        except RegistryError as error:
            self._rests_until_ms = clock.now_ms() + REST_MS
            self.count("failed")
            _log.warning("schema id %d: %s", number, error)
            return None
        except SchemaError as error:
            self.count("unusable")
            _log.warning("schema id %d: %s", number, error)
            return None
        self.count("missing" if schema is None else "found")
        return schema

    def _everything(self, index: Index) -> dict[int, dict[str, Any]]:
        """What is stored, and what the source has: no more than have a place."""
        place = source(self.settings)
        stored = self._stored(index) if place.keeps else {}
        try:
            found = {**stored, **place.all()}
            found = dict(known(self.settings, found).schemas)
            found = self._placed(found, index, found if not place.keeps else place.all())
        except RegistryError as error:
            if self.settings.input.reader_schema not in stored:
                raise
            _log.warning("%s. Going on with the schemas that are stored: %s", error, shown(stored))
            return stored
        for number, schema in found.items():
            try:
                self.check(schema)
            except SchemaError as error:
                msg = f"schema id {number} of {place}: {error}"
                raise SchemaError(msg) from error
            if number not in stored:
                self._store(place, number, schema)
        return found

    def _placed(
        self, found: dict[int, dict[str, Any]], index: Index, offered: Iterable[int]
    ) -> dict[int, dict[str, Any]]:
        """`found`, or as many of those that the source still has as may be in a plan; the reader's is one more."""
        if len(found) <= MOST_KNOWN:
            return found
        order = sorted(offered, key=lambda number: (number not in index.since, -number))
        used = sum(number in index.since for number in order)
        reader = max(found) if self.settings.input.reader_schema is None else self.settings.input.reader_schema
        chosen = {reader, *order[: max(MOST_KNOWN // 2, min(used, MOST_KNOWN))]}
        _log.warning(
            "%d of %d schemas are decoded from the start; others when they are met. %s", len(chosen), len(found), _FULL
        )
        return {number: schema for number, schema in found.items() if number in chosen}

    def _store(self, place: Source, number: int, schema: Mapping[str, Any]) -> None:
        if place.keeps:
            self._replace(f"{FOLDER}/{number}.avsc", json.dumps(schema).encode())

    def _stored(self, index: Index) -> dict[int, dict[str, Any]]:
        found = {}
        for number in index.since:
            name = f"{FOLDER}/{number}.avsc"
            try:
                found[number] = record(json.loads(self.files.read(name)), f"{self.files}/{name}")
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                msg = f"{self.files}/{name} is damaged: {error}"
                raise CheckpointError(msg, remedy=f"Delete it: the registry has it. Or: {RESTORE}") from error
        return found

    def _read(self) -> Index | None:
        try:
            return Index.model_validate_json(self.files.read(INDEX))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            msg = f"{self.files}/{INDEX} is damaged: {' '.join(str(error).split())}"
            raise CheckpointError(msg, remedy=RESTORE) from error

    def _write(self, index: Index) -> None:
        self._replace(INDEX, index.model_dump_json().encode())
        self._index = index

    def _replace(self, name: str, content: bytes) -> None:
        try:
            self.files.replace(name, content)
        except OSError as error:
            msg = f"{self.files}/{name} cannot be written: {error}"
            raise files.unusable(msg, remedy="Let the service's user write there") from error


def catalog(
    spark: SparkSession, settings: Settings, count: Callable[[str], None] = lambda _result: None
) -> SchemaCatalog:
    """The book of a service's checkpoint, not opened yet."""
    session: Any = spark

    def check(schema: Mapping[str, Any]) -> None:
        try:
            session._jvm.org.apache.avro.Schema.Parser().parse(json.dumps(schema))
        except Py4JJavaError as error:
            said: Any = error.java_exception
            msg = f"is no Avro schema: {said.getMessage()}"
            raise SchemaError(msg) from error

    try:
        return SchemaCatalog(settings, files.Files(spark, settings.service.checkpoint), check, count)
    except OSError as error:
        raise CheckpointError(str(error), remedy="Mend service.checkpoint, or bring its file system back") from error


def of_checkpoint(spark: SparkSession, settings: Settings) -> SchemaCatalog:
    """The same, opened where the checkpoint goes on."""
    found = catalog(spark, settings)
    found.open(resume.position(spark, settings))
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return record(json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise SchemaError(msg) from error
    except ValueError as error:
        msg = f"{path}: is not JSON: {error}"
        raise SchemaError(msg) from error

"""The schema catalogs of all inputs, as one.

    schemas/                the index and the copies for [input]
    schemas/<input>/        those of one of [[inputs]]

Tasks report unknown ids without the input, because ids are global in a registry. Every catalog then looks the ids up, so an id
that one of them refuses was looked up by all of them at the same time.

An input of [[inputs]] that has no index begins with the index of [input]: a service that gets a second input keeps the positions
at which it learned schemas. Indexes of inputs that the settings no longer have are removed. An input of the same name that comes
later would take its positions from them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from service.admission import avro_types, formats
from service.admission.formats import avro
from service.admission.schema_catalog import NewSchemaError, SchemaCatalog
from service.admission.schema_sources import SchemaSets, load_set
from service.admission.schema_store import FOLDER, INDEX, SchemaStore
from service.admission.unknown_schemas import ALL, IDS_AT_ONCE
from service.checkpoint import resume
from service.errors import SchemaError
from service.settings import Input, NamedInput, Settings
from service.spark.files import Files
from service.spark.internals import jvm
from service.spark.internals.offset_log import Position

LOOK_UPS = 3
"""Times that one batch may stop to look up schema ids: each time, another task may report new ones."""


@dataclass(frozen=True, slots=True)
class Catalogs:
    """The catalogs by the `place` of their input. The methods are those of SchemaCatalog, for all inputs."""

    files: Files
    catalogs: Mapping[str, SchemaCatalog]

    @classmethod
    def of(
        cls,
        settings: Settings,
        files: Files,
        check: Callable[[Mapping[str, Any]], None],
        count: Callable[[str], None] = lambda _result: None,
    ) -> Self:
        former = SchemaStore(files) if settings.inputs else None
        return cls(
            files,
            {
                each.form.place: SchemaCatalog(
                    each,
                    SchemaStore(files, _folder(each.form), each.form.format),
                    partial(formats.of(each.form).check, parse=check),
                    count,
                    former,
                )
                for each in settings.split()
            },
        )

    @property
    def plan(self) -> SchemaSets:
        return {place: each.plan for place, each in self.catalogs.items()}

    def open(self, position: Position | None) -> SchemaSets:
        plans = {place: each.open(position) for place, each in self.catalogs.items()}
        used = {each.store.folder for each in self.catalogs.values()}
        # Copies of schemas, such as `<id>.avsc`, lie beside the folders of inputs; no name of an input has a dot.
        stored = {FOLDER, *(f"{FOLDER}/{name}" for name in self.files.names(FOLDER) if "." not in name)}
        for folder in sorted(stored - used):
            self.files.remove(f"{folder}/{INDEX}")
        return plans

    def recorded(self) -> SchemaSets | None:
        """Return what the checkpoint's queries decode; None where it has no index, as for JSON alone."""
        sets = {place: each.recorded() for place, each in self.catalogs.items()}
        if not any(sets.values()):
            return None
        return {place: each or load_set(self.catalogs[place].settings) for place, each in sets.items()}

    def before_batch(self) -> None:
        for each in self.catalogs.values():
            each.before_batch()

    def refused(self, batch: int) -> str:
        texts = [text for each in self.catalogs.values() if (text := each.refused(batch))]
        return ALL if ALL in texts else ",".join(texts)

    def record_refused(self, batch: int, refused: str) -> None:
        for each in self.catalogs.values():
            each.record_refused(batch, refused)

    def look_up(self, ids: Sequence[int]) -> None:
        learned = []
        for each in self.catalogs.values():
            try:
                each.look_up(ids)
            except NewSchemaError as error:
                learned.append(str(error))
        if learned:
            raise NewSchemaError(", ".join(learned))


@dataclass(slots=True)
class LookUps:
    """Decides about the unknown schema ids of one batch, at most LOOK_UPS times.

    Each time the batch is decoded once more: if a task has more ids than it can report, they are garbage for the most part, and
    the next run refuses all that are left.
    """

    catalog: Catalogs
    batch: int
    left: int = LOOK_UPS

    def refused(self) -> str:
        """Return the ids that the next run refuses, as BatchContext.refused. Raises CheckpointError."""
        refused = self.catalog.refused(self.batch) if self.left else ALL
        if refused:
            self.catalog.record_refused(self.batch, refused)
        return refused

    def decide(self, ids: Sequence[int]) -> bool:
        """Look ids up; those without a schema are refused. Raises NewSchemaError for the others."""
        self.catalog.look_up(ids)
        self.left = self.left - 1 if len(ids) < IDS_AT_ONCE else 0
        return True


def _folder(form: Input) -> str:
    return f"{FOLDER}/{form.name}" if isinstance(form, NamedInput) else FOLDER


def new_catalog(
    spark: SparkSession, settings: Settings, count: Callable[[str], None] = lambda _result: None
) -> Catalogs:
    """Return the catalogs of the settings' checkpoint, not yet opened. Raises CheckpointError."""

    def check(schema: Mapping[str, Any]) -> None:
        parser = jvm.of(spark).org.apache.avro.Schema.Parser
        try:
            parser().parse(json.dumps(schema))
            for _, record in avro_types.records_of(schema).values():
                # As the plan has it: it may have a field or a type of the end mark's name.
                parser().parse(json.dumps(avro.with_end(record)))
        except Py4JJavaError as error:
            cause: Any = error.java_exception
            raise SchemaError(f"is no Avro schema: {cause.getMessage()}") from error
        except (AttributeError, KeyError, RecursionError, TypeError) as error:  # of a form that Avro's parser lets pass
            raise SchemaError(f"is a schema whose types cannot be followed: {error!r}") from error

    return Catalogs.of(settings, resume.files_of(spark, settings), check, count)


def open_catalog(spark: SparkSession, settings: Settings) -> Catalogs:
    """Return the catalogs of the settings' checkpoint, opened at the position where the checkpoint's next query starts."""
    catalog = new_catalog(spark, settings)
    catalog.open(resume.position(spark, settings))
    return catalog

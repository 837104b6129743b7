"""The schema catalog: which schemas a query's plan decodes, and how a running query gets new ones.

The plan has one decoder per schema id, and Spark cannot add a decoder to it. An unknown id shows in the fold, before anything of
the batch is written:

    fold meets unknown ids -> UndecidedError -> LookUps.decide -> SchemaCatalog.look_up asks the source
        found:     NewSchemaError ends the query; the next one decodes the id, and runs the batch again
        not found: the id is refused for `input.schema_retry`; the batch runs again, and rejects the id's records

Before a batch with refused ids is published, the catalog writes them to the index: a replay rejects the same records, even if
their schema exists by then. With an id that is learned while running, the index has the offsets where its first batch begins.
Earlier records were rejected. When the topic is read again, to republish or to rebuild a value, they stay rejected.

A plan has at most MAX_SCHEMAS. If the source has more, those decoded before stay, and the newest others fill the plan up to half.
Others are added when a record has their id, until the plan is full; from then on their ids are refused.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service import clock
from service.admission.schema_sources import Schemas, SchemaSet, Source, schema_source, with_reader
from service.admission.schema_store import Index, SchemaStore
from service.admission.unknown_schemas import ALL, ids_text
from service.errors import RegistryError, SchemaError
from service.micro_batch import Offsets
from service.settings import Settings
from service.spark.internals.offset_log import Position
from service.units import format_duration

MAX_REFUSED = 256
"""With this many refused ids at a time, all unknown ids are refused without a look-up."""
MAX_SCHEMAS = 64
"""Different schemas in a plan. Each one makes the plan larger, and the planning of a batch slower. Several ids, and GUIDs, may be
of one schema, which the plan decodes once.
"""
LOOK_UPS = ("found", "missing", "unusable", "failed", "full")
"""Results of a look-up, as metrics count them."""
REST_S = 10.0
"""The pause between a failed request to the registry and the next one."""

_FULL = "Delete versions that no device uses from the subjects, or files from the folder, and restart"
_log = logging.getLogger(__name__)


class NewSchemaError(Exception):
    """Ends a query whose plan lacks a schema that is available now. Nothing of the batch is written, and the query restarts."""


@dataclass(slots=True)
class SchemaCatalog:
    """The schemas of a checkpoint for one input, for all queries of a process. Not thread-safe: call it from the query's thread,
    or between two queries.

    `settings` have one input. `former` is the store that an index is taken from while `store` has none. `check` raises
    SchemaError for a schema that the engine cannot parse. `count` gets each look-up's result, one of LOOK_UPS.
    """

    settings: Settings
    store: SchemaStore
    check: Callable[[Mapping[str, Any]], None]
    count: Callable[[str], None] = lambda _result: None
    former: SchemaStore | None = None
    plan: SchemaSet = field(default_factory=lambda: SchemaSet({}, {}))
    _index: Index | None = None
    _schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    _refused: dict[int, int] = field(default_factory=dict)
    _logged: frozenset[int] = frozenset()
    """Refused ids that the log has. A producer that stays wrong is looked up each `schema_retry`, and is no news each time."""
    _rests_until_s: float = 0.0
    _batches: int = 0

    def open(self, position: Position | None) -> SchemaSet:
        """Return the schemas for the plan of a query that starts at `position`, None for a new checkpoint.

        Raises RegistryError when a schema is needed that is neither stored nor available, SchemaError, CheckpointError.
        """
        self._batches = 0
        if not self.settings.form.has_schemas:
            return self.plan
        index = self._index or self._stored()
        if index is None:  # of a new checkpoint, or of a version without an index: no schema was learned while running
            index, position = Index(), None
        if not self._schemas:
            self._refused = dict(index.refused)
            self._schemas = self._load(index)
        since = dict(index.since)
        for schema_id in self._schemas.keys() - since.keys():
            if position is None or not index.refuses(schema_id, position.batch):
                since[schema_id] = {} if position is None else position.offsets
                self._refused.pop(schema_id, None)
        if self._index is None or since != index.since:
            self._write(index.model_copy(update={"since": since}))
        self.plan = self._plan(self._schemas, since)
        return self.plan

    def recorded(self) -> SchemaSet | None:
        """Return what the checkpoint's queries decode, without a change to the checkpoint; None where it has no index.

        For another process than the service's. Raises as `open` does.
        """
        index = self._stored()
        if not self.settings.form.has_schemas or index is None:
            return None
        source = schema_source(self.settings)
        return self._plan(self.store.schemas(index) if source.is_remote else source.all(), index.since)

    def _stored(self) -> Index | None:
        index = self.store.index()
        return index if index is not None or self.former is None else self.former.index()

    def _plan(self, schemas: Schemas, since: Mapping[int, Offsets]) -> SchemaSet:
        in_use = {schema_id: schema for schema_id, schema in sorted(schemas.items()) if schema_id in since}
        learned = {schema_id: offsets for schema_id, offsets in since.items() if offsets and schema_id in in_use}
        return SchemaSet(in_use, with_reader(schemas, schema_source(self.settings), self.settings).reader, learned)

    def before_batch(self) -> None:
        """Raise NewSchemaError when a schema is available that the plan lacks.

        Never before the first batch of a query, which may be a replay.
        """
        waiting = self._schemas.keys() - self.plan.schemas.keys()
        if self._batches and waiting:
            raise NewSchemaError(ids_text(waiting))
        self._batches += 1

    def refused(self, batch: int) -> str:
        """Return the refused ids for the tasks of a batch, as BatchContext.refused."""
        now_ms = clock.now_ms()
        latest_ms = now_ms + self.settings.form.schema_retry_ms  # a later time is of before the clock was set back
        self._refused = {each: until_ms for each, until_ms in self._refused.items() if now_ms < until_ms <= latest_ms}
        ids = set(self._refused)
        if self._index is not None and batch <= self._index.decided:
            if self._index.all:
                return ALL
            ids |= self._index.refused.keys()
        return ALL if len(ids) >= MAX_REFUSED else ",".join(map(str, sorted(ids)))

    def look_up(self, ids: Sequence[int]) -> None:
        """Look up unknown ids in the source; raise NewSchemaError when it has one of them. The others are refused from now on.

        Newer ids of the source are added too: with MAX_REFUSED ids refused, no task would ask for them.
        """
        if not self.settings.form.has_schemas:
            return
        source = schema_source(self.settings)
        before = set(self._schemas)
        self._learn(source, [each for each in ids if each not in before])
        newer = source.newer(before)
        self._learn(source, [each for each in newer if each not in self._schemas and each not in self._refused])
        missing = self._refused.keys() & {*ids}
        if missing - self._logged:
            retry = format_duration(self.settings.form.schema_retry_ms)
            text = "%s: their records are rejected as unknown_schema; they are looked up again each %s"
            _log.warning(text, ids_text(sorted(missing - self._logged)), retry)
            self._logged = frozenset(missing if len(self._logged) > MAX_REFUSED else self._logged | missing)
        learned = self._schemas.keys() - before
        if learned:
            raise NewSchemaError(ids_text(sorted(learned)))

    def record_refused(self, batch: int, refused: str) -> None:
        """Write the ids that a batch refuses to the index, before the batch is published; `refused` is `self.refused(batch)`.

        The batch may still fail for other ids; then nothing of it is published. Raises CheckpointError.
        """
        index = self._index
        if index is None or batch < index.decided:
            return
        before = index.refused if batch == index.decided else {}
        changes = {"decided": batch, "refused": {**before, **self._refused}, "all": refused == ALL}
        if changes != index.model_dump(include=set(changes)):
            self._write(index.model_copy(update=changes))

    def _write(self, index: Index) -> None:
        self.store.write_index(index)
        self._index = index

    def _learn(self, source: Source, ids: Sequence[int]) -> None:
        until_ms = clock.now_ms() + self.settings.form.schema_retry_ms
        for schema_id in ids:
            schema = self._find(source, schema_id)
            if schema is None:
                self._refused[schema_id] = until_ms
            else:
                self._schemas[schema_id] = schema

    def _find(self, source: Source, schema_id: int) -> dict[str, Any] | None:
        if clock.monotonic_s() < self._rests_until_s:
            return None
        try:
            schema = source.find(schema_id)
            if schema is not None:
                known = {*map(_text, self._schemas.values())}
                if len(known) >= MAX_SCHEMAS and _text(schema) not in known:
                    self.count("full")
                    _log.error("schema id %d: the plan is full, with %d schemas. %s", schema_id, MAX_SCHEMAS, _FULL)
                    return None
                self.check(schema)
                self._store(source, schema_id, schema)
        except SchemaError as error:
            is_away = isinstance(error, RegistryError)
            if is_away:
                self._rests_until_s = clock.monotonic_s() + REST_S
                self.count("failed")
                _log.warning("schema id %d: %s", schema_id, error)
            else:
                self._refuse(schema_id, error)
            return None
        self.count("missing" if schema is None else "found")
        return schema

    def _store(self, source: Source, schema_id: int, schema: Mapping[str, Any]) -> None:
        if source.is_remote:
            self.store.write_schema(schema_id, schema)

    def _load(self, index: Index) -> dict[int, dict[str, Any]]:
        """Return the stored schemas and those of the source, without those above the limit."""
        source = schema_source(self.settings)
        stored = self.store.schemas(index) if source.is_remote else {}
        try:
            offered = {
                key: schema for key, schema in source.all().items() if self._is_usable(source, key, schema, stored)
            }
            schemas = self._limited(
                with_reader({**stored, **offered}, source, self.settings).schemas, index, source, offered
            )
        except RegistryError as error:
            needed = not stored if self.settings.form.is_json else self.settings.form.reader_schema not in stored
            if needed:
                raise
            _log.warning("%s. The query starts with the stored %s", error, ids_text(stored))
            return stored
        for unusable, reason in source.unusable.items():
            self._refuse(unusable, reason)
        for schema_id, schema in schemas.items():
            try:
                self.check(schema)
            except SchemaError as error:
                what = f"schema id {schema_id} of {source}: {error}"
                raise SchemaError(what, remedy="Correct it, or remove it if no producer writes with it") from error
            if schema_id not in stored:
                self._store(source, schema_id, schema)
        return schemas

    def _is_usable(self, source: Source, schema_id: int, schema: Mapping[str, Any], stored: Schemas) -> bool:
        """Whether a query can have a schema. A bad one of the operator's folder, or a stored one, fails the start instead."""
        if not source.is_remote or schema_id in stored:
            return True
        try:
            self.check(schema)
        except SchemaError as error:
            self._refuse(schema_id, error)
            return False
        return True

    def _refuse(self, schema_id: int | None, error: SchemaError) -> None:
        self.count("unusable")
        _log.warning(
            "schema id %s is not used, and its records are rejected: %s", "?" if schema_id is None else schema_id, error
        )

    def _limited(
        self, schemas: Schemas, index: Index, source: Source, offered: Iterable[int]
    ) -> dict[int, dict[str, Any]]:
        """Return at most MAX_SCHEMAS of the schemas that the source still offers, and the reader schema."""
        texts = {schema_id: _text(schema) for schema_id, schema in schemas.items()}
        if len({*texts.values()}) <= MAX_SCHEMAS:
            return dict(schemas)
        order = sorted(offered, key=lambda schema_id: (schema_id not in index.since, -source.age(schema_id)))
        used = len({texts[schema_id] for schema_id in order if schema_id in index.since})
        reader_id = max(schemas) if self.settings.form.reader_schema is None else self.settings.form.reader_schema
        different = [*dict.fromkeys(texts[schema_id] for schema_id in order)]
        first = {*different[: max(MAX_SCHEMAS // 2, min(used, MAX_SCHEMAS))]}
        chosen = {reader_id, *(schema_id for schema_id in order if texts[schema_id] in first)}
        counts = (len({texts[schema_id] for schema_id in chosen}), len({*texts.values()}))
        _log.warning(
            "The query starts with %d of %d schemas. It adds another when a record has its id. %s", *counts, _FULL
        )
        return {schema_id: schema for schema_id, schema in schemas.items() if schema_id in chosen}


def _text(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema)

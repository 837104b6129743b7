"""`tidemark try`: show what would become of a sample of the topics, without writing anything anywhere.

The sample goes through the stream's own admission, fold and state as one batch of a new checkpoint. Nothing is read from Redis:
the values are those of this sample alone. A reading that is late only because of an earlier batch's watermark is admitted here.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from service.admission import expansion, inputs, readings
from service.admission.arrays import NO_INDEX
from service.admission.inputs import FieldCount
from service.admission.schema_sources import load_schemas
from service.aggregation import sessions
from service.commands import dissect
from service.commands.explain import explain
from service.pipeline import builder
from service.pipeline.command_session import started
from service.printing import aligned, counted, printable
from service.publication.rows import Rows, by_shard, session_rows, window_rows
from service.quality import sample
from service.recompute import sources
from service.redis.keys import shards
from service.reference import snapshots
from service.reference.attributes import Attributes
from service.reference.expectations import usable
from service.rejects.reject_log import Coordinates, Reject
from service.row_schemas import PARTS, RUNS
from service.settings import Settings
from service.units import format_time
from state import codec
from state.bucket import advance
from state.layout import CLOSED, Changes, empty_state

_KEPT = ("topic", "partition", "offset", "key", "value")
SHOWN = 3
"""Rejects of a reason, and values of a kind, that are shown."""


@dataclass(frozen=True, slots=True)
class Value:
    """A window or session: its key in Redis and the hash's fields. `view` is empty for a session."""

    key: str
    fields: Mapping[str, str]
    view: str = ""
    is_final: bool = False
    """Whether no later reading can change it."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a sample of `records` records makes. `rejects` are all of them, explained; times are ms since the epoch.

    `windows` and `sessions` are as Redis would have them. `watermark_ms` is that after the sample.
    """

    records: int
    admitted: int
    devices: int
    rejects: Sequence[tuple[Reject, str]]
    windows: Sequence[Value]
    sessions: Sequence[Value]
    watermark_ms: int
    fields: Sequence[FieldCount] = ()

    @property
    def filtered(self) -> int:
        """The number of records that the filter of their input leaves out."""
        return self.records - self.admitted - len(self.rejects)

    @property
    def reasons(self) -> Mapping[str, int]:
        """The number of rejects by reason, the most frequent first."""
        return dict(Counter(reject.reason for reject, _ in self.rejects).most_common())

    def document(self) -> dict[str, Any]:
        """Return the trial as JSON has it: counts, the rejects, and each value with its key and fields."""
        rejects = [{"place": str(each.place), "reason": each.reason, "detail": detail} for each, detail in self.rejects]
        return {
            "records": self.records,
            "admitted": self.admitted,
            "filtered": self.filtered,
            "devices": self.devices,
            "watermark": self.watermark_ms,
            "fields": [
                {"setting": each.setting, "path": each.path, "records": each.records, "decoded": each.decoded}
                for each in self.fields
            ],
            "rejects": rejects,
            "windows": [{"key": each.key, "final": each.is_final, **each.fields} for each in self.windows],
            "sessions": [{"key": each.key, **each.fields} for each in self.sessions],
        }


def trial(settings: Settings, count: int) -> Trial:
    """Run a sample of the newest `count` records through admission, fold and state.

    Raises SourceError when Kafka does not answer or has no record, SchemaError and ReferenceDataError as `run` does.
    """
    settings = settings.with_buckets(1)
    source = sample.require_newest(settings.kafka, count, "try")
    with (
        started(settings, is_brief=True, meanwhile=lambda: _rules(settings)) as spark,
        tempfile.TemporaryDirectory(prefix="tidemark-try-") as folder,
    ):
        attributes = _attributes(spark, settings, Path(folder))
        records = sources.records(spark, settings, source, sample.READ).coalesce(1)
        schemas = load_schemas(settings)
        names = [*_KEPT, *(["headers"] if settings.needs_headers else [])]
        decided = readings.admit(records, settings, attributes, keep=names, schemas=schemas)
        kept = [_only_rejected(name) if name in {"key", "value"} else readings.KEPT + name for name in names]
        kept += [expansion.INDEX] if settings.has_arrays else []
        names = [name for name in decided.columns if not name.startswith(readings.KEPT)]
        table = decided.select(*(f"`{name}`" for name in names), *kept).toArrow()
        fields = inputs.field_counts(records, settings, schemas)
        return of(table, settings, attributes, fields)  # attributes are read from the folder on use


def of(table: pa.Table, settings: Settings, attributes: Attributes | None, fields: Sequence[FieldCount] = ()) -> Trial:
    """Return what rows of `readings.admit` make, with the Kafka columns of rejected rows kept; `fields` are the rows' fields."""
    # A row without a device and without a reject is a record that the filter of its input leaves out.
    admitted = table.filter(pc.is_valid(table["device"]))
    newest_ms = pc.max(admitted["event_ms"]).as_py() or 0
    watermark_ms = max(0, newest_ms - settings.admission.watermark_delay_ms)
    changes = _changes(admitted, settings, attributes, watermark_ms)
    return Trial(
        table.num_rows,
        admitted.num_rows,
        pc.count_distinct(admitted["device"]).as_py(),
        _rejects(table.filter(pc.is_valid(table["reject"])), settings),
        _windows(changes.windows, settings, watermark_ms),
        _sessions(changes.sessions, settings),
        watermark_ms,
        fields,
    )


def lines(settings: Settings, tried: Trial) -> Iterator[str]:
    """Yield a trial for people."""
    names = ", ".join(settings.kafka.topics)
    yield f"{tried.records} records of {names}: {tried.admitted} admitted, of {tried.devices} devices"
    filters = [f"{form.place}.where" for form in settings.forms if form.where is not None]
    if tried.filtered:
        yield f"{tried.filtered} do not meet {' or '.join(filters)}"
    if tried.fields:
        yield from _fields(tried.fields)
    if tried.rejects:
        yield from _reject_lines(tried)
    if tried.admitted:  # also without windows: a view may leave out all of the sample
        yield from _window_lines(settings, tried)
        yield from _session_lines(tried.sessions)
    yield ""
    yield "Nothing was written, to Kafka, Redis or the checkpoint."


def _only_rejected(name: str) -> Column:
    """Keep the bytes of rejected records; of an oversized one they are not needed."""
    is_oversized = F.get_json_object("reject", "$.reason") == "oversized"
    kept = F.col(f"`{readings.KEPT}{name}`")
    return F.when(F.col("reject").isNotNull() & ~is_oversized, kept).alias(readings.KEPT + name)


def _rules(settings: Settings) -> None:
    """Read the reference's expectations, whose library takes 3 s to import."""
    if settings.reference is not None and settings.reference.expectations is not None:
        usable(settings.reference.expectations, remedy="Name the file in [reference] expectations")


def _attributes(spark: SparkSession, settings: Settings, folder: Path) -> Attributes | None:
    """Return the reference as the database has it now. The snapshot is not kept."""
    if settings.reference is None:
        return None
    return snapshots.load(spark, settings.reference, folder).attributes()


def _changes(admitted: pa.Table, settings: Settings, attributes: Attributes | None, watermark_ms: int) -> Changes:
    # A sample is folded for all views: those of a roll-up have all of its readings then, not those of closed windows only.
    rules = replace(sessions.rules(settings), rollups=())
    fold = builder.folding(settings, attributes, views=settings.views)
    parts, runs = [], []
    names = [name for name in admitted.column_names if not name.startswith(readings.KEPT)]
    for batch in fold(admitted.select(names).to_batches()):
        for kind, payload in zip(batch["kind"].to_pylist(), batch["payload"].to_pylist(), strict=True):
            if kind == PARTS:
                parts.append(codec.unpack(b"W", payload))
            elif kind == RUNS:
                runs.append(codec.unpack(b"R", payload))
    _, changes, _ = advance(empty_state(rules), parts, runs, watermark_ms, rules)
    return changes


def _rejects(rejected: pa.Table, settings: Settings) -> list[tuple[Reject, str]]:
    dissector = dissect.Dissector(settings)
    found = []
    columns = [rejected[name if name in {"reject", "broker_ms"} else readings.KEPT + name] for name in _COLUMNS]
    name = readings.KEPT + "headers"
    columns.append(rejected[name] if settings.needs_headers else pa.nulls(rejected.num_rows))
    for text, broker_ms, topic, partition, offset, key, value, headers in zip(
        *(c.to_pylist() for c in columns), strict=True
    ):
        fields = readings.parsed(text)
        index = fields["index"]
        place = Coordinates(topic, partition, offset, NO_INDEX if index is None else index)
        reject = Reject(
            place,
            fields["reason"],
            fields["detail"] or "",
            broker_ms,
            0,
            0,
            key,
            value,
            tuple((each["key"], each["value"]) for each in headers or ()),
            event_ms=fields["event_ms"],
        )
        found.append((reject, explain(reject, dissector(topic, value, reject.headers), settings)))
    return found


_COLUMNS = ("reject", "broker_ms", *_KEPT)


def _windows(table: pa.Table, settings: Settings, watermark_ms: int) -> list[Value]:
    stores = shards(settings.redis)
    values = []
    for keys, part in zip(stores, by_shard(table, len(stores)), strict=True):
        rows = window_rows(part, keys, settings.views, watermark_ms)
        for (key, fields), view in zip(_hashes(rows), part["view"].to_pylist(), strict=True):
            values.append(Value(key, fields, view, int(fields["end"]) <= watermark_ms))
    return values


def _sessions(table: pa.Table, settings: Settings) -> list[Value]:
    stores = shards(settings.redis)
    return [
        Value(key, fields, is_final=fields["state"] == CLOSED)
        for keys, part in zip(stores, by_shard(table, len(stores)), strict=True)
        for key, fields in _hashes(session_rows(part, keys, settings.sessions))
    ]


def _hashes(rows: Rows) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the key and the fields of each row, as text."""
    columns = {name: list(map(_text, column)) for name, column in rows.fields.items()}
    for n, key in enumerate(rows.keys):
        yield _text(key) or "", {name: text for name, column in columns.items() if (text := column[n]) is not None}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _fields(fields: Sequence[FieldCount]) -> Iterator[str]:
    yield ""
    rows = [(each.setting, each.path, f"{each.records} of {each.decoded}") for each in fields]
    yield from aligned([("setting", "field", "decoded records that have it"), *rows])
    for each in fields:
        if not each.records and each.decoded:
            yield f"{each.setting}: no record has {each.path}"


def _reject_lines(tried: Trial) -> Iterator[str]:
    yield ""
    yield f"{len(tried.rejects)} rejects"
    rows = [("reason", "records", "such as", "why")]
    for reason, count in tried.reasons.items():
        examples = [(str(each.place), detail) for each, detail in tried.rejects if each.reason == reason][:SHOWN]
        rows += [(reason, str(count), *example) for example in examples]
    yield from aligned([[printable(cell) for cell in row] for row in rows])


def _window_lines(settings: Settings, tried: Trial) -> Iterator[str]:
    """Yield the newest windows of each view. A key is on a line of its own, so that it can be copied."""
    yield ""
    yield f"windows; the watermark is {format_time(tried.watermark_ms)}"
    for view in settings.views:
        of_view = sorted(
            (each for each in tried.windows if each.view == view.name), key=lambda each: int(each.fields["start"])
        )
        finals = sum(each.is_final for each in of_view)
        yield f"  {view.name}: {counted(len(of_view), 'window')}, {finals} final"
        for each in of_view[-SHOWN:]:
            yield f"    {each.key}"
            shown = (f"{name} {_short(each.fields[name])}" for name in view.statistics if name in each.fields)
            yield f"      {', '.join(shown)}"


def _session_lines(sessions: Sequence[Value]) -> Iterator[str]:
    yield ""
    yield f"{counted(len(sessions), 'session')}, {sum(each.is_final for each in sessions)} closed"
    for each in sorted(sessions, key=lambda each: int(each.fields["last"]))[-SHOWN:]:
        reason = f", {each.fields['reason']}" if each.fields["reason"] else ""
        yield f"    {each.key}"
        yield f"      {each.fields['state']}{reason}, {counted(int(each.fields['count']), 'reading')}"


def _short(text: str) -> str:
    return f"{float(text):.6g}" if "." in text or "e" in text else text

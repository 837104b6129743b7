"""Compute published values again, as rows of row_schemas.OUTPUT.

    open windows, open sessions, devices    from the state of the last committed batch
    final windows, closed sessions          from Kafka, by a batch run of the stream's own steps up to that batch's offsets

Admission depends only on the record, its broker time and the attributes that its device had (service/reference/history.py).
What also depended on the stream's state is in service/recompute/decisions.py. So the batch run admits what the stream admitted.
Records that Kafka has deleted are missing: see service/recompute/sources.py.

A correction asks for the windows and the devices' sessions that late readings belong to (`targeted`). Only the readings of these
are folded: all readings in the panes of one of the windows, and those of one of the devices since its session began.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from service.admission import readings
from service.admission.column_values import Known
from service.admission.schema_sources import SchemaSets
from service.aggregation import sessions
from service.micro_batch import MicroBatch
from service.pipeline import builder
from service.reference.attributes import Attributes
from service.row_schemas import CHANGES, OUTPUT, PARTS, RUNS
from service.settings import Settings, View
from state import codec, history, reader, runs, windows
from state.columns import Bools, Ints, array, ints
from state.history import Payload
from state.late_sessions import only as only_devices
from state.layout import Changes, status_schema
from state.rules import Rules
from state.store import restore
from state.table import present


def open_values(spark: SparkSession, settings: Settings, committed: MicroBatch) -> DataFrame:
    """Return open windows, open sessions and devices of the checkpoint's state after a batch, as row_schemas.OUTPUT."""
    states = reader.buckets(spark, settings.service.checkpoint, committed.batch).select("stored")
    # Windows of a removed view, or of its former length, stay in the state until the watermark passes them.
    views = {(view.name, measure): view for view in settings.views for measure in settings.view_measures(view)}
    return states.mapInArrow(_Present(sessions.rules(settings), views), OUTPUT)


Span = tuple[int, int]
"""Event time in ms, half open."""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The stream's admission and fold, for batch runs over the past.

    `attributes` is the reference of then, None where there is none. `schemas` are what is decoded: all that their source has, if
    None. `values` are the checkpoint's decisions on the values of the record's columns.
    """

    spark: SparkSession
    settings: Settings
    attributes: Attributes | None = None
    schemas: SchemaSets | None = None
    values: Known = field(default_factory=Known)

    @property
    def tasks(self) -> int:
        """The number of tasks that run at a time: half of the cores, because a stream may run on the same ones."""
        return max(1, self.spark.sparkContext.defaultParallelism // 2)

    def admit(self, records: DataFrame, late: pa.Table | None = None) -> DataFrame:
        """Return rows of `readings.admit` for Kafka records, and `late`, rows that were rejected as late and corrected since."""
        admitted = readings.admit(records, self.settings, self.attributes, schemas=self.schemas)
        return (
            admitted.unionByName(self.spark.createDataFrame(late)) if late is not None and late.num_rows else admitted
        )

    def partials(self, admitted: DataFrame) -> DataFrame:
        """The rows of row_schemas.FOLDED of kind PARTS and RUNS; the rows of a bucket are in one task."""
        folded = builder.fold(admitted.coalesce(self.tasks), self.settings, self.attributes, self.values)
        return folded.where(F.col("kind").isin(PARTS, RUNS)).repartition(self.tasks, "bucket")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The windows of each view and measure whose start is in a span, and the sessions whose start is in one, if there is one.

    With `expired` also windows that have expired. `known` is as for state.history.closed.
    """

    windows: Mapping[tuple[str, str], Span]
    sessions: Span | None = None
    expired: bool = False
    known: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Closed:
    """`frame` has rows of row_schemas.OUTPUT. After evaluation, `unrecoverable` counts the windows and sessions it lacks."""

    frame: DataFrame
    _unrecoverable: Observation

    @property
    def unrecoverable(self) -> tuple[int, int]:
        return int(self._unrecoverable.get["windows"] or 0), int(self._unrecoverable.get["sessions"] or 0)


def closed_values(
    run: Recomputation, admitted: DataFrame, watermark_ms: int, whole_from_ms: int, only: Chosen | None = None
) -> Closed:
    """The final windows and closed sessions of admitted readings that have not expired at `watermark_ms`, or those of `only`.

    Windows and sessions that may have readings before `whole_from_ms` are unrecoverable.
    """
    partials = run.partials(admitted).select("bucket", "first", "kind", "payload")
    if only is not None and (only.sessions is None or not only.windows):
        partials = partials.where(F.col("kind") == (PARTS if only.sessions is None else RUNS))
    alive = {view.name: watermark_ms - view.retain_ms for view in run.settings.closing_views}
    step = _Closed(sessions.rules(run.settings), watermark_ms, whole_from_ms, alive, only, carries(run.settings))
    unrecoverable = Observation()
    changes = partials.sortWithinPartitions("bucket", "first", "kind", "payload").mapInArrow(
        step, "windows bigint, sessions bigint, kind tinyint, payload binary"
    )
    counted = changes.observe(unrecoverable, F.sum("windows").alias("windows"), F.sum("sessions").alias("sessions"))
    return Closed(counted.select("kind", "payload"), unrecoverable)


def carries(settings: Settings) -> dict[str, int]:
    """Return by view for how long its readings are carried into windows behind them, in ms."""
    return {view.name: view.carry_for_ms for view in settings.closing_views if view.carry_for_ms is not None}


def are_whole(table: pa.Table, whole_from_ms: int, carries: Mapping[str, int]) -> Bools:
    """Return which windows lack no reading, not even one that is carried into them, if all from a time on are known."""
    start = ints(table, "start")
    if not carries or whole_from_ms <= 0:
        return start >= whole_from_ms
    carry_ms = np.array([carries.get(view, 0) for view in table["view"].to_pylist()], np.int64)
    whole: Bools = start - carry_ms >= whole_from_ms
    return whole


def whole_from_ms(from_ms: int, settings: Settings) -> int:
    """Return the start from which windows of all views are whole, if all readings from a time on are known."""
    return from_ms + max(carries(settings).values(), default=0) if from_ms > 0 else from_ms


@dataclass(frozen=True, slots=True)
class _Present:
    """Convert stored states into changes. `views` are by name in keys and measure; windows of others are left out."""

    rules: Rules
    views: Mapping[tuple[str, str], View]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for stored in batch["stored"]:
                changes = present(restore(stored.as_py()), self.rules)
                yield _changes(replace(changes, windows=self._served(changes.windows)))

    def _served(self, table: pa.Table) -> pa.Table:
        names = list(zip(table["view"].to_pylist(), table["measure"].to_pylist(), strict=True))
        number_of = {pair: number for number, pair in enumerate(self.views)}
        numbers = np.array([number_of.get(pair, -1) for pair in names], np.int64)
        start, end, keys = ints(table, "start"), ints(table, "end"), array(table["key"])
        is_served = np.zeros(len(start), np.bool_)
        for number, view in enumerate(self.views.values()):
            own = np.flatnonzero(numbers == number)
            is_served[own] = view.are_windows(start[own], end[own], keys.take(pa.array(own)))
        return windows.compact(table.filter(pa.array(is_served)))


@dataclass(frozen=True, slots=True)
class _Closed:
    """Convert rows (bucket, first, kind, payload), sorted by all four, into closed values and counts of unrecoverable ones.

    A window of a view has expired when its end is not above the view's `alive` time.
    """

    rules: Rules
    watermark_ms: int
    whole_from_ms: int
    alive: Mapping[str, int]
    only: Chosen | None = None
    carries: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch), strict=True))
        only = self.only or Chosen({})
        span, known = only.sessions, only.known
        for _, group in itertools.groupby(rows, key=lambda row: row[0]):
            payloads = (_payload(first, kind, payload) for _, first, kind, payload in group)
            for each in history.closed(payloads, self.watermark_ms, self.whole_from_ms, self.rules, span, known):
                living = self._chosen(each.windows)
                is_whole = are_whole(living, self.whole_from_ms, self.carries)
                whole = windows.compact(living.filter(pa.array(is_whole)))
                changes = Changes(each.sessions, status_schema(()).empty_table(), whole)
                yield _changes(changes, windows=living.num_rows - whole.num_rows, sessions=each.unrecoverable)

    def _chosen(self, table: pa.Table) -> pa.Table:
        if self.only is None or not self.only.expired:
            floor = np.array([self.alive[view] for view in table["view"].to_pylist()], np.int64)
            table = table.filter(pa.array(ints(table, "end") > floor))
        if self.only is None:
            return table
        of = zip(table["view"].to_pylist(), table["measure"].to_pylist(), strict=True)
        spans = np.array([self.only.windows.get(each, (0, 0)) for each in of], np.int64).reshape(-1, 2)
        start = ints(table, "start")
        return table.filter(pa.array((start >= spans[:, 0]) & (start < spans[:, 1])))


def _payload(first_ms: int, kind: int, payload: bytes) -> Payload:
    if kind == PARTS:
        return Payload(first_ms, parts=codec.unpack(b"W", payload))
    return Payload(first_ms, runs=codec.unpack(b"R", payload))


def _changes(changes: Changes, **counts: int) -> pa.RecordBatch:
    columns: dict[str, Any] = {name: pa.array([count], pa.int64()) for name, count in counts.items()}
    columns |= {"kind": pa.array([CHANGES], pa.int8()), "payload": pa.array([codec.pack_changes(changes)], pa.binary())}
    return pa.RecordBatch.from_pydict(columns)


_NEAR_PANES = 100_000
"""About the most panes that readings are compared with."""
NEVER_MS = -1
"""A watermark that has passed no window."""


@dataclass(frozen=True, slots=True)
class Partials:
    """Readings folded: windows (`state.windows.SCHEMA`), and runs (`state.runs.schema`)."""

    windows: pa.Table
    runs: pa.Table


def ends_ms(event_ms: Ints, views: Iterable[View]) -> Ints:
    """The event time at which the last window of each reading in some views ends, also of those that it is carried into."""
    ends = [view.latest_end(event_ms + (view.carry_for_ms or 0)) for view in views]
    latest: Ints = np.max(np.stack([event_ms, *ends]), axis=0)
    return latest


def fold(run: Recomputation, late: pa.Table, views: Sequence[View]) -> Partials:
    """Fold rows of readings.admit on the driver: the windows of some views, and the runs."""
    step = builder.folding(run.settings, run.attributes, run.values, views=views)
    batches = step.fold(late) if late.num_rows else ()
    return _partials((row for batch in batches for row in batch.to_pylist()), run.settings)


def _partials(rows: Iterable[Mapping[str, Any]], settings: Settings) -> Partials:
    payloads: dict[int, list[bytes]] = {}
    for row in rows:
        payloads.setdefault(row["kind"], []).append(row["payload"])
    parts = [codec.unpack(b"W", payload) for payload in payloads.get(PARTS, ())]
    tables = [codec.unpack(b"R", payload) for payload in payloads.get(RUNS, ())]
    tables.insert(0, runs.schema(sessions.rules(settings).measures).empty_table())
    merged = windows.advance(windows.empty(), parts, NEVER_MS).open
    return Partials(merged, pa.concat_tables(tables, promote_options="default"))


def with_late(base: pa.Table, late: pa.Table, fills: Mapping[str, int]) -> pa.Table:
    """Return the windows of `late`, each merged with the same window of `base`; `fills` are those of the settings."""
    return windows.with_readings(windows.only(windows.advance(base, [late], NEVER_MS).open, late), fills)


def targeted(run: Recomputation, admitted: DataFrame, targets: pa.Table, from_ms: Mapping[str, int]) -> Partials:
    """Return the `targets`, windows of admitted readings, and the runs of each device in `from_ms` since its time there."""
    step = _Targets(codec.pack(b"W", targets), dict(from_ms))
    folded = run.partials(_near(run, admitted, targets, from_ms)).select("kind", "payload")
    rows = folded.mapInArrow(step, "kind tinyint, payload binary").toArrow().to_pylist()
    return _partials(rows, run.settings)


def _near(run: Recomputation, admitted: DataFrame, targets: pa.Table, from_ms: Mapping[str, int]) -> DataFrame:
    """Return at least the admitted readings of a target window, or carried into it, or of a device since its time."""
    carried = carries(run.settings)
    spans = set(zip(*(targets[name].to_pylist() for name in ("view", "start", "end")), strict=True))
    # Panes of targets that are months are many: then some readings beside the targets are read, and left out by `_Targets`.
    step = max(run.settings.pane_ms, sum(end - start for _, start, end in spans) // _NEAR_PANES)
    panes = sorted(
        {pane for view, start, end in spans for pane in range((start - carried.get(view, 0)) // step, -(-end // step))}
    )
    at = run.spark.createDataFrame(pa.table({"near_pane": pa.array(panes, pa.int64())}))
    since = run.spark.createDataFrame(
        pa.table({"near_device": list(from_ms), "near_from": pa.array(from_ms.values(), pa.int64())})
    )
    pane = F.floor(F.col("event_ms") / step).cast("bigint")
    return (
        admitted.join(F.broadcast(at), pane == F.col("near_pane"), "left")
        .join(F.broadcast(since), F.col("device") == F.col("near_device"), "left")
        .where(F.col("near_pane").isNotNull() | (F.col("event_ms") >= F.col("near_from")))
        .select(*admitted.columns)
    )


@dataclass(frozen=True, slots=True)
class _Targets:
    """Reduce payloads to the packed `windows`, merged, and the runs of the devices in `from_ms`."""

    windows: bytes
    from_ms: dict[str, int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        targets, merged = codec.unpack(b"W", self.windows), windows.empty()
        for row in (row for batch in batches for row in batch.to_pylist()):
            if row["kind"] == PARTS:
                parts = windows.only(codec.unpack(b"W", row["payload"]), targets)
                merged = windows.advance(merged, [parts], NEVER_MS).open
            else:
                kept = only_devices(codec.unpack(b"R", row["payload"]), self.from_ms)
                if kept.num_rows:
                    yield _row(RUNS, codec.pack(b"R", kept))
        if merged.num_rows:
            yield _row(PARTS, codec.pack(b"W", merged))


def _row(kind: int, payload: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"kind": pa.array([kind], pa.int8()), "payload": pa.array([payload], pa.binary())}
    )

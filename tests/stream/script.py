"""Stream tests as scripts: a list of actions run in order against the real pass, checks tied to progress, never to time.

    run(spark, settings, tmp_path, [
        Add(reading("a", 0, 20.0), reading("a", 5, 22.0)),
        Expect(windows={("device", "temperature", "a", 0): (2, 21.0)}),
        Restart(),
        ...
    ])

The source is a folder of files with Kafka's columns, so a batch holds exactly what one Add put there; everything from
decoding to the frame that publish gets is the service's own. A failure prints the script with => at the step that failed.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from load.servers.kafka import KAFKA
from service import row_schemas
from service.admission.column_values import ColumnValues
from service.admission.questions import COLUMN_VALUES, until_decided
from service.aggregation import seen_keys, task_counters
from service.checkpoint import event_time
from service.pipeline import builder, failure
from service.reference import snapshots
from service.reference.attributes import SERVING, Index, Serving
from service.settings import Settings
from service.spark import batch_context
from service.spark.batch_context import BatchContext
from service.spark.files import opened
from state import codec, moments
from state.layout import Changes
from state.watermark import EventTime
from tests.states import finish
from tests.stream.records import BASE_MS, Record, rows


@dataclass
class World:
    """What readers of the output would see, kept up to date from the batches: later values replace earlier ones."""

    spark: SparkSession
    settings: Settings
    folder: Path
    reference: DataFrame | Serving | None = None
    query: StreamingQuery | None = None
    windows: dict[tuple[str, str, str, int], dict[str, Any]] = field(default_factory=dict)
    sessions: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    counts: list[task_counters.Tally] = field(default_factory=list)
    sizes: dict[int, list[int]] = field(default_factory=dict)
    batches: int = 0
    added: int = 0
    time: EventTime = field(default_factory=EventTime)
    crash_in_batch: Callable[[], None] | None = None
    failure: Exception | None = None

    def start(self) -> None:
        (self.folder / "input").mkdir(exist_ok=True)
        records = self.spark.readStream.schema(KAFKA).parquet(str(self.folder / "input"))
        is_table = isinstance(self.reference, DataFrame)
        attributes = Index(self.reference.toArrow()) if is_table else self.reference
        output = builder.build(records, self.settings, attributes, 2)
        self.query = (
            output.writeStream.queryName(self.settings.service.name)
            .outputMode("update")
            .option("checkpointLocation", self.settings.service.checkpoint)
            .foreachBatch(self._on_batch)
            .start()
        )

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None

    def settle(self) -> None:
        """Until all that was added is processed."""
        if self.query is None:
            self.start()
        assert self.query is not None
        self.query.processAllAvailable()

    def progress(self) -> list[Any]:
        assert self.query is not None
        return [p for p in self.query.recentProgress if "addBatch" in p.durationMs]

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        times = event_time.Log(opened(self.spark, self.settings.service.checkpoint))
        before, distinct = times.before(batch), None
        if self.settings.admission.distinct:
            folder = seen_keys.folder(self.settings)
            seen_keys.clear(folder, self.settings.buckets, batch)
            distinct = str(folder), batch, 1, seen_keys.floor_ms(before, self.settings.admission)
        values = ColumnValues.of(self.spark.sparkContext, self.settings, times.files)

        def attempt() -> pa.Table:
            context = BatchContext(before, distinct=distinct, column_values=values.text())
            batch_context.set_for_tasks(self.spark.sparkContext, context)
            return frame.toArrow()

        deciders = {COLUMN_VALUES: lambda asked: values.decide(asked, lambda: None)}
        try:
            table = until_decided(attempt, deciders, failure.classify)
        except Exception as error:
            self.failure = error
            raise
        if self.crash_in_batch is not None:
            self.crash_in_batch()
        self.batches += 1
        self._take(table)
        times.note(batch, self.time)

    def _take(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            if row["kind"] == row_schemas.CHANGES:
                self._take_changes(codec.unpack_changes(row["payload"]))
            elif row["kind"] == row_schemas.REJECTS:
                self.rejects += codec.unpack(b"J", row["payload"]).to_pylist()
            elif row["kind"] == row_schemas.COUNTS:
                self.counts.append(task_counters.unpack(row["payload"]))
            elif row["kind"] == row_schemas.TIMES:
                self.time = EventTime.unpack(row["payload"])
            else:
                assert row["kind"] == row_schemas.SIZE, row
                (bucket, *size), _ = row_schemas.unpack_size(row["payload"])
                self.sizes[bucket] = size

    def _take_changes(self, changes: Changes) -> None:
        for window in changes.windows.to_pylist():
            self.windows[window["view"], window["measure"], window["key"], window["start"] - BASE_MS] = window
        for session in changes.sessions.to_pylist():
            self.sessions[session["device"], session["start"] - BASE_MS] = session
        for device in changes.devices.to_pylist():
            self.devices[device["device"]] = device

    def counted(self, what: int, of: int = 0) -> int:
        """What the tallies of all batches say."""
        return task_counters.total(self.counts).sum(what, of)


def finished(row: dict[str, Any]) -> dict[str, Any]:
    """A window row with sum, mean and stddev as publish would write them."""
    arrays = [pa.array([row[name]]).to_numpy() for name in ("count", *moments.NAMES)]
    total, mean, stddev = finish(*arrays)
    return {**row, "sum": float(total[0]), "mean": float(mean[0]), "stddev": float(stddev[0])}


class Action:
    def do(self, world: World) -> None:
        raise NotImplementedError


@dataclass
class Add(Action):
    """One file of records: one batch, if nothing else is waiting."""

    records: tuple[Record, ...]

    def __init__(self, *records: Record) -> None:
        self.records = records

    def __repr__(self) -> str:
        return f"Add({len(self.records)} records)"

    def do(self, world: World) -> None:
        frame = world.spark.createDataFrame(rows(self.records), KAFKA).coalesce(1)
        name = f"{world.added:06d}"
        world.added += 1
        part = world.folder / "parts" / name
        frame.write.parquet(str(part))
        (world.folder / "input").mkdir(exist_ok=True)
        (file,) = part.glob("*.parquet")
        shutil.move(file, world.folder / "input" / f"{name}.parquet")
        world.settle()


@dataclass
class Restart(Action):
    """Stop the query and start it from its checkpoint, perhaps with other settings."""

    settings: Settings | None = None

    def do(self, world: World) -> None:
        world.stop()
        if self.settings is not None:
            world.settings = self.settings
        world.settle()


@dataclass
class Swap(Action):
    """Another snapshot serves from the next batch on: rows of device and the columns of the world's Serving."""

    rows: Sequence[tuple[str | None, ...]]

    def do(self, world: World) -> None:
        assert isinstance(world.reference, Serving)
        names = ("device", *world.reference.columns)
        columns = {name: pa.array([row[at] for row in self.rows], pa.string()) for at, name in enumerate(names)}
        stored = snapshots.store(world.reference.folder, pa.table(columns))
        (world.reference.folder / SERVING).write_text(stored.version, encoding="ascii")


@dataclass
class Expect(Action):
    """Every part that is given must match; sessions, windows and rejects that are not named must not exist.

    windows   (view, measure, key, seconds from BASE_MS) -> (count, mean)
    sessions  (device, seconds from BASE_MS) -> state
    devices   device -> (status, last value of temperature); others may exist
    rejects   reasons, in any order
    """

    windows: dict[tuple[str, str, str, float], tuple[int, float]] | None = None
    sessions: dict[tuple[str, float], str] | None = None
    devices: dict[str, tuple[str, float]] | None = None
    rejects: Sequence[str] | None = None

    def do(self, world: World) -> None:
        if self.windows is not None:
            seen = {(v, m, k, s / 1000): finished(row) for (v, m, k, s), row in world.windows.items()}
            actual = {key: (row["count"], round(row["mean"], 9)) for key, row in seen.items()}
            _same("windows", actual, {key: (c, round(m, 9)) for key, (c, m) in self.windows.items()})
        if self.sessions is not None:
            _same("sessions", {(d, s / 1000): row["state"] for (d, s), row in world.sessions.items()}, self.sessions)
        if self.devices is not None:
            actual_devices = {d: (row["status"], row["temperature.value"]) for d, row in world.devices.items()}
            _same("devices", {d: actual_devices.get(d) for d in self.devices}, self.devices)
        if self.rejects is not None:
            _same("rejects", sorted(row["reason"] for row in world.rejects), sorted(self.rejects))


@dataclass
class Check(Action):
    """Anything else, as a function of the world."""

    check: Callable[[World], None]

    def __repr__(self) -> str:
        return f"Check({getattr(self.check, '__name__', 'check')})"

    def do(self, world: World) -> None:
        self.check(world)


def _same(what: str, actual: object, expected: object) -> None:
    assert actual == expected, f"{what}:\n  actual   {actual}\n  expected {expected}"


def run(
    spark: SparkSession,
    settings: Settings,
    folder: Path,
    script: Sequence[Action],
    known: DataFrame | Serving | None = None,
) -> World:
    """Run the script; the query is stopped whatever happens. Returns the world for further looks. `known` is the reference."""
    world = World(spark, settings, folder, known)
    try:
        for number, action in enumerate(script):
            try:
                action.do(world)
            except Exception as error:
                lines = [f"{'=>' if n == number else '  '} {step}" for n, step in enumerate(script)]
                msg = "\n".join([str(error), "script:", *lines])
                raise AssertionError(msg) from error
    finally:
        world.stop()
    return world

"""What closed values become with some late readings in them: computed from Kafka, by the stream's own builders.

The late readings alone tell which windows they are in, and which devices' sessions. Of the topic only what those need is
folded: every reading in the steps of time that such a window has, and such a device's readings since a session began.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from service.admission import readings
from service.admission.schema_sources import SchemaSet
from service.aggregation.sessions import rules
from service.pipeline import builder
from service.recompute import rebuild
from service.recompute.rebuild import Source
from service.reference.attributes import Attributes
from service.reference.lookup import LookUp
from service.rejects.reject_log import Coordinates
from service.row_schemas import PARTS, RUNS
from service.settings import Settings
from state import codec, runs, windows
from state.columns import Ints
from state.corrected import only

NEVER_MS = -1
"""A watermark that has passed no window."""


@dataclass(frozen=True, slots=True)
class Base:
    """Without the late readings: windows (state.windows.SCHEMA) that they are in, runs of their devices."""

    windows: pa.Table
    runs: pa.Table


def ends_ms(event_ms: Ints, settings: Settings) -> Ints:
    """When the last window that a reading is in ends, by event time."""
    ends = [event_ms // view.step_ms * view.step_ms + view.window_ms for view in settings.views]
    latest: Ints = np.max(np.stack(ends), axis=0)
    return latest


def touched(late: pa.Table, settings: Settings, attributes: Attributes | None) -> pa.Table:
    """The windows that rows of readings.admit are in, with the part that they are of each: state.windows.SCHEMA."""
    parts = [codec.unpack(b"W", payload) for payload in _folded(late, settings, attributes, PARTS)]
    return windows.advance(windows.empty(), parts, NEVER_MS).open


def late_runs(late: pa.Table, settings: Settings, attributes: Attributes | None) -> pa.Table:
    """Rows of readings.admit as runs."""
    return _runs(_folded(late, settings, attributes, RUNS), settings)


def _folded(late: pa.Table, settings: Settings, attributes: Attributes | None, kind: int) -> Iterator[bytes]:
    """The payloads of a kind."""
    for part in builder.folding(settings, attributes).fold(late) if late.num_rows else ():
        yield from (row["payload"] for row in part.to_pylist() if row["kind"] == kind)


def _runs(payloads: Iterable[bytes], settings: Settings) -> pa.Table:
    tables = [runs.schema(rules(settings).measures).empty_table(), *(codec.unpack(b"R", each) for each in payloads)]
    return pa.concat_tables(tables, promote_options="default")


def with_late(base: pa.Table, late: pa.Table) -> pa.Table:
    """The windows of `late` with what `base` has of each."""
    return windows.advance(base, [late], NEVER_MS).changed


def base(
    spark: SparkSession,
    settings: Settings,
    source: Source,
    late: pa.Table,
    earlier: pa.Table,
    refused: Collection[Coordinates],
    from_ms: Mapping[str, int],
    attributes: Attributes | None,
    look_up: LookUp | None,
    schemas: SchemaSet | None,
    tasks: int,
) -> Base:
    """One batch run. `late` are the windows that are wanted, `earlier` late readings that are in values already.

    `refused` is that of late.Log. `from_ms` has the devices whose runs are wanted, and since when.
    """
    records = rebuild.records(spark, settings, source, refused=refused)
    admitted = readings.admit(records, settings, look_up, schemas=schemas)
    if earlier.num_rows:
        admitted = admitted.unionByName(spark.createDataFrame(earlier))
    near = _near(spark, admitted, settings, late, from_ms).coalesce(tasks)
    folded = builder.fold(near, settings, attributes).where(F.col("kind").isin(PARTS, RUNS))
    rows = folded.repartition(tasks, "bucket").select("kind", "payload")
    step = _Wanted(codec.pack(b"W", late), dict(from_ms))
    found = rows.mapInArrow(step, "kind tinyint, payload binary").toArrow().to_pylist()
    parts = [codec.unpack(b"W", row["payload"]) for row in found if row["kind"] == PARTS]
    of_devices = [row["payload"] for row in found if row["kind"] == RUNS]
    return Base(windows.advance(windows.empty(), parts, NEVER_MS).open, _runs(of_devices, settings))


def _near(
    spark: SparkSession, admitted: DataFrame, settings: Settings, late: pa.Table, from_ms: Mapping[str, int]
) -> DataFrame:
    """The admitted readings that can matter."""
    step = settings.pane_ms
    spans = set(zip(late["start"].to_pylist(), late["end"].to_pylist(), strict=True))
    panes = sorted({pane for start, end in spans for pane in range(start // step, -(-end // step))})
    at = spark.createDataFrame(pa.table({"near_pane": pa.array(panes, pa.int64())}))
    since = spark.createDataFrame(
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
class _Wanted:
    """Payloads in; out come the windows that are wanted (`late`, packed), merged, and the runs of the named devices."""

    late: bytes
    from_ms: dict[str, int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted, merged = codec.unpack(b"W", self.late), windows.empty()
        for row in (row for batch in batches for row in batch.to_pylist()):
            if row["kind"] == PARTS:
                parts = windows.only(codec.unpack(b"W", row["payload"]), wanted)
                merged = windows.advance(merged, [parts], NEVER_MS).open
            else:
                kept = only(codec.unpack(b"R", row["payload"]), self.from_ms)
                if kept.num_rows:
                    yield _row(RUNS, codec.pack(b"R", kept))
        if merged.num_rows:
            yield _row(PARTS, codec.pack(b"W", merged))


def _row(kind: int, payload: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"kind": pa.array([kind], pa.int8()), "payload": pa.array([payload], pa.binary())}
    )

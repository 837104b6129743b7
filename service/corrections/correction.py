"""What closed values become with some late readings in them: computed from Kafka, by the stream's own builders.

The late readings alone tell which windows they are in, and which devices' sessions. Of the topic only what those need is
folded: every reading in the steps of time that such a window has, and such a device's readings since a session began.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from service import pipeline
from service.admission import readings
from service.admission.schemas import Known
from service.aggregation import windows
from service.aggregation.sessions import rules
from service.frames import MOMENTS, OUTPUT, RUNS, WINDOW
from service.recovery import rebuild
from service.recovery.rebuild import Source
from service.reference.attributes import Attributes
from service.reference.lookup import LookUp
from service.settings import Settings
from state import codec, runs
from state.columns import Ints
from state.corrected import only

_OUTPUT = to_arrow_schema(OUTPUT)
KEY = ["view", "measure", "key", "start", "end"]
_MERGED: dict[str, str] = {
    **dict.fromkeys(("count", *MOMENTS), "sum"),
    **dict.fromkeys(("min", "first"), "min"),
    **dict.fromkeys(("max", "last"), "max"),
}


@dataclass(frozen=True, slots=True)
class Base:
    """Without the late readings: windows (WINDOW rows of frames.OUTPUT) that they are in, runs of their devices."""

    windows: pa.Table
    runs: pa.Table


def ends_ms(event_ms: Ints, settings: Settings) -> Ints:
    """When the last window that a reading is in ends, by event time."""
    ends = [event_ms // view.step_ms * view.step_ms + view.window_ms for view in settings.views]
    latest: Ints = np.max(np.stack(ends), axis=0)
    return latest


def touched(late: pa.Table, settings: Settings, attributes: Attributes | None) -> pa.Table:
    """The windows that rows of readings.admit are in, with the part that they are of each."""
    names = [*KEY, *windows.STATISTICS]
    schema = pa.schema([_OUTPUT.field(name) for name in names])
    parts = [part.select(names).cast(schema) for part in _folded(late, settings, attributes, WINDOW)]
    return pa.Table.from_batches(parts, schema)


def late_runs(late: pa.Table, settings: Settings, attributes: Attributes | None) -> pa.Table:
    """Rows of readings.admit as runs."""
    payloads = [each for part in _folded(late, settings, attributes, RUNS) for each in part["payload"].to_pylist()]
    return _runs(payloads, settings)


def _folded(late: pa.Table, settings: Settings, attributes: Attributes | None, kind: int) -> Iterator[pa.RecordBatch]:
    for part in pipeline.folding(settings, attributes).fold(late) if late.num_rows else ():
        yield part.filter(pc.equal(part["kind"], pa.scalar(kind, pa.int8())))


def _runs(payloads: Iterable[bytes], settings: Settings) -> pa.Table:
    tables = [runs.schema(rules(settings).measures).empty_table(), *map(codec.unpack_runs, payloads)]
    return pa.concat_tables(tables, promote_options="default")


def with_late(base: pa.Table, late: pa.Table) -> pa.Table:
    """The windows of `late` with what `base` has of each."""
    merged = pa.concat_tables([base.select(late.column_names), late])
    parts = list(_MERGED.items())
    total = merged.group_by(KEY).aggregate(parts).select([*KEY, *(f"{name}_{how}" for name, how in parts)])
    wanted = late.select(KEY).group_by(KEY).aggregate([])
    return total.rename_columns([*KEY, *_MERGED]).join(wanted, KEY, join_type="left semi").select(late.column_names)


def base(
    spark: SparkSession,
    settings: Settings,
    source: Source,
    late: pa.Table,
    earlier: pa.Table,
    from_ms: Mapping[str, int],
    attributes: Attributes | None,
    look_up: LookUp | None,
    schemas: Known | None,
    tasks: int,
) -> Base:
    """One batch run. `late` are the windows that are wanted, `earlier` late readings that are in values already.

    `from_ms` has the devices whose runs are wanted, and since when.
    """
    records = rebuild.records(spark, settings, source)
    admitted = readings.admit(records, settings, look_up, schemas=schemas).where("reject is null")
    if earlier.num_rows:
        admitted = admitted.unionByName(spark.createDataFrame(earlier))
    folded = pipeline.fold(_near(spark, admitted, settings, late, from_ms).coalesce(tasks), settings, attributes)
    # The count names every column, so that both branches read the same shuffle: see service/pipeline.py.
    shared = pipeline.observe(folded.repartition(tasks, "bucket"))
    wanted = F.broadcast(spark.createDataFrame(late.select(KEY).group_by(KEY).aggregate([])))
    found = windows.aggregate(shared.where(F.col("kind") == WINDOW), settings).join(wanted, KEY, "left_semi")
    chosen = shared.where(F.col("kind") == RUNS).select("payload").mapInArrow(_Only(dict(from_ms)), "payload binary")
    kept = chosen.select(F.lit(RUNS).cast("tinyint").alias("kind"), "payload")
    rows = pipeline.widen(found).union(pipeline.widen(kept)).toArrow()
    is_window = pc.equal(rows["kind"], pa.scalar(WINDOW, pa.int8()))
    payloads = rows.filter(pc.invert(is_window))["payload"].to_pylist()
    return Base(rows.filter(is_window).select([*KEY, *windows.STATISTICS]), _runs(payloads, settings))


def _near(
    spark: SparkSession, admitted: DataFrame, settings: Settings, late: pa.Table, from_ms: Mapping[str, int]
) -> DataFrame:
    """The admitted readings that can matter."""
    step = settings.pane_ms
    spans = {(start, end) for start, end in zip(late["start"].to_pylist(), late["end"].to_pylist(), strict=True)}
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
class _Only:
    """Payloads of runs in, those of the named devices out."""

    from_ms: dict[str, int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for payload in batch["payload"].to_pylist():
                kept = only(codec.unpack_runs(payload), self.from_ms)
                if kept.num_rows:
                    yield pa.RecordBatch.from_pydict({"payload": pa.array([codec.pack_runs(kept)], pa.binary())})

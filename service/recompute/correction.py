"""Compute closed values that include late readings, from Kafka, by the stream's own steps.

The late readings determine the windows and the devices' sessions to compute. Only the readings of these are folded: all
readings in the panes of one of the windows, and those of one of the devices since its session began.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from service.aggregation.sessions import rules
from service.pipeline import builder
from service.recompute.engine import Recomputation
from service.row_schemas import PARTS, RUNS
from service.settings import Settings
from state import codec, runs, windows
from state.columns import Ints
from state.late_sessions import only

NEVER_MS = -1
"""A watermark that has passed no window."""


@dataclass(frozen=True, slots=True)
class Partials:
    """Readings folded: windows (`state.windows.SCHEMA`), and runs (`state.runs.schema`)."""

    windows: pa.Table
    runs: pa.Table


def ends_ms(event_ms: Ints, settings: Settings) -> Ints:
    """The event time at which the last window of each reading ends."""
    ends = [event_ms // view.step_ms * view.step_ms + view.window_ms for view in settings.closing_views]
    latest: Ints = np.max(np.stack([event_ms, *ends]), axis=0)
    return latest


def fold(run: Recomputation, late: pa.Table) -> Partials:
    """Fold rows of readings.admit on the driver."""
    step = builder.folding(run.settings, run.attributes, run.values, views=run.settings.closing_views)
    batches = step.fold(late) if late.num_rows else ()
    return _partials((row for batch in batches for row in batch.to_pylist()), run.settings)


def _partials(rows: Iterable[Mapping[str, Any]], settings: Settings) -> Partials:
    payloads: dict[int, list[bytes]] = {}
    for row in rows:
        payloads.setdefault(row["kind"], []).append(row["payload"])
    parts = [codec.unpack(b"W", payload) for payload in payloads.get(PARTS, ())]
    tables = [codec.unpack(b"R", payload) for payload in payloads.get(RUNS, ())]
    tables.insert(0, runs.schema(rules(settings).measures).empty_table())
    merged = windows.advance(windows.empty(), parts, NEVER_MS).open
    return Partials(merged, pa.concat_tables(tables, promote_options="default"))


def with_late(base: pa.Table, late: pa.Table) -> pa.Table:
    """Return the windows of `late`, each merged with the same window of `base`."""
    return windows.advance(base, [late], NEVER_MS).changed


def base(run: Recomputation, admitted: DataFrame, targets: pa.Table, from_ms: Mapping[str, int]) -> Partials:
    """Return the `targets`, windows of admitted readings, and the runs of each device in `from_ms` since its time there."""
    step = _Targets(codec.pack(b"W", targets), dict(from_ms))
    partials = run.partials(_near(run, admitted, targets, from_ms)).select("kind", "payload")
    rows = partials.mapInArrow(step, "kind tinyint, payload binary").toArrow().to_pylist()
    return _partials(rows, run.settings)


def _near(run: Recomputation, admitted: DataFrame, targets: pa.Table, from_ms: Mapping[str, int]) -> DataFrame:
    """Return the admitted readings in a pane of a target window, or of a device since its time in `from_ms`."""
    step = run.settings.pane_ms
    spans = set(zip(targets["start"].to_pylist(), targets["end"].to_pylist(), strict=True))
    panes = sorted({pane for start, end in spans for pane in range(start // step, -(-end // step))})
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
                kept = only(codec.unpack(b"R", row["payload"]), self.from_ms)
                if kept.num_rows:
                    yield _row(RUNS, codec.pack(b"R", kept))
        if merged.num_rows:
            yield _row(PARTS, codec.pack(b"W", merged))


def _row(kind: int, payload: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"kind": pa.array([kind], pa.int8()), "payload": pa.array([payload], pa.binary())}
    )

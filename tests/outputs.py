"""Rows of row_schemas.OUTPUT as publish gets them, and settings that fit them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from service.aggregation import task_counters
from service.micro_batch import MicroBatch
from service.row_schemas import CHANGES, COUNTS, OUTPUT, REJECT_TYPE, REJECTS
from service.settings import Settings, parse
from state import codec, trails
from state import windows as window_tables
from state.layout import Changes, session_schema, status_schema
from state.statistics import DEFAULT
from state.window_columns import COLUMNS, PaneReadings, columns_of, nothing

SCHEMA = to_arrow_schema(OUTPUT)
MINUTE = 60_000
T0 = 1_700_000_040_000
"""A multiple of a minute."""


def settings(
    url: str, prefix: str = "tidemark", bootstrap: str = "127.0.0.1:1", lease: str = "10 s", **redis: Any
) -> Settings:
    return parse(
        {
            "service": {"checkpoint": "checkpoint", "lease": lease},
            "kafka": {"bootstrap": bootstrap, "topics": ["readings"]},
            "input": {"measures": {"temperature": "temperature", "humidity": "humidity"}},
            "views": [
                {"name": "device_1m", "by": ["device"], "window": "1 m", "retain": "1 h"},
                {"name": "all_1m", "window": "1 m", "retain": "2 h"},
            ],
            "sessions": {"retain": "3 h"},
            "redis": {"url": url, "prefix": prefix, "retry_for": "2 s", "timeout": "2 s", **redis},
        }
    )


def micro_batch(batch: int, epoch: int = 1, watermark_ms: int = 0, end: Mapping[int, int] | None = None) -> MicroBatch:
    return MicroBatch(epoch, batch, watermark_ms, {}, {"readings": end or {0: 10 * batch}}, "")


def row(kind: int, payload: bytes) -> pa.RecordBatch:
    """One row of row_schemas.OUTPUT."""
    return pa.RecordBatch.from_pylist([{"kind": kind, "payload": payload}], SCHEMA)


def window(values: Sequence[float], key: str = "d1", start: int = T0, view: str = "device_1m") -> pa.RecordBatch:
    """One window that has `values`, a second apart."""
    return windows([(view, key, start, values)])


def windows(
    rows: Iterable[tuple[str, str, int, Sequence[float]]], statistics: Sequence[str] = DEFAULT
) -> pa.RecordBatch:
    """(view, key, start, values) each; the measure is temperature."""
    return _changes(windows=window_table(rows, statistics))


def changed(windows: pa.Table) -> pa.RecordBatch:
    """A step that changed these windows."""
    return _changes(windows=windows)


def window_table(
    rows: Iterable[tuple[str, str, int, Sequence[float]]], statistics: Sequence[str] = DEFAULT
) -> pa.Table:
    """The same as a table of windows that have these statistics (state.windows.schema)."""
    rows = list(rows)
    counts = np.array([len(values) for *_, values in rows], np.int64)
    flat = np.array([value for *_, values in rows for value in values], np.float64)
    heads = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.intp)
    starts = np.array([start for _, _, start, _ in rows], np.int64)
    seconds = np.concatenate([np.arange(count) for count in counts.tolist()])
    times = np.repeat(starts, counts) + 1000 * seconds
    readings = PaneReadings(flat, times, heads, counts, np.arange(len(rows), dtype=np.int64))
    columns = {
        "view": pa.array([view for view, *_ in rows]).dictionary_encode(),
        "measure": pa.array(["temperature"] * len(rows)).dictionary_encode(),
        "key": pa.array([key for _, key, *_ in rows]).dictionary_encode(),
        "start": starts,
        "end": starts + MINUTE,
        **{name: COLUMNS[name].fold(readings) for name in columns_of(statistics)},
    }
    return pa.table(columns, schema=window_tables.schema(columns_of(statistics)))


def filled_table(statistics: Sequence[str], value: float) -> pa.Table:
    """A window of d1 at T0 without a reading, into which one of 10 s before it is carried for a minute."""
    there, start = window_table([("device_1m", "d1", T0, [value])], statistics), np.array([T0])
    trail = trails.fold(np.array([value]), start - 10_000, np.zeros(1, np.intp), np.ones(1, np.int64))
    columns = {name: nothing(name, 1) for name in there.column_names if name in COLUMNS}
    columns |= {"last": start - 10_000, "last_value": np.array([value]), "trail": trails.held(trail, start, MINUTE)}
    arrays = [pa.array(columns[f.name], f.type) if f.name in columns else there[f.name] for f in there.schema]
    return pa.table(arrays, schema=there.schema)


def session(device: str = "d1", start: int = T0, **fields: Any) -> dict[str, Any]:
    """A row of state.layout.session_schema: one reading of 20 degrees."""
    plain = {"device": device, "start": start, "last": start, "count": 1, "state": "open", "reason": ""}
    temperature = {"temperature.count": 1, "temperature.sum": 20.0, "temperature.min": 20.0, "temperature.max": 20.0}
    return {**plain, **temperature, "humidity.count": 0, "humidity.sum": 0.0, **fields}


def device(name: str = "d1", last_seen: int = T0, **fields: Any) -> dict[str, Any]:
    """A row of state.layout.status_schema."""
    plain = {"device": name, "status": "online", "last_seen": last_seen, "session": T0}
    return {**plain, "temperature.value": 20.0, "temperature.at": last_seen, **fields}


def changes(sessions: Sequence[Mapping[str, Any]] = (), devices: Sequence[Mapping[str, Any]] = ()) -> pa.RecordBatch:
    """What one call of the operator gives."""
    return _changes(sessions, devices)


def _changes(
    sessions: Sequence[Mapping[str, Any]] = (),
    devices: Sequence[Mapping[str, Any]] = (),
    windows: pa.Table | None = None,
) -> pa.RecordBatch:
    measures = ("temperature", "humidity")
    changed = Changes(
        pa.Table.from_pylist(list(sessions), schema=session_schema(measures)),
        pa.Table.from_pylist(list(devices), schema=status_schema(measures)),
        window_tables.empty() if windows is None else windows,
    )
    return row(CHANGES, codec.pack_changes(changed))


def reject(offset: int = 7, topic: str = "readings", **fields: Any) -> pa.RecordBatch:
    place = {"reason": "late", "detail": "61 s", "broker_ms": T0, "topic": topic, "partition": 0, "offset": offset}
    return row(REJECTS, codec.pack(b"J", pa.Table.from_pylist([{**place, **fields}], to_arrow_schema(REJECT_TYPE))))


def stats(*readings: tuple[int, int]) -> pa.RecordBatch:
    """(broker_ms, count) each."""
    nothing = np.zeros(len(readings), np.int64)
    at, counts = (np.array(column, np.int64) for column in zip(*readings, strict=True))
    payload = task_counters.Tally(nothing + task_counters.LATENCY, nothing, at, counts).pack()
    return row(COUNTS, payload)

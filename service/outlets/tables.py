"""The rows that outlets write: final windows, closed sessions and states as Arrow tables of numbers, times and texts.

The columns of windows do not depend on the settings: a window has null in the statistics that its view does not have. Sessions
have four columns for each measure, and one for each of its statistics of order. Names of columns are letters, digits and _, so
that they are valid in SQL and in Avro.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.publication.rows import local_starts, plain, session_statistics, statistics
from state.columns import TIME
from state.layout import MERGED
from state.rules import ENDLESS_MS
from state.settled import REVISION
from state.statistics import SESSION_STATISTICS, STATISTICS, Shown

WINDOW_KEY = ("view", "measure", "key", "start")
SESSION_KEY = ("device", "start")
NEWEST = ("count", "revision", "epoch", "batch")
"""Of the rows of a key the largest in these columns is the newest: what Redis has forgotten is recomputed with revision 0."""
SETTLED = "settled"
STATE_KEY = ("device", "field", "at", "status")

_STAMP = (
    pa.field("revision", pa.int64(), nullable=False),
    pa.field("closed_by", pa.string(), nullable=False),
    pa.field("epoch", pa.int64(), nullable=False),
    pa.field("batch", pa.int64(), nullable=False),
)


def windows_schema() -> pa.Schema:
    """Return the columns of windows."""
    return pa.schema(
        [
            *(pa.field(name, pa.string(), nullable=False) for name in WINDOW_KEY[:3]),
            pa.field("start", TIME, nullable=False),
            pa.field("end", TIME, nullable=False),
            *(pa.field(name, each.type) for name, each in STATISTICS.items()),
            pa.field("local_start", pa.string()),
            *_STAMP,
        ]
    )


def sessions_schema(ordered: Mapping[str, Iterable[str]]) -> pa.Schema:
    """Return the columns of sessions with these measures, each with its statistics of order."""
    return pa.schema(
        [
            pa.field("device", pa.string(), nullable=False),
            pa.field("start", TIME, nullable=False),
            pa.field("last", TIME, nullable=False),
            pa.field("count", pa.int64(), nullable=False),
            pa.field("duration", pa.int64(), nullable=False),
            pa.field("state", pa.string(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
            pa.field("merged_into", TIME),
            *(
                pa.field(f"{measure}_{name}", STATISTICS[name].type)
                for measure, names in ordered.items()
                for name in (*SESSION_STATISTICS, *names)
            ),
            *_STAMP,
        ]
    )


def states_schema(_: object = None) -> pa.Schema:
    """Return the columns of states."""
    return pa.schema(
        [
            *(pa.field(name, pa.string(), nullable=False) for name in STATE_KEY[:2]),
            pa.field("at", TIME, nullable=False),
            pa.field("was", pa.string()),
            *(pa.field(name, pa.string(), nullable=False) for name in ("status", "why")),
            *_STAMP[2:],
        ]
    )


@dataclass(frozen=True, slots=True)
class Content:
    """The rows of an outlet: the name of one, the columns of its key, of the key of its records in Kafka, of its time, and those
    by which the newest row of a key is found; `schema` is made of the measures and their statistics of order in sessions."""

    name: str
    key: tuple[str, ...]
    record_key: tuple[str, ...]
    time: str
    newest: tuple[str, ...]
    schema: Callable[[Mapping[str, Iterable[str]]], pa.Schema]


CONTENTS = {
    "windows": Content("Window", WINDOW_KEY, WINDOW_KEY, "start", NEWEST, lambda _: windows_schema()),
    "sessions": Content("Session", SESSION_KEY, SESSION_KEY, "start", NEWEST, sessions_schema),
    "states": Content("State", STATE_KEY, STATE_KEY[:2], "at", NEWEST[2:], states_schema),
}
"""By `content` of an outlet's section."""


def windows(
    table: pa.Table,
    chosen: Mapping[str, Shown],
    epoch: int,
    batch: int,
    closed_by: str,
    zones: Mapping[str, str | int] = MappingProxyType({}),
    watermark_ms: int = ENDLESS_MS,
) -> pa.Table:
    """Return rows of `windows_schema` for windows of `state.windows.schema`, with or without REVISION.

    `chosen` has what each view shows, `zones` is that of `local_starts`. Windows that end after `watermark_ms` are
    settled: they have left before they are final.
    """
    columns = plain(table)
    values = statistics(columns, chosen)
    local = local_starts(columns, zones)
    values |= {} if local is None else {"local_start": local}
    schema = windows_schema()
    known = {name: columns[name] for name in (*WINDOW_KEY, "end")}
    known |= values | _stamp(table, epoch, batch, closed_by)
    known["closed_by"] = pc.if_else(pc.greater(columns["end"], watermark_ms), SETTLED, known["closed_by"])
    return _table(known, schema, table.num_rows)


def sessions(
    table: pa.Table, ordered: Mapping[str, Iterable[str]], shown: Shown, epoch: int, batch: int, closed_by: str
) -> pa.Table:
    """Return rows of `sessions_schema` for sessions of `state.layout.session_schema`, with or without REVISION.

    `ordered` has the measures, `shown` how their statistics of order are shown. A merged session has `closed_by` "merged".
    """
    columns: dict[str, Any] = {name: table[name].combine_chunks() for name in table.column_names}
    known = {name: columns[name] for name in ("device", "start", "last", "count", "state", "reason", "merged_into")}
    known["duration"] = pc.subtract(columns["last"], columns["start"])
    known |= {f"{measure}_{name}": values for measure, name, values in session_statistics(columns, shown)}
    known |= _stamp(table, epoch, batch, closed_by)
    known["closed_by"] = pc.if_else(pc.equal(columns["state"], MERGED), MERGED, known["closed_by"])
    return _table(known, sessions_schema(ordered), table.num_rows)


def states(table: pa.Table, epoch: int, batch: int) -> pa.Table:
    """Return rows of `states_schema` for those of service/outlets/transitions.py."""
    known = {name: table[name].combine_chunks() for name in table.column_names}
    return _table(known | _stamp(table, epoch, batch, ""), states_schema(), table.num_rows)


def _stamp(table: pa.Table, epoch: int, batch: int, closed_by: str) -> dict[str, Any]:
    size = table.num_rows
    has_revision = REVISION in table.column_names
    return {
        "revision": table[REVISION].combine_chunks() if has_revision else pa.array(np.zeros(size, np.int64)),
        "closed_by": pa.repeat(closed_by, size),
        "epoch": pa.array(np.full(size, epoch, np.int64)),
        "batch": pa.array(np.full(size, batch, np.int64)),
    }


def _table(columns: dict[str, Any], schema: pa.Schema, size: int) -> pa.Table:
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(size, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)

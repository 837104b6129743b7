"""The columns of the tables: those of schemas/redis.md under their names there, times as timestamps in UTC."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from service.errors import QuestionError
from service.units import rough_bytes
from state.columns import TIME
from state.statistics import STATISTICS
from tidemark_client.values import SESSION_STATISTICS, Meta

LARGEST = 1 << 30
"""Bytes of an answer, and of the rows of `history` that it is computed from."""
_WRITTEN = {"epoch": pa.int64(), "batch": pa.int64(), "updated": TIME}
STATE = pa.schema(
    {
        "kind": pa.string(),
        "bucket": pa.int32(),
        "view": pa.string(),
        "measure": pa.string(),
        "key": pa.string(),
        "start": TIME,
        "end": TIME,
        "last": TIME,
        "count": pa.int64(),
    }
)
"""The state of the checkpoint: `kind` is window, session or device; the key of the last two is the device."""


def _type(statistic: str) -> pa.DataType:
    """Return the type of a statistic; a number for one that only a later version of the service has."""
    return STATISTICS[statistic].type if statistic in STATISTICS else pa.float64()


def windows(meta: Meta) -> pa.Schema:
    """Return the columns of the table `windows`: of the statistics those that any view has."""
    statistics = dict.fromkeys(name for view in meta.views.values() for name in ("count", *view.statistics, "last"))
    return pa.schema(
        {
            "view": pa.string(),
            "measure": pa.string(),
            "key": pa.string(),
            "start": TIME,
            "end": TIME,
            **{name: _type(name) for name in statistics},
            "final": pa.bool_(),
            "closed_by": pa.string(),
            "revision": pa.int64(),
            "complete_from": TIME,
            **(
                {"local_start": pa.string()}
                if any(view.calendar or view.calendars for view in meta.views.values())
                else {}
            ),
            **_WRITTEN,
        }
    )


def sessions(meta: Meta) -> pa.Schema:
    """Return the columns of the table `sessions`."""
    return pa.schema(
        {
            "device": pa.string(),
            "start": TIME,
            "last": TIME,
            "count": pa.int64(),
            "duration": pa.int64(),
            "state": pa.string(),
            "merged_into": TIME,
            "reason": pa.string(),
            "closed_by": pa.string(),
            "revision": pa.int64(),
            **{
                f"{measure}.{name}": _type(name)
                for measure in meta.measures
                for name in meta.session_statistics
                if name in SESSION_STATISTICS or measure in meta.session_measures
            },
            **_WRITTEN,
        }
    )


def devices(meta: Meta, attributes: Sequence[str]) -> pa.Schema:
    """Return the columns of the table `devices`; `attributes` are the columns of the reference."""
    return pa.schema(
        {
            "device": pa.string(),
            "status": pa.string(),
            "last_seen": TIME,
            "session": TIME,
            "skewed": pa.bool_(),
            "early": pa.int64(),
            "early.at": TIME,
            "early.ahead": pa.int64(),
            "early.until": TIME,
            "reference": pa.string(),
            **{f"ref.{name}": pa.string() for name in attributes},
            **{name: kind for m in meta.measures for name, kind in ((m, pa.float64()), (f"{m}.at", TIME))},
            **({f"{m}.status": pa.string() for m in meta.measures} if meta.measure_status else {}),
            **_WRITTEN,
        }
    )


def bounded(rows: pa.RecordBatchReader, what: str, remedy: str) -> pa.Table:
    """Return rows that come in parts. Raises QuestionError for more than LARGEST bytes; `what` begins its text."""
    parts: list[pa.RecordBatch] = []
    size = 0
    for part in rows:
        size += part.nbytes
        if size > LARGEST:
            raise QuestionError(f"{what} more than {rough_bytes(LARGEST)}", remedy=remedy)
        parts.append(part)
    return pa.Table.from_batches(parts, rows.schema)


def table(schema: pa.Schema, rows: int, values: Mapping[str, Sequence[object]]) -> pa.Table:
    """Return a table: `values` are texts as Redis has them, None for none, or values of the column's type. Others are null."""
    return pa.table([_column(field, rows, values.get(field.name)) for field in schema], schema=schema)


def _column(field: pa.Field, rows: int, values: Sequence[object] | None) -> pa.Array:
    if values is None:
        return pa.nulls(rows, field.type)
    if pa.types.is_string(field.type) or pa.types.is_boolean(field.type):
        return pa.array(values, field.type)
    texts = pa.array([value or None for value in values], pa.string())
    return texts.cast(pa.int64()).cast(field.type) if pa.types.is_timestamp(field.type) else texts.cast(field.type)

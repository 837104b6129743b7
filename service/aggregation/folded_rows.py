"""Rows of row_schemas.FOLDED: what a task sends to the buckets."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema

from service.aggregation import task_counters
from service.aggregation.task_counters import Tally
from service.row_schemas import COUNTS, FOLDED

_FOLDED = to_arrow_schema(FOLDED)

Ints = NDArray[np.int64]


def by_bucket(
    kind: int, bucket: NDArray[np.int32], table: pa.Table, pack: Callable[[pa.Table], bytes], first: Ints | None = None
) -> pa.RecordBatch:
    """Return one row of FOLDED for each bucket, with its rows of `table`, which is not empty."""
    order = np.argsort(bucket, kind="stable")
    ordered = bucket[order]
    heads = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(heads, append=len(ordered))
    if len(heads) > 1:
        table = table.take(pa.array(order))
    parts = [table.slice(head, length) for head, length in zip(heads.tolist(), lengths.tolist(), strict=True)]
    earliest = None if first is None else np.minimum.reduceat(first[order], heads)
    return rows(kind, ordered[heads], [pack(part) for part in parts], earliest)


def counts(tallies: Sequence[Tally]) -> pa.RecordBatch:
    """Return one row with the counts of all tallies."""
    return rows(COUNTS, np.zeros(1, np.int32), [task_counters.total(tallies).pack()])


def rows(kind: int, bucket: NDArray[np.int32], payloads: list[bytes], first: Ints | None = None) -> pa.RecordBatch:
    """Return a row for each payload; `first` orders the payloads of a bucket in a recomputation."""
    columns = [np.full(len(bucket), kind, np.int8), bucket, first, payloads]
    arrays = [
        pa.nulls(len(bucket), field.type) if column is None else pa.array(column, field.type)
        for column, field in zip(columns, _FOLDED, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_FOLDED)

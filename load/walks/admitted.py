"""Rows as admission leaves them (readings.admit), for tests that begin behind it."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def schema(measures: Iterable[str]) -> pa.Schema:
    """The columns that the partial aggregation reads; times in ms since the epoch."""
    return pa.schema(
        [
            ("bucket", pa.int32()),
            ("device", pa.string()),
            ("event_ms", pa.int64()),
            ("broker_ms", pa.int64()),
            ("from_partition", pa.int32()),
            ("offset", pa.int64()),
            *((measure, pa.float64()) for measure in measures),
            ("reject", pa.string()),
        ]
    )


def readings(device: Sequence[str], event_ms: Any, broker_ms: Any, **measures: Any) -> pa.RecordBatch:
    """Return readings of one bucket and partition, one array a column; their offsets are their numbers."""
    size = len(device)
    columns = {
        "bucket": np.zeros(size, np.int32),
        "from_partition": np.zeros(size, np.int32),
        "offset": np.arange(size),
        "device": device,
        "event_ms": event_ms,
        "broker_ms": broker_ms,
        "reject": pa.nulls(size, pa.string()),
        **measures,
    }
    form = schema(measures)
    return pa.RecordBatch.from_arrays([pa.array(columns[each.name], each.type) for each in form], schema=form)

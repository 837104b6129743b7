"""Rows as admission leaves them (readings.admit), for tests that begin behind it."""

from collections.abc import Iterable

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

"""The two frames of the pass: FOLDED, what leaves the fold and crosses the one shuffle; OUTPUT, what reaches publish.

Neither depends on the settings: views and measures are values in these frames, never columns of the state's schema, so
that adding one of them leaves a running checkpoint valid.
"""

from typing import Any

from pyspark.sql import types as t

WINDOW = 0
RUNS = SESSIONS = 1
REJECT = 2
STATS = 3
"""`kind` of a row. RUNS are SESSIONS after the state operator."""

REJECT_TYPE = t.StructType(
    [
        t.StructField("reason", t.StringType()),
        t.StructField("detail", t.StringType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("broker_ms", t.LongType()),
        t.StructField("key", t.BinaryType()),
        t.StructField("value", t.BinaryType()),
        t.StructField(
            "headers",
            t.ArrayType(
                t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]),
            ),
        ),
        t.StructField("omitted", t.IntegerType()),
        t.StructField("device", t.StringType()),
        t.StructField("ahead_ms", t.LongType()),
    ]
)
"""`omitted` is the size of a value that is left out for being too large; key and headers are left out with it. `device`
and `ahead_ms`, by how much its clock was ahead of the broker's, are those of an early reading."""

REJECT_AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Reject",
    "namespace": "tidemark",
    "fields": [
        {"name": "reason", "type": "string"},
        {"name": "detail", "type": ["null", "string"]},
        {"name": "topic", "type": "string"},
        {"name": "partition", "type": "int"},
        {"name": "offset", "type": "long"},
        {"name": "broker_ms", "type": "long"},
        {"name": "key", "type": ["null", "bytes"]},
        {"name": "value", "type": ["null", "bytes"]},
        {
            "name": "headers",
            "type": [
                "null",
                {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Header",
                        "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": ["null", "bytes"]}],
                    },
                },
            ],
        },
        {"name": "omitted", "type": ["null", "int"]},
        {"name": "device", "type": ["null", "string"]},
        {"name": "ahead_ms", "type": ["null", "long"]},
    ],
}
"""REJECT_TYPE on its way into the fold, as one column: a nested one would cost every admitted reading a dozen nulls."""

MOMENTS = ("sum_hi", "sum_lo", "sq_a", "sq_b", "sq_c")
"""Columns that merge by addition: see service/aggregation/moments.py."""

_PUBLISHED = [
    t.StructField("view", t.StringType()),
    t.StructField("measure", t.StringType()),
    t.StructField("key", t.StringType()),
    t.StructField("start", t.LongType()),
    t.StructField("end", t.LongType()),
    t.StructField("count", t.LongType()),
    *(t.StructField(name, t.DoubleType()) for name in MOMENTS),
    t.StructField("min", t.DoubleType()),
    t.StructField("max", t.DoubleType()),
    t.StructField("first", t.LongType()),
    t.StructField("last", t.LongType()),
    t.StructField("payload", t.BinaryType()),
    t.StructField("reject", REJECT_TYPE),
]

FOLDED = t.StructType(
    [
        t.StructField("kind", t.ByteType()),
        t.StructField("bucket", t.IntegerType()),
        t.StructField("unknown", t.LongType()),
        *_PUBLISHED,
    ]
)
"""WINDOW: a task's part of a window. RUNS: payload (state.codec.pack_runs), count = readings, first and last event time.
REJECT: reject. STATS: payload, count = readings admitted, unknown = those of devices that the reference lacks."""

OUTPUT = t.StructType([t.StructField("kind", t.ByteType()), *_PUBLISHED])
"""WINDOW: a window as far as it goes. SESSIONS: payload (state.codec.pack_changes). REJECT and STATS as above."""

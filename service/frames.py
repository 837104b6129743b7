"""The two frames of the pass: FOLDED, what leaves the fold and crosses the one shuffle; OUTPUT, what reaches publish.

Neither depends on the settings: views and measures are values in these frames, never columns of the state's schema, so
that adding one of them leaves a running checkpoint valid.
"""

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
        t.StructField("device", t.StringType()),
        t.StructField("ahead_ms", t.LongType()),
        t.StructField("schema_id", t.LongType()),
    ]
)
"""A reject without its bytes: these stay in Kafka until they are copied (service/rejects/fetch.py). Only an early reading has
`device` and `ahead_ms`, by how much the device's clock was ahead of the broker's; only an unknown schema has `schema_id`."""

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

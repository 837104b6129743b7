"""The row schemas of the pass: FOLDED crosses the one shuffle, OUTPUT reaches publish. A row is one packed payload.

    FOLDED    kind, bucket, first, payload     a task's part for a bucket: folded readings, or rejects
    OUTPUT    kind, payload                    changes of a bucket by the operator, and rows passed through

Neither depends on the settings: views and measures are values in the payloads, so adding one of them leaves a running
checkpoint valid.
"""

from pyspark.sql import types as t

from state.processor import CHANGES, COUNTS, FINALS, OUTPUT, PARTS, REJECTS, RUNS, SIZE, TIMES, unpack_size

__all__ = [
    "CHANGES",
    "COUNTS",
    "FINALS",
    "FOLDED",
    "OUTPUT",
    "PARTS",
    "REJECTS",
    "REJECT_TYPE",
    "RUNS",
    "SIZE",
    "TIMES",
    "unpack_size",
]

REJECT_TYPE = t.StructType(
    [
        t.StructField("reason", t.StringType()),
        t.StructField("detail", t.StringType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("broker_ms", t.LongType()),
        t.StructField("device", t.StringType()),
        t.StructField("event_ms", t.LongType()),
        t.StructField("watermark_ms", t.LongType()),
        t.StructField("schema_id", t.LongType()),
        t.StructField("index", t.IntegerType()),
    ]
)
"""A reject without its bytes: these stay in Kafka until they are copied (service/rejects/fetch.py). Early and late readings and
those that are ahead have `device`. Early and late readings and those behind the watermark have `event_ms`, the last ones
`watermark_ms`, too. Only an unknown schema has `schema_id`, and only an element of an array has `index`."""

FOLDED = t.StructType(
    [
        t.StructField("kind", t.ByteType()),
        t.StructField("bucket", t.IntegerType()),
        t.StructField("first", t.LongType()),
        t.StructField("payload", t.BinaryType()),
    ]
)
"""PARTS: `codec.pack(b"W", parts of windows)`. RUNS: `codec.pack(b"R", runs)`. Both with the first event time (ms) in `first`.
REJECTS: `codec.pack(b"J", table of REJECT_TYPE)`. COUNTS: `task_counters.Tally.pack`. TIMES: `state.watermark.report`."""

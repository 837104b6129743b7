"""Sessions against an independent oracle: Spark's `session_window` in batch mode, on the same readings.

`max_duration` has no counterpart in Spark, so it is out of reach here; gaps of exactly the session gap are in.
"""

import random

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from state.rules import Rules
from state.runs import schema
from state.table import advance
from tests.runs import fold

# py4j leaves its sockets to the garbage collector.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:.*socket:ResourceWarning")]

GAP_MS = 10_000
RULES = Rules(gap_ms=GAP_MS, max_duration_ms=1 << 40, retain_ms=0, measures=("t",))


def readings(seed):
    """(device, ms, value): walks whose steps lie at, just below and just above the gap, or are random."""
    rng = random.Random(seed)
    rows = []
    for device in range(40):
        ms = 1_700_000_000_000 + rng.randrange(100_000)
        for _ in range(rng.randrange(1, 40)):
            rows.append((f"device-{device}", ms, rng.randrange(-800, 800) / 8))
            ms += rng.choice([0, 1, GAP_MS - 1, GAP_MS, GAP_MS + 1, rng.randrange(3 * GAP_MS), 10 * GAP_MS])
    rng.shuffle(rows)
    return rows


def by_spark(spark, rows):
    frame = spark.createDataFrame(rows, "device string, ms bigint, value double")
    gap = sf.expr(f"INTERVAL {GAP_MS} MILLISECONDS")
    sessions = frame.groupBy(
        "device", sf.session_window(sf.timestamp_millis("ms"), f"{GAP_MS} milliseconds").alias("session")
    ).agg(sf.count("*"), sf.sum("value"), sf.min("value"), sf.max("value"))
    flat = sessions.select(
        "device",
        sf.unix_millis("session.start"),
        sf.unix_millis(sf.col("session.end") - gap),  # Spark's end is the last reading plus the gap
        *sessions.columns[2:],
    )
    return sorted(tuple(row) for row in flat.collect())


def by_us(rows, seed):
    """Closed sessions after the readings came in random batches with the watermark held back."""
    rng, state = random.Random(seed), None
    rest = list(rows)
    while rest:
        size = rng.randrange(1, 200)
        batch, rest = rest[:size], rest[size:]
        device, ms, value = zip(*batch, strict=True)
        runs = fold(pa.array(device), np.array(ms, np.int64), {"t": np.array(value)}, RULES)
        state, _ = advance(state, runs, 0, RULES)
    closed = advance(state, schema(RULES.measures).empty_table(), 1 << 41, RULES)[1].sessions.to_pylist()
    assert {row["state"] for row in closed} == {"closed"}
    names = ("device", "start", "last", "count", "t.sum", "t.min", "t.max")
    return sorted(tuple(row[name] for name in names) for row in closed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sessions_are_those_of_session_window(spark, seed):
    rows = readings(seed)
    assert by_us(rows, seed) == by_spark(spark, rows)

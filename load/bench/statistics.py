"""What statistics cost: a window with each, six, twelve and all of them, from its readings to its row in Redis.

`READINGS` readings of each of `DEVICES` devices are folded, merged into the windows of a state, and published, batch after batch.
The windows stay the same, so every batch but the first changes what is there. The median batch counts.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from load.bench import rows
from load.servers.redis import Redis
from load.walks import admitted
from service.aggregation.partial_aggregation import Fold
from service.aggregation.screen import Screen
from service.row_schemas import CHANGES, PARTS
from state import codec, windows
from state.layout import Changes
from state.rules import Rules
from state.statistics import ORDERED, STATISTICS

DEVICES, READINGS, BATCHES = 10_000, 6, 5
_MEASURE = "temperature"
_SIX = ("count", "sum", "mean", "min", "max", "stddev")
_TWELVE = (*_SIX, "first", "last", "first_value", "last_value", "delta", "rate")
SETS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in STATISTICS},
    "six": _SIX,
    "twelve": _TWELVE,
    "order": ORDERED,
    "all": tuple(STATISTICS),
}
"""By name; every set has `count` and `last` in addition."""


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """By set: microseconds a window to fold and merge its readings (CPU), to publish it, and of Redis; bytes of state and row."""
    figures = {}
    for name, statistics in SETS.items():
        with Redis(folder / name) as server:
            figures[name] = _measured(server, statistics)
    return figures


def _measured(server: Redis, statistics: tuple[str, ...]) -> dict[str, float]:
    view = {"name": "device", "by": ["device"], "window": "1 m", "statistics": list(statistics)}
    first = rows.sink(server.url, 0, rows.START_MS, view=view)
    rows.begin_term(first)
    rules = Rules(gap_ms=60_000, max_duration_ms=3_600_000, retain_ms=0, measures=(_MEASURE,))
    fold = Fold(Screen(("readings",), 1), rules, [(first.settings.views[0], (_MEASURE,))], first.settings.pane_ms)
    table, folded, published = windows.empty(), [], []
    for batch in range(BATCHES):
        readings = _readings(batch)
        began = time.process_time()
        sent = [row for each in fold(iter([readings])) for row in each.to_pylist() if row["kind"] == PARTS]
        table = windows.advance(table, [codec.unpack(b"W", row["payload"]) for row in sent], 0).open
        folded.append((time.process_time() - began) / DEVICES * 1e6)
        sink = rows.sink(server.url, batch, rows.START_MS, view=view)
        published.append(rows.timed([server], DEVICES, rows.publish, sink, _output(table)))
    with server.client() as client:
        row: Any = client.hgetall(f"tidemark:window:device:{_MEASURE}:device-000000:{rows.START_MS}")
    redis_us, row_us = np.median(published[1:], axis=0).tolist()
    return {
        "fold_us": round(float(np.median(folded[1:])), 2),
        "row_us": round(row_us, 2),
        "row_redis_us": round(redis_us, 2),
        "state_bytes": round(table.nbytes / DEVICES),
        "row_bytes": sum(len(name) + len(value) for name, value in row.items()),
    }


def _readings(batch: int) -> pa.RecordBatch:
    size = DEVICES * READINGS
    number = np.arange(size)
    event_ms = rows.START_MS + 1_000 * (READINGS * batch + number % READINGS)
    devices = [f"device-{each:06d}" for each in (number // READINGS).tolist()]
    values = np.random.default_rng(batch).normal(20.0, 3.0, size)
    return admitted.readings(devices, event_ms, event_ms, **{_MEASURE: values})


def _output(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"kind": CHANGES, "payload": codec.pack_changes(Changes.of_windows(table))}])

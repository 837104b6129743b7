"""What removal of duplicates costs a reading: the fold of a task with and without it, and the bytes of remembered keys.

`READINGS` readings a batch of `DEVICES` devices, one in a hundred a copy; keys are remembered for `REMEMBERED` batches.
The median batch counts. What it costs a batch of the service is `batch_to_plain` (load/bench/__main__.py).
"""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from load.bench import rows
from load.walks import admitted
from service.aggregation import seen_keys
from service.aggregation.partial_aggregation import Fold
from service.aggregation.screen import Screen
from service.settings import View
from service.spark.batch_context import BatchContext
from state.rules import Rules
from state.watermark import EventTime

DEVICES, READINGS, BATCHES, REMEMBERED = 10_000, 20_000, 60, 30
_MEASURE, _STEP_MS = "temperature", 2_000


def measure(folder: Path) -> dict[str, float]:
    """Microseconds a reading to fold it, plain and with duplicates removed; bytes in memory and on disk of a remembered one."""
    plain, distinct = [], []
    for batch in range(BATCHES):
        readings = _readings(batch)
        plain.append(_timed(readings, batch, None))
        distinct.append(_timed(readings, batch, folder))
    memory = seen_keys._CACHE[str(folder), 0].memory
    keys = READINGS * REMEMBERED
    files = [path for path in folder.glob("distinct/0/*") if path.suffix == ".delta"]
    stored = sum(path.stat().st_size for path in files)
    seen_keys._CACHE.clear()
    return {
        "fold_us": round(float(np.median(plain[1:])), 2),
        "fold_distinct_us": round(float(np.median(distinct[1:])), 2),
        "state_bytes": round(memory.nbytes / len(memory), 1),
        "disk_bytes": round(stored / len(files) / READINGS, 1),
        "remembered": keys,
    }


def _floor_ms(batch: int) -> int:
    return rows.START_MS + _STEP_MS * (batch - REMEMBERED)


def _timed(readings: pa.RecordBatch, batch: int, folder: Path | None) -> float:
    rules = Rules(gap_ms=60_000, max_duration_ms=3_600_000, retain_ms=0, measures=(_MEASURE,))
    view = View(name="device", by=("device",), window=60_000)
    before = EventTime(_floor_ms(batch), rows.START_MS + _STEP_MS * batch)
    distinct = None if folder is None else (str(folder), batch, 1, _floor_ms(batch))
    context = BatchContext(before, distinct=distinct)
    fold = Fold(Screen(("readings",), 1), rules, [(view, (_MEASURE,))], 60_000, context=lambda: context)
    began = time.perf_counter()
    for _ in fold(iter([readings])):
        pass
    return (time.perf_counter() - began) / READINGS * 1e6


def _readings(batch: int) -> pa.RecordBatch:
    chance = np.random.default_rng(batch)
    number = np.arange(READINGS)
    number[chance.integers(0, READINGS, READINGS // 100)] = 0
    devices = [f"device-{each:06d}" for each in (number % DEVICES).tolist()]
    at_ms = rows.START_MS + _STEP_MS * batch
    values = chance.normal(20.0, 3.0, READINGS)
    return admitted.readings(devices, at_ms + number // DEVICES, np.full(READINGS, at_ms), **{_MEASURE: values})

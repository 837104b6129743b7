"""Closed values as readers find them in Redis and in folders of Parquet, and the differences between two sets of them."""

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from load.judge import published
from load.judge.hashes import RELATIVE
from load.testbed import Testbed

OF_THE_WRITER = {"epoch", "batch", "updated", "revision"}
"""Fields that say who wrote a value and when."""
_ROUNDED = ("sum", "mean", "stddev")

Value = Mapping[str, Any]
Values = Mapping[tuple[str, ...], Value]


def in_redis(testbed: Testbed, watermark_ms: int, gap_ms: int) -> Values:
    """Return the windows and sessions in Redis that a watermark has closed."""
    found: dict[tuple[str, ...], Value] = {}
    with testbed.redis_client(encoding_errors="surrogateescape") as client:
        for key, value in published.hashes(client, "tidemark", ("window", "session")):
            end = int(value["end"]) if key.startswith("tidemark:window:") else int(value["last"]) + gap_ms + 1
            if value.get("state", "closed") == "closed" and end <= watermark_ms:
                found[(key,)] = _plain(value)
    return found


def in_files(path: Path, names: tuple[str, ...], watermark_ms: int, gap_ms: int) -> Values:
    """Return the rows of a folder that a watermark has closed, by the columns `names`; further rows of a key have a number."""
    found: dict[tuple[str, ...], Value] = {}
    times = Counter[tuple[str, ...]]()
    table = ds.dataset(path, format="parquet", partitioning="hive").to_table() if path.exists() else None
    for row in table.to_pylist() if table is not None else ():
        value = _plain({key: _ms(each) for key, each in row.items()})
        if (value["end"] if "end" in value else value["last"] + gap_ms + 1) <= watermark_ms:
            key = tuple(str(value[name]) for name in names)
            times[key] += 1
            found[key if times[key] == 1 else (*key, f"row {times[key]}")] = value
    return found


def missing(right: Values, actual: Values) -> list[str]:
    """Return the keys that are not there, as texts."""
    return [f"{key} is missing" for key in sorted(right.keys() - actual.keys())]


def duplicates(right: Values, actual: Values) -> list[str]:
    """Return the rows of keys that are there already, as texts."""
    return [f"{key} is there again" for key in sorted(actual.keys() - right.keys()) if key[-1].startswith("row ")]


def differences(right: Values, actual: Values) -> list[str]:
    """Return the values that differ and the keys that only one side has, as texts."""
    other = [key for key in sorted(actual.keys() - right.keys()) if not key[-1].startswith("row ")]
    different = [key for key in sorted(right.keys() & actual.keys()) if not _is_same(right[key], actual[key])]
    return [f"{key} is {actual[key]} instead of {right.get(key)}" for key in (*different, *other)]


def _is_same(right: Value, actual: Value) -> bool:
    """Whether two values are equal, but for the rounding of sums that were added in another order."""
    return right.keys() == actual.keys() and all(
        right[name] == actual[name] or (name.endswith(_ROUNDED) and _is_close(right[name], actual[name], right))
        for name in right
    )


def _is_close(right: Any, actual: Any, value: Value) -> bool:
    if right is None or actual is None:
        return False
    extremes = [abs(float(each)) for name, each in value.items() if name.endswith(("min", "max")) and each is not None]
    return math.isclose(float(right), float(actual), rel_tol=RELATIVE, abs_tol=RELATIVE * max(extremes, default=0.0))


def _plain(value: Value) -> Value:
    return {name: each for name, each in value.items() if name not in OF_THE_WRITER}


def _ms(value: Any) -> Any:
    return round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value

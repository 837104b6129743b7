"""Windows: every view's window averages in one native aggregation.

A view is a value, not an operator: the fold spreads each pane over the windows of all views that it lies in, and one
aggregation groups by (view, measure, key, window). Adding a view, a measure or a window length changes neither the plan nor
the schema of the state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from service.frames import MOMENTS, WINDOW
from service.reference.attributes import DEVICE
from service.settings import Settings, View
from state.columns import factorise

ALL = "all"
NONE = "(none)"
"""Key text of a view over all devices, and of an attribute that a device lacks."""


Stats = dict[str, NDArray[Any]]
"""Mergeable statistics by name: one array element per row."""

_MERGE: Mapping[str, np.ufunc] = {
    "count": np.add,
    **dict.fromkeys(MOMENTS, np.add),
    "min": np.minimum,
    "max": np.maximum,
    "first": np.minimum,
    "last": np.maximum,
}
STATISTICS = tuple(_MERGE)


@dataclass(frozen=True, slots=True)
class Panes:
    """One measure's panes of one task: `code` is the device's place in the task's devices, `start` in ms."""

    code: NDArray[Any]
    start: NDArray[np.int64]
    statistics: Stats


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a view among the task's devices: `of` is each device's group, `keys` the groups' texts."""

    of: NDArray[Any]
    keys: pa.Array


def groups(view: View, devices: pa.Array, attributes: pa.Table | None) -> Groups:
    """Which group of the view each device is in, by the text that names it: see schemas/redis.md, Keys."""
    if not view.by:
        return Groups(np.zeros(len(devices), np.int64), pa.array([ALL]))
    if view.by == (DEVICE,):
        return Groups(np.arange(len(devices)), devices)
    columns = [devices if name == DEVICE or attributes is None else attributes[name] for name in view.by]
    if len(columns) == 1:
        text = pc.fill_null(columns[0], NONE)
    else:
        # Escaped, or ("a|b", "c") and ("a", "b|c") would share a key and a device could write into another's window.
        text = pc.binary_join_element_wise(*(pc.fill_null(_escaped(column), NONE) for column in columns), "|")
    return Groups(*factorise(text))


def spread(view: View, panes: Panes, found: Groups) -> tuple[pa.Array, NDArray[np.int64], Stats]:
    """The panes as rows of the view's windows: key, start in ms and statistics, each window of a group once."""
    group, start, statistics = found.of[panes.code], panes.start, panes.statistics
    step, many = view.step_ms, view.window_ms // view.step_ms
    if many > 1:
        # Merged to the slide first: what is written n times after that is as little as it can be.
        group, start, statistics = _merge(group, start - start % step, statistics)
        back = np.repeat(np.arange(many) * step, len(start))
        group, start = np.tile(group, many), np.tile(start, many) - back
        statistics = {name: np.tile(values, many) for name, values in statistics.items()}
    group, start, statistics = _merge(group, start - start % step, statistics)
    return found.keys.take(pa.array(group)), start, statistics


def _merge(
    group: NDArray[Any], start: NDArray[np.int64], statistics: Stats
) -> tuple[NDArray[Any], NDArray[np.int64], Stats]:
    """Rows of one group and start become one."""
    order = np.lexsort((start, group))
    group, start = group[order], start[order]
    heads = np.flatnonzero(np.r_[True, (group[1:] != group[:-1]) | (start[1:] != start[:-1])])
    merged = {name: _MERGE[name].reduceat(values[order], heads) for name, values in statistics.items()}
    return group[heads], start[heads], merged


def _escaped(column: Any) -> Any:
    return pc.replace_substring(pc.replace_substring(column, "%", "%25"), "|", "%7C")


def aggregate(rows: DataFrame, settings: Settings) -> DataFrame:
    """The one aggregation: WINDOW rows of frames.FOLDED in, of frames.OUTPUT out, as far as they go."""
    # The engine recognises the column of a watermark by this metadata (EventTimeWatermark.delayKey in Spark's source,
    # checked with 4.1.1). `window()` would set it too, but takes one length per operator.
    marked = {"spark.watermarkDelayMs": settings.admission.watermark_delay_ms}
    span = F.struct(F.timestamp_millis("start").alias("start"), F.timestamp_millis("end").alias("end"))
    spanned = rows.select("view", "measure", "key", span.alias("window", metadata=marked), *STATISTICS)
    sums = [F.sum(name).alias(name) for name in ("count", *MOMENTS)]
    grouped = spanned.groupBy("view", "measure", "key", "window").agg(
        *sums,
        F.min("min").alias("min"),
        F.max("max").alias("max"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )
    return published(grouped, *STATISTICS)


def published(rows: DataFrame, *statistics: str) -> DataFrame:
    """Rows by view, measure, key and window (struct) as WINDOW rows of frames.OUTPUT; `statistics` are the other columns."""
    return rows.select(
        F.lit(WINDOW).cast("tinyint").alias("kind"),
        "view",
        "measure",
        "key",
        F.unix_millis("window.start").alias("start"),
        F.unix_millis("window.end").alias("end"),
        *statistics,
    )

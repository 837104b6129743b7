"""Find the late readings that are copies of another reading, for `admission.distinct`: a correction does not count them.

The stream remembers readings until the watermark has passed them. A copy that comes later is rejected as late, like any reading.
"""

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from service.admission import expansion
from service.admission.readings import KEPT, SECOND
from state.columns import Bools

_ORDER = (*(KEPT + name for name in ("topic", "partition", "offset")), expansion.INDEX)


def copies(readings: pa.Table, earlier: pa.Table, admitted: DataFrame) -> Bools:
    """Return which readings are copies of an earlier or an admitted one, or of one before them by topic, partition and offset.

    All are rows of `readings.admit`, the first two with their places.
    """
    names = _names(readings)
    seen = {key for key in _keys(earlier) if None not in key} | _admitted(readings.select(names), admitted)
    is_copy = np.zeros(readings.num_rows, np.bool_)
    numbered = readings.append_column("row", pa.array(np.arange(readings.num_rows))).sort_by(
        [(name, "ascending") for name in _ORDER if name in readings.column_names]
    )
    for row, key in zip(numbered["row"].to_pylist(), _keys(numbered), strict=True):
        is_copy[row] = key in seen
        if None not in key:
            seen.add(key)
    return is_copy


def _names(table: pa.Table) -> list[str]:
    return ["device", SECOND if SECOND in table.column_names else "event_ms"]


def _keys(table: pa.Table) -> list[tuple[str | int | None, ...]]:
    return list(zip(*(table[name].to_pylist() for name in _names(table)), strict=True))


def _admitted(keys: pa.Table, admitted: DataFrame) -> set[tuple[str | int | None, ...]]:
    """The keys that admitted readings have, too."""
    wanted = keys.rename_columns(["copy_device", "copy_second"]).group_by(["copy_device", "copy_second"]).aggregate([])
    chosen = F.broadcast(admitted.sparkSession.createDataFrame(wanted))
    device, second = (F.col(f"`{name}`") for name in keys.column_names)
    found = admitted.join(chosen, (device == F.col("copy_device")) & (second == F.col("copy_second")))
    return {tuple(row) for row in found.select("copy_device", "copy_second").distinct().collect()}

"""Look up devices for admission, if the settings need it: whether a device is in the reference, and its own ranges.

The size of the reference at the query's start decides between two ways:

    JoinLookUp   a broadcast join with the persisted rows of the reference. It needs no Python worker, which is faster for small
                 batches; per million readings it takes seconds more, growing with the rows of the reference
    UdfLookUp    the look-up of attributes.py in a Python UDF: about 1 s per million readings for any size of the reference
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf

from service.reference.attributes import DEVICE, Attributes
from service.reference.current_snapshot import CurrentSnapshot
from service.settings import Settings

KNOWN = "known"
LARGEST_JOINED = 500
"""Rows. At 1,000 a small batch takes the same time either way, and a large one is three times as fast with the UDF."""

LookUp = Callable[[DataFrame], DataFrame]
"""Adds columns to a frame with `device`: `known`, true for a known device, and the string columns that `bounds` names."""


def bounds(settings: Settings) -> dict[str, str]:
    """Return the reference's columns with the ranges, by their name in the frame: `low_<measure>` and `high_<measure>`."""
    ranges = settings.reference.ranges if settings.reference is not None else {}
    return {
        f"{side}_{m}": column for m, pair in ranges.items() for side, column in zip(("low", "high"), pair, strict=True)
    }


def needed(settings: Settings) -> bool:
    """Whether admission needs a look-up."""
    return settings.reference is not None and (
        settings.admission.unknown_device == "reject" or bool(settings.reference.ranges)
    )


def choose(settings: Settings, current_snapshot: CurrentSnapshot | None) -> LookUp | None:
    """Return the faster look-up for the present size of the reference; None if none is needed."""
    if current_snapshot is None or not needed(settings):
        return None
    if current_snapshot.snapshot.table.num_rows <= LARGEST_JOINED:
        return JoinLookUp(current_snapshot.frame, bounds(settings))
    return UdfLookUp(current_snapshot.attributes, bounds(settings))


@dataclass(frozen=True)
class JoinLookUp:
    """A look-up by a join with `frame`, which has `device` and the columns; `names` maps each returned name to its column."""

    frame: DataFrame
    names: dict[str, str]

    def __call__(self, readings: DataFrame) -> DataFrame:
        columns = [F.col(f"`{column}`").alias(name) for name, column in self.names.items()]
        devices = self.frame.select(DEVICE, F.lit(True).alias(KNOWN), *columns)
        return readings.join(F.broadcast(devices), DEVICE, "left")


@dataclass(frozen=True)
class UdfLookUp:
    """A look-up in `attributes` by a UDF; `names` maps each returned name to its column."""

    attributes: Attributes
    names: dict[str, str]

    def __call__(self, readings: DataFrame) -> DataFrame:
        strings = [t.StructField(name, t.StringType()) for name in self.names]
        returned = t.StructType([t.StructField(KNOWN, t.BooleanType()), *strings])
        make: Any = arrow_udf  # its stub (4.1.1) does not allow a struct as the result
        udf = make(self._look_up(), returned)
        frame = readings.withColumn("found", udf(F.col(DEVICE)))
        return frame.select("*", *(F.col(f"found.{name}").alias(name) for name in (KNOWN, *self.names))).drop("found")

    def _look_up(self) -> Callable[[pa.Array], pa.Array]:
        names = dict(self.names)
        attributes = self.attributes.only(list(dict.fromkeys(names.values())))

        def look_up(devices: pa.Array) -> pa.Array:
            encoded = devices.fill_null("").dictionary_encode()
            rows = attributes.of(_readable(encoded.dictionary)).take(encoded.indices)
            columns = [rows[column].combine_chunks() for column in (KNOWN, *names.values())]
            return pa.StructArray.from_arrays(columns, [KNOWN, *names])

        return look_up


def _readable(devices: pa.Array) -> pa.Array:
    """Return the ids as valid text, with replacement characters in ids that are no UTF-8.

    Spark calls the UDF for such records too; admission rejects them, so the result for them is not used.
    """
    try:
        devices.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([each.decode(errors="replace") for each in devices.cast(pa.binary()).to_pylist()], pa.string())
    return devices

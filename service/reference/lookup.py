"""Look-ups: what admission asks the reference about the device of a reading, where the settings make it ask.

It asks whether the device is there, when unknown ones are rejected, and for its ranges, when the reference has such columns.
Admission is native, so there are two ways, and the size of the reference decides between them when the query starts:

    Joined   a broadcast join with the persisted rows of the reference: a few rows are broadcast in no time, and a small batch
             needs no further Python worker; but per million readings it takes seconds more, and more with its rows
    Asked    the look-up of attributes.py from a UDF over the devices' names: a hop to Python, about 1 s per million
             readings whatever the size
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
from service.reference.snapshots import CurrentSnapshot
from service.settings import Settings

KNOWN = "known"
LARGEST_JOINED = 500
"""Rows. At 1,000 a small batch is already as fast either way, and a large one three times as fast when Python is asked."""

LookUp = Callable[[DataFrame], DataFrame]
"""Adds to a frame with a column `device`: `known` (true, or anything else), and for each bound of a range that the reference
has a string column, as `bounds` names it."""


def bounds(settings: Settings) -> dict[str, str]:
    """By name in the frame, the reference's columns that bound a measure: `low_<measure>` and `high_<measure>`."""
    ranges = settings.reference.ranges if settings.reference is not None else {}
    return {
        f"{side}_{m}": column for m, pair in ranges.items() for side, column in zip(("low", "high"), pair, strict=True)
    }


def needed(settings: Settings) -> bool:
    """Whether admission asks the reference anything."""
    return settings.reference is not None and (
        settings.admission.unknown_device == "reject" or bool(settings.reference.ranges)
    )


def choose(settings: Settings, current_snapshot: CurrentSnapshot | None) -> LookUp | None:
    """The way for the reference as it is now; None where nothing is asked."""
    if current_snapshot is None or not needed(settings):
        return None
    if current_snapshot.snapshot.table.num_rows <= LARGEST_JOINED:
        return Joined(current_snapshot.frame, bounds(settings))
    return Asked(current_snapshot.attributes, bounds(settings))


@dataclass(frozen=True)
class Joined:
    """`frame` has `device` and the columns that are asked for; `names` maps a name to its column."""

    frame: DataFrame
    names: dict[str, str]

    def __call__(self, readings: DataFrame) -> DataFrame:
        columns = [F.col(f"`{column}`").alias(name) for name, column in self.names.items()]
        known = self.frame.select(DEVICE, F.lit(True).alias(KNOWN), *columns)
        return readings.join(F.broadcast(known), DEVICE, "left")


@dataclass(frozen=True)
class Asked:
    """The same from `attributes`, which has the columns."""

    attributes: Attributes
    names: dict[str, str]

    def __call__(self, readings: DataFrame) -> DataFrame:
        strings = [t.StructField(name, t.StringType()) for name in self.names]
        returned = t.StructType([t.StructField(KNOWN, t.BooleanType()), *strings])
        make: Any = arrow_udf  # its stub (4.1.1) knows no struct that is returned
        asked = make(self._ask(), returned)
        found = readings.withColumn("found", asked(F.col(DEVICE)))
        return found.select("*", *(F.col(f"found.{name}").alias(name) for name in (KNOWN, *self.names))).drop("found")

    def _ask(self) -> Callable[[pa.Array], pa.Array]:
        names = dict(self.names)
        attributes = self.attributes.only(list(dict.fromkeys(names.values())))

        def ask(devices: pa.Array) -> pa.Array:
            encoded = devices.fill_null("").dictionary_encode()
            found = attributes.of(_readable(encoded.dictionary)).take(encoded.indices)
            columns = [found[column].combine_chunks() for column in (KNOWN, *names.values())]
            return pa.StructArray.from_arrays(columns, [KNOWN, *names])

        return ask


def _readable(devices: pa.Array) -> pa.Array:
    """The ids as text. The engine asks for those of all records, also where admission says that the id is no UTF-8: those have
    replacement characters here, and whatever is found for them is not used."""
    try:
        devices.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([each.decode(errors="replace") for each in devices.cast(pa.binary()).to_pylist()], pa.string())
    return devices

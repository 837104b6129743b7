"""Look up devices for admission, if the settings need it: whether a device is in the reference, and its own ranges.

The look-up of attributes.py runs in a Python UDF: about 1 s per million readings for any size of the reference.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf

from service.reference.attributes import DEVICE, Attributes
from service.reference.history import Then
from service.settings import Settings

KNOWN = "known"


def bounds(settings: Settings) -> dict[str, str]:
    """Return the reference's columns with the ranges, by their name in the frame: `low_<measure>` and `high_<measure>`."""
    ranges = settings.reference.ranges if settings.reference is not None else {}
    return {
        f"{side}_{m}": column for m, pair in ranges.items() for side, column in zip(("low", "high"), pair, strict=True)
    }


def needed(settings: Settings) -> bool:
    """Whether admission needs a look-up; with a filter it may."""
    has_filter = settings.has_filter or any(view.where is not None for view in settings.views)
    return settings.reference is not None and (
        settings.admission.unknown_device == "reject" or bool(settings.reference.ranges) or has_filter
    )


def attribute(column: str) -> str:
    """Return the name in the frame of a column of the reference that a filter uses."""
    return f"attribute_{column}"


def add(
    readings: DataFrame,
    settings: Settings,
    attributes: Attributes,
    of_filters: Sequence[str] = (),
    *,
    partition: Column,
) -> DataFrame:
    """Add columns to a frame with `device`: `known`, true for a known device, and the string columns that `bounds` names.

    `of_filters` are more columns of the reference, under the names of `attribute`. `partition` is the number of a row's
    partition.
    """
    names = bounds(settings) | {attribute(name): name for name in of_filters}
    strings = [t.StructField(name, t.StringType()) for name in names]
    make: Any = arrow_udf  # its stub (4.1.1) does not allow a struct as the result
    udf = make(_look_up(attributes, names), t.StructType([t.StructField(KNOWN, t.BooleanType()), *strings]))
    # Only attributes of then depend on the record's place.
    place = (partition, F.col("offset")) if isinstance(attributes, Then) else ()
    frame = readings.withColumn("attributes", udf(F.col(DEVICE), *place))
    return frame.select("*", *(F.col(f"attributes.{name}").alias(name) for name in (KNOWN, *names))).drop("attributes")


def _look_up(attributes: Attributes, names: dict[str, str]) -> Callable[..., pa.Array]:
    attributes = attributes.only(list(dict.fromkeys(names.values())))

    def struct(rows: pa.Table) -> pa.Array:
        columns = [rows[column].combine_chunks() for column in (KNOWN, *names.values())]
        return pa.StructArray.from_arrays(columns, [KNOWN, *names])

    def look_up(devices: pa.Array) -> pa.Array:
        return struct(_rows(attributes, devices))

    def look_up_then(devices: pa.Array, partitions: pa.Array, offsets: pa.Array) -> pa.Array:
        if not isinstance(attributes, Then) or not len(devices):
            return look_up(devices)
        parts = [*attributes.split(partitions.to_numpy(), offsets.to_numpy())]
        rows = pa.concat_tables([_rows(each, devices.take(pa.array(places))) for places, each in parts])
        order = np.argsort(np.concatenate([places for places, _ in parts]))
        return struct(rows.take(pa.array(order)))

    return look_up_then if isinstance(attributes, Then) else look_up


def _rows(attributes: Attributes, devices: pa.Array) -> pa.Table:
    encoded = devices.fill_null("").dictionary_encode()
    return attributes.of(_readable(encoded.dictionary)).take(encoded.indices)


def _readable(devices: pa.Array) -> pa.Array:
    """Return the ids as valid text, with replacement characters in ids that are no UTF-8.

    Spark calls the UDF for such records too; admission rejects them, so the result for them is not used.
    """
    try:
        devices.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([each.decode(errors="replace") for each in devices.cast(pa.binary()).to_pylist()], pa.string())
    return devices

"""Admit or reject each record, before its event time counts for the watermark."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from service.admission import device_ids, expansion, expressions, filters, inputs
from service.admission.decode import OTHER
from service.admission.formats import framings
from service.admission.formats.format import FILTERED
from service.admission.schema_sources import SchemaSets, load_schemas
from service.reference import lookup
from service.reference.attributes import Attributes
from service.row_schemas import REJECT_TYPE
from service.settings import EVENT_TIME, Input, Settings
from state.rules import EVENT_MS_LIMIT

DETAIL_LETTERS = 1_000
"""The detail of a reject is cut to this many characters: it may quote what a device sent."""

PARTITION_BITS = 20
"""Room for a million partitions in each of MOST_TOPICS topics (service/settings/kafka.py)."""

REASONS = (
    "oversized",
    "undecodable",
    "unknown_schema",
    "no_device",
    "bad_device",
    "unknown_device",
    "no_time",
    "not_finite",
    "out_of_range",
    "early",
    "late",
    "ahead",
    "replayed",
    "behind",
    "too_many_devices",
    "duplicate",
)
"""Reasons for a reject; the first one that applies, in this order, is given: format, device, measures, time.

`early` follows the checks of the device, because an early reading is stored under its device's key. The fold decides the last
five: the broker's time of the record is ahead of the service's clock, a copy of the record counts
(service/rejects/two_places.py), the watermark has passed the reading, the state has no room
(service/admission/device_limit.py), an earlier reading is the same (service/aggregation/seen_keys.py). A reading that is late by
a broker's time that is ahead is `ahead`."""

LATE = ("late", "behind")
"""The reasons of a reading that would have been admitted if it had come earlier."""

AHEAD = "is ahead of the service's clock"
"""Part of the detail of a reading that is `ahead`."""

TOO_MANY = "the state has admission.max_devices devices, and this device is not one of them"

DUPLICATE_OF = "the same reading as"
"""Begins the detail of a duplicate; the place of the first reading follows."""

MEETS = "?"
"""Prefix of a column that says whether a reading meets a view's filter; no measure's name begins with it."""

SECOND = "="
"""The column with a hash of what tells a device's readings apart, where that is more than the event time."""

KEPT = "$"
"""Prefix of a kept Kafka column; no measure's name begins with it."""

COUNTED = "$counted"
"""The column that says whether views without windows count a reading elsewhere in its topic: it is a copy of a late one."""

COUNTED_HEADER = "tidemark-counted"
"""Header of such a copy."""

SIZE = "$size"
"""The column with the bytes of a record's key and value."""


def bucket_of(device: str, buckets: int) -> Column:
    """Return the bucket of the device that a column names."""
    return F.pmod(F.xxhash64(device), F.lit(buckets)).cast("int")


def admit(
    records: DataFrame,
    settings: Settings,
    attributes: Attributes | None = None,
    *,
    keep: Sequence[str] = (),
    schemas: SchemaSets | None = None,
    keep_late: bool = False,
    asks: bool = False,
) -> DataFrame:
    """Decode records of the Kafka source, and admit or reject each: one row out for each record.

    Of inputs with arrays (service/admission/arrays.py) one row for each reading, with the number in its record in INDEX.

    `attributes` is the reference. It is looked up only if unknown devices are rejected, or devices have their own ranges.
    `schemas` is every schema of the sources by default. `keep` names Kafka columns to return, as KEPT + name.

    Columns out: bucket int, device string, event_ms bigint, broker_ms bigint, from_partition int (see `partition_of`), offset
    bigint, one int under SIZE (bytes of key and value), one double per measure and one string per grouped column under their
    names, for each view with a filter one boolean under MEETS + its name, with `admission.distinct` of columns one bigint under
    SECOND, and `reject` (row_schemas.REJECT_TYPE as a JSON object without its nulls), null when the reading is admitted. In a
    rejected row device, time and measures are null, so that no later step can count it; an early one keeps its device's bucket.
    A late reject has a bucket and names its device, for the fold may find its broker's time ahead.
    In a row that `where` of its input filters, and in that of an empty array, `reject` is null, too. With `keep_late`, a reading
    that is rejected for nothing but being late keeps them, unless its time is before 1970: views without windows count it.
    With `asks`, records of unknown schemas are `unknown_schema` also where their input ignores them: the fold asks for the ids.
    """
    # A reject is one column: as a struct of nine, or as nine columns, it would cost each admitted reading 0.4 us in Spark's Arrow
    # writer (4.1.1), as one column nothing measurable. JSON takes 0.8 of Avro's time.
    expressions.check(records.sparkSession, settings)
    records = expansion.expand(records, settings)
    columns, predicates = settings.grouped_columns, filters.places(settings)
    used = [name for name in settings.columns if predicates or name in columns or name in settings.distinct_columns]
    flat = inputs.add(records, settings, schemas or load_schemas(settings), used)
    of_reference = filters.attributes(records.sparkSession, settings) if predicates else ()
    if not lookup.needed(settings):
        attributes = None
    if attributes is not None:
        partition = partition_code(settings.kafka.topics)
        flat = lookup.add(flat, settings, attributes, of_reference, partition=partition)
    if predicates:
        flat = filters.add(flat, predicates, _values(settings, of_reference, has_reference=attributes is not None))
    ranges = _ranges(settings, has_own=attributes is not None)
    is_unknown = F.lit(False)
    if settings.admission.unknown_device == "reject" and attributes is not None:
        is_unknown = ~F.coalesce("known", F.lit(False))
    measures = settings.measures
    decided = flat.withColumn("reason", _reason(settings, ranges, is_unknown, asks=asks))
    admitted, early = F.col("reason").isNull(), F.col("reason") == "early"
    has_place = early | (F.col("reason") == "late")
    kept = admitted | ((F.col("reason") == "late") & (F.col("event_ms") >= 0)) if keep_late else admitted
    values = {
        "detail": F.left(_detail(settings, ranges), F.lit(DETAIL_LETTERS)),
        "device": F.when(has_place, F.col("device")),
        "event_ms": F.when(F.col("reason").isin("early", "late"), F.col("event_ms")),
        "watermark_ms": F.lit(None).cast("bigint"),
        "schema_id": F.when(F.col("reason") == "unknown_schema", F.conv(_schema_id(settings), 16, 10).cast("bigint")),
    }
    is_reject = ~admitted if not settings.has_filter else ~admitted & (F.col("reason") != FILTERED)
    if settings.has_arrays:
        values["index"] = F.col(expansion.INDEX)
    fields = [name for name in REJECT_TYPE.fieldNames() if name != "index" or settings.has_arrays]
    reject = F.struct(*[values.get(name, F.col(name)).alias(name) for name in fields])
    bucket = bucket_of("device", settings.buckets)
    filtered_views = [view.name for view in settings.views if view.where is not None]
    return decided.select(
        F.when(kept | has_place, bucket).alias("bucket"),
        F.when(kept, F.col("device")).alias("device"),
        F.when(kept, F.col("event_ms")).alias("event_ms"),
        "broker_ms",
        partition_code(settings.kafka.topics).alias("from_partition"),
        "offset",
        (_size("key") + _size("value")).alias(SIZE),
        *[F.when(kept, F.col(_measure(name))).alias(name) for name in measures],
        *[F.when(kept, F.col(_column(name))).alias(name) for name in columns],
        *[F.when(kept, F.col(f"`views.{name}.where`")).alias(MEETS + name) for name in filtered_views],
        *[F.when(admitted, second).alias(SECOND) for second in _second(settings)],
        F.when(is_reject, F.to_json(reject)).alias("reject"),
        *([F.col(expansion.INDEX)] if settings.has_arrays else []),
        *([F.col(COUNTED)] if COUNTED in decided.columns else []),
        *[F.col(name).alias(KEPT + name) for name in keep],
    )


def _second(settings: Settings) -> list[Column]:
    """Return what tells a device's readings apart, if it is more than the event time; null without one of the columns."""
    names = settings.distinct_columns
    if not names:
        return []
    columns = [F.col(_column(name)) for name in names]
    is_known = [F.coalesce(column != OTHER, F.lit(False)) for column in columns]
    times = [F.col("event_ms")] if EVENT_TIME in settings.admission.distinct else []
    return [F.when(reduce(and_, is_known), F.xxhash64(*columns, *times))]


def partition_code(topics: Sequence[str]) -> Column:
    """Return the number of a row's partition, as `number_of`."""
    if len(topics) == 1:
        return F.col("partition")
    # One literal for all topics: a CASE grows with them, and Spark compiles none of more than 64 KB.
    number = F.array_position(F.lit(list(topics[1:])), F.col("topic")).cast("int")
    return F.col("partition") + F.shiftleft(number, PARTITION_BITS)


def number_of(topic: str, partition: int, topics: Sequence[str]) -> int:
    """Return a number for a partition of one of the topics; `partition_of` is the inverse."""
    return partition + (topics.index(topic) << PARTITION_BITS)


def partition_of(code: int, topics: Sequence[str]) -> tuple[str, int]:
    """Return topic and partition of a number in admit's column `from_partition`."""
    return topics[code >> PARTITION_BITS], code & ((1 << PARTITION_BITS) - 1)


def parsed(reject: str) -> dict[str, Any]:
    """Parse a value of admit's column `reject`: the fields of row_schemas.REJECT_TYPE, None where it has none."""
    fields: dict[str, Any] = json.loads(reject)
    return dict.fromkeys(REJECT_TYPE.fieldNames()) | fields


def _measure(name: str) -> str:
    return f"{inputs.MEASURE}{name}"


def _column(name: str) -> str:
    return f"{inputs.COLUMN}{name}"


def _values(settings: Settings, of_reference: Sequence[str], *, has_reference: bool) -> dict[str, Column]:
    """Return the columns of a frame by their names in filters."""
    none = F.lit(None).cast("string")
    return {
        # A filter decides before an id's length is checked: it reads no more of a longer one. Columns have the same limit.
        "device": F.left("device", F.lit(device_ids.MAX_BYTES)),
        **{name: F.col(_measure(name)) for name in settings.measures},
        **{name: F.col(_column(name)) for name in settings.columns},
        **{name: F.col(lookup.attribute(name)) if has_reference else none for name in of_reference},
    }


def _meets(form: Input) -> Column:
    meets = F.col(f"`{form.place}.where`") if form.where is not None else F.lit(True)
    return meets & F.col(inputs.LISTED) if form.is_long else meets


def _is_tombstone(form: Input) -> Column:
    return F.col("value").isNull() if form.tombstones == "ignore" else F.lit(False)


def _size(name: str) -> Column:
    return F.coalesce(F.length(name), F.lit(0))


def _schema_id(settings: Settings) -> Column:
    """The schema id of a record, in hexadecimal."""
    if len({form.framing for form in settings.forms}) == 1:
        return framings.id_column(settings.forms[0])
    return inputs.of_each(settings, framings.id_column)


def _largest() -> Column:
    """The size in bytes of the value or the key, whichever is larger."""
    return F.greatest(_size("value"), _size("key"))


def _any(conditions: list[Column]) -> Column:
    result = F.lit(False)
    for condition in conditions:
        result = result | F.coalesce(condition, F.lit(False))
    return result


def _not_finite(name: str) -> Column:
    value = F.col(_measure(name))
    return F.isnan(value) | (F.abs(value) == F.lit(float("inf")))


@dataclass(frozen=True, slots=True)
class _Range:
    """The allowed values of a measure, both ends included; `text` is for the reject's detail."""

    low: Column
    high: Column
    text: Column


def _ranges(settings: Settings, *, has_own: bool) -> dict[str, _Range]:
    """Return the range of each measure: the device's own from the reference, else that of the settings."""
    own = lookup.bounds(settings) if has_own else {}

    def both(measure: str, side: str, otherwise: float) -> tuple[Column, Column]:
        name = f"{side}_{measure}"
        if name not in own:
            return F.lit(otherwise), F.lit(str(otherwise))
        return F.coalesce(F.col(name).try_cast("double"), F.lit(otherwise)), F.coalesce(name, F.lit(str(otherwise)))

    ranges = {}
    for measure, limits in settings.limits.items():
        low, high = both(measure, "low", limits[0]), both(measure, "high", limits[1])
        source = F.lit(f" ({_source_of_range(measure, settings)})")
        if columns := [F.col(name) for name in (f"low_{measure}", f"high_{measure}") if name in own]:
            source = F.when(F.coalesce(*columns).isNotNull(), " (the device's own, from the reference)").otherwise(
                source
            )
        ranges[measure] = _Range(low[0], high[0], F.concat(low[1], F.lit(" to "), high[1], source))
    return ranges


def _source_of_range(measure: str, settings: Settings) -> str:
    return f"admission.ranges.{measure}" if measure in settings.admission.ranges else "the limit of every measure"


def _outside(name: str, allowed: _Range) -> Column:
    return ~F.col(_measure(name)).between(allowed.low, allowed.high)


def _reason(settings: Settings, ranges: dict[str, _Range], is_unknown: Column, *, asks: bool) -> Column:
    admission = settings.admission
    event, broker = F.col("event_ms"), F.col("broker_ms")
    is_large, fault = _largest() > admission.max_bytes, F.col(expansion.FAULT)
    begin: Any = F
    if any(form.tombstones == "ignore" for form in settings.forms):
        begin = F.when(inputs.of_each(settings, _is_tombstone), FILTERED)
    readable = begin.when(is_large, "oversized")
    if settings.has_arrays:
        readable = begin.when(fault.isNotNull(), fault).when(is_large, "oversized")
    if not asks and any(form.others == "ignore" for form in settings.forms):
        is_other = (F.col("framing") == "unknown_schema") & inputs.of_each(
            settings, lambda form: F.lit(form.others == "ignore")
        )
        readable = readable.when(is_other, FILTERED)
    readable = readable.when(F.col("framing").isNotNull(), F.col("framing")).when(~F.col("decoded"), "undecodable")
    # Before all checks of the content: records of another kind may have neither device nor time.
    wanted = readable if not settings.has_filter else readable.when(~inputs.of_each(settings, _meets), FILTERED)
    reason: Column = (
        wanted.when(F.col("device").isNull(), "no_device")
        .when(device_ids.is_bad(F.col("device")), "bad_device")
        .when(is_unknown, "unknown_device")
        .when(event.isNull(), "no_time")
        .when(_any([_not_finite(name) for name in settings.measures]), "not_finite")
        .when(_any([_outside(name, allowed) for name, allowed in ranges.items()]), "out_of_range")
        # The second conditions catch times that are impossible even if the broker's time is the producer's, and wrong too.
        .when((event > broker + admission.max_ahead_ms) | (event >= EVENT_MS_LIMIT), "early")
        .when((event < broker - admission.max_delay_ms) | (event < 0), "late")
    )
    return reason


def _detail(settings: Settings, ranges: dict[str, _Range]) -> Column:
    """Return the offending value and the limit, for an operator.

    Only what Spark computes with constants and few conversions, because all of it is part of the method that Spark generates for
    every record. service/commands/explain.py computes the full text when an operator reads a reject.
    """
    admission = settings.admission

    def no_device(form: Input) -> Column:
        return F.lit(f"{form.device_text}: missing or blank")

    def no_time(form: Input) -> Column:
        return F.lit(f"{form.event_time}: missing, or not a time ({form.time_form})")

    def first(named: dict[str, Column]) -> Column:
        parts = [F.when(condition, F.concat(F.lit(f"{m} = "), F.col(_measure(m)))) for m, condition in named.items()]
        return F.coalesce(*parts, F.lit(None).cast("string"))

    outside = [
        F.when(_outside(m, allowed), F.concat(F.lit(f"{m} = "), F.col(_measure(m)), F.lit(", allowed "), allowed.text))
        for m, allowed in ranges.items()
    ]
    reason = F.col("reason")
    is_large = reason == "oversized"
    limit = F.concat(_largest(), F.lit(f" bytes, limit {admission.max_bytes} (admission.max_bytes)"))
    detail = (
        F.when(is_large, limit)
        .when(reason == "unknown_schema", F.concat(F.lit("schema id 0x"), _schema_id(settings)))
        .when(reason == "undecodable", F.concat(_size("value"), F.lit(" bytes")))
        .when(reason == "no_device", inputs.of_each(settings, no_device))
        .when(reason == "no_time", inputs.of_each(settings, no_time))
        .when(reason == "bad_device", device_ids.fault(F.col("device")))
        .when(reason == "unknown_device", F.concat(F.lit("device "), F.col("device")))
        .when(reason == "not_finite", first({m: _not_finite(m) for m in settings.measures}))
        .when(reason == "out_of_range", F.coalesce(*outside, F.lit(None).cast("string")))
    )
    return F.coalesce(expansion.DETAIL, detail) if settings.has_arrays else detail

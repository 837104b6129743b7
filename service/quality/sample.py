"""A sample: some records of the topics, decoded and admitted by the stream's own builders, as columns for expectations.

A sample has one row for each record, admitted or rejected, oldest first by the broker's time. Columns:

    device                string, null where the record was not admitted
    <measure>             double, null where it was not admitted or lacks the measure
    seconds ahead         double: event time less the broker's time, negative when the event time is behind
    readings of device    how many readings of the row's device the sample has
    is admitted           1.0 or 0.0
    reject reason         string, null where it was admitted

The names with a space cannot be those of measures, which have none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from service.admission import readings
from service.admission.schema_sources import SchemaSets
from service.errors import SourceError
from service.kafka import clients, topics
from service.kafka.offsets import edges
from service.micro_batch import Offsets
from service.recompute import sources
from service.recompute.sources import Source
from service.reference.attributes import Attributes
from service.settings import Kafka, Settings

DEVICE, AHEAD, OF_DEVICE, ADMITTED, REASON = (
    "device",
    "seconds ahead",
    "readings of device",
    "is admitted",
    "reject reason",
)
READ = {"kafka.fetch.max.wait.ms": "10"}
"""How long the consumer waits at the end of a partition, holding a core of Spark's; Kafka's default is half a second."""
_OFFSET = readings.KEPT + "offset"

Place = tuple[str, int]


def require_newest(kafka: Kafka, count: int, purpose: str) -> Source:
    """Return the last `count` records of topics that exist. Raises SourceError, also when there is no record."""
    described = topics.describe(clients.admin(kafka), kafka)
    if missing := [name for name in kafka.topics if name not in described]:
        raise topics.missing(kafka, missing)
    source = newest(kafka, count)
    if not source.size:
        what = f"{', '.join(kafka.topics)}: there is no record to {purpose}"
        raise SourceError(what, remedy="Wait until there are readings, then run it again")
    return source


def newest(kafka: Kafka, count: int, until: Offsets | None = None) -> Source:
    """Return the last `count` records before `until`, or before the ends of the topics, spread over all partitions.

    Offsets that hold no record (of transactions, or compacted) count as records. Raises SourceError.
    """
    with clients.reading(kafka) as consumer:
        partition_edges = edges(consumer, kafka)
    ends = {
        (topic, partition): (oldest, end if until is None else until.get(topic, {}).get(partition, oldest))
        for topic, partitions in partition_edges.items()
        for partition, (oldest, end) in partitions.items()
    }
    taken = spread({place: max(0, end - oldest) for place, (oldest, end) in ends.items()}, count)
    begin: dict[str, dict[int, int]] = {}
    stop: dict[str, dict[int, int]] = {}
    for (topic, partition), records in taken.items():
        oldest, end = ends[topic, partition]
        begin.setdefault(topic, {})[partition] = max(oldest, end) - records
        stop.setdefault(topic, {})[partition] = max(oldest, end)
    return Source(begin, stop, 0)


def spread(available: Mapping[Place, int], count: int) -> dict[Place, int]:
    """Return how many of `count` records to take of each partition, as evenly as the `available` records allow."""
    taken, left = {}, count
    for number, (place, records) in enumerate(sorted(available.items(), key=lambda item: (item[1], item[0]))):
        taken[place] = min(records, -(-left // (len(available) - number)))
        left -= taken[place]
    return taken


def read(
    spark: SparkSession,
    settings: Settings,
    source: Source,
    attributes: Attributes | None,
    schemas: SchemaSets | None = None,
) -> pa.Table:
    """Read the sample with one task, because a stream may run on the same cores. The rest is as for `readings.admit`."""
    records = sources.records(spark, settings, source, READ)
    return of(records.coalesce(1), settings, attributes, schemas)


def of(
    records: DataFrame, settings: Settings, attributes: Attributes | None = None, schemas: SchemaSets | None = None
) -> pa.Table:
    """Return these Kafka records as a sample."""
    decided = readings.admit(records, settings, attributes, keep=["offset"], schemas=schemas)
    reason = F.get_json_object("reject", "$.reason").alias(REASON)
    kept = ["device", "event_ms", "broker_ms", "from_partition", _OFFSET, *settings.measures]
    rows = decided.select(*(F.col(f"`{name}`") for name in kept), reason).toArrow()
    if settings.has_filter:
        # Not by Spark, which writes the expressions of all inputs into each part of a condition: its plan took gigabytes.
        rows = rows.filter(pc.or_(pc.is_valid(rows["device"]), pc.is_valid(rows[REASON])))
    return columns(rows, list(settings.measures))


def columns(rows: pa.Table, measures: Sequence[str]) -> pa.Table:
    """Turn the columns of admission, and the reason, into those of a sample."""
    rows = rows.sort_by([(name, "ascending") for name in ("broker_ms", "from_partition", _OFFSET)])
    ahead_ms = pc.subtract(rows["event_ms"], rows["broker_ms"])
    sample: dict[str, Any] = {
        DEVICE: rows["device"],
        **{name: rows[name] for name in measures},
        AHEAD: pc.divide(ahead_ms.cast(pa.float64()), 1000.0),
        OF_DEVICE: rows["broker_ms"],
        ADMITTED: pc.is_null(rows[REASON]).cast(pa.float64()),
        REASON: rows[REASON],
    }
    return counted(pa.table(sample))


def counted(part: pa.Table) -> pa.Table:
    """Return a part of a sample as a sample: the readings of each device are counted in the part."""
    encoded = part[DEVICE].combine_chunks().dictionary_encode()
    counts = encoded.value_counts()
    known = {value: count for value, count in zip(*(counts.field(n).to_pylist() for n in (0, 1)), strict=True) if value}
    of_device = pa.array([known.get(value) for value in part[DEVICE].to_pylist()], pa.int64())
    return part.set_column(part.column_names.index(OF_DEVICE), OF_DEVICE, of_device)

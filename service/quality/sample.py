"""A sample: some records of the topics, decoded and decided by the stream's own builders, as columns for expectations.

One row for each record, also for those that were not admitted, oldest first by the broker's time. Columns:

    device                string, null where the record was not admitted
    <measure>             double, null where it was not admitted or lacks the measure
    seconds ahead         double: event time less the broker's time for it, negative when it is behind
    readings of device    how many readings of this one's device are in the sample
    is admitted           1.0 or 0.0
    reject reason         string, null where it was admitted

A measure's name has no space: what is not a measure, but `device`, cannot be called like one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from service.admission import readings
from service.admission.schema_sources import SchemaSet
from service.kafka import clients
from service.kafka.offsets import edges
from service.micro_batch import Offsets
from service.recompute import rebuild
from service.recompute.rebuild import Source
from service.reference.lookup import LookUp
from service.settings import Kafka, Settings

DEVICE, AHEAD, OF_DEVICE, ADMITTED, REASON = (
    "device",
    "seconds ahead",
    "readings of device",
    "is admitted",
    "reject reason",
)
_WAIT_MS = "10"
"""At the end of a partition the consumer waits for more, half a second if not told otherwise, and holds a core of Spark's."""
_OFFSET = readings.KEPT + "offset"

Place = tuple[str, int]


def newest(kafka: Kafka, count: int, until: Offsets | None = None) -> Source:
    """The last `count` records before `until`, or before the ends of the topics, spread over all partitions.

    Offsets that hold no record (of transactions, or compacted) count as records. Raises SourceError.
    """
    consumer = clients.consumer(kafka, small=True)
    try:
        found = edges(consumer, kafka)
    except KafkaException as error:
        raise clients.unreachable(kafka, error) from error
    finally:
        consumer.close()
    ends = {
        (topic, partition): (oldest, end if until is None else until.get(topic, {}).get(partition, oldest))
        for topic, partitions in found.items()
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


def spread(held: Mapping[Place, int], count: int) -> dict[Place, int]:
    """How many of `count` records to take of each partition, of which `held` says how many it has: as evenly as can be."""
    taken, left = {}, count
    for number, (place, there) in enumerate(sorted(held.items(), key=lambda item: (item[1], item[0]))):
        taken[place] = min(there, -(-left // (len(held) - number)))
        left -= taken[place]
    return taken


def size(source: Source) -> int:
    """Records of a source."""
    begins = {(topic, partition): offset for topic, each in source.begin.items() for partition, offset in each.items()}
    return sum(end - begins[topic, partition] for topic, each in source.end.items() for partition, end in each.items())


def read(
    spark: SparkSession, settings: Settings, source: Source, look_up: LookUp | None, schemas: SchemaSet | None = None
) -> pa.Table:
    """The sample. `look_up` and `schemas` are as for `readings.admit`. One task: there may be a stream beside this."""
    records = rebuild.records(spark, settings, source, {"kafka.fetch.max.wait.ms": _WAIT_MS})
    return of(records.coalesce(1), settings, look_up, schemas)


def of(
    records: DataFrame, settings: Settings, look_up: LookUp | None = None, schemas: SchemaSet | None = None
) -> pa.Table:
    """The sample that these Kafka records are."""
    decided = readings.admit(records, settings, look_up, keep=["offset"], schemas=schemas)
    reason = F.get_json_object("reject", "$.reason").alias(REASON)
    kept = ["device", "event_ms", "broker_ms", "from_partition", _OFFSET, *settings.input.measures]
    rows = decided.select(*(F.col(f"`{name}`") for name in kept), reason).toArrow()
    return columns(rows, list(settings.input.measures))


def columns(rows: pa.Table, measures: Sequence[str]) -> pa.Table:
    """From admission's columns, and the reason, to a sample's."""
    rows = rows.sort_by([(name, "ascending") for name in ("broker_ms", "from_partition", _OFFSET)])
    ahead_ms = pc.subtract(rows["event_ms"], rows["broker_ms"])
    found: dict[str, Any] = {
        DEVICE: rows["device"],
        **{name: rows[name] for name in measures},
        AHEAD: pc.divide(ahead_ms.cast(pa.float64()), 1000.0),
        OF_DEVICE: rows["broker_ms"],
        ADMITTED: pc.is_null(rows[REASON]).cast(pa.float64()),
        REASON: rows[REASON],
    }
    return counted(pa.table(found))


def counted(part: pa.Table) -> pa.Table:
    """A part of a sample as a sample of its own: a device's readings are those in it."""
    encoded = part[DEVICE].combine_chunks().dictionary_encode()
    counts = encoded.value_counts()
    known = {value: count for value, count in zip(*(counts.field(n).to_pylist() for n in (0, 1)), strict=True) if value}
    of_device = pa.array([known.get(value) for value in part[DEVICE].to_pylist()], pa.int64())
    return part.set_column(part.column_names.index(OF_DEVICE), OF_DEVICE, of_device)

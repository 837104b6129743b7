"""The screen: which readings of a task count. The others become rejects.

It decides what depends on the batch: the watermark, the service's clock, the list of devices, the keys for duplicates, and the
places of readings whose copies count. `service/admission/readings.py` has decided the rest; its rejects pass through here.
"""

import io
import math
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema

from service.admission import column_values, unknown_schemas
from service.admission.column_values import Known
from service.admission.device_limit import are_known
from service.admission.expansion import INDEX
from service.admission.readings import (
    AHEAD,
    DUPLICATE_OF,
    PARTITION_BITS,
    REASONS,
    SECOND,
    TOO_MANY,
    parsed,
    partition_of,
)
from service.aggregation import task_counters
from service.aggregation.folded_rows import by_bucket, counts
from service.aggregation.replaced import Replaced
from service.aggregation.seen_keys import Place, SeenKeys
from service.row_schemas import REJECT_TYPE, REJECTS
from service.spark.batch_context import BatchContext
from state import codec, duplicates
from state.columns import array, factorise
from state.watermark import Partition

_REJECT = to_arrow_schema(REJECT_TYPE)

GONE = "a removed topic"
"""Takes the place of the name of a topic that the settings do not have any more."""

STRETCH = 20_000
"""Rejects of so many successive offsets of a partition go to one bucket. Its task reads the records between them, too, and then
seeks the next stretch, which takes as long as some 2,500 records (service/rejects/fetch.py)."""

OFFSET_BITS = 46
"""Room for an offset beside the number of an element in a key for duplicates: a partition with 74 records a millisecond has room
for 30 years, and an array has at most 100,000 elements."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a task has of its batch. `seen` are the keys for duplicates, `replaced` the readings whose copies count."""

    batch: BatchContext = field(default_factory=BatchContext)
    values: Known = field(default_factory=Known)
    seen: SeenKeys | None = None
    replaced: Replaced | None = None

    @classmethod
    def of(cls, batch: BatchContext) -> Self:
        """Return what a task of a stream has."""
        seen = None
        if batch.distinct is not None:
            checkpoint, number, epoch, floor_ms = batch.distinct
            seen = SeenKeys(Path(checkpoint), Place(number, epoch), floor_ms)
        replaced = Replaced.of(batch.replaced) if batch.replaced else None
        return cls(batch, column_values.known(batch.column_values), seen, replaced)


@dataclass(frozen=True, slots=True)
class Screen:
    """Rejects readings; it is pickled for the tasks. `topics` are those of the settings, by the numbers of partitions.

    With `has_filter` rows without device and reject are counted as filtered.
    Without `keep_rejects` rejects are dropped. Not by a filter in Spark: the planner pushes it below the projection, and repeats
    the expressions of admission there (Spark 4.1.1: 842 times `from_avro`, 14 s of planning).
    """

    topics: Sequence[str]
    buckets: int
    has_filter: bool = False
    keep_rejects: bool = True
    ignoring: Collection[str] = ()
    """Topics whose records of unknown schemas are counted as filtered, once their ids were looked up."""

    def are_ahead(self, readings: pa.Table, newest: Mapping[int, Partition], batch: BatchContext) -> pa.Array | None:
        """Return which records have a broker's time that is ahead of the service's clock, None if none has.

        `newest` are the newest times of each partition. Times of trusted topics are not ahead.
        """
        latest_ms = math.inf if batch.latest_ms is None else batch.latest_ms
        if not any(each.broker_ms > latest_ms for each in newest.values()):
            return None
        is_trusted = np.isin(readings["from_partition"].to_numpy() >> PARTITION_BITS, list(batch.trusted))
        is_ahead = pa.array((readings["broker_ms"].to_numpy() > latest_ms) & ~is_trusted)
        return is_ahead if pc.any(is_ahead).as_py() else None

    def without_ahead(
        self, readings: pa.Table, is_ahead: pa.Array, batch: BatchContext
    ) -> Generator[pa.RecordBatch, None, pa.Table]:
        """Reject the readings that are admitted, or late, by a broker's time that is ahead; return the other rows.

        Such a time is a producer's. It must not move the watermark, and says nothing about unread records.
        """
        found = np.flatnonzero(is_ahead.to_numpy(zero_copy_only=False))
        ahead = readings.take(pa.array(found))
        rejects = [None if text is None else parsed(text) for text in ahead["reject"].to_pylist()]
        devices = [
            name if reject is None else reject["device"] if reject["reason"] == "late" else None
            for name, reject in zip(ahead["device"].to_pylist(), rejects, strict=True)
        ]
        are_ours = pa.array([name is not None for name in devices], pa.bool_())
        ahead, names = ahead.filter(are_ours), array(pa.array(devices, pa.string()).drop_null())
        if not ahead.num_rows:
            return readings
        times = ahead["broker_ms"].to_pylist()
        details = [f"broker time {ms} ms {AHEAD}, {batch.now_ms} ms" for ms in times]
        if batch.devices:
            names = pc.if_else(pa.array(are_known(names, batch.devices)), names, pa.scalar(None, pa.string()))
        yield from self._refused(ahead, "ahead", detail=details, device=names)
        is_left = np.ones(readings.num_rows, np.bool_)
        is_left[found[are_ours.to_numpy(zero_copy_only=False)]] = False
        return readings.filter(pa.array(is_left))

    def admitted(
        self, readings: pa.Table, task: Task, late: list[pa.Table] | None = None
    ) -> Generator[pa.RecordBatch, None, pa.Table]:
        """Reject readings, in any order, and return the others.

        Where views without windows count late readings, too, `late` gets those: rejects behind the watermark, and those of
        `readings.admit` that come with a device.
        """
        if self.has_filter:
            is_filtered = pc.and_(pc.is_null(readings["device"]), pc.is_null(readings["reject"]))
            filtered = pc.sum(is_filtered).as_py()
            if filtered:
                yield counts([task_counters.of_counts(task_counters.FILTERED, {0: filtered})])
                readings = readings.filter(pc.invert(is_filtered))
        if task.replaced is not None:
            readings = yield from self._without_replaced(readings, task.replaced, task, late)
        rejected = pc.is_valid(readings["reject"])
        if pc.any(rejected).as_py():
            rejects = readings.filter(rejected)
            if self.keep_rejects:
                yield from self._rejects(rejects, task)
            if late is not None:
                late.append(rejects.filter(pc.is_valid(rejects["device"])))
            readings = readings.filter(pc.invert(rejected))
        watermark_ms = task.batch.before.watermark_ms
        is_behind = pc.less(readings["event_ms"], watermark_ms)
        if pc.any(is_behind).as_py():
            # Their windows and sessions may be closed, and published as final.
            rejects = readings.filter(is_behind)
            times = {"event_ms": rejects["event_ms"], "watermark_ms": [watermark_ms] * rejects.num_rows}
            yield from self._refused(rejects, "behind", **times)
            if late is not None:
                late.append(rejects)
            readings = readings.filter(pc.invert(is_behind))
        if late and task.batch.devices:  # late readings of other devices would make new keys
            late[:] = [each.filter(_are_listed(each, task)) for each in late]
        return (yield from self._on_time(readings, task))

    def _without_replaced(
        self, readings: pa.Table, replaced: Replaced, task: Task, late: list[pa.Table] | None
    ) -> Generator[pa.RecordBatch, None, pa.Table]:
        """Reject the readings whose copies count, and return the others.

        Those that views without windows count are appended to `late`.
        """
        is_replaced, is_counted = replaced.find(readings)
        if not is_replaced.any():
            return readings
        originals = readings.filter(pa.array(is_replaced))
        is_rejected = pc.is_valid(originals["reject"])
        rejects = originals.filter(is_rejected)
        if rejects.num_rows and self.keep_rejects:
            yield from self._rejects(rejects, task)
        if rejects.num_rows < originals.num_rows:
            yield from self._refused(originals.filter(pc.invert(is_rejected)), "replayed")
        if late is not None:
            counted = readings.filter(pa.array(is_counted))
            late.append(counted.filter(pc.is_valid(counted["device"])))
        return readings.filter(pa.array(~is_replaced))

    def _on_time(self, readings: pa.Table, task: Task) -> Generator[pa.RecordBatch, None, pa.Table]:
        """Reject readings of devices outside the list and duplicates, and return the others."""
        if task.batch.devices and readings.num_rows:
            is_listed = _are_listed(readings, task)
            rejects = readings.filter(pc.invert(is_listed))
            if rejects.num_rows:
                yield from self._refused(rejects, "too_many_devices", detail=[TOO_MANY] * rejects.num_rows)
            readings = readings.filter(is_listed)
        if task.seen is not None and readings.num_rows:
            is_duplicate, details = self._duplicates(readings, task.seen)
            if len(details):
                yield from self._refused(readings.filter(pa.array(is_duplicate)), "duplicate", detail=details)
                readings = readings.filter(pa.array(~is_duplicate))
        return readings

    def _duplicates(self, readings: pa.Table, seen: SeenKeys) -> tuple[NDArray[np.bool_], list[str]]:
        """Return which readings are duplicates, and the details of these. Of several in a batch the first one is that of the
        lowest partition and offset, in the order of the topics."""
        keys, rows = _keys(readings, self.topics)
        names = dict(zip(duplicates.hashes(pa.array(self.topics)).tolist(), self.topics, strict=True))
        buckets = readings["bucket"].to_numpy()[rows]
        is_duplicate, firsts = np.zeros(readings.num_rows, np.bool_), dict[int, str]()
        for bucket in np.unique(buckets).tolist():
            of_bucket = np.flatnonzero(buckets == bucket)
            found, places = seen.firsts(bucket, keys.take(pa.array(of_bucket)))
            chosen = rows[of_bucket[found]]
            is_duplicate[chosen] = True
            for row, topic, *place in zip(chosen.tolist(), *(each.tolist() for each in places), strict=True):
                firsts[row] = f"{DUPLICATE_OF} {names.get(topic, GONE)}[{place[0]}]@{_offset_and_index(place[1])}"
        return is_duplicate, [firsts[row] for row in np.flatnonzero(is_duplicate).tolist()]

    def _refused(self, readings: pa.Table, reason: str, **more: Any) -> Iterator[pa.RecordBatch]:
        """Reject readings; `more` are columns of row_schemas.REJECT_TYPE."""
        size = readings.num_rows
        places = [partition_of(number, self.topics) for number in readings["from_partition"].to_pylist()]
        columns = {
            "reason": [reason] * size,
            **more,
            "topic": [topic for topic, _ in places],
            "partition": [partition for _, partition in places],
            "offset": readings["offset"],
            "broker_ms": readings["broker_ms"],
            **({"index": readings[INDEX]} if INDEX in readings.column_names else {}),
        }
        rejects = pa.table({each.name: columns.get(each.name, pa.nulls(size)) for each in _REJECT}).cast(_REJECT)
        yield by_bucket(REJECTS, readings["bucket"].to_numpy(), rejects, lambda part: codec.pack(b"J", part))
        yield counts([task_counters.of_counts(task_counters.REJECTED, {REASONS.index(reason): size})])

    def _rejects(self, rejected: pa.Table, task: Task) -> Iterator[pa.RecordBatch]:
        batches = rejected.to_batches()
        parsed = [_parsed(batch["reject"]) for batch in batches]
        if task.batch.devices:
            parsed = [_of_known(rejects, task.batch.devices) for rejects in parsed]
        ids = Counter(number for rejects in parsed for number in rejects["schema_id"].drop_null().to_pylist())
        if ids:
            unknown_schemas.check(ids, task.batch.refused)
        if ids and self.ignoring:
            are_left = [pc.invert(_are_ignored(rejects, self.ignoring)) for rejects in parsed]
            filtered = sum(int(pc.sum(pc.invert(each)).as_py() or 0) for each in are_left)
            yield counts([task_counters.of_counts(task_counters.FILTERED, {0: filtered})])
            batches = [batch.filter(each) for batch, each in zip(batches, are_left, strict=True)]
            parsed = [rejects.filter(each) for rejects, each in zip(parsed, are_left, strict=True)]
        # Rejects are spread over the buckets, so that no task has to write all of a poisoned batch; in stretches, because the
        # writer reads them from Kafka again. Early ones go to their device's bucket, which counts them.
        for batch, rejects in zip(batches, parsed, strict=True):
            if not rejects.num_rows:
                continue
            spread = (rejects["offset"].to_numpy() // STRETCH + rejects["partition"].to_numpy()) % self.buckets
            of_device = pc.if_else(pc.equal(rejects["reason"], "early"), batch["bucket"], pa.scalar(None, pa.int32()))
            bucket = pc.coalesce(of_device, pa.array(spread, pa.int32())).to_numpy(zero_copy_only=False)
            yield by_bucket(REJECTS, bucket, rejects, lambda part: codec.pack(b"J", part))
        reasons = Counter(reason for rejects in parsed for reason in rejects["reason"].to_pylist())
        yield counts(
            [task_counters.of_counts(task_counters.REJECTED, {REASONS.index(name): n for name, n in reasons.items()})]
        )


def _are_ignored(rejects: pa.RecordBatch, ignoring: Collection[str]) -> pa.Array:
    """Return which rejects are of unknown schemas in these topics."""
    is_unknown = pc.equal(rejects["reason"], "unknown_schema")
    return pc.and_(is_unknown, pc.is_in(rejects["topic"], pa.array(sorted(ignoring))))


def _are_listed(readings: pa.Table, task: Task) -> pa.Array:
    """Return which readings are of devices in the list of the batch."""
    codes, names = factorise(readings["device"])
    return pa.array(are_known(names, task.batch.devices)[codes])


def _keys(readings: pa.Table, topics: Sequence[str]) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return the keys of readings (state.duplicates.SCHEMA) by partition and offset, and the row of each. Some have no key.

    The offset of an element of an array has the element's number in its upper bits (`_offset_and_index`).
    """
    codes, devices = factorise(readings["device"])
    second = readings[SECOND if SECOND in readings.column_names else "event_ms"]
    has_key = np.flatnonzero(second.is_valid().to_numpy())
    partition, offset = readings["from_partition"].to_numpy(), readings["offset"].to_numpy()
    by = [offset[has_key], partition[has_key]]
    if INDEX in readings.column_names:
        index = readings[INDEX].fill_null(-1).to_numpy().astype(np.int64)
        by.insert(0, index[has_key])
        offset = offset + ((index + 1) << OFFSET_BITS)
    rows: NDArray[np.int64] = has_key[np.lexsort(by)]
    topic, number = partition[rows] >> PARTITION_BITS, partition[rows] & ((1 << PARTITION_BITS) - 1)
    columns = {
        "device": duplicates.hashes(devices)[codes][rows],
        "second": second.fill_null(0).to_numpy()[rows],
        "event_ms": readings["event_ms"].to_numpy()[rows],
        "topic": duplicates.hashes(pa.array(topics))[topic],
        "partition": number,
        "offset": offset[rows],
    }
    return pa.table(columns, schema=duplicates.SCHEMA), rows


def _offset_and_index(packed: int) -> str:
    """Return the offset and, of an element of an array, its number, as Coordinates has them."""
    index, offset = packed >> OFFSET_BITS, packed & ((1 << OFFSET_BITS) - 1)
    return f"{offset}#{index - 1}" if index else str(offset)


def _parsed(rejects: pa.Array) -> pa.Table:
    """Parse readings.admit's column `reject` to a table of row_schemas.REJECT_TYPE."""
    lines = "\n".join(rejects.to_pylist()).encode()
    return pyarrow.json.read_json(
        io.BytesIO(lines),
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        pyarrow.json.ParseOptions(explicit_schema=_REJECT, unexpected_field_behavior="error"),
    )


def _of_known(rejects: pa.Table, devices: str) -> pa.Table:
    """Remove the device of rejects that is not in the list: an early reading must not make a key for it."""
    at = rejects.schema.get_field_index("device")
    codes, names = factorise(rejects["device"].fill_null(""))
    is_listed = pa.array(are_known(names, devices)[codes])
    return rejects.set_column(
        at, rejects.schema.field(at), pc.if_else(is_listed, rejects["device"], pa.scalar(None, pa.string()))
    )

"""The fold: reduce a task's readings to partial aggregates of windows, runs of sessions, counts and rejects, before the shuffle.

A task sends one payload of each kind to a bucket. A run goes to its device's bucket. The bucket of a window is a hash of its view
and key, so all partial aggregates of a window meet.

Windows are merged from panes (device, measure, step of time) instead of readings, and a device's attributes are looked up once
per task. A million readings of ten thousand devices over a minute or two are some ten thousand panes.
docs/decisions/0001-fold-before-the-shuffle.md and 0008-windows-begin-in-the-fold.md have the figures.

The code uses Arrow and NumPy only; Spark calls a `Fold` through mapInArrow.
"""

import io
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from service.admission.decode import OTHER
from service.admission.device_limit import are_known
from service.admission.expansion import INDEX
from service.admission.readings import (
    AHEAD,
    COUNTED,
    DUPLICATE_OF,
    MEETS,
    PARTITION_BITS,
    REASONS,
    SECOND,
    SIZE,
    TOO_MANY,
    parsed,
    partition_of,
)
from service.aggregation import task_counters, windows
from service.aggregation.replaced import Replaced
from service.aggregation.seen_keys import Place, SeenKeys
from service.aggregation.task_counters import Tally
from service.aggregation.windows import Panes, Units
from service.reference.attributes import DEVICE, Attributes
from service.reference.history import Then
from service.reference.limits import durations_ms
from service.row_schemas import COUNTS, FOLDED, PARTS, REJECT_TYPE, REJECTS, RUNS, TIMES
from service.settings import EVENTS, View
from service.spark.batch_context import BatchContext
from state import codec, distinct, duplicates, watermark
from state import windows as window_state
from state.columns import array, factorise
from state.rules import Rules
from state.runs import fold_sorted
from state.statistics import COLUMNS, DEVICES, PaneReadings, columns_of
from state.watermark import Partition

_FOLDED = to_arrow_schema(FOLDED)
_REJECT = to_arrow_schema(REJECT_TYPE)

GONE = "a removed topic"
"""Takes the place of the name of a topic that the settings do not have any more."""

_PLACE = ("from_partition", "offset")
STRETCH = 20_000
"""Rejects of so many successive offsets of a partition go to one bucket. Its task reads the records between them, too, and then
seeks the next stretch, which takes as long as some 2,500 records (service/rejects/fetch.py)."""

OFFSET_BITS = 46
"""Room for an offset beside the number of an element in a key for duplicates: a partition with 74 records a millisecond has room
for 30 years, and an array has at most 100,000 elements."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fold:
    """The fold as a function for mapInArrow; it is pickled for the tasks.

    `views` are the settings' views, each with its measures. `attributes` is the reference, if there is one. `gap` and `interval`
    are its columns with the devices' own session gaps and expected intervals, if it has them.
    `context` returns the context of the batch in a task of a stream. Then readings below the watermark are rejected as late,
    those whose broker's time is after `latest_ms` as ahead, the driver is asked about unknown schema ids and new values of
    columns, and every bucket gets a report of what was read. With `distinct` in it, a task decides about duplicates: all readings
    of a bucket must be in one task, which holds them in memory.
    With `has_filter` rows without device and reject are counted as filtered.
    `inputs` is the number of the input of each of the `topics`; it may be empty with one input.
    `columns` are the record's columns that views group by, and `values` are the decisions in a batch run on which of their values
    are keys.
    A view without windows counts late readings, too, which are rejected all the same: those behind the watermark, and those of
    `readings.admit` that come with a device.
    Without `keep_rejects` rejects are dropped. Not by a filter in Spark: the planner pushes it below the projection, and repeats
    the expressions of admission there (Spark 4.1.1: 842 times `from_avro`, 14 s of planning).
    `max_rows` limits memory: a task folds at most that many readings, plus one Arrow batch, at a time.
    """

    rules: Rules
    views: Sequence[tuple[View, Sequence[str]]]
    pane_ms: int
    buckets: int
    topics: Sequence[str]
    attributes: Attributes | None = None
    context: Callable[[], BatchContext] | None = None
    max_rows: int = 1_000_000
    gap: str | None = None
    interval: str | None = None
    keep_rejects: bool = True
    has_filter: bool = False
    columns: Sequence[str] = ()
    values: Known = field(default_factory=Known)
    inputs: Sequence[int] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold batches of readings.admit's rows to batches of row_schemas.FOLDED."""
        task = _Task(values=self.values) if self.context is None else _Task.of(self.context())
        read = {number: Partition(is_unread=True) for number in task.batch.unread}
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            if batch.num_rows == 0:
                continue
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= self.max_rows and task.seen is None:
                yield from self._read(waiting, task, read)
                waiting, rows = [], 0
        if waiting:
            yield from self._read(waiting, task, read)
        if task.seen is not None:
            task.seen.write()
        if self.context is not None and read:
            report = watermark.report(task.batch.before, read)
            yield _rows(TIMES, np.arange(self.buckets, dtype=np.int32), [report] * self.buckets)

    def _read(
        self,
        batches: list[pa.RecordBatch],
        task: "_Task",
        read: dict[int, Partition],
    ) -> Iterator[pa.RecordBatch]:
        readings, batch = pa.Table.from_batches(batches), task.batch
        partitions = _partitions(readings, has_late=bool(self._endless))
        is_ahead = None
        if any(self._is_ahead(number, each.broker_ms, batch) for number, each in partitions.items()):
            is_ahead = self._are_ahead(readings, batch)
            behind = _partitions(readings.filter(pc.invert(is_ahead)), has_late=bool(self._endless))
            partitions = {number: behind.get(number, Partition()) for number in partitions}
        for number, partition in partitions.items():
            read[number] = read.get(number, Partition()) | partition
        if SIZE in readings.column_names:  # readings that are no records, as those of load/walks, have no size
            yield _counts([task_counters.of_counts(task_counters.BYTES, {0: pc.sum(readings[SIZE]).as_py()})])
        if INDEX in readings.column_names and (further := pc.sum(pc.greater(readings[INDEX], 0)).as_py()):
            yield _counts([task_counters.of_counts(task_counters.FURTHER, {0: further})])
        if is_ahead is not None:
            readings = yield from self._without_ahead(readings, is_ahead, batch)
        yield from self.fold(readings, task)

    def _is_ahead(self, number: int, broker_ms: int, batch: BatchContext) -> bool:
        return (
            batch.latest_ms is not None
            and broker_ms > batch.latest_ms
            and number >> PARTITION_BITS not in batch.trusted
        )

    def _are_ahead(self, readings: pa.Table, batch: BatchContext) -> pa.Array:
        """Return which records have a broker's time that is ahead of the service's clock; of trusted topics none has."""
        topic = readings["from_partition"].to_numpy() >> PARTITION_BITS
        is_ahead = readings["broker_ms"].to_numpy() > batch.latest_ms
        return pa.array(is_ahead & ~np.isin(topic, list(batch.trusted)))

    def _without_ahead(
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

    def fold(self, readings: pa.Table, task: "_Task | None" = None) -> Iterator[pa.RecordBatch]:
        """Fold readings in any order; those below the watermark are late, and those of devices outside the list are rejected."""
        task = task or _Task(values=self.values)
        watermark_ms = task.batch.before.watermark_ms
        if isinstance(self.attributes, Then):
            for rows, attributes in self.attributes.split(*(readings[name].to_numpy() for name in _PLACE)):
                step = replace(self, attributes=attributes)
                yield from step.fold(readings.take(pa.array(rows)), task)
            return
        if self.has_filter:
            is_filtered = pc.and_(pc.is_null(readings["device"]), pc.is_null(readings["reject"]))
            filtered = pc.sum(is_filtered).as_py()
            if filtered:
                yield _counts([task_counters.of_counts(task_counters.FILTERED, {0: filtered})])
                readings = readings.filter(pc.invert(is_filtered))
        counted_late: list[pa.Table] = []
        if task.replaced is not None:
            readings = yield from self._without_replaced(readings, task.replaced, task, counted_late)
        rejected = pc.is_valid(readings["reject"])
        if pc.any(rejected).as_py():
            rejects = readings.filter(rejected)
            if self.keep_rejects:
                yield from self._rejects(rejects, task)
            if self._endless:
                counted_late.append(rejects.filter(pc.is_valid(rejects["device"])))
            readings = readings.filter(pc.invert(rejected))
        late = pc.less(readings["event_ms"], watermark_ms)
        if pc.any(late).as_py():
            # Their windows and sessions may be closed, and published as final.
            rejects = readings.filter(late)
            times = {"event_ms": rejects["event_ms"], "watermark_ms": [watermark_ms] * rejects.num_rows}
            yield from self._refused(rejects, "behind", **times)
            if self._endless:
                counted_late.append(rejects)
            readings = readings.filter(pc.invert(late))
        if counted_late:
            yield from self._late(pa.concat_tables(counted_late), task)
        if readings.num_rows:
            yield from self._on_time(readings, task)

    def _without_replaced(
        self, readings: pa.Table, replaced: Replaced, task: "_Task", counted_late: list[pa.Table]
    ) -> Generator[pa.RecordBatch, None, pa.Table]:
        """Reject the readings whose copies count, and return the others.

        Those that views without windows count are appended to `counted_late`.
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
        if self._endless:
            counted = readings.filter(pa.array(is_counted))
            counted_late.append(counted.filter(pc.is_valid(counted["device"])))
        return readings.filter(pa.array(~is_replaced))

    def _on_time(self, readings: pa.Table, task: "_Task") -> Iterator[pa.RecordBatch]:
        """Reject readings of devices outside the list and duplicates, and fold the others."""
        devices, seen = task.batch.devices, task.seen
        if devices:
            codes, names = factorise(readings["device"])
            is_listed = pa.array(are_known(names, devices)[codes])
            rejects = readings.filter(pc.invert(is_listed))
            if rejects.num_rows:
                yield from self._refused(rejects, "too_many_devices", detail=[TOO_MANY] * rejects.num_rows)
            readings = readings.filter(is_listed)
        if seen is not None and readings.num_rows:
            is_duplicate, details = self._duplicates(readings, seen)
            if len(details):
                yield from self._refused(readings.filter(pa.array(is_duplicate)), "duplicate", detail=details)
                readings = readings.filter(pa.array(~is_duplicate))
        if readings.num_rows:
            yield from self._admitted(readings, task)

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

    @property
    def _endless(self) -> Sequence[tuple[View, Sequence[str]]]:
        return [(view, measures) for view, measures in self.views if view.is_endless]

    def _late(self, readings: pa.Table, task: "_Task") -> Iterator[pa.RecordBatch]:
        """Count late readings in the views without windows. Those of devices outside the list would make new keys."""
        if task.batch.devices and readings.num_rows:
            codes, names = factorise(readings["device"])
            readings = readings.filter(pa.array(are_known(names, task.batch.devices)[codes]))
        yield from self._uncounted(_uncounted(readings), task)

    def _uncounted(self, readings: pa.Table, task: "_Task") -> Iterator[pa.RecordBatch]:
        if readings.num_rows:
            of = _sorted(readings, self.rules.measures, self.attributes)
            yield from self._values(of, self._endless, [], task.values)

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
        yield _by_bucket(REJECTS, readings["bucket"].to_numpy(), rejects, lambda part: codec.pack(b"J", part))
        yield _counts([task_counters.of_counts(task_counters.REJECTED, {REASONS.index(reason): size})])

    def _rejects(self, rejected: pa.Table, task: "_Task") -> Iterator[pa.RecordBatch]:
        batches = rejected.to_batches()
        parsed = [_parsed(batch["reject"]) for batch in batches]
        if task.batch.devices:
            parsed = [_of_known(rejects, task.batch.devices) for rejects in parsed]
        ids = Counter(number for rejects in parsed for number in rejects["schema_id"].drop_null().to_pylist())
        if ids:
            unknown_schemas.check(ids, task.batch.refused)
        # Rejects are spread over the buckets, so that no task has to write all of a poisoned batch; in stretches, because the
        # writer reads them from Kafka again. Early ones go to their device's bucket, which counts them.
        for batch, rejects in zip(batches, parsed, strict=True):
            spread = (rejects["offset"].to_numpy() // STRETCH + rejects["partition"].to_numpy()) % self.buckets
            of_device = pc.if_else(pc.equal(rejects["reason"], "early"), batch["bucket"], pa.scalar(None, pa.int32()))
            bucket = pc.coalesce(of_device, pa.array(spread, pa.int32())).to_numpy(zero_copy_only=False)
            yield _by_bucket(REJECTS, bucket, rejects, lambda part: codec.pack(b"J", part))
        reasons = Counter(reason for rejects in parsed for reason in rejects["reason"].to_pylist())
        yield _counts(
            [task_counters.of_counts(task_counters.REJECTED, {REASONS.index(name): n for name, n in reasons.items()})]
        )

    def _admitted(self, readings: pa.Table, task: "_Task") -> Iterator[pa.RecordBatch]:
        tallies = [
            task_counters.of_latency(readings["broker_ms"].to_numpy()),
            task_counters.of_partitions(readings["from_partition"].to_numpy(), readings["event_ms"].to_numpy()),
        ]
        of = _sorted(readings, self.rules.measures, self.attributes)
        uncounted = _uncounted(readings)
        if uncounted.num_rows == readings.num_rows:
            yield from self._values(of, self.views, tallies, task.values)
        else:
            closing = [each for each in self.views if not each[0].is_endless]
            yield from self._values(of, closing, tallies, task.values)
            yield from self._uncounted(uncounted, task)
        yield self._runs(of.codes, of.devices, of.event_ms, of.values, of.bucket, self._limits(of.attributes))
        tallies.append(task_counters.of_counts(task_counters.ADMITTED, {0: len(of.event_ms)}))
        tallies.append(task_counters.of_measures(readings, self.rules.measures, self._inputs(readings)))
        tallies.append(task_counters.of_counts(task_counters.UNKNOWN, {0: self._unknown(of.codes, of.attributes)}))
        yield _counts(tallies)

    def _inputs(self, readings: pa.Table) -> Ints | None:
        """Return the number of the input of each reading, None with one input."""
        if not any(self.inputs):
            return None
        numbers: Ints = np.array(self.inputs)[readings["from_partition"].to_numpy() >> PARTITION_BITS]
        return numbers

    def _values(
        self, of: "_Sorted", views: Sequence[tuple[View, Sequence[str]]], tallies: list[Tally], values: Known
    ) -> Iterator[pa.RecordBatch]:
        """Return the partial aggregates of the windows of some views; adds to `tallies`."""
        unit, units = of.codes, Units()
        filters = [MEETS + view.name for view, _ in views if view.where is not None]
        if self.columns or filters:
            decided = values.decided({name: of.readings[name] for name in self.columns})
            tallies.append(_others(decided))
            decided |= {name: array(of.readings[name]).dictionary_encode() for name in filters}
            order = pa.array(of.order)
            unit, units = windows.units(of.codes, {name: column.take(order) for name, column in decided.items()})
        of_panes = dict(of.values)
        if any(EVENTS in measures for _, measures in views):
            of_panes[EVENTS] = np.zeros(len(of.event_ms))
        needed = {name: self._columns(name) for name in of_panes}
        hashes = None
        if any(DEVICES in names for names in needed.values()):
            hashes = distinct.hashes(of.devices) if units.device is None else distinct.hashes(of.devices)[units.device]
        panes = {name: self._panes(unit, of.event_ms, of_panes[name], names, hashes) for name, names in needed.items()}
        bucket_of = np.zeros(len(of.devices), np.int32)
        bucket_of[of.codes] = of.bucket
        yield from self._windows(views, panes, of.devices, of.attributes, bucket_of, units)

    def _windows(
        self,
        views: Sequence[tuple[View, Sequence[str]]],
        panes: Mapping[str, Panes],
        devices: pa.Array,
        attributes: pa.Table | None,
        bucket_of: NDArray[np.int32],
        units: Units,
    ) -> Iterator[pa.RecordBatch]:
        """Return the partial aggregates of windows; `bucket_of` is the bucket of each device."""
        tables, buckets, firsts = [], [], []
        schema = window_state.schema_of_views(view.statistics for view, _ in self.views)
        for view, measures in views:
            groups = windows.groups(view, devices, attributes, units)
            meets = None if view.where is None else pc.equal(units.columns[MEETS + view.name], "true").to_numpy(False)
            # In a view by device the keys are the devices, whose buckets are already computed.
            own = None if view.by == (DEVICE,) else windows.buckets_of(view.name, groups.keys, self.buckets)
            of_group = bucket_of if own is None else own
            for measure in measures:
                of_view = panes[measure] if meets is None else panes[measure].only(meets)
                if of_view.start.size:
                    group, start, columns = windows.spread(view, of_view, groups)
                    end = start + view.window_ms
                    kept = {name: columns[name] for name in columns_of(view.statistics)}
                    parts = window_state.parts(view.name, measure, groups.keys, group, start, end, kept, schema)
                    tables.append(parts)
                    buckets.append(of_group[group])
                    firsts.append(columns["first"])
        if tables:
            parts = window_state.concat(tables)
            yield _by_bucket(
                PARTS,
                np.concatenate(buckets),
                parts,
                lambda part: codec.pack(b"W", window_state.compact(part)),
                first=np.concatenate(firsts),
            )

    def _columns(self, measure: str) -> tuple[str, ...]:
        """Return the columns that the views need of a measure, and `first`, by which payloads are ordered in a recomputation."""
        return columns_of(
            {"first", *(name for view, names in self.views if measure in names for name in view.statistics)}
        )

    def _panes(
        self,
        codes: NDArray[Any],
        event_ms: Ints,
        values: NDArray[np.float64],
        names: Collection[str],
        hashes: Ints | None,
    ) -> Panes:
        """Return the panes of a measure; `hashes` are those of the devices of units, if a column needs them."""
        is_present = ~np.isnan(values)
        if not is_present.all():
            codes, event_ms, values = codes[is_present], event_ms[is_present], values[is_present]
        pane = event_ms // self.pane_ms
        new = np.ones(len(codes), np.bool_)
        new[1:] = (codes[1:] != codes[:-1]) | (pane[1:] != pane[:-1])
        starts = np.flatnonzero(new)
        if not starts.size:
            return Panes(codes, event_ms, {})
        counts = np.diff(starts, append=len(codes))
        of_panes = hashes[codes[starts]] if hashes is not None else None
        folded = PaneReadings(values, event_ms, starts, counts, of_panes)
        columns = {name: COLUMNS[name].fold(folded) for name in names}
        return Panes(codes[starts], pane[starts] * self.pane_ms, columns)

    def _runs(
        self,
        codes: NDArray[Any],
        devices: pa.Array,
        event_ms: Ints,
        values: dict[str, NDArray[np.float64]],
        bucket: NDArray[np.int32],
        limits: Mapping[str, Ints],
    ) -> pa.RecordBatch:
        gap_ms = limits.get("gap")
        own = None if gap_ms is None else np.where(gap_ms < 0, self.rules.gap_ms, gap_ms)
        runs = fold_sorted(codes, devices, event_ms, values, self.rules, own)
        # Runs are in the order of the readings, so each has the bucket and the device of its first reading.
        sizes = runs["count"].to_numpy()
        first = np.cumsum(sizes) - sizes
        run_bucket = bucket[first]
        for name, of_device in limits.items():
            runs = runs.append_column(name, pa.array(of_device[codes[first]]))
        return _by_bucket(RUNS, run_bucket, runs, lambda part: codec.pack(b"R", part), first=runs["start"].to_numpy())

    def _limits(self, attributes: pa.Table | None) -> dict[str, Ints]:
        """Return the devices' own session gaps and expected intervals in ms, -1 where a device has none."""
        limits: dict[str, Ints] = {}
        if attributes is not None and self.gap is not None:
            # A session is never longer than max_duration, so neither is a gap in it.
            limits["gap"] = np.minimum(durations_ms(attributes[self.gap], -1), self.rules.max_duration_ms)
        if attributes is not None and self.interval is not None:
            limits["interval"] = durations_ms(attributes[self.interval], -1)
        return limits

    def _unknown(self, codes: NDArray[Any], attributes: pa.Table | None) -> int:
        """Return the number of readings of devices that the reference lacks."""
        if attributes is None:
            return 0
        is_known = attributes["known"].to_numpy()
        return int(np.count_nonzero(~is_known[codes]))


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


@dataclass(frozen=True, slots=True)
class _Task:
    """What a task has of its batch. `seen` are the keys for duplicates, `replaced` the readings whose copies count."""

    batch: BatchContext = field(default_factory=BatchContext)
    values: Known = field(default_factory=Known)
    seen: SeenKeys | None = None
    replaced: Replaced | None = None

    @classmethod
    def of(cls, batch: BatchContext) -> Self:
        seen = None
        if batch.distinct is not None:
            checkpoint, number, epoch, floor_ms = batch.distinct
            seen = SeenKeys(Path(checkpoint), Place(number, epoch), floor_ms)
        replaced = Replaced.of(batch.replaced) if batch.replaced else None
        return cls(batch, column_values.known(batch.column_values), seen, replaced)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Readings in the `order` of device and event time; `readings` are in the order of arrival.

    `codes` are the readings' `devices`, `attributes` those of `devices`, `values` are by measure.
    """

    readings: pa.Table
    order: NDArray[np.intp]
    codes: NDArray[Any]
    devices: pa.Array
    event_ms: Ints
    values: dict[str, NDArray[np.float64]]
    bucket: NDArray[np.int32]
    attributes: pa.Table | None


def _uncounted(readings: pa.Table) -> pa.Table:
    """Return the readings without the copies of those that views without windows have counted."""
    if COUNTED not in readings.column_names or not pc.any(readings[COUNTED]).as_py():
        return readings
    return readings.filter(pc.invert(readings[COUNTED]))


def _sorted(readings: pa.Table, measures: Sequence[str], attributes: Attributes | None) -> _Sorted:
    codes, devices = factorise(readings["device"])
    event_ms = readings["event_ms"].to_numpy()
    order = _by_device_and_time(codes, event_ms)
    return _Sorted(
        readings,
        order,
        codes[order],
        devices,
        event_ms[order],
        {name: readings[name].to_numpy()[order] for name in measures},
        readings["bucket"].to_numpy()[order],
        attributes.of(devices) if attributes is not None else None,
    )


def _partitions(readings: pa.Table, *, has_late: bool) -> dict[int, Partition]:
    """Return the newest times of each partition. Rows come in long stretches of one partition, as Kafka delivers them.

    With `has_late` some rejects have an event time, which moves no watermark.
    """
    if not readings.num_rows:
        return {}
    number = readings["from_partition"].to_numpy()
    heads = np.flatnonzero(np.r_[True, number[1:] != number[:-1]])
    times = readings["event_ms"]
    if has_late:
        times = pc.if_else(pc.is_null(readings["reject"]), times, pa.scalar(None, pa.int64()))
    event_ms = times.fill_null(-1).to_numpy()
    newest = (
        np.maximum.reduceat(event_ms, heads),
        np.maximum.reduceat(readings["broker_ms"].to_numpy(), heads),
    )
    numbers, place = np.unique(number[heads], return_inverse=True)
    of_partitions = np.full((2, len(numbers)), -1, np.int64)
    for row, times_ms in enumerate(newest):
        np.maximum.at(of_partitions[row], place, times_ms)
    return {each: Partition(*times) for each, *times in zip(numbers.tolist(), *of_partitions.tolist(), strict=True)}


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


def _by_device_and_time(codes: NDArray[Any], event_ms: Ints) -> NDArray[np.intp]:
    # One integer key sorts several times faster than two columns. It does not overflow: admission keeps times below 2^42 ms.
    low = int(event_ms.min())
    span = int(event_ms.max()) - low + 1
    return np.argsort(codes.astype(np.int64) * span + (event_ms - low))


def _by_bucket(
    kind: int, bucket: NDArray[np.int32], table: pa.Table, pack: Callable[[pa.Table], bytes], first: Ints | None = None
) -> pa.RecordBatch:
    """Return one row of FOLDED for each bucket, with its rows of `table`, which is not empty."""
    order = np.argsort(bucket, kind="stable")
    ordered = bucket[order]
    heads = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(heads, append=len(ordered))
    if len(heads) > 1:
        table = table.take(pa.array(order))
    parts = [table.slice(head, length) for head, length in zip(heads.tolist(), lengths.tolist(), strict=True)]
    earliest = None if first is None else np.minimum.reduceat(first[order], heads)
    return _rows(kind, ordered[heads], [pack(part) for part in parts], earliest)


def _others(columns: Mapping[str, pa.DictionaryArray]) -> Tally:
    """Count the readings of each column whose value is not a key of its own."""
    counts = {}
    for number, column in enumerate(columns.values()):
        is_other = pc.equal(column.dictionary, OTHER).to_numpy(zero_copy_only=False)
        codes = column.indices.drop_null().to_numpy(zero_copy_only=False)
        counts[number] = int(np.count_nonzero(is_other[codes]))
    return task_counters.of_counts(task_counters.OTHER, {number: n for number, n in counts.items() if n})


def _counts(tallies: Sequence[Tally]) -> pa.RecordBatch:
    return _rows(COUNTS, np.zeros(1, np.int32), [task_counters.total(tallies).pack()])


def _rows(kind: int, bucket: NDArray[np.int32], payloads: list[bytes], first: Ints | None = None) -> pa.RecordBatch:
    columns = [np.full(len(bucket), kind, np.int8), bucket, first, payloads]
    arrays = [
        pa.nulls(len(bucket), field.type) if column is None else pa.array(column, field.type)
        for column, field in zip(columns, _FOLDED, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_FOLDED)

"""The fold: reduce a task's readings to partial aggregates of windows, runs of sessions, counts and rejects, before the shuffle.

A task sends one payload of each kind to a bucket. A run goes to its device's bucket. The bucket of a window is a hash of its view
and key, so all partial aggregates of a window meet.

Windows are merged from panes (device, measure, step of time) instead of readings, and a device's attributes are looked up once
per task. A million readings of ten thousand devices over a minute or two are some ten thousand panes.
docs/decisions/0001-fold-before-the-shuffle.md and 0008-windows-begin-in-the-fold.md have the figures.

The code uses Arrow and NumPy only; Spark calls a `Fold` through mapInArrow.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from service.admission.column_values import Known
from service.admission.decode import OTHER
from service.admission.expansion import INDEX
from service.admission.readings import COUNTED, MEETS, PARTITION_BITS, SIZE
from service.aggregation import folded_rows, task_counters, windows
from service.aggregation.folded_rows import by_bucket
from service.aggregation.screen import Screen, Task
from service.aggregation.task_counters import Tally
from service.aggregation.windows import Panes, Units
from service.reference.attributes import DEVICE, Attributes
from service.reference.history import Then
from service.reference.limits import durations_ms
from service.row_schemas import PARTS, RUNS, TIMES
from service.settings import EVENTS, View
from service.spark.batch_context import BatchContext
from state import codec, distinct, watermark
from state import windows as window_state
from state.columns import array, factorise
from state.keyed_calendar import EARLY_STEP_MS, REGULAR_MS
from state.list_columns import DEVICES, TRAIL
from state.rules import Rules
from state.runs import fold_sorted
from state.watermark import Partition
from state.window_columns import COLUMNS, PaneReadings, columns_of

_PLACE = ("from_partition", "offset")
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
    `inputs` is the number of the input of each of the screen's topics; it may be empty with one input.
    `columns` are the record's columns that views group by, and `values` are the decisions in a batch run on which of their values
    are keys.
    A view without windows counts late readings, too, which are rejected all the same.
    `max_rows` limits memory: a task folds at most that many readings, plus one Arrow batch, at a time.
    """

    screen: Screen
    rules: Rules
    views: Sequence[tuple[View, Sequence[str]]]
    pane_ms: int
    attributes: Attributes | None = None
    context: Callable[[], BatchContext] | None = None
    max_rows: int = 1_000_000
    gap: str | None = None
    interval: str | None = None
    columns: Sequence[str] = ()
    values: Known = field(default_factory=Known)
    inputs: Sequence[int] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold batches of readings.admit's rows to batches of row_schemas.FOLDED."""
        task = Task(values=self.values) if self.context is None else Task.of(self.context())
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
            report = watermark.report(task.batch.before, read, task.batch.pace)
            yield folded_rows.rows(
                TIMES, np.arange(self.screen.buckets, dtype=np.int32), [report] * self.screen.buckets
            )

    def _read(self, batches: list[pa.RecordBatch], task: Task, read: dict[int, Partition]) -> Iterator[pa.RecordBatch]:
        readings, batch = pa.Table.from_batches(batches), task.batch
        partitions = _partitions(readings, has_late=bool(self._endless))
        is_ahead = self.screen.are_ahead(readings, partitions, batch)
        if is_ahead is not None:
            behind = _partitions(readings.filter(pc.invert(is_ahead)), has_late=bool(self._endless))
            partitions = {number: behind.get(number, Partition()) for number in partitions}
        for number, partition in partitions.items():
            read[number] = read.get(number, Partition()) | partition
        if SIZE in readings.column_names:  # readings that are no records, as those of load/walks, have no size
            yield folded_rows.counts(
                [task_counters.of_counts(task_counters.BYTES, {0: pc.sum(readings[SIZE]).as_py()})]
            )
        if INDEX in readings.column_names and (further := pc.sum(pc.greater(readings[INDEX], 0)).as_py()):
            yield folded_rows.counts([task_counters.of_counts(task_counters.FURTHER, {0: further})])
        if is_ahead is not None:
            readings = yield from self.screen.without_ahead(readings, is_ahead, batch)
        yield from self.fold(readings, task)

    def fold(self, readings: pa.Table, task: Task | None = None) -> Iterator[pa.RecordBatch]:
        """Fold readings in any order, without those that the screen rejects."""
        task = task or Task(values=self.values)
        if isinstance(self.attributes, Then):
            for rows, attributes in self.attributes.split(*(readings[name].to_numpy() for name in _PLACE)):
                step = replace(self, attributes=attributes)
                yield from step.fold(readings.take(pa.array(rows)), task)
            return
        late: list[pa.Table] | None = [] if self._endless else None
        readings = yield from self.screen.admitted(readings, task, late)
        if late:
            yield from self._late(pa.concat_tables(late), task)
        if readings.num_rows:
            yield from self._admitted(readings, task)

    @property
    def _endless(self) -> Sequence[tuple[View, Sequence[str]]]:
        return [(view, measures) for view, measures in self.views if view.is_endless]

    def _late(self, readings: pa.Table, task: Task) -> Iterator[pa.RecordBatch]:
        """Count readings in the views without windows only."""
        readings = _uncounted(readings)
        if readings.num_rows:
            of = _sorted(readings, self.rules.measures, self.attributes)
            yield from self._values(of, self._endless, [], task.values)

    def _admitted(self, readings: pa.Table, task: Task) -> Iterator[pa.RecordBatch]:
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
            yield from self._late(uncounted, task)
        yield self._runs(of)
        tallies.append(task_counters.of_counts(task_counters.ADMITTED, {0: len(of.event_ms)}))
        tallies.append(task_counters.of_measures(readings, self.rules.measures, self._inputs(readings)))
        tallies.append(task_counters.of_counts(task_counters.UNKNOWN, {0: _unknown(of)}))
        yield folded_rows.counts(tallies)

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
        has_trails = any(view.has_groups and TRAIL in columns_of(view.statistics) for view, _ in views)
        if has_trails or any(DEVICES in names for names in needed.values()):
            hashes = distinct.hashes(of.devices) if units.device is None else distinct.hashes(of.devices)[units.device]
        panes = {name: self._panes(unit, of.event_ms, of_panes[name], names, hashes) for name, names in needed.items()}
        yield from self._windows(of, views, panes, units)

    def _windows(
        self, of: "_Sorted", views: Sequence[tuple[View, Sequence[str]]], panes: Mapping[str, Panes], units: Units
    ) -> Iterator[pa.RecordBatch]:
        """Return the partial aggregates of windows, from the panes of each measure."""
        tables, buckets, firsts = [], [], []
        schema = window_state.schema_of_views(view.statistics for view, _ in self.views)
        bucket_of = np.zeros(len(of.devices), np.int32)
        bucket_of[of.codes] = of.bucket
        for view, measures in views:
            groups = windows.groups(view, of.devices, of.attributes, units)
            meets = None if view.where is None else pc.equal(units.columns[MEETS + view.name], "true").to_numpy(False)
            # In a view by device the keys are the devices, whose buckets are already computed.
            own = None if view.by == (DEVICE,) else windows.buckets_of(view.name, groups.keys, self.screen.buckets)
            of_group = bucket_of if own is None else own
            for measure in measures:
                of_view = panes[measure] if meets is None else panes[measure].only(meets)
                if of_view.start.size:
                    group, start, columns = windows.spread(view, of_view, groups)
                    end = view.ends(start, groups.texts(view, group))
                    kept = {name: columns[name] for name in columns_of(view.statistics)}
                    parts = window_state.parts(view.name, measure, groups.keys, group, start, end, kept, schema)
                    tables.append(parts)
                    buckets.append(of_group[group])
                    firsts.append(columns["first"])
        if tables:
            parts = window_state.concat(tables)
            yield by_bucket(
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
        pane_ms = self._pane_ms_of(event_ms)
        pane = event_ms // pane_ms
        new = np.ones(len(codes), np.bool_)
        new[1:] = (codes[1:] != codes[:-1]) | (pane[1:] != pane[:-1])
        starts = np.flatnonzero(new)
        if not starts.size:
            return Panes(codes, event_ms, {})
        counts = np.diff(starts, append=len(codes))
        of_panes = hashes[codes[starts]] if hashes is not None else None
        folded = PaneReadings(values, event_ms, starts, counts, of_panes)
        columns = {name: COLUMNS[name].fold(folded) for name in names}
        return Panes(codes[starts], pane[starts] * pane_ms, columns, of_panes)

    def _pane_ms_of(self, event_ms: NDArray[np.int64]) -> int:
        """Return the length of panes of these readings: before REGULAR_MS days of zones by key begin at any second."""
        is_keyed = any(view.zone_column is not None for view, _ in self.views)
        is_early = is_keyed and event_ms.min(initial=REGULAR_MS) < REGULAR_MS
        return math.gcd(self.pane_ms, EARLY_STEP_MS) if is_early else self.pane_ms

    def _runs(self, of: "_Sorted") -> pa.RecordBatch:
        limits = self._limits(of.attributes)
        gap_ms = limits.get("gap")
        own = None if gap_ms is None else np.where(gap_ms < 0, self.rules.gap_ms, gap_ms)
        runs = fold_sorted(of.codes, of.devices, of.event_ms, of.values, self.rules, own)
        # Runs are in the order of the readings, so each has the bucket and the device of its first reading.
        sizes = runs["count"].to_numpy()
        first = np.cumsum(sizes) - sizes
        for name, of_device in limits.items():
            runs = runs.append_column(name, pa.array(of_device[of.codes[first]]))
        return by_bucket(
            RUNS, of.bucket[first], runs, lambda part: codec.pack(b"R", part), first=runs["start"].to_numpy()
        )

    def _limits(self, attributes: pa.Table | None) -> dict[str, Ints]:
        """Return the devices' own session gaps and expected intervals in ms, -1 where a device has none."""
        limits: dict[str, Ints] = {}
        if attributes is not None and self.gap is not None:
            # A session is never longer than max_duration, so neither is a gap in it.
            limits["gap"] = np.minimum(durations_ms(attributes[self.gap], -1), self.rules.max_duration_ms)
        if attributes is not None and self.interval is not None:
            limits["interval"] = durations_ms(attributes[self.interval], -1)
        return limits


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


def _unknown(of: _Sorted) -> int:
    """Return the number of readings of devices that the reference lacks."""
    return 0 if of.attributes is None else int(np.count_nonzero(~of.attributes["known"].to_numpy()[of.codes]))


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
    newest = (np.maximum.reduceat(event_ms, heads), np.maximum.reduceat(readings["broker_ms"].to_numpy(), heads))
    numbers, place = np.unique(number[heads], return_inverse=True)
    of_partitions = np.full((2, len(numbers)), -1, np.int64)
    for row, times_ms in enumerate(newest):
        np.maximum.at(of_partitions[row], place, times_ms)
    return {each: Partition(*times) for each, *times in zip(numbers.tolist(), *of_partitions.tolist(), strict=True)}


def _by_device_and_time(codes: NDArray[Any], event_ms: Ints) -> NDArray[np.intp]:
    # One integer key sorts several times faster than two columns. It does not overflow: admission keeps times below 2^42 ms.
    low = int(event_ms.min())
    span = int(event_ms.max()) - low + 1
    return np.argsort(codes.astype(np.int64) * span + (event_ms - low))


def _others(columns: Mapping[str, pa.DictionaryArray]) -> Tally:
    """Count the readings of each column whose value is not a key of its own."""
    counts = {}
    for number, column in enumerate(columns.values()):
        is_other = pc.equal(column.dictionary, OTHER).to_numpy(zero_copy_only=False)
        codes = column.indices.drop_null().to_numpy(zero_copy_only=False)
        counts[number] = int(np.count_nonzero(is_other[codes]))
    return task_counters.of_counts(task_counters.OTHER, {number: n for number, n in counts.items() if n})

"""Tally: the counts of a task's readings, for metrics. The publisher adds them up.

One long table of integers (`what`, `of`, `at`, `count`):

    LATENCY    of 0            at = broker's time in steps of 10 ms     count = readings
    OLDEST     of a partition  at = its oldest event time               count = readings
    NEWEST     of a partition  at = its newest event time               count = readings
    ADMITTED   of 0            at = 0                                   count = readings
    UNKNOWN    of 0            at = 0                                   count = readings of devices that the reference lacks
    REJECTED   of a reason     at = 0                                   count = records; a reason is its index in REASONS
    FILTERED   of 0            at = 0                                   count = records that `input.where` does not let in
    OTHER      of a column     at = 0                                   count = readings with `(other)`, by the column's position
    BYTES      of 0            at = 0                                   count = bytes of the records' keys and values
    FURTHER    of 0            at = 0                                   count = readings of arrays but the first of each record
    MEASURED   of a measure    at = number of the input                 count = readings that have the measure, by its position
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

LATENCY, OLDEST, NEWEST, ADMITTED, UNKNOWN, REJECTED, OTHER, FILTERED, BYTES, FURTHER, MEASURED = range(11)
_STRETCHES = 1_000
"""Stretches of one partition from which rows are sorted."""
LATENCY_STEP_MS = 10
"""The step of broker times, in ms."""

Ints = NDArray[np.int64]

_FIELDS = ("what", "of", "at", "count")


@dataclass(frozen=True, slots=True)
class Tally:
    """Rows of a tally; several may have the same `what`, `of` and `at`."""

    what: Ints
    of: Ints
    at: Ints
    count: Ints

    def rows(self, what: int) -> "Tally":
        """Return the rows of a kind."""
        chosen = self.what == what
        return Tally(*(getattr(self, name)[chosen] for name in _FIELDS))

    def sum(self, what: int, of: int = 0) -> int:
        """Return the count of a kind, over all times."""
        return int(self.count[(self.what == what) & (self.of == of)].sum())

    def pack(self) -> bytes:
        """Return the rows as an Arrow stream."""
        table = pa.table({name: pa.array(getattr(self, name), pa.int64()) for name in _FIELDS})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        packed: bytes = sink.getvalue().to_pybytes()
        return packed


def unpack(payload: bytes) -> Tally:
    """Return the tally from the bytes of `pack`."""
    table = pa.ipc.open_stream(payload).read_all()
    return Tally(*(table[name].to_numpy() for name in _FIELDS))


def total(tallies: Sequence[Tally]) -> Tally:
    """Return the rows of all tallies."""
    nothing = np.zeros(0, np.int64)
    return Tally(*(np.concatenate([nothing, *(getattr(tally, name) for tally in tallies)]) for name in _FIELDS))


def of_latency(broker_ms: Ints) -> Tally:
    """Count n > 0 readings by broker time."""
    times, counts = np.unique(broker_ms // LATENCY_STEP_MS, return_counts=True)
    return _rows(LATENCY, np.zeros(len(times), np.int64), times * LATENCY_STEP_MS, counts)


def of_partitions(partition: NDArray[np.int32], event_ms: Ints) -> Tally:
    """Count n > 0 readings by partition."""
    heads = np.flatnonzero(np.r_[True, partition[1:] != partition[:-1]])
    if len(heads) > _STRETCHES:
        # Kafka delivers long stretches of one partition. A shuffle before the fold mixes them.
        order = np.argsort(partition, kind="stable")
        partition, event_ms = partition[order], event_ms[order]
        heads = np.flatnonzero(np.r_[True, partition[1:] != partition[:-1]])
    codes, counts = partition[heads], np.diff(heads, append=len(partition))
    oldest = _rows(OLDEST, codes, np.minimum.reduceat(event_ms, heads), counts)
    return total([oldest, _rows(NEWEST, codes, np.maximum.reduceat(event_ms, heads), counts)])


def of_counts(what: int, counts: Mapping[int, int]) -> Tally:
    """Return counts of a kind; the keys are the column `of`."""
    of = np.array(list(counts), np.int64)
    return _rows(what, of, np.zeros(len(of), np.int64), np.array(list(counts.values()), np.int64))


def of_measures(readings: pa.Table, measures: Sequence[str], inputs: NDArray[np.int64] | None) -> Tally:
    """Count the readings that have each measure; `inputs` is the number of each reading's input, None for one input."""
    if inputs is None:
        counts = [[readings.num_rows - readings[name].null_count] for name in measures]
    else:
        counts = [np.bincount(inputs[readings[name].is_valid().to_numpy()]).tolist() for name in measures]
    rows = [(of, at, n) for of, of_inputs in enumerate(counts) for at, n in enumerate(of_inputs) if n]
    of, at, count = np.array(rows, np.int64).reshape(-1, 3).T
    return _rows(MEASURED, of, at, count)


def times(tally: Tally) -> dict[int, tuple[int, int]]:
    """Return the oldest and the newest event time of each partition, in ms."""
    oldest, newest = tally.rows(OLDEST), tally.rows(NEWEST)
    return {
        int(each): (int(oldest.at[oldest.of == each].min()), int(newest.at[newest.of == each].max()))
        for each in np.unique(newest.of)
    }


def _rows(what: int, of: NDArray[np.integer], at: Ints, count: NDArray[np.integer]) -> Tally:
    return Tally(np.full(len(at), what, np.int64), of.astype(np.int64), at, count.astype(np.int64))

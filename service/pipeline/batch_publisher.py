"""Write rejects and values of a micro-batch; service/pipeline/batch.py has the steps. publish.lua checks each write, atomically:

    a call       the writer's epoch must be the one in `<prefix>:epoch`, else FencedError or EpochLostError;
                 progress must not be behind what this writer has seen there, else WritesLostError
    progress     is written only to the runs of Redis that the batch began with: a restarted one may lack its values
    a key        refuses an older (epoch, batch) and accepts the same one again;
                 compares a row with an open value only until the watermark has passed WritePolicy.settled_ms;
                 a final window or closed session does not change; if silence has closed it, it may, and its revision grows;
                 a window's count and a device's last_seen do not fall, whoever writes

Each shard is such a store, written and checked for itself; the batch is published when all shards have its progress.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from service import clock, failpoint, tracing
from service.admission.readings import REASONS
from service.aggregation import task_counters
from service.pipeline.outcome import Outcome, latency_counts, measured
from service.publication.early import Early
from service.publication.rows import (
    Call,
    Kind,
    Rows,
    as_of_watermark,
    by_shard,
    device_rows,
    session_rows,
    window_rows,
)
from service.publication.store import Store
from service.redis.keys import shards
from service.redis.link import Reply
from service.reference.attributes import Attributes
from service.rejects import delivery
from service.row_schemas import CHANGES, FINALS, REJECTS, SIZE, TIMES, unpack_size
from state import codec, watermark, windows
from state.columns import Ints, ints
from state.layout import Changes
from state.watermark import EventTime

ROWS_AT_ONCE = 20_000
"""Rows of a kind that are text at a time: some 1.5 KB each."""


@dataclass(frozen=True, slots=True)
class Sink(Store):
    """Publishes one micro-batch under its epoch.

    `attributes` is the reference. `begun` has the event time (ms) from which each view and measure without windows has all
    readings. `trace` is the batch's trace for a process that is not the driver.
    """

    attributes: Attributes | None = None
    begun: Mapping[tuple[str, str], int] = field(default_factory=dict)
    trace: tracing.Trace | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Copy rejects and write values, for rows of row_schemas.OUTPUT: a partition's, or all of the batch.

        Windows, sessions and counts are held in memory, rejects are not. Pass all rows of a device to one call, in the order
        in which they were made. Raises SourceError (rejects), SinkError, WritesLostError, FencedError.
        """
        output = _Output([view.name for view in self.settings.views])
        with tracing.continued(self.trace):
            for batch in batches:
                for kind, payload in zip(batch["kind"].to_pylist(), batch["payload"].to_pylist(), strict=True):
                    if kind == REJECTS:
                        self._copy_rejects(payload, output)
                    else:
                        output.take(kind, payload)
            if output.rejects:
                with tracing.span("rejects flush", records=output.rejects):
                    delivery.flush(self.settings.kafka, self.micro_batch)
            return self._write_values(output)

    def _copy_rejects(self, payload: bytes, output: "_Output") -> None:
        if not output.rejects:
            # Kafka has no epoch. A writer that was frozen calls Redis, which fences it, before its first reject. Rejects sent
            # while it is being fenced carry its epoch, so that a reader can tell them apart.
            self.run_in(0, "read_progress")
        rejects = codec.unpack(b"J", payload).to_pylist()
        with tracing.span("rejects copy", records=len(rejects)):
            delivery.copy(self.settings.kafka, rejects, self.micro_batch, self.settings.inputs_by_topic)
        for reject in rejects:
            output.early.take(reject, self.micro_batch.planned_ms)
        output.rejects += len(rejects)
        output.topics.update(reject["topic"] for reject in rejects)

    def _write_values(self, output: "_Output") -> Outcome:
        changes = output.changes()
        parts = self._by_shard(changes)
        closed_ms = max([self.micro_batch.watermark_ms, *(watermark_ms for watermark_ms, _ in output.event_times)])
        written = self.over_shards(lambda shard: self._write_shard(shard, parts[shard], output.early, closed_ms))
        tally = task_counters.total(output.tallies)
        latency_ms, latency = latency_counts(tally, clock.now_ms())
        return sum(written.values(), Outcome()) + Outcome(
            rejects=output.rejects,
            latency_ms=latency_ms,
            admitted=tally.sum(task_counters.ADMITTED),
            unknown=tally.sum(task_counters.UNKNOWN),
            filtered=tally.sum(task_counters.FILTERED),
            read_bytes=tally.sum(task_counters.BYTES),
            further=tally.sum(task_counters.FURTHER),
            rejected=tuple(tally.sum(task_counters.REJECTED, of) for of in range(len(REASONS))),
            latency=latency,
            event_times=tuple(output.event_times),
            times=tuple((code, *span) for code, span in task_counters.times(tally).items()),
            unordered=windows.lost(changes.windows),
            waiting=output.waiting,
            sizes=tuple(output.sizes),
            windows_open=tuple(output.windows_open),
            others=tuple(
                (number, n)
                for number in range(len(self.settings.grouped_columns))
                if (n := tally.sum(task_counters.OTHER, number))
            ),
            measured=measured(tally, self.settings),
            topics=tuple((self.settings.kafka.topics.index(topic), n) for topic, n in sorted(output.topics.items())),
            finals=tuple(output.finals),
        )

    def _by_shard(self, changes: Changes) -> list[Changes]:
        count = self.settings.redis.shards
        parts = {name: by_shard(getattr(changes, name), count) for name in ("sessions", "devices", "windows")}
        return [Changes(**{name: tables[shard] for name, tables in parts.items()}) for shard in range(count)]

    def _write_shard(self, shard: int, changes: Changes, early: Early, closed_ms: int) -> Outcome:
        left_out = 0
        if self.policy.covered:
            changes, left_out = self.policy.covered[shard].leave_out(changes)
        budget, counter = self.budget(shard, "values"), _CallCounter()
        sizes: list[tuple[Kind, int]] = []
        calls = counter.count(self._calls(shard, changes, early, closed_ms, sizes))
        first = next(calls, None)
        if first is None:
            return Outcome(refused_old=left_out)
        begun = [] if self.policy.is_complete else [self.stamp().call("begin")]
        with tracing.span("redis values", shard=shard):
            replies = self.link(shard).run(chain(begun, [first], calls), budget)
        totals = _totals(sizes, replies[len(begun) :])
        _, written, unchanged, old, closed_before, *_ = sum(totals.values(), np.zeros(7, np.int64)).tolist()
        sessions, *_, opened, closed = totals["session"].tolist()
        devices, *_, new_devices, _ = totals["device"].tolist()
        return Outcome(
            windows=int(totals["window"][0]),
            sessions=sessions,
            devices=devices,
            written=written,
            unchanged=unchanged,
            refused_old=old + left_out,
            refused_final=closed_before,
            opened=opened,
            new_devices=new_devices,
            closed=closed,
            bytes=counter.bytes,
            retries=budget.retries,
        )

    def _rows(self, shard: int, changes: Changes, closed_ms: int) -> Iterator[Rows]:
        """Yield the rows, ROWS_AT_ONCE of a kind at a time: as text they take ten times the memory of their columns.

        Windows that end by `closed_ms` are closed.
        """
        keys, watermark_ms = shards(self.settings.redis)[shard], self.micro_batch.watermark_ms
        retain_ms, ahead_ms = self.settings.sessions.retain_ms, self.settings.admission.max_ahead_ms
        for table, has_end in _by_end(changes.windows):
            begun = None if has_end else self.begun
            for chosen, is_behind in self._by_readings(table, closed_ms):
                for part in _parts(chosen):
                    rows = window_rows(part, keys, self.settings.views, watermark_ms, begun, ahead_ms)
                    yield replace(rows, shared={**rows.shared, "behind": True}) if is_behind else rows
        for part in _parts(changes.sessions):
            yield session_rows(part, keys, self.settings.sessions, self.policy.closed_by)
        for part in _parts(changes.devices):
            yield device_rows(part, keys, retain_ms, self.micro_batch.reference, self.attributes)

    def _by_readings(self, table: pa.Table, closed_ms: int) -> list[tuple[pa.Table, bool]]:
        """Return the windows that have all readings, and the open ones of roll-ups, which lack those of windows that are open;
        each with whether it lacks some. What silence closes has all."""
        rollups = self.settings.rollups
        if not rollups or self.policy.closed_by == "idle":
            return [(table, False)]
        is_behind = windows.are_of(table, rollups) & (ints(table, "end") > closed_ms)
        parts = [(table.filter(pa.array(rows)), behind) for rows, behind in ((~is_behind, False), (is_behind, True))]
        return [(windows.compact(part), behind) for part, behind in parts if part.num_rows]

    def _calls(
        self, shard: int, changes: Changes, early: Early, closed_ms: int, sizes: list[tuple[Kind, int]]
    ) -> Iterator[Call]:
        """Yield the calls; of those of rows, `sizes` gets the kind and the number of rows."""
        stamp, chunk, gap_ms = self.stamp(), self.settings.redis.chunk, self.settings.sessions.gap_ms
        for rows in self._rows(shard, changes, closed_ms):
            parts = as_of_watermark(rows, self.micro_batch.watermark_ms, gap_ms) if self.policy.is_complete else [rows]
            if self.policy.is_last:
                parts = [replace(part, shared={**part.shared, "last": True}) for part in parts]
            for part in parts:
                sizes += [(part.kind, min(chunk, len(part) - start)) for start in range(0, len(part), chunk)]
                yield from part.calls(stamp, chunk)
        for arguments in early.calls(shard, self.settings):
            yield stamp.call("early", **arguments)


@dataclass(slots=True)
class _Output:
    """The content of rows of row_schemas.OUTPUT, but of rejects only their number and the early readings."""

    views: Sequence[str] = ()
    rejects: int = 0
    topics: Counter[str] = field(default_factory=Counter)
    early: Early = field(default_factory=Early)
    windows_open: list[tuple[int, int, int]] = field(default_factory=list)
    tallies: list[task_counters.Tally] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    event_times: set[tuple[int, int]] = field(default_factory=set)
    waiting: int = 0
    finals: list[bytes] = field(default_factory=list)
    _changes: list[Changes] = field(default_factory=list)

    def take(self, kind: int, payload: bytes) -> None:
        if kind == CHANGES:
            self._changes.append(codec.unpack_changes(payload))
        elif kind == SIZE:
            size, by_view = unpack_size(payload)
            self.sizes.append(size)
            # A view that left the settings has windows until the watermark has passed them.
            known = ((self.views.index(view), count) for view, count in by_view.items() if view in self.views)
            self.windows_open += [(size[0], number, count) for number, count in known]
        elif kind == TIMES:
            time = EventTime.unpack(payload)
            self.event_times.add((time.watermark_ms, time.newest_ms))
            self.waiting += watermark.waiting(payload)
        elif kind == FINALS:
            self.finals.append(payload)
        else:
            self.tallies.append(task_counters.unpack(payload))

    def changes(self) -> Changes:
        """The changes of all rows as one."""

        def concatenated(name: str) -> pa.Table:
            return pa.concat_tables([getattr(each, name) for each in self._changes], promote_options="default")

        if not self._changes:
            return Changes.of_windows(windows.empty())
        return Changes(*map(concatenated, ("sessions", "devices", "windows")))


def _by_end(table: pa.Table) -> list[tuple[pa.Table, bool]]:
    """Return the windows that end, and the endless ones, each with whether they end; a table without rows is left out."""
    are_endless = windows.are_endless(table)
    if not are_endless.any():
        return [(table, True)] if table.num_rows else []
    parts = [(table.filter(pa.array(~are_endless)), True), (table.filter(pa.array(are_endless)), False)]
    return [(windows.compact(part), has_end) for part, has_end in parts if part.num_rows]


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of a table, ROWS_AT_ONCE at a time."""
    for start in range(0, table.num_rows, ROWS_AT_ONCE):
        yield table.slice(start, ROWS_AT_ONCE)


def _totals(calls: Sequence[tuple[Kind, int]], replies: Sequence[Reply]) -> dict[str, Ints]:
    """By kind of row: the number of rows, then the sums of the six counts that publish.lua's `write` returns, `windows` four.

    The first replies are those to `calls`, which have so many rows of a kind each.
    """
    totals: dict[str, Ints] = defaultdict(lambda: np.zeros(7, np.int64))
    for (kind, size), reply in zip(calls, replies, strict=False):
        totals[kind.name][1 : 1 + len(reply)] += np.array(reply, np.int64)
        totals[kind.name][0] += size
    return totals


@dataclass(slots=True)
class _CallCounter:
    """Counts the bytes of the calls that pass through it."""

    bytes: int = 0

    def count(self, calls: Iterable[Call]) -> Iterator[Call]:
        for number, call in enumerate(calls):
            if number == 1:
                failpoint.hit("half_publish")  # the first call is on its way
            self.bytes += len(call[1])
            yield call

"""Write rejects and values of a micro-batch; service/pipeline/batch.py has the steps. publish.lua checks each write, atomically:

    a call       the writer's epoch must be the one in `<prefix>:epoch`, else FencedError or EpochLostError;
                 progress must not be behind what this writer has seen there, else WritesLostError
    progress     is written only to the runs of Redis that the batch began with: a restarted one may lack its values
    a key        refuses an older (epoch, batch) and accepts the same one again;
                 compares a row with an open value only until the watermark has passed Sink.settled_ms;
                 a final window or closed session does not change; if silence has closed it, it may, and its revision grows;
                 a window's count and a device's last_seen do not fall, whoever writes

Each shard is such a store, written and checked for itself; the batch is published when all shards have its progress.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from service import clock, failpoint, threads, tracing
from service.admission.readings import REASONS
from service.aggregation import task_counters
from service.errors import FencedError
from service.micro_batch import MicroBatch
from service.pipeline.outcome import Outcome, latency_counts, measured
from service.publication.covered import Covered
from service.publication.early import Early
from service.publication.meta import meta
from service.publication.rows import (
    SCRIPT,
    Call,
    Kind,
    Rows,
    Stamp,
    as_of_watermark,
    by_shard,
    device_rows,
    last_of,
    script_keys,
    session_rows,
    window_rows,
)
from service.redis import client as redis_client
from service.redis.keys import shards
from service.redis.link import Budget, Link, Place, Reply, WritesLostError, link
from service.reference.attributes import Attributes
from service.rejects import delivery
from service.row_schemas import CHANGES, FINALS, REJECTS, SIZE, TIMES, unpack_size
from service.settings import Settings
from state import codec, windows
from state.columns import Ints
from state.layout import Changes, session_schema, status_schema
from state.watermark import EventTime

T = TypeVar("T")
_AT_ONCE = 8  # shards that a process writes to at a time
ROWS_AT_ONCE = 20_000
"""Rows of a kind that are text at a time: some 1.5 KB each."""
_GRAVEST = FencedError, WritesLostError, Exception


@cache
def _threads(_process: int, _prefix: str) -> ThreadPoolExecutor:
    # For each process: a forked worker has none of its parent's threads. For each prefix: calls of a Redis that hangs must not
    # use up the threads of another query.
    return ThreadPoolExecutor(_AT_ONCE, "tidemark-shard", threads.belong_to, (threads.pipeline(),))


@dataclass(frozen=True, slots=True)
class Sink:
    """Publishes one micro-batch under its epoch. It holds no connection and can be pickled.

    Each process that writes keeps its own connections between batches; Redis's password file must exist there. `attributes` is
    the reference. `after` is the (epoch, batch) that progress is known to have reached, or None. With `republishing`, complete
    rows are written again after a loss of data, as of the micro-batch's watermark: their TTL is reduced by their age. They also
    replace closed windows that lack the readings before their view began, unless those have more readings; with `is_last` also
    these: no reading is to come, and a device may have moved to another key. `closed_by` is the reason why closed sessions are
    closed. Values in a shard's `covered` spans are not written. Once the watermark has passed
    `settled_ms`, rows are compared only with stored values that are closed; None for never. `begun` has the event time (ms)
    from which each view and measure without windows has all readings. `only` are the shards to write, None for all. `trace` is
    the batch's trace for a process that is not the driver.
    """

    settings: Settings
    micro_batch: MicroBatch
    attributes: Attributes | None = None
    after: tuple[int, int] | None = None
    republishing: bool = False
    is_last: bool = False
    closed_by: Literal["watermark", "idle"] = "watermark"
    covered: Mapping[int, Covered] = field(default_factory=dict)
    settled_ms: int | None = None
    begun: Mapping[tuple[str, str], int] = field(default_factory=dict)
    only: frozenset[int] | None = None
    trace: tracing.Trace | None = None

    @property
    def numbers(self) -> list[int]:
        """The shards that are written."""
        every = range(self.settings.redis.shards)
        return [number for number in every if self.only is None or number in self.only]

    def write(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Copy rejects and write values, for rows of row_schemas.OUTPUT: a partition's, or all of the batch.

        Windows, sessions and counts are held in memory, rejects are not. Pass all rows of a device to one call, in the order
        in which they were made. Raises SourceError (rejects), SinkError, WritesLostError, FencedError.
        """
        with tracing.continued(self.trace):
            return self._write(batches)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        output = _Output([view.name for view in self.settings.views])
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

    def scan(self, step: str, kind: str, **arguments: Any) -> int:
        """Run a step of publish.lua page by page over all keys of a kind. Returns how many keys it removed.

        Raises SinkError when another run of Redis answers meanwhile: its pages have other keys.
        """
        return sum(self._over_shards(lambda shard: self._scan(shard, step, kind, arguments)).values())

    def _scan(self, shard: int, step: str, kind: str, arguments: Mapping[str, Any]) -> int:
        pattern = shards(self.settings.redis)[shard].matching(f"{kind}:*")
        limit, cursor, removed = self.settings.redis.chunk, "", 0
        link, budget = self._link(shard), self._budget(shard, step)
        server = link.server(budget)
        while cursor != "0":
            call = self._stamp().call(step, cursor=cursor or "0", pattern=pattern, limit=limit, **arguments)
            reply = link.run([call], budget, server)[0]
            cursor, removed = str(int(reply[0])), removed + int(reply[1])
        return removed

    def drop(self, view: str, measures: Sequence[str], *, whole: bool) -> None:
        """Remove the values of a view without windows, of some measures; with `whole`, its list of keys, too."""
        self._over_shards(lambda shard: self._drop(shard, view, measures, whole=whole))

    def _drop(self, shard: int, view: str, measures: Sequence[str], *, whole: bool) -> None:
        limit, begin, keys = self.settings.redis.chunk, 0, -1
        while keys:
            arguments: dict[str, Any] = {"view": view, "measures": [*measures], "from": begin, "limit": limit}
            keys = int(self.run_in(shard, "drop", whole=whole, **arguments)[0])
            begin += 0 if whole else keys

    def run(self, step: str, servers: Mapping[int, str] = MappingProxyType({}), **arguments: Any) -> dict[int, Reply]:
        """One call of publish.lua for each shard; returns their replies.

        With `servers`, as `progress`. Raises SinkError, WritesLostError, FencedError.
        """
        return self._over_shards(lambda shard: self.run_in(shard, step, servers.get(shard, ""), **arguments))

    def run_in(self, shard: int, step: str, server: str = "", **arguments: Any) -> Reply:
        """One call of publish.lua for one shard."""
        call = self._stamp().call(step, **arguments)
        with tracing.span(f"redis {step}", shard=shard):
            return self._link(shard).run([call], self._budget(shard, step), server)[0]

    def count_skewed(self) -> int:
        """How many devices are marked skewed."""
        floor = max(0, self.micro_batch.watermark_ms - self.settings.sessions.retain_ms)
        return sum(int(reply[0]) for reply in self.run("skewed", floor=str(floor)).values())

    def servers(self) -> dict[int, str]:
        """An id of the Redis that answers now, for each shard. Pass it to `progress` at the end of the batch."""
        return self._over_shards(lambda shard: self._link(shard).server(self._budget(shard, "beginning")))

    def progress(self, servers: Mapping[int, str] = MappingProxyType({})) -> int:
        """Write the progress key; return the event time (ms) up to which Redis calls windows final.

        It is beyond the watermark if Redis is ahead.

        Raises FencedError when progress holds a later batch of this epoch, SinkError when one of `servers` no longer answers:
        another run of Redis may lack values that were acknowledged, so the batch must be written again.
        """
        return max(self._over_shards(lambda shard: self._progress(shard, servers.get(shard, ""))).values())

    def _progress(self, shard: int, server: str) -> int:
        micro_batch = self.micro_batch
        budget = self._budget(shard, "progress")
        call = self._stamp().call(
            "progress",
            watermark=str(micro_batch.watermark_ms),
            offsets=json.dumps(
                {t: {str(p): o for p, o in sorted(ps.items())} for t, ps in sorted(micro_batch.end.items())}
            ),
            reference=micro_batch.reference,
            meta=meta(self.settings),
        )
        with tracing.span("redis progress", shard=shard):
            accepted, epoch, batch, final = self._link(shard).run([call], budget, server)[0]
        if not accepted:
            msg = f"{budget.place}: refused, batch {int(batch)} of epoch {int(epoch)} is there already"
            raise FencedError(msg, remedy="Another writer uses this epoch: this process must end")
        return int(final)

    def _copy_rejects(self, payload: bytes, output: "_Output") -> None:
        if not output.rejects:
            # Kafka has no epoch. A writer that was frozen calls Redis, which fences it, before its first reject. Rejects sent
            # while it is being fenced carry its epoch, so that a reader can tell them apart.
            self.run_in(0, "read_progress")
        rejects = codec.unpack(b"J", payload).to_pylist()
        with tracing.span("rejects copy", records=len(rejects)):
            delivery.copy(self.settings.kafka, rejects, self.micro_batch)
        for reject in rejects:
            output.early.take(reject, self.micro_batch.planned_ms)
        output.rejects += len(rejects)
        output.topics.update(reject["topic"] for reject in rejects)

    def _write_values(self, output: "_Output") -> Outcome:
        parts = self._by_shard(output.changes())
        written = self._over_shards(lambda shard: self._write_shard(shard, parts[shard], output.early))
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

    def _write_shard(self, shard: int, changes: Changes, early: Early) -> Outcome:
        left_out = 0
        if self.covered:
            changes, left_out = self.covered[shard].leave_out(changes)
        budget, counter = self._budget(shard, "values"), _CallCounter()
        sizes: list[tuple[Kind, int]] = []
        calls = counter.count(self._calls(shard, changes, early, sizes))
        first = next(calls, None)
        if first is None:
            return Outcome(refused_old=left_out)
        begun = [] if self.republishing else [self._stamp().call("begin")]
        with tracing.span("redis values", shard=shard):
            replies = self._link(shard).run(chain(begun, [first], calls), budget)
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

    def _rows(self, shard: int, changes: Changes) -> Iterator[Rows]:
        """Yield the rows, ROWS_AT_ONCE of a kind at a time: as text they take ten times the memory of their columns."""
        keys, watermark_ms = shards(self.settings.redis)[shard], self.micro_batch.watermark_ms
        retain_ms, ahead_ms = self.settings.sessions.retain_ms, self.settings.admission.max_ahead_ms
        for table, has_end in _by_end(changes.windows):
            begun = None if has_end else self.begun
            for part in _parts(table):
                yield window_rows(part, keys, self.settings.views, watermark_ms, begun, ahead_ms)
        for part in _parts(changes.sessions, ["device", "start"]):
            yield session_rows(part, keys, self.settings.sessions, self.closed_by)
        for part in _parts(changes.devices, ["device"]):
            yield device_rows(part, keys, retain_ms, self.micro_batch.reference, self.attributes)

    def _calls(self, shard: int, changes: Changes, early: Early, sizes: list[tuple[Kind, int]]) -> Iterator[Call]:
        """Yield the calls; of those of rows, `sizes` gets the kind and the number of rows."""
        stamp, chunk, gap_ms = self._stamp(), self.settings.redis.chunk, self.settings.sessions.gap_ms
        for rows in self._rows(shard, changes):
            parts = as_of_watermark(rows, self.micro_batch.watermark_ms, gap_ms) if self.republishing else [rows]
            if self.is_last:
                parts = [replace(part, shared={**part.shared, "last": True}) for part in parts]
            for part in parts:
                sizes += [(part.kind, min(chunk, len(part) - start)) for start in range(0, len(part), chunk)]
                yield from part.calls(stamp, chunk)
        for arguments in early.calls(shard, self.settings):
            yield stamp.call("early", **arguments)

    def _over_shards(self, action: Callable[[int], T]) -> dict[int, T]:
        """The results of an action for each shard, some at a time. When all have ended, raises the gravest of their errors."""
        numbers = self.numbers
        if len(numbers) == 1:
            return {numbers[0]: action(numbers[0])}
        action = tracing.bound(action)
        pool = _threads(os.getpid(), self.settings.redis.prefix)
        futures = {number: pool.submit(action, number) for number in numbers}
        errors = [error for future in futures.values() if (error := future.exception()) is not None]
        for family in _GRAVEST:
            for error in errors:
                if isinstance(error, family):
                    raise error
        return {number: future.result() for number, future in futures.items()}

    def _link(self, shard: int) -> Link:
        keys = shards(self.settings.redis)[shard]
        return link(self.settings.redis, keys, SCRIPT, script_keys(keys))

    def _budget(self, shard: int, action: str) -> Budget:
        options, what = (
            self.settings.redis,
            f"{action} of batch {self.micro_batch.batch}, epoch {self.micro_batch.epoch}",
        )
        return Budget(options.retry_for_ms, Place(redis_client.address(options, shards(options)[shard]), what))

    def _stamp(self) -> Stamp:
        epoch, batch, now_ms = self.micro_batch.epoch, self.micro_batch.batch, clock.now_ms()
        feed = self.settings.redis.feed_length, self.settings.redis.feed_retain_ms
        return Stamp(str(epoch), str(batch), str(now_ms), *feed, self.after, self.settled_ms)


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
        elif kind == FINALS:
            self.finals.append(payload)
        else:
            self.tallies.append(task_counters.unpack(payload))

    def changes(self) -> Changes:
        """The changes of all rows as one."""

        def concatenated(name: str) -> pa.Table:
            return pa.concat_tables([getattr(each, name) for each in self._changes], promote_options="default")

        if not self._changes:
            return Changes(session_schema(()).empty_table(), status_schema(()).empty_table())
        return Changes(*map(concatenated, ("sessions", "devices", "windows")))


def _by_end(table: pa.Table) -> list[tuple[pa.Table, bool]]:
    """Return the windows that end, and the endless ones, each with whether they end; a table without rows is left out."""
    are_endless = windows.are_endless(table)
    if not are_endless.any():
        return [(table, True)] if table.num_rows else []
    parts = [(table.filter(pa.array(~are_endless)), True), (table.filter(pa.array(are_endless)), False)]
    return [(windows.compact(part), has_end) for part, has_end in parts if part.num_rows]


def _parts(table: pa.Table, key: Sequence[str] = ()) -> Iterator[pa.Table]:
    """Yield the rows of a table, ROWS_AT_ONCE at a time; of several parts only the last row of each `key`."""
    if key and table.num_rows > ROWS_AT_ONCE:
        table = last_of(table, key)
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

"""Publish: the order of these steps is the guarantee.

    1  rejects' records from Kafka to the rejects topics, every delivery acknowledged    Sink.write, per partition
    2  windows, sessions and devices to Redis, under the epoch; the views' keys          Sink.write, per partition
    3  windows that the watermark has passed are marked final                            Sink.finish, once
    4  the progress key: all values include the batch up to these offsets                Sink.progress, once

Only then does Spark commit the batch. Whatever fails in 1-4 fails the batch, and the replay writes the same keys with
the same values: every step may be repeated, also in part. What Redis accepts is decided in publish.lua, atomically:

    a call       the writer's epoch must be the one in `<prefix>:epoch`, else FencedError or EpochLostError;
                 progress must not be behind what this writer has seen there, else WritesLostError
    progress     only to the run of Redis that the batch began with: one that was restarted may lack the batch's values
    a key        an older (epoch, batch) is refused; the same one is accepted again
                 a final window and a closed session do not change; those that silence has closed may, their revision grows
                 a window's count and a device's last_seen do not fall, whoever writes
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from service import clock, failpoint
from service.admission.readings import REASONS
from service.aggregation import task_counters
from service.errors import FencedError
from service.micro_batch import MicroBatch
from service.publication.covered import Covered
from service.publication.early import Early
from service.publication.rows import (
    DEVICE,
    SCRIPT,
    SESSION,
    Call,
    Rows,
    Stamp,
    device_rows,
    past,
    session_rows,
    view_keys,
    window_rows,
)
from service.redis import client as redis_client
from service.redis.keys import Keys
from service.redis.link import Budget, EpochLostError, Link, Place, Reply, WritesLostError, link
from service.reference.attributes import Attributes
from service.rejects import delivery
from service.row_schemas import CHANGES, REJECTS, SIZE, SIZES, TIMES
from service.settings import Settings
from state import codec
from state.layout import Changes, session_schema, status_schema
from state.watermark import EventTime

__all__ = ["LATENCY_BOUNDS_MS", "OUTCOME_SCHEMA", "EpochLostError", "Outcome", "Sink", "WritesLostError"]


LATENCY_BOUNDS_MS = (10, 25, *range(50, 1001, 50), 1250, 1500, 2000, 3000, 5000, 10_000, 30_000, 60_000)
"""Upper bounds, inclusive, of the latency histogram; one more bucket holds what is above the last."""

_KEYS_A_CALL = 5_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What writing did; the sum of two outcomes is the outcome of both.

    `windows`, `sessions` and `devices` are rows; each was either `written`, `unchanged` (already there: a repeat),
    `refused_old` (a newer or richer value is there, or closed values cover its span) or `refused_final` (a final window or
    closed session would have changed: in steady flow never). `new_devices` and `opened` sessions had no key before, `closed`
    ones change no more.
    `bytes` went to Redis, in attempts of which `retries` failed. `latency` counts readings by broker time to acknowledged write,
    per bucket of LATENCY_BOUNDS_MS; `latency_ms` is their sum. `admitted` are readings, `unknown` those of devices that the
    reference lacks, `rejected` counts records by reason, in the order of REASONS, `behind` those of them that were behind the
    watermark. `times` has (partition's number, oldest and newest event time in ms) of the partitions that gave readings,
    `event_times` the (watermark, newest event time) after the batch, one if all is well, `sizes` the sizes of the buckets' states
    that changed (state.processor.SIZES).
    """

    rejects: int = 0
    windows: int = 0
    sessions: int = 0
    devices: int = 0
    written: int = 0
    unchanged: int = 0
    refused_old: int = 0
    refused_final: int = 0
    opened: int = 0
    new_devices: int = 0
    closed: int = 0
    bytes: int = 0
    retries: int = 0
    latency_ms: int = 0
    admitted: int = 0
    unknown: int = 0
    behind: int = 0
    rejected: tuple[int, ...] = (0,) * len(REASONS)
    latency: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS_MS) + 1)
    event_times: tuple[tuple[int, int], ...] = ()
    times: tuple[tuple[int, int, int], ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()

    def __add__(self, other: "Outcome") -> "Outcome":
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        times: dict[int, tuple[int, int]] = {}
        for code, oldest, newest in (*self.times, *other.times):
            known = times.get(code, (oldest, newest))
            times[code] = min(known[0], oldest), max(known[1], newest)
        return Outcome(
            latency=tuple(map(sum, zip(self.latency, other.latency, strict=True))),
            event_times=tuple(sorted({*self.event_times, *other.event_times})),
            rejected=tuple(map(sum, zip(self.rejected, other.rejected, strict=True))),
            times=tuple((code, *times[code]) for code in sorted(times)),
            sizes=self.sizes + other.sizes,
            **counts,
        )

    def to_batch(self) -> pa.RecordBatch:
        """One row of OUTCOME_SCHEMA."""
        return pa.RecordBatch.from_pylist([asdict(self)], schema=_ARROW)

    @staticmethod
    def total(rows: pa.Table) -> "Outcome":
        """The sum of rows of OUTCOME_SCHEMA."""
        found = Outcome()
        for row in rows.select([*_COUNTS, *_LISTS, *_TABLES]).to_pylist():
            lists = {name: tuple(row[name]) for name in _LISTS} | {n: tuple(map(tuple, row[n])) for n in _TABLES}
            found += Outcome(**{**row, **lists})
        return found


_LISTS, _TABLES = ("rejected", "latency"), ("event_times", "times", "sizes")
_COUNTS = tuple(f.name for f in fields(Outcome) if f.name not in {*_LISTS, *_TABLES})
_ARROW = pa.schema(
    [
        *((name, pa.int64()) for name in _COUNTS),
        *((name, pa.list_(pa.int64())) for name in _LISTS),
        *((name, pa.list_(pa.list_(pa.int64()))) for name in _TABLES),
    ]
)
OUTCOME_SCHEMA = ", ".join(
    [
        *(f"{name} bigint" for name in _COUNTS),
        *(f"{name} array<bigint>" for name in _LISTS),
        *(f"{name} array<array<bigint>>" for name in _TABLES),
    ]
)
"""Outcome as a Spark schema, for mapInArrow."""


@dataclass(frozen=True, slots=True)
class Sink:
    """Where and under whose authority a batch is published; it holds no connection and can be pickled.

    Connections belong to the process that writes and stay open between batches. Redis's password file must exist there.
    `attributes` is the reference. `after` is the (epoch, batch) that progress is known to have reached, None when nothing is
    known. With `republishing`, rows are sent again after data loss, as of the micro-batch's watermark: their TTL is reduced
    by their age, and windows that it has passed are final. `closed_by` is what
    has closed the sessions that are. What is `covered` is not written.
    """

    settings: Settings
    micro_batch: MicroBatch
    attributes: Attributes | None = None
    after: tuple[int, int] | None = None
    republishing: bool = False
    closed_by: Literal["watermark", "idle"] = "watermark"
    covered: Covered | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Steps 1 and 2 for rows of row_schemas.OUTPUT: a partition's, or all of the batch.

        Windows, sessions and counts are held in memory, rejects are not. Rows of one device must come to one call,
        in the order in which they were made. Raises SourceError (rejects), SinkError, WritesLostError, FencedError.
        """
        found = _Found()
        for batch in batches:
            for kind, payload in zip(batch["kind"].to_pylist(), batch["payload"].to_pylist(), strict=True):
                if kind == REJECTS:
                    found.rejects += self._reject(payload, found.early, fenced=not found.rejects)
                else:
                    found.take(kind, payload)
        if found.rejects:
            delivery.flush(self.settings.kafka, self.micro_batch)
        return self._write_rows(found)

    def finish(self) -> int:
        """Step 3, once all partitions are written: windows with end <= watermark are final. How many became so."""
        return self.sweep("finish")

    def sweep(self, step: str) -> int:
        """A step over all windows that the watermark has passed and that are not final: chunk by chunk, to the end."""
        budget, stamp, size = self._budget("finals"), self._stamp(), self.settings.redis.chunk
        call = stamp.call(step, watermark=str(self.micro_batch.watermark_ms), limit=size)
        looked, total = size, 0
        while looked == size:
            looked, changed = map(int, self._link().run([call], budget)[0])
            total += changed
        return total

    def run(self, step: str, **arguments: Any) -> Reply:
        """One call of publish.lua; raises SinkError, WritesLostError, FencedError."""
        return self._link().run([self._stamp().call(step, **arguments)], self._budget(step))[0]

    def skewed(self) -> int:
        """How many devices are marked skewed."""
        floor = max(0, self.micro_batch.watermark_ms - self.settings.sessions.retain_ms)
        return int(self.run("skewed", floor=str(floor))[0])

    def server(self) -> str:
        """Which run of Redis the batch begins with, for `progress`."""
        return self._link().server(self._budget("beginning"))

    def progress(self, server: str = "") -> tuple[int, int] | None:
        """Step 4. Returns the (epoch, batch) that progress held before, None when there was none.

        Raises FencedError when a later batch of this epoch is there already, SinkError when it is not `server` any more
        that answers: what was written to it may be lost, though it was acknowledged, and must be written again.
        """
        micro_batch = self.micro_batch
        budget = self._budget("progress")
        call = self._stamp().call(
            "progress",
            watermark=str(micro_batch.watermark_ms),
            offsets=json.dumps(
                {t: {str(p): o for p, o in sorted(ps.items())} for t, ps in sorted(micro_batch.end.items())}
            ),
            reference=micro_batch.reference,
        )
        accepted, epoch, batch = self._link().run([call], budget, server)[0]
        if not accepted:
            msg = f"{budget.place}: refused, batch {int(batch)} of epoch {int(epoch)} is there already"
            raise FencedError(msg, remedy="Another writer uses this epoch: this one must end")
        return (int(epoch), int(batch)) if epoch else None

    # Step 1

    def _reject(self, payload: bytes, early: Early, *, fenced: bool) -> int:
        if fenced:
            # Kafka knows no epoch. A writer that was frozen asks Redis before its first reject; what it sends while
            # it is being fenced carries its epoch, so that a reader can tell.
            self.run("held")
        rejects = codec.unpack(b"J", payload).to_pylist()
        delivery.copy(self.settings.kafka, rejects, self.micro_batch)
        for reject in rejects:
            early.take(reject)
        return len(rejects)

    # Step 2

    def _write_rows(self, found: "_Found") -> Outcome:
        keys, retain_ms = Keys(self.settings.redis.prefix), self.settings.sessions.retain_ms
        retained = {view.name: view.retain_ms for view in self.settings.views}
        changes, left_out = found.changes(), 0
        if self.covered is not None:
            changes, left_out = self.covered.leave_out(changes)
        windows, sessions, devices = changes.windows, changes.sessions, changes.devices
        rows: list[Rows] = []
        if windows.num_rows:
            rows.append(window_rows(windows, keys, retained))
        if sessions.num_rows:
            rows.append(session_rows(sessions, keys, retain_ms, self.closed_by))
        if devices.num_rows:
            rows.append(device_rows(devices, keys, retain_ms, self.micro_batch.reference, self.attributes))
        if self.republishing:
            gap_ms = self.settings.sessions.gap_ms
            rows = [part for each in rows for part in past(each, self.micro_batch.watermark_ms, gap_ms)]
        budget, counter = self._budget("values"), _Calls()
        replies = self._link().run(counter.count(self._calls(rows, found.early, windows)), budget)
        written, unchanged, old, final = (sum(int(r[i]) for r in replies[: counter.writes]) for i in range(4))
        opened, new_devices, closed, at = 0, 0, 0, 0
        for each in rows:  # each is so many of the first replies, in order
            calls = -(-len(each) // self.settings.redis.chunk)
            if each.kind is SESSION:
                opened += sum(int(reply[4]) for reply in replies[at : at + calls])
                closed += sum(int(reply[5]) for reply in replies[at : at + calls])
            elif each.kind is DEVICE:
                new_devices += sum(int(reply[4]) for reply in replies[at : at + calls])
            at += calls
        counted = task_counters.total(found.counts)
        latency_ms, latency = _latency(counted, clock.now_ms())
        count: Counter[str] = Counter()
        for each in rows:
            count[each.kind.name] += len(each)
        return Outcome(
            rejects=found.rejects,
            windows=count["window"],
            sessions=count["session"],
            devices=count["device"],
            written=written,
            unchanged=unchanged,
            refused_old=old + left_out,
            refused_final=final,
            opened=opened,
            new_devices=new_devices,
            closed=closed,
            bytes=counter.bytes,
            retries=budget.retries,
            latency_ms=latency_ms,
            admitted=counted.sum(task_counters.ADMITTED),
            unknown=counted.sum(task_counters.UNKNOWN),
            behind=counted.sum(task_counters.BEHIND),
            rejected=tuple(counted.sum(task_counters.REJECTED, of) for of in range(len(REASONS))),
            latency=latency,
            event_times=tuple(found.event_times),
            times=tuple((code, *both) for code, both in task_counters.times(counted).items()),
            sizes=tuple(found.sizes),
        )

    def _calls(self, rows: Sequence[Rows], early: Early, windows: pa.Table) -> Iterator[Call]:
        stamp = self._stamp()
        for each in rows:
            yield from each.calls(stamp, self.settings.redis.chunk)
        names = Keys(self.settings.redis.prefix)
        for arguments in early.calls(names, self.settings):
            yield stamp.call("early", **arguments)
        retained = {view.name: view.retain_ms for view in self.settings.views}
        for view, (scores, members) in view_keys(windows).items():
            floor = self.micro_batch.watermark_ms - retained[view]
            for start in range(0, len(members), _KEYS_A_CALL):
                part = slice(start, start + _KEYS_A_CALL)
                yield stamp.call(
                    "keys",
                    key=names.view(view),
                    scores=scores[part],
                    members=members[part],
                    floor=str(floor) if floor > 0 else "",
                    ttl=retained[view],
                )

    def _link(self) -> Link:
        keys = Keys(self.settings.redis.prefix)
        names = (
            keys.epoch,
            keys.changes,
            keys.open,
            keys.progress,
            keys.republish,
            keys.idle,
            keys.skewed,
            keys.rebuild,
        )
        return link(self.settings.redis, SCRIPT, names)

    def _budget(self, what: str) -> Budget:
        place = Place(
            redis_client.shown(self.settings.redis),
            f"{what} of batch {self.micro_batch.batch}, epoch {self.micro_batch.epoch}",
        )
        return Budget(self.settings.redis.retry_for_ms, place)

    def _stamp(self) -> Stamp:
        now_ms = clock.now_ms()
        return Stamp(
            str(self.micro_batch.epoch),
            str(self.micro_batch.batch),
            str(now_ms),
            self.settings.redis.feed_length,
            self.after,
        )


@dataclass(slots=True)
class _Found:
    """What the rows of the output frame hold, but for rejects."""

    rejects: int = 0
    early: Early = field(default_factory=Early)
    counts: list[task_counters.Tally] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    event_times: set[tuple[int, int]] = field(default_factory=set)
    _changes: list[Changes] = field(default_factory=list)

    def take(self, kind: int, payload: bytes) -> None:
        if kind == CHANGES:
            self._changes.append(codec.unpack_changes(payload))
        elif kind == SIZE:
            self.sizes.append(SIZES.unpack(payload))
        elif kind == TIMES:
            time = EventTime.unpack(payload)
            self.event_times.add((time.watermark_ms, time.newest_ms))
        else:
            self.counts.append(task_counters.unpack(payload))

    def changes(self) -> Changes:
        """All of them."""

        def together(name: str) -> pa.Table:
            return pa.concat_tables([getattr(each, name) for each in self._changes], promote_options="default")

        if not self._changes:
            return Changes(session_schema(()).empty_table(), status_schema(()).empty_table())
        return Changes(*map(together, ("sessions", "devices", "windows")))


def _latency(counted: task_counters.Tally, now_ms: int) -> tuple[int, tuple[int, ...]]:
    """Sum in ms and counts per bucket. A reading from a broker ahead of our clock counts as 0 ms."""
    rows = counted.rows(task_counters.LATENCY)
    counts = np.zeros(len(LATENCY_BOUNDS_MS) + 1, np.int64)
    took: Any = np.maximum(now_ms - rows.at, 0)
    np.add.at(counts, np.searchsorted(LATENCY_BOUNDS_MS, took), rows.count)
    return int((took * rows.count).sum()), tuple(counts.tolist())


@dataclass(slots=True)
class _Calls:
    """Counts calls on their way: the replies to the first `writes` of them are counts of rows."""

    writes: int = 0
    bytes: int = 0

    def count(self, calls: Iterable[Call]) -> Iterator[Call]:
        for number, call in enumerate(calls):
            if number == 1:
                failpoint.hit("half_publish")  # the first call is on its way
            self.writes += call[0] == "write"
            self.bytes += len(call[1])
            yield call

"""The idle closer: closes windows and sessions by the clock while input is silent.

The watermark moves with readings only. When no reading was admitted for `admission.idle_after`, and every record is in a
committed batch, the idle closer closes windows and sessions up to the event time `now - idle_after`, with `closed_by = idle`.
Batches of records that are filtered or rejected change no window and no session, and do not end a silence.
It writes to Redis alone. The state of the query does not change:

    a reading arrives later    the query counts it as usual; publish.lua lets it correct the closed value
    readings go on             the watermark passes the closed value later, and only `closed_by` changes
    a batch is replayed        the values are the same, with or without the silence

Before it closes anything, and also when no batch came for the longest `update_every`, that of a backlog included, it writes the
open values that wait in the state (state/waiting.py): progress must not call a window final that lacks readings.

service/daemon/idle_detection.py decides when input is silent and what is due. Sessions and devices come from the state of the
last committed batch, advanced by the state's own step (state/table.py). Windows with readings need no write in Redis: progress
says up to which event time they are closed. Those without, of views with `fill`, are written when they are closed, and again
after a batch that may have changed what is carried into them. So are those of roll-ups, with the readings of windows that are
still open (state/rollups.py). Outlets get all (service/outlets/silence.py). All values have that
batch's number. They are written under the term's `write_lock`, so never while a batch is written, and only while every published
batch is committed.
docs/decisions/0009-silence-closes-in-redis-alone.md gives the reasons.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from service import clock
from service.aggregation import sessions
from service.checkpoint import beginnings
from service.daemon.idle_detection import Seen, Tables
from service.micro_batch import MicroBatch, Offsets
from service.pipeline import batch_report, builder
from service.pipeline.batch_publisher import Sink
from service.pipeline.outcome import Outcome
from service.pipeline.side_job import SideJob
from service.pipeline.term import Term
from service.publication.policy import WritePolicy
from service.row_schemas import CHANGES, OUTPUT
from service.settings import Settings
from service.spark.files import opened
from service.units import format_time
from state import codec, reader, windows
from state.columns import Bools, ints
from state.layout import BucketState, Changes
from state.table import present_waiting

_OUTPUT = to_arrow_schema(OUTPUT)

COMMIT_S = 2.0
"""How long the idle closer waits for Spark's commit of the batch that was published last."""
_LOOK_S = 0.02
MOST_FILLED = 50_000
"""Windows without readings, or of roll-ups, that are written while no batch can be: about a second."""

_log = logging.getLogger(__name__)


class IdleCloser(SideJob):
    """Closes windows and sessions by the clock, in a thread of its own; one for each query."""

    def __init__(self, term: Term) -> None:
        super().__init__(term.spark, "tidemark-silence")
        self._term = term
        self._settings = term.settings
        self._seen = Seen()
        self._admitted = 0
        self._waiting: int | None = None
        """Open values that wait in the state, after the last batch; None before a batch of this query."""
        self._published_ms = 0
        settings = term.settings
        of_views_ms = (view.update_every_ms for view in settings.views)
        self._longest_ms = max(
            settings.service.catch_up_update_every_ms, settings.sessions.update_every_ms, *of_views_ms
        )
        self._rollups = settings.rollups
        self._changed: int | None = None
        """The last batch that changed the state of windows and sessions; None before a batch of this query."""
        self._open: tuple[int, Tables] | None = None
        self._windows: list[pa.Table] = []
        """Those of that state that silence has not closed yet, sorted by `end`."""

    def published(self, batch: int, admitted: int, *, moved: bool, waiting: int = 0) -> None:
        """Note a batch of the query before it is committed: how many readings it admitted, whether the watermark moved, and how
        many open values wait."""
        self._waiting, self._published_ms = waiting, clock.steady_ms()
        self._admitted += admitted
        if admitted or moved or self._changed is None:
            self._changed = batch

    def look(self, asked_ms: int, ends: Offsets, reached: Offsets) -> None:
        """Note what Kafka answered, as Seen.look; returns at once."""
        self._seen = self._seen.look(asked_ms, ends, reached, self._admitted)
        may_wait = self._longest_ms > 0 if self._waiting is None else self._waiting > 0
        is_overdue = may_wait and asked_ms >= self._published_ms + self._longest_ms
        if is_overdue or self._line_ms() is not None:
            self.wake()

    def again(self) -> None:
        """Close everything again: values were republished from the state, where they are still open."""
        self._open = None

    def _line_ms(self, watermark_ms: int = -1) -> int | None:
        return self._seen.line_ms(self._settings.admission.idle_after_ms, watermark_ms)

    def failed(self, error: Exception) -> None:
        self._open = None
        self._term.metrics.fails("idle")
        _log.warning("The idle closer failed and tries again: %s", error)

    def work(self) -> None:
        """Write what waits, and close what is due."""
        committed = batch_report.committed(self._term.spark, self._settings.service.checkpoint)
        if committed is None or not self._has_newest_state(committed.batch):
            return  # a published batch is not committed yet, or will be replayed
        if self._waiting != 0 and not self._write_waiting(committed.batch):
            return
        line_ms = self._line_ms(committed.watermark_ms)
        if line_ms is None:
            return
        tables = self._tables(committed.batch)
        outcome, closed = Outcome(), list[Changes]()
        for number in tables.due(line_ms):
            with self._term.write_lock:
                sink = self._sink(line_ms)
                if sink is None:
                    return
                state, changes = tables.step(number, line_ms)
                outcome += sink.write([_row(changes)])
                tables.keep(number, state)
                closed.append(changes)
        ended = list[pa.Table]()
        for until_ms, due, later in parts(self._windows, line_ms, self._rollups):
            with self._term.write_lock:
                sink = self._sink(until_ms)
                if sink is None:
                    return
                if lacking := unwritten(due, self._rollups):
                    # The list of keys loses what has expired by the watermark: silence expires nothing.
                    micro_batch = replace(sink.micro_batch, watermark_ms=committed.watermark_ms)
                    outcome += replace(sink, micro_batch=micro_batch).write([_row(lacking)])
                sink.run("idle", watermark=str(until_ms))
                self._term.idle_ms = max(self._term.idle_ms, until_ms)
                ended += due
                if until_ms < line_ms:
                    continue
                if self._term.outlets is not None:
                    self._term.outlets.close_idle(sink.micro_batch, closed, ended)
                self._windows = later
        self._term.metrics.idle(outcome)
        self._term.metrics.closes_idle(line_ms)
        if outcome.closed:
            text = "No reading was admitted for a while. Windows and %d sessions are closed by the clock up to %s"
            _log.info(text, outcome.closed, format_time(line_ms))

    def _write_waiting(self, batch: int) -> bool:
        """Write the open values that wait in the state after the batch; whether no batch has come meanwhile."""
        checkpoint, rules = self._settings.service.checkpoint, sessions.rules(self._settings)
        if self._waiting is None:
            with self._term.write_lock:
                if (sink := self._sink_of(batch)) is None:
                    return False
                if sink.closed_until()[1]:
                    self._waiting = 0
                    return True
        begun = beginnings.stored(opened(self._term.spark, checkpoint), self._settings.endless)
        for _, state in reader.states(self._term.spark, checkpoint, batch):
            if changes := present_waiting(state, rules):
                with self._term.write_lock:
                    if (sink := self._sink_of(batch)) is None:
                        return False
                    replace(sink, begun=begun).write([_row(changes)])
        with self._term.write_lock:
            if (sink := self._sink_of(batch)) is None:
                return False
            sink.run("written")
            self._term.written, self._waiting = self._term.published, 0
        return True

    def _tables(self, batch: int) -> Tables:
        """The state after the batch, without what the idle closer has closed since."""
        opened = self._open
        if opened is None or not self._has_newest_state(opened[0]):
            checkpoint, rules = self._settings.service.checkpoint, sessions.rules(self._settings)
            kept, ending = list[BucketState](), list[pa.Table]()
            for _, state in reader.states(self._term.spark, checkpoint, batch):
                kept.append(replace(state, windows=windows.empty()))
                if self._term.outlets is not None or rules.fills or rules.rollups:
                    ending.append(self._to_close(windows.for_silence(state.windows, rules.fills, rules.rollups)))
            opened = batch, Tables(kept, rules)
            self._open, self._windows = opened, ending
        return opened[1]

    def _to_close(self, table: pa.Table) -> pa.Table:
        """Return the windows that silence is to close, sorted by `end`; without outlets only those that Redis lacks."""
        if self._term.outlets is None:
            table = windows.compact(table.filter(pa.array(_are_unwritten(table, self._rollups))))
        return table.sort_by("end")

    def _has_newest_state(self, batch: int) -> bool:
        """Whether no published batch after this one has changed windows or sessions."""
        published = self._term.published
        if published is None:
            return False
        return batch == published[1] if self._changed is None else self._changed <= batch <= published[1]

    def _sink(self, line_ms: int) -> Sink | None:
        """Return the sink for what is closed, as of the last batch. None if input is not silent, or that batch is not committed.

        Call it under the `write_lock`: no batch is published meanwhile.
        """
        if self._open is None or self._line_ms() is None:
            return None
        return self._sink_of(self._open[0], line_ms)

    def _sink_of(self, batch: int, line_ms: int | None = None) -> Sink | None:
        """Return the sink for values of the state after a batch, as of the last one; with `line_ms` for what silence closes.

        None if that batch is not committed, or the state has changed since. Call it under the `write_lock`.
        """
        committed, term = self._committed(), self._term
        if committed is None or not self._has_newest_state(batch) or self.is_ending:
            return None
        snapshot = term.snapshot
        micro_batch = replace(committed, epoch=term.epoch, reference=snapshot.version if snapshot else "")
        policy = WritePolicy.stream(term.published, covered=term.covered)
        if line_ms is not None:
            micro_batch, policy = replace(micro_batch, watermark_ms=line_ms), WritePolicy.idle(term.published)
        return Sink(self._settings, micro_batch, builder.attributes(snapshot, self._settings), policy=policy)

    def _committed(self) -> MicroBatch | None:
        """Return the batch that was published last, None if Spark does not commit it soon."""
        published, until_s = self._term.published, clock.monotonic_s() + COMMIT_S
        while published is not None and not self.is_ending:
            committed = batch_report.committed(self._term.spark, self._settings.service.checkpoint)
            if committed is not None and committed.batch == published[1]:
                return committed
            # Spark commits a batch some 30 ms after it is published. While records come that are not admitted, hardly a moment
            # is without an uncommitted batch.
            if committed is None or committed.batch != published[1] - 1 or clock.monotonic_s() > until_s:
                return None
            self.rest(_LOOK_S)
        return None


def tables(spark: SparkSession, checkpoint: str, settings: Settings, batch: int | None = None) -> Tables:
    """Return the state of a checkpoint after a batch, by default the last, without windows: progress alone closes those."""
    return _tables([state for _, state in reader.states(spark, checkpoint, batch)], settings)


def parts(
    tables: Sequence[pa.Table], line_ms: int, rollups: Collection[str] = ()
) -> Iterator[tuple[int, list[pa.Table], list[pa.Table]]]:
    """Yield the windows that end by a time: up to when, these windows, and those that end later. `tables` are sorted by `end`.

    A part ends with the `MOST_FILLED`th window that is `unwritten`, and has all that end with it. There is at least one part.
    """
    ends = [ints(table, "end") for table in tables]
    lacking = [
        each[(each <= line_ms) & _are_unwritten(table, rollups)] for each, table in zip(ends, tables, strict=True)
    ]
    cuts = np.sort(np.concatenate([np.zeros(0, np.int64), *lacking]))[MOST_FILLED - 1 :: MOST_FILLED]
    for until_ms in sorted({*cuts.tolist(), line_ms}):
        places = [int(np.searchsorted(ints(table, "end"), until_ms, "right")) for table in tables]
        due = [table.slice(0, place) for table, place in zip(tables, places, strict=True)]
        tables = [table.slice(place) for table, place in zip(tables, places, strict=True)]
        yield until_ms, due, tables


def unwritten(due: Iterable[pa.Table], rollups: Collection[str] = ()) -> Changes:
    """Return the windows of which Redis may lack readings, or which it lacks: those of roll-ups, and those without readings."""
    tables = [table.filter(pa.array(_are_unwritten(table, rollups))) for table in due]
    return Changes.of_windows(windows.concat(tables))


def _are_unwritten(table: pa.Table, rollups: Collection[str]) -> Bools:
    lacking: Bools = ints(table, "count") == 0
    return lacking | windows.are_of(table, rollups) if rollups else lacking


def _tables(states: Iterable[BucketState], settings: Settings) -> Tables:
    return Tables([replace(state, windows=windows.empty()) for state in states], sessions.rules(settings))


def _row(changes: Changes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"kind": CHANGES, "payload": codec.pack_changes(changes)}], schema=_OUTPUT)

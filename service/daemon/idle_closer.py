"""The idle closer: closes windows and sessions by the clock while input is silent.

The watermark moves with readings only. When no reading was admitted for `admission.idle_after`, and every record is in a
committed batch, the idle closer closes windows and sessions up to the event time `now - idle_after`, with `closed_by = idle`.
Batches of records that are filtered or rejected change no window and no session, and do not end a silence.
It writes to Redis alone. The state of the query does not change:

    a reading arrives later    the query counts it as usual; publish.lua lets it correct the closed value
    readings go on             the watermark passes the closed value later, and only `closed_by` changes
    a batch is replayed        the values are the same, with or without the silence

service/daemon/idle_detection.py decides when input is silent and what is due. Sessions and devices come from the state of the
last committed batch, advanced by the state's own step (state/table.py). Windows need no write in Redis: progress says up to
which event time they are closed. Outlets get both (service/outlets/silence.py). All values have that batch's number. They are
written under the term's `write_lock`, so never while a batch is written, and only while every published batch is committed.
docs/decisions/0009-silence-closes-in-redis-alone.md gives the reasons.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from service import clock
from service.aggregation import sessions
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
from service.units import format_time
from state import codec, reader, windows
from state.layout import BucketState, Changes

_OUTPUT = to_arrow_schema(OUTPUT)

COMMIT_S = 2.0
"""How long the idle closer waits for Spark's commit of the batch that was published last."""
_LOOK_S = 0.02

_log = logging.getLogger(__name__)


class IdleCloser:
    """Closes windows and sessions by the clock, in a thread of its own; one for each query."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._settings = term.settings
        self._seen = Seen()
        self._admitted = 0
        self._changed: int | None = None
        """The last batch that changed the state of windows and sessions; None before a batch of this query."""
        self._open: tuple[int, Tables] | None = None
        self._windows: list[pa.Table] = []
        self._job = SideJob(term.spark, "tidemark-silence", self._close, self._failed)

    def start(self) -> None:
        """Start the thread."""
        self._job.start()

    def close(self) -> None:
        """End the thread. The next idle closer repeats unfinished work."""
        self._job.close()

    def published(self, batch: int, admitted: int, *, moved: bool) -> None:
        """Note a batch of the query before it is committed: how many readings it admitted, and whether the watermark moved."""
        self._admitted += admitted
        if admitted or moved or self._changed is None:
            self._changed = batch

    def look(self, asked_ms: int, ends: Offsets, reached: Offsets) -> None:
        """Note what Kafka answered, as Seen.look; returns at once."""
        self._seen = self._seen.look(asked_ms, ends, reached, self._admitted)
        if self._line_ms() is not None:
            self._job.wake()

    def again(self) -> None:
        """Close everything again: values were republished from the state, where they are still open."""
        self._open = None

    def _line_ms(self, watermark_ms: int = -1) -> int | None:
        return self._seen.line_ms(self._settings.admission.idle_after_ms, watermark_ms)

    def _failed(self, error: Exception) -> None:
        self._open = None
        self._term.metrics.fails("idle")
        _log.warning("The idle closer failed and tries again: %s", error)

    def _close(self) -> None:
        committed = batch_report.committed(self._term.spark, self._settings.service.checkpoint)
        if committed is None or not self._has_newest_state(committed.batch):
            return  # a published batch is not committed yet, or will be replayed
        line_ms = self._line_ms(committed.watermark_ms)
        if line_ms is None:
            return
        tables = self._tables(committed.batch)
        outcome, closed = Outcome(), list[pa.Table]()
        for number in tables.due(line_ms):
            with self._term.write_lock:
                sink = self._sink(line_ms)
                if sink is None:
                    return
                state, changes = tables.step(number, line_ms)
                outcome += sink.write([_row(changes)])
                tables.keep(number, state)
                closed.append(changes.sessions)
        with self._term.write_lock:
            sink = self._sink(line_ms)
            if sink is None:
                return
            sink.run("idle", watermark=str(line_ms))
            if self._term.outlets is not None:
                self._term.outlets.close_idle(sink.micro_batch, closed, self._due_windows(line_ms))
        self._term.metrics.idle(outcome)
        self._term.metrics.closes_idle(line_ms)
        if outcome.closed:
            text = "No reading was admitted for a while. Windows and %d sessions are closed by the clock up to %s"
            _log.info(text, outcome.closed, format_time(line_ms))

    def _tables(self, batch: int) -> Tables:
        """The state after the batch, without what the idle closer has closed since."""
        opened = self._open
        if opened is None or not self._has_newest_state(opened[0]):
            checkpoint = self._settings.service.checkpoint
            states = [state for _, state in reader.states(self._term.spark, checkpoint, batch)]
            opened = batch, _tables(states, self._settings)
            self._open = opened
            self._windows = [state.windows for state in states] if self._term.outlets is not None else []
        return opened[1]

    def _due_windows(self, line_ms: int) -> list[pa.Table]:
        return [table.filter(pc.less_equal(table["end"], line_ms)) for table in self._windows]

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
        committed = self._committed()
        opened = self._open
        if committed is None or opened is None or not self._has_newest_state(opened[0]):
            return None
        if self._line_ms() is None or self._job.is_ending:
            return None
        snapshot = self._term.snapshot
        version = snapshot.version if snapshot else ""
        micro_batch = replace(committed, epoch=self._term.epoch, watermark_ms=line_ms, reference=version)
        attributes = builder.attributes(snapshot, self._settings)
        return Sink(self._settings, micro_batch, attributes, policy=WritePolicy.idle(self._term.published))

    def _committed(self) -> MicroBatch | None:
        """Return the batch that was published last, None if Spark does not commit it soon."""
        published, until_s = self._term.published, clock.monotonic_s() + COMMIT_S
        while published is not None and not self._job.is_ending:
            committed = batch_report.committed(self._term.spark, self._settings.service.checkpoint)
            if committed is not None and committed.batch == published[1]:
                return committed
            # Spark commits a batch some 30 ms after it is published. While records come that are not admitted, hardly a moment
            # is without an uncommitted batch.
            if committed is None or committed.batch != published[1] - 1 or clock.monotonic_s() > until_s:
                return None
            self._job.rest(_LOOK_S)
        return None


def tables(spark: SparkSession, checkpoint: str, settings: Settings, batch: int | None = None) -> Tables:
    """Return the state of a checkpoint after a batch, by default the last, without windows: progress alone closes those."""
    return _tables([state for _, state in reader.states(spark, checkpoint, batch)], settings)


def _tables(states: Iterable[BucketState], settings: Settings) -> Tables:
    return Tables([replace(state, windows=windows.empty()) for state in states], sessions.rules(settings))


def _row(changes: Changes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"kind": CHANGES, "payload": codec.pack_changes(changes)}], schema=_OUTPUT)

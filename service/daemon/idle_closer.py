"""The idle closer: closes windows and sessions by the clock while all input is silent.

The watermark moves with readings only. When all input has been silent for `admission.idle_after`, and every record is in a
committed batch, the idle closer closes windows and sessions up to the event time `now - idle_after`, with `closed_by = idle`.
It writes to Redis alone. The state of the query does not change:

    a reading arrives later    the query counts it as usual; publish.lua lets it correct the closed value
    readings go on             the watermark passes the closed value later, and only `closed_by` changes
    a batch is replayed        the values are the same, with or without the silence

service/daemon/idle_detection.py decides when input is silent and what is due. Sessions and devices come from the state of the
last committed batch, advanced by the state's own step (state/table.py). Windows need no write in Redis: progress says up to
which event time they are closed. Outlets get both (service/outlets/silence.py). All values have that batch's number. They are
written under the term's `write_lock`, so never while a batch is written.
docs/decisions/0009-silence-closes-in-redis-alone.md gives the reasons.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from service.aggregation import sessions
from service.daemon.idle_detection import Seen, Tables
from service.micro_batch import MicroBatch, Offsets
from service.pipeline import batch_report, builder
from service.pipeline.batch_publisher import Sink
from service.pipeline.outcome import Outcome
from service.pipeline.side_job import SideJob
from service.pipeline.term import Term
from service.row_schemas import CHANGES, OUTPUT
from service.settings import Settings
from service.units import format_time
from state import codec, reader, windows
from state.layout import BucketState, Changes

_OUTPUT = to_arrow_schema(OUTPUT)

_log = logging.getLogger(__name__)


class IdleCloser:
    """Closes windows and sessions by the clock, in a thread of its own; one for each query."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._settings = term.settings
        self._seen = Seen()
        self._open: tuple[int, Tables] | None = None
        self._windows: list[pa.Table] = []
        self._job = SideJob(term.spark, "tidemark-silence", self._close, self._failed)

    def start(self) -> None:
        """Start the thread."""
        self._job.start()

    def close(self) -> None:
        """End the thread. The next idle closer repeats unfinished work."""
        self._job.close()

    def look(self, asked_ms: int, reached: Offsets | None) -> None:
        """Note what Kafka answered, as Seen.look; returns at once."""
        self._seen = self._seen.look(asked_ms, reached)
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
        if committed is None or not self._is_newest(committed.batch):
            return  # a published batch is not committed yet, or will be replayed
        line_ms = self._line_ms(committed.watermark_ms)
        if line_ms is None:
            return
        tables = self._tables(committed.batch)
        sink = self._sink(committed, line_ms)
        outcome, closed = Outcome(), list[pa.Table]()
        for number in tables.due(line_ms):
            with self._term.write_lock:
                if not self._may_write(committed.batch):
                    return
                state, changes = tables.step(number, line_ms)
                outcome += sink.write([_row(changes)])
                tables.keep(number, state)
                closed.append(changes.sessions)
        with self._term.write_lock:
            if not self._may_write(committed.batch):
                return
            sink.run("idle", watermark=str(line_ms))
            if self._term.outlets is not None:
                self._term.outlets.close_idle(sink.micro_batch, closed, self._due_windows(line_ms))
        self._term.metrics.idle(outcome)
        self._term.metrics.closes_idle(line_ms)
        if outcome.closed:
            text = "All input is silent and read. Windows and %d sessions are closed by the clock up to %s"
            _log.info(text, outcome.closed, format_time(line_ms))

    def _tables(self, batch: int) -> Tables:
        """The state after the batch, without what the idle closer has closed since."""
        opened = self._open
        if opened is None or opened[0] != batch:
            checkpoint = self._settings.service.checkpoint
            states = [state for _, state in reader.states(self._term.spark, checkpoint, batch)]
            opened = batch, _tables(states, self._settings)
            self._open = opened
            self._windows = [state.windows for state in states] if self._term.outlets is not None else []
        return opened[1]

    def _due_windows(self, line_ms: int) -> list[pa.Table]:
        return [table.filter(pc.less_equal(table["end"], line_ms)) for table in self._windows]

    def _may_write(self, batch: int) -> bool:
        """Whether input is still silent, and the batch is still the newest."""
        return self._line_ms() is not None and not self._job.is_ending and self._is_newest(batch)

    def _is_newest(self, batch: int) -> bool:
        published = self._term.published
        return published is not None and published[1] == batch

    def _sink(self, committed: MicroBatch, line_ms: int) -> Sink:
        snapshot = self._term.snapshot
        version = snapshot.version if snapshot else ""
        micro_batch = replace(committed, epoch=self._term.epoch, watermark_ms=line_ms, reference=version)
        attributes = builder.attributes(snapshot, self._settings)
        return Sink(self._settings, micro_batch, attributes, self._term.published, closed_by="idle")


def tables(spark: SparkSession, checkpoint: str, settings: Settings, batch: int | None = None) -> Tables:
    """Return the state of a checkpoint after a batch, by default the last, without windows: progress alone closes those."""
    return _tables([state for _, state in reader.states(spark, checkpoint, batch)], settings)


def _tables(states: Iterable[BucketState], settings: Settings) -> Tables:
    return Tables([replace(state, windows=windows.empty()) for state in states], sessions.rules(settings))


def _row(changes: Changes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"kind": CHANGES, "payload": codec.pack_changes(changes)}], schema=_OUTPUT)

"""Silence: when nothing arrives any more, the clock takes the watermark's place.

The engine's watermark moves with readings only. So when all input has been silent for `admission.idle_after`, and every
record that there is was counted, what is open is closed from here: by the event time `now - idle_after`, with
`closed_by = idle`, in Redis alone. The engine's state is not touched and knows nothing of it:

    a reading that comes after all    is counted in the state as ever; publish.lua lets it correct what silence has closed
    readings go on                    the watermark passes it in its time, and only `closed_by` changes
    a replay                          finds no silence where there was one, and ends with the same values

When that is so, and what is closed, is decided in quiet.py. Sessions and devices are those of the last committed batch's
state, moved on by the state's own step (state/table.py); windows are those of Redis's index. All is written under that
batch's number, and never beside a batch: whoever writes holds `write_lock`.
docs/decisions/0009-silence-closes-in-redis-alone.md says why.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from service.aggregation import sessions
from service.daemon.idle_detection import Seen, Tables
from service.micro_batch import MicroBatch, Offsets
from service.pipeline import batch_report, builder
from service.pipeline.batch_publisher import Sink
from service.pipeline.outcome import Outcome
from service.pipeline.side_job import SideJob
from service.reference.snapshots import Snapshot
from service.row_schemas import CHANGES, OUTPUT
from service.settings import Settings
from state import codec, reader, windows
from state.layout import Changes

_OUTPUT = to_arrow_schema(OUTPUT)

_log = logging.getLogger(__name__)


class IdleCloser:
    """Closes by the clock what silence leaves open, in a thread of its own; one for each query.

    `reached` gives the (epoch, batch) of progress, `snapshot` the reference in use. `on_closed` gets how many windows and
    what else was closed, `on_failure` is called when that failed; it is tried again.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        epoch: int,
        *,
        reached: Callable[[], tuple[int, int] | None],
        snapshot: Callable[[], Snapshot] | None = None,
        on_closed: Callable[[int, Outcome], object] = lambda _windows, _outcome: None,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        self.write_lock = threading.Lock()
        self._spark = spark
        self._settings = settings
        self._epoch = epoch
        self._reached = reached
        self._snapshot = snapshot
        self._on_closed = on_closed
        self._on_failure = on_failure
        self._seen = Seen()
        self._open: tuple[int, Tables] | None = None
        self._job = SideJob(spark, "tidemark-silence", self._close, self._failed)

    def start(self) -> None:
        """Begin to close what is to be closed."""
        self._job.start()

    def close(self) -> None:
        """End; what it was doing is done again by the next one."""
        self._job.close()

    def look(self, asked_ms: int, reached: Offsets | None) -> None:
        """As Seen.look, from the lag's thread; returns at once."""
        self._seen = self._seen.look(asked_ms, reached)
        if self._line_ms() is not None:
            self._job.wake()

    def again(self) -> None:
        """Values of the state were published as they are there: they are closed once more."""
        self._open = None

    def _line_ms(self, watermark_ms: int = -1) -> int | None:
        return self._seen.line_ms(self._settings.admission.idle_after_ms, watermark_ms)

    def _failed(self, error: Exception) -> None:
        self._open = None
        self._on_failure()
        _log.warning("What silence leaves open is not closed yet: %s", error)

    def _close(self) -> None:
        committed = batch_report.committed(self._spark, self._settings.service.checkpoint)
        if committed is None or not self._is_newest(committed.batch):
            return  # a batch is published and not committed, or is to be repeated: there is something to come
        line_ms = self._line_ms(committed.watermark_ms)
        if line_ms is None:
            return
        tables = self._tables(committed.batch)
        sink = self._sink(committed, line_ms)
        outcome = Outcome()
        for number in tables.due(line_ms):
            with self.write_lock:
                if not self._may_write(committed.batch):
                    return
                state, changes = tables.step(number, line_ms)
                outcome += sink.write([_row(changes)])
                tables.keep(number, state)
        with self.write_lock:
            if not self._may_write(committed.batch):
                return
            windows = sink.sweep("idle")
        self._on_closed(windows, outcome)
        if windows or outcome.closed:
            text = "no input, and nothing left to read: %d windows and %d sessions are closed up to %d"
            _log.info(text, windows, outcome.closed, line_ms)

    def _tables(self, batch: int) -> Tables:
        """What the state holds after the batch, or what silence has left of it."""
        held = self._open
        if held is None or held[0] != batch:
            held = self._open = batch, tables(self._spark, self._settings.service.checkpoint, self._settings, batch)
        return held[1]

    def _may_write(self, batch: int) -> bool:
        """Whether it is still silent, and no batch has come."""
        return self._line_ms() is not None and not self._job.is_ending and self._is_newest(batch)

    def _is_newest(self, batch: int) -> bool:
        reached = self._reached()
        return reached is not None and reached[1] == batch

    def _sink(self, committed: MicroBatch, line_ms: int) -> Sink:
        snapshot = self._snapshot() if self._snapshot else None
        version = snapshot.version if snapshot else ""
        micro_batch = replace(committed, epoch=self._epoch, watermark_ms=line_ms, reference=version)
        attributes = builder.attributes(snapshot, self._settings)
        return Sink(self._settings, micro_batch, attributes, self._reached(), closed_by="idle")


def tables(spark: SparkSession, checkpoint: str, settings: Settings, batch: int | None = None) -> Tables:
    """What a checkpoint's state holds after a batch, the last one if not given."""
    # Redis's index has the windows that are due.
    states = [replace(state, windows=windows.empty()) for _, state in reader.states(spark, checkpoint, batch)]
    return Tables(states, sessions.rules(settings))


def _row(changes: Changes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"kind": CHANGES, "payload": codec.pack_changes(changes)}], schema=_OUTPUT)

"""Silence: when nothing arrives any more, the clock takes the watermark's place.

The engine's watermark moves with readings only. So when all input has been silent for `admission.idle_after`, and every
record that there is was counted, what is open is closed from here: by the event time `now - idle_after`, with
`closed_by = idle`, in Redis alone. The engine's state is not touched and knows nothing of it:

    a reading that comes after all    is counted in the state as ever; publish.lua lets it correct what silence has closed
    readings go on                    the watermark passes it in its time, and only `closed_by` changes
    a replay                          finds no silence where there was one, and ends with the same values

Sessions and devices are those of the last committed batch's state, moved on by the state's own step (state/table.py);
windows are those of Redis's index. All is written under that batch's number, and never beside a batch: `turn` is held by
whoever writes. docs/decisions/0009-silence-closes-in-redis-alone.md says why.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from service import pipeline, progress
from service.aggregation import sessions
from service.cut import Cut, Offsets
from service.errors import FencedError
from service.frames import OUTPUT, SESSIONS
from service.publication.publish import Outcome, Sink
from service.publication.redis_link import WritesLostError
from service.reference.snapshots import Snapshot
from service.settings import Settings
from state import codec, reader, runs
from state.layout import BucketState, Changes
from state.rules import Rules
from state.table import advance, next_expiry

AGAIN_S = 10.0
AWAY_MS = 15_000
"""Without a look for this long nobody knows what was silent: Kafka, most likely, and what was held up comes now."""
_OUTPUT = to_arrow_schema(OUTPUT)
_GROUP = "tidemark-silence"

_log = logging.getLogger(__name__)


class Quiet:
    """Whether all input is silent, from what the lag's looks at the topics find. Not for two threads."""

    def __init__(self, after_ms: int) -> None:
        self._after_ms = after_ms
        self._reached: Offsets | None = None
        self._since_ms = self._asked_ms = 0

    def look(self, asked_ms: int, reached: Offsets | None) -> int | None:
        """The event time up to which silence closes, None while it does not.

        `asked_ms` is the clock just before Kafka was asked; `reached` are the topics' ends when all before them is in
        committed batches, None when it is not. What arrives later has a broker's time of at least `asked_ms`.
        """
        was_away = asked_ms - self._asked_ms > AWAY_MS
        self._asked_ms = asked_ms
        if reached is None or reached != self._reached or was_away:
            self._reached, self._since_ms = reached, asked_ms
            return None
        line_ms = asked_ms - self._after_ms
        return line_ms if line_ms >= self._since_ms else None


class Silence:
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
        self.turn = threading.Lock()
        self._spark = spark
        self._settings = settings
        self._epoch = epoch
        self._reached = reached
        self._snapshot = snapshot
        self._on_closed = on_closed
        self._on_failure = on_failure
        self._quiet = Quiet(settings.admission.idle_after_ms)
        self._open: _Open | None = None
        self._line_ms: int | None = None
        self._wake = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._serve, name="tidemark-silence", daemon=True)

    def start(self) -> None:
        """Begin to close what is to be closed."""
        self._thread.start()

    def close(self) -> None:
        """End; what it was doing is done again by the next one."""
        self._ending = True
        self._wake.set()
        if self._thread.is_alive():
            with suppress(Exception):  # Spark may be gone
                self._spark.sparkContext.cancelJobGroup(_GROUP)
            self._thread.join(5.0)

    def look(self, asked_ms: int, reached: Offsets | None) -> None:
        """As Quiet.look, from the lag's thread; returns at once."""
        self._line_ms = self._quiet.look(asked_ms, reached)
        if self._line_ms is not None:
            self._wake.set()

    def again(self) -> None:
        """Values of the state were published as they are there: they are closed once more."""
        self._open = None

    def _serve(self) -> None:
        self._spark.sparkContext.setJobGroup(_GROUP, "what silence closes", interruptOnCancel=True)
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._ending:
                return
            try:
                self._close()
            except (FencedError, WritesLostError):
                return  # the query's thread or the lease meets it, too, and ends the term
            except Exception as error:  # whatever it is, the stream goes on, and the next try comes
                self._open = None
                if not self._ending:
                    self._on_failure()
                    _log.warning("What silence leaves open is not closed yet: %s", error)
                    self._wake.wait(AGAIN_S)

    def _close(self) -> None:
        committed = progress.committed(self._spark, self._settings.service.checkpoint)
        if committed is None or not self._is_newest(committed.batch):
            return  # a batch is published and not committed, or is to be repeated: there is something to come
        if self._open is None or self._open.batch != committed.batch:
            found = reader.buckets(self._spark, self._settings.service.checkpoint, committed.batch).toArrow()
            states = [codec.decode(state) for state in found["state"].to_pylist()]
            self._open = _Open(committed.batch, states, sessions.rules(self._settings))
        opened = self._open
        line_ms = self._line_ms
        if line_ms is None or line_ms <= committed.watermark_ms:
            return
        sink = self._sink(committed, line_ms)
        outcome = Outcome()
        for number in opened.due(line_ms):
            with self.turn:
                if not self._may_write(committed.batch):
                    return
                state, changes = opened.step(number, line_ms)
                outcome += sink.write([_row(changes)])
                opened.states[number] = state
        with self.turn:
            if not self._may_write(committed.batch):
                return
            windows = sink.sweep("idle")
        self._on_closed(windows, outcome)
        if windows or outcome.closed:
            text = "no input, and nothing left to read: %d windows and %d sessions are closed up to %d"
            _log.info(text, windows, outcome.closed, line_ms)

    def _may_write(self, batch: int) -> bool:
        """Whether it is still silent, and no batch has come."""
        return self._line_ms is not None and not self._ending and self._is_newest(batch)

    def _is_newest(self, batch: int) -> bool:
        reached = self._reached()
        return reached is not None and reached[1] == batch

    def _sink(self, committed: Cut, line_ms: int) -> Sink:
        snapshot = self._snapshot() if self._snapshot else None
        version = snapshot.version if snapshot else ""
        cut = replace(committed, epoch=self._epoch, watermark_ms=line_ms, reference=version)
        attributes = pipeline.attributes(snapshot, self._settings)
        return Sink(self._settings, cut, attributes, self._reached(), closed_by="idle")


class _Open:
    """The states of all buckets after `batch`, moved on by silence; a bucket without open sessions is let go of."""

    def __init__(self, batch: int, states: list[BucketState], rules: Rules) -> None:
        self.batch = batch
        self.states = [state for state in states if state.runs.num_rows]
        self._rules = rules
        self._none = runs.schema(rules.measures).empty_table()

    def due(self, line_ms: int) -> list[int]:
        """Which of `states` have something to close."""
        self.states = [state for state in self.states if state.runs.num_rows]
        expiries = [next_expiry(state, self._rules) for state in self.states]
        return [number for number, expiry in enumerate(expiries) if expiry is not None and expiry < line_ms]

    def step(self, number: int, line_ms: int) -> tuple[BucketState, Changes]:
        """What the watermark would do to the state if it were at `line_ms`."""
        return advance(self.states[number], self._none, line_ms, self._rules)


def _row(changes: Changes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"kind": SESSIONS, "payload": codec.pack_changes(changes)}], schema=_OUTPUT)

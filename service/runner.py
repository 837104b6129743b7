"""The life of the daemon, in this order:

    metrics server -> lease -> topics -> Spark -> reference snapshot -> query -> ... -> stop -> release the lease

The streaming query runs in threads of its own. The main thread polls: it is the one that gets signals, hands committed
batches to metrics and to Kafka's consumer group, and sees the query, the lease or an operator end things.

Stopping. A batch is never interrupted in Python while there is another way: `query.stop()` in the middle of one runs a
recursive regular expression over a long text in the JVM (engine fact, Spark 4.1.1). A flag is set; the batch that runs
finishes and is committed; the next one meets `gate()`, which raises Stopping before anything of it is written, and that
ends the query. A query that has nothing to do is stopped from here. A batch that goes on for too long is abandoned: it
is not committed, and the next start replays it, with the same cut and the same values.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from service import checkpoint, clock, failpoint, failure, metrics, owner, pipeline, reference, session, topics
from service.cut import Offsets
from service.errors import FencedError, ReferenceDataError, SettingsError, TidemarkError
from service.lag import Lag
from service.lease import Lease, Waiting
from service.progress import Poll
from service.redis_link import EpochLostError
from service.settings import Reference as ReferenceSettings
from service.settings import Settings

POLL_S = 0.2
PATIENCE_S = 20.0
"""How long a stop waits for the batch that runs before it is abandoned."""
LIMIT_S = 28.0
"""When a stop is over, whatever still hangs: supervisors begin to kill after 30 s."""

_ENGINE = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
_log = logging.getLogger(__name__)


class Stopping(Exception):  # noqa: N818 - it is no error
    """Raised by the gate: the query is to end before this batch."""


def run(settings: Settings, *, master: str | None = None) -> int:
    """Run until told to stop; returns 0 then. Raises the TidemarkError that ended it otherwise.

    Must be called from the main thread, which alone can have signal handlers. `master` is Spark's, for runs without
    spark-submit.
    """
    return Runner(settings, master).run()


class Runner:
    """One run of the service."""

    def __init__(self, settings: Settings, master: str | None = None) -> None:
        self.settings = settings
        self.master = master
        self.metrics = metrics.Metrics()
        self.stop = threading.Event()
        self._guard: threading.Timer | None = None
        self._lease = Lease(settings, owner.here())
        self._spark: SparkSession | None = None
        self._in_batch = threading.Event()
        self._ends: dict[int, Offsets] = {}
        self._refresher: Refresher | None = None

    def run(self) -> int:
        settings = self.settings
        with ExitStack() as cleanup:
            cleanup.enter_context(self._signals())
            server = metrics.Server(self.metrics, settings.metrics.address, settings.metrics.port)
            cleanup.callback(server.close)
            _log.info("metrics at http://%s:%d/metrics", settings.metrics.address, server.port)
            topics.prepare(settings.kafka)
            cleanup.callback(self._lease.release)
            epoch = self._acquire()
            if epoch is None or self.stop.is_set():
                return 0
            spark = self._spark = session.build(settings, master=self.master)
            cleanup.callback(_end_spark, spark)
            self._on_signals(spark)
            while epoch is not None:
                epoch = self._serve_term(spark, epoch)
        _log.info("stopped")
        return 0

    def gate(self) -> None:
        """Called at the top of every batch, in the query's thread."""
        if self._lease.lost.is_set():
            raise self._lost()
        if self.stop.is_set():
            if self._spark is not None:
                session.silence(self._spark, _ENGINE)  # it would report the end that we ask for as an error
            raise Stopping
        self._in_batch.set()
        self.metrics.batch_begins()

    def on_batch(self, report: pipeline.BatchReport) -> None:
        """Called when all of a batch is in Redis, before Spark commits it, in the query's thread."""
        self._ends[report.cut.batch] = report.cut.end
        self.metrics.batch_ends(report)
        if self._refresher is not None:
            self._refresher.swap()
        self._in_batch.clear()

    def _acquire(self, at_least: int = 0) -> int | None:
        """Wait for the lease and begin a term; None when told to stop meanwhile."""
        epoch = self._lease.acquire(self._on_wait, self.stop, at_least)
        if epoch is not None:
            self.metrics.ready("lease")
            self.metrics.epoch.set(epoch)
            _log.info("epoch %d is ours", epoch)
        return epoch

    def _serve_term(self, spark: SparkSession, epoch: int) -> int | None:
        """One term of the writer. Returns the epoch of the next one, None when told to stop.

        A Redis that has come back without its data, or with older data, ends a term: nothing of ours was written to it
        since, so the batch is replayed under a new epoch that is larger than every one before.
        """
        try:
            self._serve(spark, epoch)
        except EpochLostError as error:
            self.metrics.failures.labels("redis_data").inc()
            _log.warning("%s", error)
            return self._acquire(at_least=epoch)
        return None

    def _lost(self) -> TidemarkError:
        """Why the lease is no longer ours: what the renewal found in Redis tells a newer writer from a loss of data."""
        reason = self._lease.reason
        found = reason.removeprefix("the epoch is ")
        if found != reason and (found == "gone" or (found.isdecimal() and int(found) < self._lease.epoch)):
            what = f"Redis has lost data: {reason}, ours was {self._lease.epoch}"
            return EpochLostError(what, remedy="Acquire the lease again, then replay the batch")
        what = f"The lease of epoch {self._lease.epoch} is lost: {reason}"
        return FencedError(what, remedy="Another writer has taken over: this one must end")

    def _serve(self, spark: SparkSession, epoch: int) -> None:
        settings = self.settings
        with ExitStack() as cleanup:
            if settings.reference is not None:
                self._refresher = Refresher(spark, settings, settings.reference, self.metrics)
                cleanup.callback(self._refresher.close)
            holder = self._refresher.holder if self._refresher else None
            query, publication = pipeline.start(
                spark,
                settings,
                holder=holder,
                epoch=epoch,
                gate=self.gate,
                on_batch=self.on_batch,
            )
            lag = Lag(settings.kafka, self.metrics.lags, self.metrics.failures.labels("lag").inc)
            lag.start()
            cleanup.callback(lag.close)
            self.metrics.query_running.set(1)
            poll = Poll(query)
            try:
                self._watch(query, lag, poll)
                self._end_query(spark, query)
            finally:
                self.metrics.query_running.set(0)
                self._committed(poll, lag)
            self._judge(query, publication.failure)

    def _watch(self, query: StreamingQuery, lag: Lag, poll: Poll) -> None:
        """Until the query has ended, or should."""
        while not self.stop.is_set() and not self._lease.lost.is_set():
            if _ended(query, POLL_S):
                return
            self._committed(poll, lag)

    def _committed(self, poll: Poll, lag: Lag) -> None:
        for progress in poll():
            self.metrics.engine(progress)
            for batch in [batch for batch in self._ends if batch <= progress.batch]:
                lag.committed(self._ends.pop(batch))
                failpoint.hit("after_commit")

    def _end_query(self, spark: SparkSession, query: StreamingQuery) -> None:
        """Between two batches if at all possible; see the module's text."""
        since = quiet = clock.monotonic_s()
        cancelled = False
        while not _ended(query, 0.05):
            now = clock.monotonic_s()
            if now - since > PATIENCE_S + 4:
                break
            if now - since > PATIENCE_S and not cancelled:
                _log.warning("the batch still runs after %.0f s and is abandoned; it will be replayed", now - since)
                spark.sparkContext.cancelAllJobs()
                cancelled = True
            if self._in_batch.is_set():
                quiet = now
            # A trigger without a batch in Python commits, or plans, which leads to the gate, or waits for a lost Kafka.
            elif not query.status["isTriggerActive"] or now - quiet > PATIENCE_S / 2:
                break
        if query.isActive:
            with suppress(PySparkException):  # a source that does not answer keeps the thread for stopTimeout
                query.stop()

    def _judge(self, query: StreamingQuery, raised: BaseException | None) -> None:
        """Return when the end is what was asked for, raise its name otherwise."""
        if isinstance(raised, FencedError | EpochLostError):
            raise raised
        if self._lease.lost.is_set():
            raise self._lost()
        if isinstance(raised, TidemarkError) or not self.stop.is_set():
            raise failure.named(raised, query) from raised

    def _on_wait(self, found: Waiting) -> None:
        reason = f"{found.holder} holds the lease"
        if self.metrics.waiting("lease", reason):
            _log.info("waiting: %s", reason)

    def _ask_to_stop(self) -> None:
        if not self.stop.is_set():
            self.stop.set()
            # Whatever hangs, a process that was told to stop is gone when its supervisor would kill it.
            self._guard = threading.Timer(LIMIT_S, os._exit, (0,))
            self._guard.daemon = True
            self._guard.start()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self._take_signals()
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
            if self._guard is not None:
                self._guard.cancel()

    def _take_signals(self) -> None:
        def handle(_number: int, _frame: Any) -> None:
            self._ask_to_stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)

    def _on_signals(self, spark: SparkSession) -> None:
        self._take_signals()  # again: making a SparkContext replaces SIGINT's handler
        session.on_jvm_signal(spark, self._ask_to_stop, "TERM")
        if session.submitted():
            session.on_jvm_signal(spark, self._ask_to_stop, "INT")  # Ctrl-C reaches the JVM first


class Refresher:
    """Keeps the reference fresh: reads in a thread of its own, swaps between two batches."""

    def __init__(self, spark: SparkSession, settings: Settings, source: ReferenceSettings, to: metrics.Metrics) -> None:
        """Take the first snapshot: from the database, or the last good one if it is not older than `max_age`.

        Raises ReferenceDataError when there is neither.
        """
        self._spark = spark
        self._reference = source
        self._metrics = to
        self._folder = snapshot_folder(settings)
        wanted = {column for view in settings.views for column in view.by if column != "device"}
        first = reference.load(spark, self._reference, self._folder, fallback=True, require=sorted(wanted))
        age_ms = clock.now_ms() - first.read_ms
        if age_ms > self._reference.max_age_ms:
            what = (
                f"The last good reference {first.version} was read {age_ms // 1000} s ago, "
                f"reference.max_age is {self._reference.max_age_ms // 1000} s"
            )
            raise ReferenceDataError(what, remedy="Bring the database back, or raise reference.max_age")
        self._columns = reference.columns(first, self._reference)
        self.holder = reference.Holder(spark, self._folder, self._columns, resume=True)
        self._newest = first
        self._show()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="tidemark-reference", daemon=True)
        self._thread.start()

    def swap(self) -> None:
        """Between two batches, in the query's thread: take what has been read since. Never fails a batch."""
        try:
            if self.holder.swap(self._newest):
                _log.info("reference %s is in use", self.holder.snapshot.version)
        except TidemarkError as error:
            self._failed(error)
        self._show()

    def close(self) -> None:
        self._ending.set()

    def _refresh(self) -> None:
        while not self._ending.wait(self._reference.refresh_ms / 1000):
            try:
                self._newest = reference.load(self._spark, self._reference, self._folder, require=self._columns)
            except Exception as error:  # whatever it is, the last good snapshot serves on, and the next try comes
                if not self._ending.is_set():
                    self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._metrics.failures.labels("reference").inc()
        _log.warning("%s. Going on with reference %s", error, self.holder.snapshot.version)

    def _show(self) -> None:
        read_ms = max(self.holder.snapshot.read_ms, 0)
        self._metrics.reference(self.holder.snapshot.version, lambda: (clock.now_ms() - read_ms) / 1000)


def snapshot_folder(settings: Settings) -> Path:
    """Where the last good reference lives: beside the query's own files in the checkpoint."""
    folder = checkpoint.local(settings.service.checkpoint)
    if folder is None:
        what = f"service.checkpoint = {settings.service.checkpoint!r}: with [reference] it must be a folder"
        raise SettingsError(what, remedy="Name a folder that the driver and every executor share")
    return folder / "reference"


def _ended(query: StreamingQuery, wait_s: float) -> bool:
    """Wait that long for the end of the query, however it ends."""
    handle: Any = query
    try:
        return bool(handle._jsq.awaitTermination(int(wait_s * 1000)))
    except Exception:  # the query's own exception, in one of several wrappings; it is read from the query later
        if query.isActive:
            raise
        return True


def _end_spark(spark: SparkSession) -> None:
    """Stop Spark, for at most five seconds: the process is about to end, and the JVM with it."""
    stopping = threading.Thread(target=spark.stop, name="tidemark-spark-stop", daemon=True)
    stopping.start()
    stopping.join(5.0)

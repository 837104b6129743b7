"""The life of the daemon, in this order:

    metrics server -> lease -> Spark -> reference snapshot -> query -> ... -> stop -> release the lease

The streaming query runs in threads of its own. The main thread polls: it is the one that gets signals, hands committed
batches to metrics and to Kafka's consumer group, and sees the query, the lease or an operator end things.

Failing. What may pass (the table in service/pipeline/failure.py) does not end the process, wherever it happens: acquiring the
lease is retried, and a query is started again from its checkpoint, under the same epoch, in the same Spark session, with
back-off.
Before each attempt Kafka and Redis are asked whether they are there, which costs less than a query that finds out. The same
holds at the start: a broker or a Redis that is down is waited for. Ten minutes of it without a committed batch end the
process, and so does the end of Spark: a supervisor's fresh JVM is the cure for what this one cannot.

Stopping. A batch is never interrupted in Python while there is another way: `query.stop()` in the middle of one runs a
recursive regular expression over a long text in the JVM (engine fact, Spark 4.1.1). A flag is set; the batch that runs
finishes and is committed; the next one calls `before_batch()`, which raises Stopping before anything of it is written, and that
ends the query. A query that has nothing to do is stopped from here. A batch that goes on for too long is abandoned: it
is not committed, and the next start replays it, with the same offsets and the same values.
"""

import importlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from service import clock, failpoint
from service.admission.schema_catalog import NewSchemaError, SchemaCatalog, new_catalog
from service.checkpoint import resume
from service.checkpoint.skips import ReadAnewError
from service.daemon import owner, starts
from service.daemon.idle_closer import IdleCloser
from service.daemon.lease import Lease, Waiting
from service.daemon.refresher import Refresher
from service.errors import FencedError, SparkLostError, TidemarkError
from service.kafka import topics
from service.micro_batch import Offsets
from service.monitoring import metrics, server
from service.monitoring.lag import Lag
from service.monitoring.quality_page import Page
from service.monitoring.status import Status
from service.pipeline import builder, failure
from service.pipeline.batch_report import Poll, committed
from service.pipeline.outcome import Outcome
from service.quality.checker import Checker
from service.recompute.republish import Republisher
from service.redis.link import EpochLostError, WritesLostError
from service.reference import lookup
from service.reference.current_snapshot import CurrentSnapshot
from service.rejects.delivery import UNREADABLE
from service.settings import Settings
from service.spark import session
from service.spark.warm_up import WarmUp

POLL_S = 0.2
_BETWEEN_TRIGGERS = "Waiting for"
"""How the message of a query's status begins when a trigger is over, with or without a batch (Spark 4.1.1)."""
PATIENCE_S = 20.0
"""How long a stop waits for the batch that runs before it is abandoned."""
LIMIT_S = 28.0
"""When a stop is over, whatever still hangs: supervisors begin to kill after 30 s."""

_ENGINE = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
_log = logging.getLogger(__name__)


class Stopping(Exception):  # noqa: N818 - it is no error
    """Raised before a batch: the query is to end before this batch."""


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
        self.metrics.limits(settings)
        self.status = Status(settings.service.name)
        self.stop = threading.Event()
        self._guard: threading.Timer | None = None
        self._lease = Lease(settings, owner.here())
        self._patience = failure.Patience()
        self._spark: SparkSession | None = None
        self._ending = threading.Event()
        self._in_batch = threading.Event()
        self._ends: dict[int, Offsets] = {}
        self._writes_lost = ""
        self._refresher: Refresher | None = None
        self._page = Page(is_on=settings.quality.expectations is not None)
        self._checker: Checker | None = None
        self._catalog: SchemaCatalog | None = None
        self._warm_up: WarmUp | None = None

    def run(self) -> int:
        settings = self.settings
        with ExitStack() as cleanup:
            cleanup.enter_context(self._signals())
            if session.submitted():  # the JVM is the process that supervisors know, and Ctrl-C reaches it first
                session.on_jvm_signals(self._ask_to_stop, "TERM", "INT")
            http = server.Server(self.metrics, self.status, settings.metrics.address, settings.metrics.port, self._page)
            cleanup.callback(http.close)
            self.metrics.unreadable.set(starts.unreadable(settings))
            _log.info("metrics at http://%s:%d/metrics", settings.metrics.address, http.port)
            cleanup.callback(self._lease.release)
            epoch = self._begin_term()
            if epoch is None or self.stop.is_set():
                return 0
            # The reference needs it, and Spark's start has Python wait anyway.
            threading.Thread(
                target=importlib.import_module, args=["pandas"], name="tidemark-import", daemon=True
            ).start()
            spark = self._spark = session.build(settings, master=self.master)
            cleanup.callback(_end_spark, spark)
            self._warm_up = WarmUp(spark)
            self._take_signals()  # again: making a SparkContext replaces SIGINT's handler
            if not session.submitted():
                session.on_jvm_signals(self._ask_to_stop, "TERM")
            cleanup.callback(self._end_threads)
            while epoch is not None:
                epoch = self._serve_term(spark, epoch)
        _log.info("stopped")
        return 0

    def before_batch(self) -> None:
        """Called at the top of every batch, in the query's thread."""
        if self._warm_up is not None:
            self._warm_up.wait_for_cores(self.stop)
        if self._lease.lost.is_set():
            raise self._lost()
        if self.stop.is_set() or self._ending.is_set():
            if self._spark is not None and self.stop.is_set():
                session.silence(self._spark, _ENGINE)  # it would report the end that we ask for as an error
            raise Stopping
        if self._refresher is not None:
            self._refresher.begin()
        self._in_batch.set()
        self.metrics.batch_begins()

    def on_batch(self, report: builder.BatchReport) -> None:
        """Called when all of a batch is in Redis, before Spark commits it, in the query's thread."""
        self._ends[report.micro_batch.batch] = report.micro_batch.end
        self._lease.reached = report.micro_batch.epoch, report.micro_batch.batch
        self.metrics.batch_ends(report)
        self.status.batch(report)
        if self._refresher is not None:
            self._refresher.swap()
        self._in_batch.clear()

    def _on_look(self, idle_closer: IdleCloser, asked_ms: int, reached: Offsets | None) -> None:
        idle_closer.look(asked_ms, reached)
        self.metrics.asked(asked_ms)

    def _on_skip(self, offsets: int) -> None:
        _log.warning("offsets that the query has skipped, as `tidemark skip` was told: %d", offsets)
        self.metrics.rejects.labels(UNREADABLE).inc(offsets)

    def _begin_term(self, at_least: int = 0) -> int | None:
        """Wait for the lease and begin a term; None when told to stop meanwhile."""
        while not self.stop.is_set():
            try:
                epoch = self._lease.acquire(self._on_wait, self.stop, at_least)
            except TidemarkError as error:
                self.metrics.failures.labels("lease").inc()
                self._wait_after(error, "lease")
                continue
            if epoch is not None:
                self.metrics.ready("lease")
                self.metrics.epoch.set(epoch)
                self.status.term(epoch)
                _log.info("epoch %d is ours", epoch)
            return epoch
        return None

    def _serve_term(self, spark: SparkSession, epoch: int) -> int | None:
        """One term of the writer: queries, until one ends as it should. The epoch of the next term, None for no more.

        A Redis that has come back without its data, or with older data, ends a term: nothing of ours was written to it
        since, so what it lost is republished and the batch replayed, under a new epoch that is larger than every one before.
        """
        while not self.stop.is_set():
            try:
                self._serve(spark, epoch)
            except NewSchemaError as found:
                self._in_batch.clear()
                self.metrics.batch_fails()
                _log.info("%s: known now, the query goes on with it", found)
            except ReadAnewError as found:
                self._in_batch.clear()
                self.metrics.batch_fails()
                _log.info("%s: the query is started again", found)
            except WritesLostError as error:
                self._writes_lost = error.what
                self.metrics.failures.labels("redis_data").inc()
                self._restart_after(spark, error)
                return self._begin_term(at_least=epoch)
            except Exception as error:  # our own by name; what the engine or py4j raise in this thread gets one
                named = failure.classify(error)
                if named is not error:
                    named.__cause__ = error
                self._restart_after(spark, named)
            else:
                return None
        return None

    def _serve(self, spark: SparkSession, epoch: int) -> None:
        """One query, from its checkpoint to its end; raises what ended it unless that was asked for."""
        settings = self.settings
        retention_ms = topics.prepare(settings.kafka)
        self.metrics.keeps(retention_ms)
        if not self._lease.confirm():
            raise self._lost()
        for gap in resume.prepare(spark, settings, self._on_skip):
            _log.warning("going on without what is lost: %s", gap)
        if self._catalog is None:
            self._catalog = new_catalog(spark, settings, lambda result: self.metrics.lookups.labels(result).inc())
        catalog = self._catalog
        catalog.open(resume.position(spark, settings))
        self.metrics.schemas.set(len(catalog.plan.schemas))
        with ExitStack() as cleanup:
            care = cleanup.enter_context(starts.counted(spark, settings))
            self.metrics.unreadable.set(0)
            current_snapshot = self._hold_reference(spark)
            self._check_quality(spark, current_snapshot, catalog)
            idle_closer = self._idle_closer(spark, epoch, current_snapshot)
            cleanup.callback(idle_closer.close)
            republisher = self._republisher(spark, epoch, current_snapshot, idle_closer, catalog)
            cleanup.callback(republisher.close)
            self._lease.reached = republisher.begin(self._writes_lost)
            self._writes_lost = ""
            republisher.start()
            self._ending.clear()
            query, publication = builder.start(
                spark,
                settings,
                current_snapshot=current_snapshot,
                epoch=epoch,
                before_batch=self.before_batch,
                on_batch=self.on_batch,
                catalog=catalog,
                after=self._lease.reached,
                write_lock=idle_closer.write_lock,
                covered=republisher.covered,
                care=care,
            )
            lag = Lag(
                settings.kafka,
                self.metrics.lags,
                self.metrics.lag_fails,
                retention_ms=retention_ms,
                headrooms=self.metrics.headrooms,
                level=lambda asked_ms, reached: self._on_look(idle_closer, asked_ms, reached),
            )
            newest = committed(spark, settings.service.checkpoint)
            if newest is not None:  # when nothing comes any more, no batch would say so
                lag.committed(newest.end)
            idle_closer.start()
            lag.start()
            cleanup.callback(lag.close)
            self.status.query_started()
            poll = Poll(query)
            try:
                self._watch(query, lag, poll)
            finally:
                self._ending.set()
                self._end_query(spark, query)
                self.metrics.query_running.set(0)
                self._note_commits(poll, lag)
            self._judge(query, publication.failure)

    def _hold_reference(self, spark: SparkSession) -> CurrentSnapshot | None:
        """What the query joins with: made once, whatever becomes of the queries."""
        if self.settings.reference is None:
            return None
        if self._refresher is None:
            self._refresher = Refresher(spark, self.settings, self.settings.reference, self.metrics)
            self.status.reference(self._refresher.document)
        self._refresher.rewind()
        return self._refresher.current_snapshot

    def _idle_closer(self, spark: SparkSession, epoch: int, current_snapshot: CurrentSnapshot | None) -> IdleCloser:
        return IdleCloser(
            spark,
            self.settings,
            epoch,
            reached=lambda: self._lease.reached,
            snapshot=(lambda: current_snapshot.snapshot) if current_snapshot is not None else None,
            on_closed=self.metrics.idle,
            on_failure=self.metrics.failures.labels("idle").inc,
        )

    def _republisher(
        self,
        spark: SparkSession,
        epoch: int,
        current_snapshot: CurrentSnapshot | None,
        idle_closer: IdleCloser,
        catalog: SchemaCatalog,
    ) -> Republisher:
        def done(outcome: Outcome, unrecoverable: tuple[int, int]) -> None:
            self.metrics.republishes(outcome, unrecoverable)
            idle_closer.again()

        return Republisher(
            spark,
            self.settings,
            epoch,
            reference=(lambda: current_snapshot.snapshot) if current_snapshot is not None else None,
            schemas=lambda: catalog.plan,
            on_lost=self.metrics.data_lost.inc,
            on_done=done,
            on_failure=self.metrics.failures.labels("republish").inc,
        )

    def _check_quality(
        self, spark: SparkSession, current_snapshot: CurrentSnapshot | None, catalog: SchemaCatalog
    ) -> None:
        """Once for the process: holder and book stay the same."""
        expectations = self.settings.quality.expectations
        if expectations is None or self._checker is not None:
            return
        asked = None
        if current_snapshot is not None and lookup.needed(self.settings):
            asked = lookup.UdfLookUp(current_snapshot.attributes, lookup.bounds(self.settings))
        self._checker = Checker(
            spark, self.settings, expectations, self.metrics, self._page, look_up=asked, schemas=lambda: catalog.plan
        )

    def _end_threads(self) -> None:
        if self._checker is not None:
            self._checker.close()
        if self._refresher is not None:
            self._refresher.close()

    def _restart_after(self, spark: SparkSession, error: TidemarkError) -> None:
        """Wait before the next query, or raise when there cannot be one."""
        self._in_batch.clear()
        self.metrics.batch_fails()
        if _is_gone(spark):
            what = f"Spark has ended; the query's last word was {error.code}: {error.what}"
            remedy = "A new process starts where this one stopped; see the log of the JVM and of the cluster's master"
            raise SparkLostError(what, remedy=remedy) from error
        if failure.transient(error) and not self.stop.is_set():
            self.status.restarts()
            self.metrics.restarts.labels(error.code).inc()
        self._wait_after(error, "query")

    def _wait_after(self, error: TidemarkError, part: str) -> None:
        """Wait before the next attempt. Raises the error when it cannot pass, or has been too long about it."""
        self.status.failed(error)
        if not failure.transient(error):
            raise error
        if self.stop.is_set():
            _log.warning("%s: %s. The next start goes on from there", error.code, error)
            return
        wait_s = self._patience.failed(clock.monotonic_s())
        if wait_s is None:
            _log.error("failing for %.0f s without a committed batch: giving up", failure.GIVE_UP_S)
            raise error
        self.metrics.waiting(part, f"{error.code}: {error}")
        _log.warning("%s: %s. Trying again in %.0f s", error.code, error, wait_s)
        self.stop.wait(wait_s)

    def _lost(self) -> TidemarkError:
        """Why the lease is no longer ours: what the renewal found in Redis tells a newer writer from a loss of data."""
        reason = self._lease.reason
        found = reason.removeprefix("the epoch is ")
        if found != reason and (found == "gone" or (found.isdecimal() and int(found) < self._lease.epoch)):
            what = f"Redis has lost data: {reason}, ours was {self._lease.epoch}"
            return EpochLostError(what, remedy="Acquire the lease again, then replay the batch")
        if reason.startswith("progress is "):
            what = f"Redis has lost data: {reason}, {self._lease.reached} was there"
            return WritesLostError(what, remedy="Acquire the lease again, then replay the batch")
        what = f"The lease of epoch {self._lease.epoch} is lost: {reason}"
        return FencedError(what, remedy="Another writer has taken over: this one must end")

    def _watch(self, query: StreamingQuery, lag: Lag, poll: Poll) -> None:
        """Until the query has ended, or should."""
        runs = False
        while not self.stop.is_set() and not self._lease.lost.is_set():
            if _ended(query, POLL_S):
                return
            if self._refresher is not None:
                self._refresher.require_young()
            committed = self._note_commits(poll, lag)
            # A query that was started may still fail in its first trigger, again and again, while Kafka or Redis is away.
            if not runs and (committed or query.status["message"].startswith(_BETWEEN_TRIGGERS)):
                runs = True
                self.metrics.query_running.set(1)
                self.metrics.ready("query")

    def _note_commits(self, poll: Poll, lag: Lag) -> bool:
        """Whether a batch was committed since."""
        found = False
        for progress in poll():
            found = True
            self.metrics.engine(progress)
            self._patience.progressed()
            for batch in [batch for batch in self._ends if batch <= progress.batch]:
                end = self._ends.pop(batch)
                lag.committed(end)
                if self._checker is not None:
                    self._checker.committed(end)
                failpoint.hit("after_commit")
        return found

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
            # A trigger without a batch in Python commits, or plans, which leads to `before_batch`, or waits for a lost Kafka.
            elif not query.status["isTriggerActive"] or now - quiet > PATIENCE_S / 2:
                break
        if query.isActive:
            with suppress(PySparkException):  # a source that does not answer keeps the thread for stopTimeout
                query.stop()

    def _judge(self, query: StreamingQuery, raised: BaseException | None) -> None:
        """Return when the end is what was asked for, raise its name otherwise."""
        if isinstance(raised, FencedError | WritesLostError | NewSchemaError | ReadAnewError):
            raise raised
        if self._lease.lost.is_set():
            raise self._lost()
        if isinstance(raised, TidemarkError) or not self.stop.is_set():
            raise failure.classify(raised, query) from raised

    def _on_wait(self, found: Waiting) -> None:
        reason = f"{found.holder} holds the lease"
        if self.metrics.waiting("lease", reason, standby=True):
            _log.info("waiting: %s", reason)

    def _ask_to_stop(self) -> None:
        if not self.stop.is_set():
            self.stop.set()
            self.status.becomes("stopping")
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


def _ended(query: StreamingQuery, wait_s: float) -> bool:
    """Wait that long for the end of the query, however it ends."""
    handle: Any = query
    try:
        return bool(handle._jsq.awaitTermination(int(wait_s * 1000)))
    except Exception:  # the query's own exception, in one of several wrappings; it is read from the query later
        if query.isActive:
            raise
        return True


def _is_gone(spark: SparkSession) -> bool:
    """Whether the Spark application has ended, or the JVM with it."""
    context: Any = spark.sparkContext
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:  # no JVM answers, in one of py4j's several ways, or there is no context any more
        return True


def _end_spark(spark: SparkSession) -> None:
    """Stop Spark, for at most five seconds: the process is about to end, and the JVM with it."""

    def stop() -> None:
        with suppress(Exception):  # it may be gone already
            spark.stop()

    stopping = threading.Thread(target=stop, name="tidemark-spark-stop", daemon=True)
    stopping.start()
    stopping.join(5.0)

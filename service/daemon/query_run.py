"""One query of the daemon, from its start to its end.

The query runs in threads of its own. The main thread polls: it receives signals, passes committed batches to the metrics and to
Kafka's consumer group, and ends the query when the lease is lost or a stop is requested.

Stopping. A batch is not interrupted in Python if that can be avoided: `query.stop()` during a batch runs a recursive regular
expression over a long text in the JVM (Spark 4.1.1). The main thread sets a flag. The running batch finishes and is committed;
the next one calls `before_batch`, which raises Stopping before anything of it is written, and that ends the query. An idle
query is stopped directly. A batch that runs longer than PATIENCE_S is abandoned: it is not committed, and the next start
replays it with the same offsets and the same values.
"""

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from service import clock, failpoint
from service.checkpoint.skips import Care
from service.checkpoint.view_versions import ViewsChangedError
from service.daemon.backoff import Backoff
from service.daemon.idle_closer import IdleCloser
from service.daemon.lease import Lease
from service.daemon.session_parts import SessionParts
from service.errors import FencedError, TidemarkError
from service.micro_batch import Offsets
from service.monitoring.lag import Lag
from service.pipeline import failure
from service.pipeline.batch import BatchReport, start_query
from service.pipeline.batch_report import Poll, committed
from service.pipeline.term import Term
from service.redis.link import WritesLostError
from service.spark import memory, session
from service.spark.internals import jvm

POLL_S = 0.2
PATIENCE_S = 20.0
"""How long a stop waits for the running batch."""
_ABANDONED_S = 4.0
"""How long a stop waits for an abandoned batch to end."""
_BETWEEN_TRIGGERS = "Waiting for"
"""The message of a query's status begins so when a trigger is over, with or without a batch (Spark 4.1.1)."""
_log = logging.getLogger(__name__)


class Stopping(Exception):  # noqa: N818 - it is no error
    """Raised before a batch to end the query."""


class QueryRun:
    """Starts the term's query and waits for its end; used once."""

    def __init__(self, parts: SessionParts, term: Term, lease: Lease, backoff: Backoff, stop: threading.Event) -> None:
        self._parts, self._term, self._lease = parts, term, lease
        self._metrics, self._activity = parts.metrics, parts.activity_log
        self._backoff = backoff
        self._stop = stop
        self._ending = threading.Event()
        self._in_batch = threading.Event()
        self._idle_closer: IdleCloser | None = None
        self._watermark_ms = 0
        self._has_published = False
        self._ends: dict[int, Offsets] = {}
        """The end offsets of the batches that are published and not seen as committed yet."""

    def run(self, idle_closer: IdleCloser, lag: Lag, retention_ms: Mapping[str, int], care: Care) -> None:
        """Return when the query has ended because a stop was requested; raise what ended it otherwise.

        `lag` goes on when the query has ended.
        """
        self._idle_closer = idle_closer
        session.silence(self._term.spark, silent=False)
        query, publication = start_query(
            self._term, before_batch=self._before_batch, on_batch=self._on_batch, care=care
        )
        newest = committed(self._term.spark, self._term.settings.service.checkpoint)
        if newest is not None:  # without new records no batch would report the end
            lag.committed(newest.end)
        idle_closer.start()
        with lag.serving(retention_ms, idle_closer.look):
            self._parts.status.query_started()
            poll = Poll(query)
            try:
                self._watch(query, lag, poll)
                if self._stop.is_set():
                    _log.info("A stop is requested. The query ends after the batch that runs, if one does")
            finally:
                self._ending.set()
                self._end(query)
                if not query.isActive:  # else a batch may still ask Kafka
                    publication.edges.close()
                self._metrics.query_running.set(0)
                self._note_commits(poll, lag)
        self._judge(query, publication.failure)

    def _before_batch(self, batch: int) -> None:
        """Called at the top of every batch, in the query's thread."""
        self._parts.warm_up.wait_for_cores(self._stop)
        if self._lease.lost.is_set():
            raise self._lease.loss()
        if not self._stop.is_set():
            self._parts.require_topics()
            self._parts.views.before_batch(batch)
        if self._stop.is_set() or self._ending.is_set():
            session.silence(self._term.spark)  # it would log the requested end as an error
            raise Stopping
        if self._has_published:  # so everything is imported
            memory.collect_soon()
        if self._parts.refresher is not None:
            self._parts.refresher.begin()
        self._in_batch.set()
        self._metrics.batch_begins()

    def _on_batch(self, report: BatchReport) -> None:
        """Called in the query's thread when a batch is in Redis, before Spark commits it."""
        micro_batch = report.micro_batch
        self._has_published = True
        self._ends[micro_batch.batch] = micro_batch.end
        if self._idle_closer is not None:
            moved = micro_batch.watermark_ms != self._watermark_ms
            outcome = report.outcome
            self._idle_closer.published(micro_batch.batch, outcome.admitted, moved=moved, waiting=outcome.waiting)
            self._watermark_ms = micro_batch.watermark_ms
        self._lease.reached = self._term.published
        self._metrics.batch_ends(report)
        self._parts.status.batch(report)
        self._activity.batch(report)
        if self._parts.refresher is not None:
            self._parts.refresher.swap()
        self._in_batch.clear()

    def _watch(self, query: StreamingQuery, lag: Lag, poll: Poll) -> None:
        """Return when the query has ended, or has to end."""
        runs = False
        while not self._stop.is_set() and not self._lease.lost.is_set():
            if _ended(query, POLL_S):
                return
            if self._parts.refresher is not None:
                self._parts.refresher.require_young()
            self._parts.require_room()
            has_committed = self._note_commits(poll, lag)
            self._activity.look(self._metrics.lag_total)
            if has_committed:
                self._parts.views.committed()
            self._parts.views.look()
            if self._parts.views.is_due or self._parts.has_new_topics.is_set():
                return
            # A started query may still fail in its first trigger, again and again, while Kafka or Redis is away.
            if not runs and (has_committed or query.status["message"].startswith(_BETWEEN_TRIGGERS)):
                runs = True
                self._metrics.query_running.set(1)
                self._metrics.ready("query")

    def _note_commits(self, poll: Poll, lag: Lag) -> bool:
        """Report the batches that were committed since the last call; whether there were any."""
        has_committed = False
        for progress in poll():
            has_committed = True
            self._metrics.engine(progress)
            self._parts.status.committed(progress)
            self._backoff.progressed()
            # A list of the keys, because the query's thread adds one at any time.
            for batch in [batch for batch in list(self._ends) if batch <= progress.batch]:
                end = self._ends.pop(batch)
                lag.committed(end)
                if self._parts.checker is not None:
                    self._parts.checker.committed(end)
                failpoint.hit("after_commit")
        return has_committed

    def _end(self, query: StreamingQuery) -> None:
        """End the query, between two batches if possible; see the module's text."""
        since = quiet = clock.monotonic_s()
        is_cancelled = False
        while not _ended(query, 0.05):
            now = clock.monotonic_s()
            if now - since > PATIENCE_S + _ABANDONED_S:
                break
            if now - since > PATIENCE_S and not is_cancelled:
                _log.warning("The batch still runs after %.0f s and is abandoned. It will be replayed", now - since)
                # The jobs of a query have its run's id as their group (Spark 4.1.1).
                self._term.spark.sparkContext.cancelJobGroup(str(query.runId))
                is_cancelled = True
            if self._in_batch.is_set():
                quiet = now
            # A trigger outside of foreachBatch commits, or plans, which leads to `before_batch`, or waits for a lost Kafka.
            elif not query.status["isTriggerActive"] or now - quiet > PATIENCE_S / 2:
                break
        if query.isActive:
            with suppress(PySparkException):  # a source that does not answer keeps the thread for stopTimeout
                query.stop()

    def _judge(self, query: StreamingQuery, error: BaseException | None) -> None:
        """Return when the end was requested; raise the named error otherwise. `error` is what foreachBatch raised."""
        if isinstance(error, (FencedError, WritesLostError, *failure.PLANNED)):
            raise error
        if self._lease.lost.is_set():
            raise self._lease.loss()
        if error is None and not self._stop.is_set() and query.exception() is None:
            self._parts.require_topics()
            if self._parts.views.is_due:
                raise ViewsChangedError
        if isinstance(error, TidemarkError) or not self._stop.is_set():
            raise failure.classify(error, query, self._term.settings) from error


def _ended(query: StreamingQuery, wait_s: float) -> bool:
    """Wait at most `wait_s` for the end of the query; whether it has ended, in whatever way."""
    try:
        return bool(jvm.query(query).awaitTermination(int(wait_s * 1000)))
    except Exception:  # the query's own exception, in one of several wrappings; `_judge` reads it from the query
        if query.isActive:
            raise
        return True

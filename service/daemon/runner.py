"""The life of a pipeline, in this order:

    lease -> Spark -> reference snapshot -> query -> ... -> stop -> release the lease

A failure that may pass does not end the pipeline (service/daemon/backoff.py): the lease is acquired again, and the query restarts
from its checkpoint. Before each attempt the runner calls Kafka and Redis, which costs less than a query that fails. Both are
also awaited at the start. service/daemon/query_run.py has the life of one query, and how it stops.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial

from pyspark.sql import SparkSession

from service.admission.schema_catalog import NewSchemaError
from service.checkpoint import manifest, resume
from service.checkpoint.skips import ReadAnewError
from service.checkpoint.view_versions import ViewsChangedError
from service.daemon import owner, starts
from service.daemon.application import Application
from service.daemon.backoff import Backoff
from service.daemon.idle_closer import IdleCloser
from service.daemon.lease import Lease, Waiting
from service.daemon.never_sent import NeverSent
from service.daemon.query_run import QueryRun
from service.daemon.session_parts import SessionParts
from service.errors import SinkError, SinkRefusedError, TidemarkError
from service.kafka import matching, topics
from service.kafka.matching import TopicsChangedError
from service.monitoring.lag import Lag
from service.monitoring.monitor import Monitor
from service.outlets import publication
from service.outlets.outbox import EpochBehindError
from service.pipeline import failure
from service.pipeline.term import Term
from service.publication import meta
from service.recompute.fill import Filler
from service.recompute.republish import Republisher
from service.redis.link import WritesLostError
from service.rejects.delivery import UNREADABLE
from service.settings import Settings

_log = logging.getLogger(__name__)


class Runner:
    """One run of a pipeline: its terms, until `stop`."""

    def __init__(
        self, settings: Settings, application: Application, monitor: Monitor, load: Callable[[], Settings] | None = None
    ) -> None:
        """`load` reads the settings again: for their views, at the begin of each term and when `read_views` asks for it."""
        self.settings = self._given = settings
        """The settings with the topics that are read, and as they were given."""
        self._application, self._monitor, self._load = application, monitor, load
        self.metrics, self.status = monitor.metrics, monitor.status
        self._parts: SessionParts | None = None
        self._stop = threading.Event()
        self._backoff = Backoff(settings, self.metrics, self.status, self._stop)
        self._lease = Lease(settings, owner.here())
        self._writes_lost = ""

    def run(self) -> None:
        """Return when a stop was requested. Raises the TidemarkError that ended the pipeline otherwise."""
        settings = self.settings
        with ExitStack() as cleanup:
            self.metrics.unreadable.set(starts.unreadable(settings))
            cleanup.callback(self._lease.release)
            epoch = self._begin_term()
            if epoch is None or self._stop.is_set():
                return
            spark, warm_up = self._application.open(settings)
            while epoch is not None and self._find_topics(spark):
                require_room = self._application.require_room
                parts = SessionParts(spark, self.settings, self._monitor, warm_up, require_room, self._load)
                self._parts = parts
                with closing(parts):
                    while epoch is not None and not parts.has_new_topics.is_set():
                        parts.views.ask()  # before this term, another process may have taken changes of the file
                        epoch = self._serve_term(parts, epoch)

    def _find_topics(self, spark: SparkSession) -> bool:
        """Set the settings to the topics that match now; return False when a stop is requested first."""
        while not self._stop.is_set():
            try:
                self.settings = matching.resolved(self._given, self.settings if self._parts else None)
            except TidemarkError as error:
                self._backoff.wait_to_restart(spark, error)
            else:
                self._monitor.reads(self.settings)
                return True
        return False

    def stop(self) -> None:
        """Request the end of the run; returns at once. For signal handlers and any thread."""
        self._stop.set()
        self.status.becomes("stopping")

    def read_views(self) -> None:
        """Have the views of the settings read again; returns at once. For signal handlers and any thread."""
        if self._parts is not None:  # else the first term reads them when Spark runs
            self._parts.views.ask()

    def _begin_term(self, at_least: int = 0) -> int | None:
        """Acquire the lease and return the new epoch, larger than `at_least`; None when a stop is requested first."""
        while not self._stop.is_set():
            try:
                epoch = self._lease.acquire(self._on_wait, self._stop, at_least)
            except TidemarkError as error:
                self.metrics.fails("lease")
                self._backoff.wait(self._named(error), "lease")
                continue
            if epoch is not None:
                self._backoff.reached_redis()
                self.metrics.ready("lease")
                self.metrics.epoch.set(epoch)
                self.status.term(epoch)
                _log.info("The lease is acquired: epoch %d begins", epoch, extra={"fields": {"epoch": epoch}})
            return epoch
        return None

    def _named(self, error: TidemarkError) -> TidemarkError:
        """Return the error with the names of the keys, if Redis refuses keys of another program; else the same error.

        Redis's own message has no key.
        """
        if isinstance(error, SinkRefusedError) and "WRONGTYPE" in error.what:
            try:
                meta.require_types(self.settings)
            except SinkRefusedError as named:
                return named
            except SinkError:
                return error
        return error

    def _on_wait(self, waiting: Waiting) -> None:
        self._backoff.reached_redis()
        reason = f"{waiting.holder} holds the lease"
        if self.metrics.waiting("lease", reason, standby=True):
            _log.info("Standing by: %s. This process takes over when the lease expires or is released", reason)

    def _serve_term(self, parts: SessionParts, epoch: int) -> int | None:
        """Run queries until a stop is requested. Returns the epoch of the next term, None for no next term.

        A Redis that came back without its data, or with older data, ends the term. Nothing was written to it since. The next
        term has a larger epoch than every one before, republishes what Redis lost and replays the batch.
        """
        metrics = self.metrics
        lag = Lag(
            self.settings.kafka,
            metrics.lags,
            partial(metrics.fails, "lag"),
            headrooms=metrics.headrooms,
            marks=metrics.marks.set,
            asked=metrics.asked,
            listed=parts.listed,
        )
        with closing(lag):
            at_least = self._serve_queries(parts, epoch, lag)
        metrics.forget_kafka()  # while another process has the lease, that one shows this
        return self._begin_term(at_least) if at_least is not None else None

    def _serve_queries(self, parts: SessionParts, epoch: int, lag: Lag) -> int | None:
        """Run queries until a stop is requested, or until Redis has lost data.

        Returns the epoch that the next term has to exceed, None for no next term.
        """
        while not self._stop.is_set():
            try:
                self._serve(parts, epoch, lag)
            except NewSchemaError as reason:
                self.metrics.batch_fails()
                _log.info("%s: the schema is resolved. The query starts again with it", reason)
            except ReadAnewError as reason:
                self.metrics.batch_fails()
                _log.info("%s. The query starts again", reason)
            except ViewsChangedError:
                self.metrics.batch_fails()
                _log.info("The views have changed. The query starts again with them")
            except TopicsChangedError:
                self.metrics.batch_fails()
                return epoch
            except EpochBehindError as reason:
                _log.warning("Redis has lost its epoch: %s. A new term begins with a larger one", reason)
                return reason.newest
            except WritesLostError as error:
                self._writes_lost = error.what
                self.metrics.fails("redis_data")
                self._backoff.wait_to_restart(parts.spark, error)
                return epoch
            except Exception as error:  # a TidemarkError stays; an error of Spark or py4j gets a name
                named = self._named(failure.classify(error, settings=self.settings))
                if named is not error:
                    named.__cause__ = error
                self._backoff.wait_to_restart(parts.spark, named)
            else:
                return None
        return None

    def _serve(self, parts: SessionParts, epoch: int, lag: Lag) -> None:
        """Prepare the checkpoint and Redis, then run one query; raises what ended it unless a stop was requested."""
        spark, settings = parts.spark, resume.with_buckets(parts.spark, self.settings)
        inputs = topics.prepare(settings.kafka)
        retention_ms = {name: keep_ms for name, each in inputs.items() if (keep_ms := each.retention_ms) is not None}
        self.metrics.keeps(retention_ms)
        if not self._lease.confirm():
            raise self._lease.loss()
        for gap in resume.prepare(spark, settings, self._on_skip):
            _log.warning("The query continues without lost records: %s", gap)
        position = resume.position(spark, settings)
        catalog = parts.open_catalog(position)
        with ExitStack() as cleanup:
            care = cleanup.enter_context(starts.counted(spark, settings))
            self.metrics.unreadable.set(0)
            reference = parts.open_reference(is_repeated=position is not None and position.is_repeated)
            settings = parts.views.open(position, settings)  # may check other views, by the catalog and the reference
            if parts.refresher is not None:
                parts.refresher.serve(settings.views)
            term = Term(spark, settings, epoch, catalog, reference, limit=parts.limit, metrics=self.metrics)
            term.broker_times = frozenset(name for name, each in inputs.items() if each.has_broker_times)
            term.id_check = topics.IdCheck(settings.kafka, manifest.shown(resume.files_of(spark, settings)).topic_ids)
            parts.start_checker(term)
            idle_closer = IdleCloser(term)
            cleanup.callback(idle_closer.close)
            republisher = Republisher(term, lambda _outcome, _unrecoverable: idle_closer.again())
            cleanup.callback(republisher.close)
            republisher.begin(self._writes_lost)
            self._lease.reached = term.published
            self._writes_lost = ""
            republisher.start()
            filler = Filler(term, parts.views.filled)
            cleanup.callback(filler.close)
            filler.start()
            term.outlets = publication.of_term(
                spark, settings, epoch, position.batch - 1 if position else -1, self.metrics
            )
            if term.outlets is not None:
                cleanup.callback(term.outlets.close)
                self.metrics.outlets.watch(term.outlets.progress)
                term.outlets.start()
            never_sent = NeverSent(term)
            cleanup.callback(never_sent.close)
            never_sent.start()
            parts.activity_log.query_starts(epoch, position, settings.views)
            QueryRun(parts, term, self._lease, self._backoff, self._stop).run(idle_closer, lag, retention_ms, care)

    def _on_skip(self, offsets: int) -> None:
        _log.warning("The query has skipped %d offsets that an operator gave up", offsets)
        self.metrics.rejects.labels(UNREADABLE).inc(offsets)

"""Waiting after failures: what the daemon does before it acquires the lease, or starts the query, once more.

Errors that may pass (the table in service/pipeline/failure.py) do not end the process. The lease is acquired again. The query
restarts from its checkpoint, under the same epoch, in the same Spark session. After 10 minutes without a committed batch the
error ends the process, and so does the end of Spark: the supervisor then starts a new process with a new JVM.

A refused login does not end the process either, if the secret is in a file and an earlier login was accepted: an operator may
revoke the old secret before the new one is in the file. Each attempt reads the file again.
"""

import logging
import threading

from pyspark.sql import SparkSession

from service import clock
from service.errors import SinkLoginError, SparkLostError, TidemarkError
from service.monitoring.metrics import Metrics
from service.monitoring.status import Status
from service.pipeline import failure
from service.settings import Settings
from service.spark.internals import jvm

_log = logging.getLogger(__name__)


class Backoff:
    """Waits after each failure, longer each time; a committed batch begins a new series."""

    def __init__(self, settings: Settings, metrics: Metrics, status: Status, stop: threading.Event) -> None:
        self._settings = settings
        self._accepted: tuple[type[TidemarkError], ...] = ()
        self._metrics = metrics
        self._status = status
        self._stop = stop
        self._patience = failure.Patience()

    def progressed(self) -> None:
        """A batch is committed: every login was accepted."""
        self._accepted = failure.LOGINS
        self._patience.progressed()

    def reached_redis(self) -> None:
        """Redis has accepted the login."""
        self._accepted = self._accepted or (SinkLoginError,)

    def wait_to_restart(self, spark: SparkSession, error: TidemarkError) -> None:
        """Wait before the next query. Raises SparkLostError when Spark has ended, else as `wait`."""
        self._metrics.batch_fails()
        if has_ended(spark):
            what = f"Spark has ended; the last error of the query was {error.code}: {error.what}"
            remedy = "A new process starts where this one stopped; see the log of the JVM and of the cluster's master"
            raise SparkLostError(what, remedy=remedy) from error
        if self._may_pass(error) and not self._stop.is_set():
            self._status.restarts()
            self._metrics.restarts.labels(error.code).inc()
        self.wait(error, "query")

    def wait(self, error: TidemarkError, part: str) -> None:
        """Wait before the next attempt, or until a stop is requested. Raises the error when it cannot pass or lasts too long."""
        self._status.failed(error)
        if not self._may_pass(error):
            raise error
        if self._stop.is_set():
            _log.warning("%s: %s. The service stops; its next start continues from the checkpoint", error.code, error)
            return
        wait_s = self._patience.failed(clock.monotonic_s())
        if wait_s is None:
            _log.error("No batch was committed in %.0f s of failures. The process ends", failure.GIVE_UP_S)
            raise error
        self._metrics.waiting(part, f"{error.code}: {error}")
        _log.warning("%s: %s. Trying again in %.0f s", error.code, error, wait_s)
        self._stop.wait(wait_s)

    def _may_pass(self, error: TidemarkError) -> bool:
        return failure.transient(error) or (
            isinstance(error, self._accepted) and failure.renewable(error, self._settings)
        )


def has_ended(spark: SparkSession) -> bool:
    """Whether the Spark application has ended, or the JVM with it."""
    try:
        return bool(jvm.context(spark).isStopped())
    except Exception:  # py4j raises one of several errors when no JVM answers or the context is gone
        return True

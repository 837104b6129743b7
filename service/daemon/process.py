"""The process: signals, the HTTP server, Spark, and the pipeline that runs in it, in this order.

signals -> HTTP server -> traces -> the pipeline (service/daemon/runner.py), which starts Spark when it has the lease
"""

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack

from service import tracing
from service.daemon.application import Application
from service.daemon.runner import Runner
from service.daemon.shutdown import Shutdown
from service.monitoring import server
from service.monitoring.monitor import Monitor
from service.settings import Settings
from service.spark import session

_log = logging.getLogger(__name__)


def run(settings: Settings, *, master: str | None = None, load: Callable[[], Settings] | None = None) -> int:
    """Run until a stop is requested, then return 0. Raises the TidemarkError that ended the service otherwise.

    Call it from the main thread, because only the main thread can set signal handlers. `master` is Spark's, for runs
    without spark-submit. `load` reads the settings again, which SIGHUP asks for.
    """
    return Process(settings, master, load).run()


class Process:
    """One run of the service."""

    def __init__(
        self, settings: Settings, master: str | None = None, load: Callable[[], Settings] | None = None
    ) -> None:
        self._settings = settings
        self._monitor = Monitor(settings)
        self._application = Application(master, self._take_jvm_signals)
        self._runner = Runner(settings, self._application, self._monitor, load)
        self._shutdown = Shutdown(self._runner.stop, self._runner.read_views)

    def run(self) -> int:
        settings, monitor = self._settings, self._monitor
        with ExitStack() as cleanup:
            cleanup.enter_context(self._shutdown.handling_signals())
            if session.submitted():  # supervisors signal the JVM's process, and Ctrl-C reaches the JVM first
                session.on_jvm_signals(self._shutdown.request, "TERM", "INT")
            http = server.Server(
                monitor.metrics, monitor.status, settings.metrics.address, settings.metrics.port, monitor.page
            )
            cleanup.callback(http.close)
            _log.info("Metrics are at http://%s:%d/metrics", settings.metrics.address, http.port)
            cleanup.enter_context(tracing.exporting(tracing.Target.of(settings)))
            cleanup.callback(self._application.close)
            self._runner.run()
        _log.info("The service has stopped. Its next start continues from the checkpoint")
        return 0

    def _take_jvm_signals(self) -> None:
        """Receive the signals of the JVM, and those that a new SparkContext has taken from Python."""
        if threading.current_thread() is threading.main_thread():
            self._shutdown.take_signals()  # SIGINT's handler is replaced
        if session.submitted():
            session.on_jvm_signals(self._runner.read_views, "HUP")
        else:
            session.on_jvm_signals(self._shutdown.request, "TERM")

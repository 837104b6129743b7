"""The process: signals, HTTP servers, traces and Spark, for one pipeline or for several.

    one        service/daemon/runner.py runs it in the main thread, and its error ends the process
    several    service/daemon/pipeline.py runs each in a thread of its own; the main thread waits for the end

A pipeline among several that fails begins again, and the others go on. The process ends by an error when all pipelines have
failed, and when only a new process helps: Spark has ended, or a limit of the system is near. A pipeline that an operator has
stopped has not failed.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry

from service import clock, tracing
from service.daemon import control
from service.daemon.application import Application
from service.daemon.control import Control
from service.daemon.pipeline import Pipeline
from service.daemon.shutdown import LIMIT_S, Shutdown
from service.errors import ExhaustedError, SparkLostError, TidemarkError
from service.monitoring.board import Board
from service.monitoring.conditions import Evaluation
from service.monitoring.monitor import Monitor
from service.monitoring.pages import host_port
from service.monitoring.resource_metrics import ProcessMetrics
from service.monitoring.series import Series
from service.monitoring.server import Server
from service.settings import Settings
from service.spark import session

_POLL_S = 0.2
_NAME = "tidemark"
"""The service in traces of several pipelines."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline that is to run. `load` reads its settings again: for their views, at the begin of each term and after SIGHUP."""

    settings: Settings
    load: Callable[[], Settings] | None = None


def run(*plans: Plan, master: str | None = None) -> int:
    """Run the pipelines until a stop is requested, then return 0. Raises the TidemarkError that ended the process otherwise.

    Call it from the main thread, because only the main thread can set signal handlers. `master` is Spark's, for runs
    without spark-submit.
    """
    return Process(plans, master).run()


class Process:
    def __init__(self, plans: Sequence[Plan], master: str | None = None) -> None:
        self._settings = [plan.settings for plan in plans]
        is_shared = len(plans) > 1
        registry = CollectorRegistry()
        of_process = ProcessMetrics(Series(registry)) if is_shared else None
        monitors = [Monitor.of(settings, of_process) for settings in self._settings]
        self._board = Board(monitors, registry)
        memory = monitors[0].metrics.process
        self._application = Application(master, memory, self._take_jvm_signals, is_shared=is_shared)
        self._pipelines = [
            Pipeline(plan.settings, plan.load, self._application, monitor)
            for plan, monitor in zip(plans, monitors, strict=True)
        ]
        self._shutdown = Shutdown(self._end, self._read_views)

    def run(self) -> int:
        with ExitStack() as cleanup:
            ports = []
            cleanup.enter_context(self._shutdown.handling_signals())
            if session.submitted():  # supervisors signal the JVM's process, and Ctrl-C reaches the JVM first
                session.on_jvm_signals(self._shutdown.request, "TERM", "INT")
                session.on_jvm_signals(self._read_views, "HUP")  # a standby has a JVM, and no Spark yet
            hosts = {name for each in self._settings for name in each.metrics.hosts}
            for address, port in dict.fromkeys((each.metrics.address, each.metrics.port) for each in self._settings):
                http = Server(self._board, address, port, hosts)
                cleanup.callback(http.close)
                ports.append(http.port)
                _log.info("Metrics are at http://%s/metrics", host_port(address, http.port))
            evaluation = Evaluation([each.conditions for each in self._board.monitors])
            evaluation.start()
            cleanup.callback(evaluation.close)
            cleanup.enter_context(tracing.exporting(self._traces()))
            cleanup.callback(self._application.close)
            if self._board.is_single:
                self._pipelines[0].run()
            else:
                self._take_commands(ports[0], cleanup)
                self._run_all()
        _log.info("The service has stopped. Its next start continues from the checkpoint")
        return 0

    def _traces(self) -> tracing.Target | None:
        target = tracing.Target.of(self._settings[0])
        # Of several pipelines, each batch's span has the name of its own.
        return target if target is None or self._board.is_single else replace(target, service=_NAME)

    def _take_commands(self, port: int, cleanup: ExitStack) -> None:
        path = control.place(port)
        try:
            server = Control(path, {each.name: each.request for each in self._pipelines})
        except OSError as error:
            _log.warning("No pipeline can be stopped or started by a command: %s: %s", path, error.strerror or error)
            return
        cleanup.callback(server.close)
        self._board.control = str(path)

    def _run_all(self) -> None:
        """Run the pipelines in threads until a stop is requested. Raises the error that leaves none to run."""
        for each in self._pipelines:
            each.start()
        error = None
        while error is None and not self._shutdown.requested.is_set():
            time.sleep(_POLL_S)
            error = self._failure()
        self._end()
        until_s = clock.monotonic_s() + LIMIT_S
        for each in self._pipelines:
            each.join(until_s - clock.monotonic_s())
        if error is not None and not self._shutdown.requested.is_set():
            raise error

    def _failure(self) -> TidemarkError | None:
        """Return the error that ends the process, None while a pipeline may go on."""
        errors = [each.error for each in self._pipelines if each.error is not None]
        lost = next((each for each in errors if isinstance(each, SparkLostError | ExhaustedError)), None)
        has_all = all(each.monitor.status.has_failed for each in self._pipelines)
        return lost or (errors[0] if has_all and errors else None)

    def _end(self) -> None:
        for each in self._pipelines:
            each.end()

    def _read_views(self) -> None:
        for each in self._pipelines:
            each.read_views()

    def _take_jvm_signals(self) -> None:
        """Receive the signals of the JVM, and those that a new SparkContext has taken from Python."""
        if threading.current_thread() is threading.main_thread():
            self._shutdown.take_signals()  # SIGINT's handler is replaced
        if not session.submitted():
            session.on_jvm_signals(self._shutdown.request, "TERM")

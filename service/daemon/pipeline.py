"""A pipeline of a process. Among several it has a thread, which runs it, and runs it again after a failure.

What would end a process of one pipeline ends only this one among several: it begins again after a pause, as a supervisor
would begin the process again. The others go on.
"""

import logging
import threading
from collections.abc import Callable

from service import clock, threads
from service.daemon.application import Application
from service.daemon.runner import Runner
from service.errors import SourceRefusedError, TidemarkError
from service.monitoring.monitor import Monitor
from service.pipeline import failure
from service.settings import Settings

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
CALM_S = 300.0
"""A run of so long begins a new series of pauses."""
_log = logging.getLogger(__name__)


class Pipeline:
    """The pipeline of one settings file. Its methods may be called from any thread, and from a signal handler."""

    def __init__(
        self, settings: Settings, load: Callable[[], Settings] | None, application: Application, monitor: Monitor
    ) -> None:
        """`load` reads the settings again."""
        self.name = settings.service.name
        self.monitor = monitor
        self.error: TidemarkError | None = None
        """What ended the last run; None for a stop, and while it runs again."""
        self._settings, self._load, self._application = settings, load, application
        self._changed = threading.Condition()  # its lock is reentrant: a signal handler may interrupt its holder
        self._is_wanted, self._is_ending, self._is_asked = True, False, False
        self._pause_s = FIRST_PAUSE_S
        self._runner: Runner | None = None
        self._thread = threading.Thread(target=self._serve, name=f"tidemark-{self.name}", daemon=True)

    def run(self) -> None:
        """Run the pipeline in the calling thread, until `end`. Raises the TidemarkError that ended it otherwise."""
        runner = self._next()
        if runner is not None:
            runner.run()

    def start(self) -> None:
        self._thread.start()

    def request(self, runs: bool) -> None:
        """Have the pipeline run, at once if it pauses after a failure, or stop; returns at once.

        Who asks for its state then sees it as it will be, although its thread has not begun or ended it yet.
        """
        with self._changed:
            self._is_wanted, self._is_asked = runs, True
            if self._runner is None:
                if not self._is_ending:  # a signal handler must not wait for locks that its thread may hold
                    self._show(None)
            elif not runs:
                self._runner.stop()
            self._changed.notify_all()

    def end(self) -> None:
        """Stop the pipeline for good; returns at once."""
        with self._changed:
            self._is_ending = True
            self.request(False)

    def join(self, within_s: float) -> None:
        self._thread.join(within_s)

    def read_views(self) -> None:
        """Have the views of the settings read again; returns at once."""
        runner = self._runner
        if runner is not None:
            runner.read_views()

    def _serve(self) -> None:
        threads.belong_to(self.name)
        while (runner := self._next()) is not None:
            began_s = clock.monotonic_s()
            error = _run(runner)
            with self._changed:
                self._runner = None
                self._show(error)
            if error is None:
                _log.info("The pipeline has stopped. Its next start continues from the checkpoint")
            elif self.error is None:
                _log.error("The pipeline has stopped with %s: %s", error.code, error)
            else:
                self._pause(error, clock.monotonic_s() - began_s)

    def _next(self) -> Runner | None:
        """Wait until the pipeline is to run, and return the next run; None when it has to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_wanted or self._is_ending)
            if self._is_ending:
                return None
            self._is_asked = False
            self._show(None)
            self._runner = Runner(self._settings, self._application, self.monitor, self._load)
            return self._runner

    def _pause(self, error: TidemarkError, ran_s: float) -> None:
        # A topic that is missing is cheap to ask for, and may be the outlet of a pipeline that has not written to it yet.
        begins_anew = ran_s > CALM_S or isinstance(error, SourceRefusedError)
        pause_s = FIRST_PAUSE_S if begins_anew else self._pause_s
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        _log.error(
            "%s: %s. The pipeline has ended, and begins again in %.0f s. The others go on", error.code, error, pause_s
        )
        with self._changed:
            if self._changed.wait_for(lambda: self._is_ending or self._is_asked, pause_s):
                self._pause_s = FIRST_PAUSE_S

    def _show(self, error: TidemarkError | None) -> None:
        """Show the pipeline without a run: as failed, as about to begin, or as stopped, whatever its last run ended with."""
        self.error = error if self._is_wanted else None
        if self._is_wanted and error is None:
            self.monitor.begins()
        else:
            self.monitor.ended(self.error)


def _run(runner: Runner) -> TidemarkError | None:
    """Run a pipeline until it ends; return the error that ended it, None for a stop."""
    try:
        runner.run()
    except Exception as error:  # whatever it is, the other pipelines go on
        named = failure.classify(error)
        if named is not error:
            named.__cause__ = error
            _log.exception("The pipeline has ended by an error without a name")
        return named
    return None

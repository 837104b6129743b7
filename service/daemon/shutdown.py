"""The request to stop, from SIGTERM or SIGINT, and the limit of the time that stopping may take; and SIGHUP.

SIGHUP never ends a service. Before the settings are read it has no effect. After that, and before Spark runs, it needs none: a
term begins with the views of the file.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LIMIT_S = 28.0
"""The process ends this long after the request, whatever hangs: supervisors kill after 30 s."""


class Shutdown:
    """`requested` is set when the process is to stop; `on_request` is called once, before the work ends. `on_hang_up` is called
    for each SIGHUP."""

    def __init__(self, on_request: Callable[[], object], on_hang_up: Callable[[], object] = lambda: None) -> None:
        self._on_hang_up = on_hang_up
        self.requested = threading.Event()
        self._on_request = on_request
        self._guard: threading.Timer | None = None

    def request(self) -> None:
        """Request the stop; returns at once. For signal handlers and any thread."""
        if not self.requested.is_set():
            self.requested.set()
            self._on_request()
            self._guard = threading.Timer(LIMIT_S, os._exit, (0,))
            self._guard.daemon = True
            self._guard.start()

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Handle SIGTERM, SIGINT and SIGHUP in this context, and take the limit back at its end. For the main thread only."""
        former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        self.take_signals()
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
            if self._guard is not None:
                self._guard.cancel()

    def take_signals(self) -> None:
        """Set the handlers again, where other code has replaced them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self.request())
        signal.signal(signal.SIGHUP, lambda _number, _frame: self._on_hang_up())


def outlive_hang_ups() -> None:
    """Have SIGHUP do nothing, in Python and in spark-submit's JVM, until a Process handles it. For the main thread only."""
    # A handler, because children inherit SIG_IGN.
    signal.signal(signal.SIGHUP, _nothing)
    from service.spark import session  # noqa: PLC0415 - importing pyspark takes most of a second

    if session.submitted():
        session.on_jvm_signals(_nothing, "HUP")


def _nothing(*_: object) -> None:
    """Keep the process alive."""

"""The Spark application of the process: one for all its pipelines, started by the first one that needs it."""

import importlib
import threading
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

from service.daemon.backoff import has_ended
from service.errors import SparkLostError
from service.monitoring.resource_metrics import ProcessMetrics
from service.monitoring.resources import ProcessResources
from service.settings import Settings
from service.spark import session
from service.spark.warm_up import WarmUp

_ENDS_S = 5.0
"""How long the end of the process waits for the end of Spark."""


class Application:
    """Spark, started on demand. Its methods may be called from any thread."""

    def __init__(
        self, master: str | None, metrics: ProcessMetrics, on_start: Callable[[], object], *, is_shared: bool = False
    ) -> None:
        """`master` is Spark's, for runs without spark-submit. `on_start` is called when Spark runs, in the thread that has asked
        for it. With `is_shared` each pipeline gets a session of its own."""
        self._master, self._metrics, self._on_start, self._is_shared = master, metrics, on_start, is_shared
        self._resources: ProcessResources | None = None
        self._lock = threading.Lock()
        self._running: tuple[SparkSession, WarmUp] | None = None
        self._sessions: dict[str, SparkSession] = {}

    def open(self, settings: Settings) -> tuple[SparkSession, WarmUp]:
        """Return a session for a pipeline with these settings, and the warm-up of the application. Raises SetupError.

        The jobs of the calling thread then run in the pipeline's pool.
        """
        with self._lock:
            if self._running is None:
                self._running = self._started(settings)
                self._on_start()
            spark, warm_up = self._running
            if not self._is_shared:
                return spark, warm_up
            if has_ended(spark):
                what = "Spark has ended while the pipeline did not run"
                raise SparkLostError(what, remedy="A new process starts Spark again")
            # One for all runs of the pipeline: Spark keeps a listener of each session for ever (4.1.1).
            name = settings.service.name
            if name not in self._sessions:
                self._sessions[name] = session.of_pipeline(spark, settings)
            own = self._sessions[name]
        session.begin(own, settings)
        return own, warm_up

    def require_room(self) -> None:
        """Raise ExhaustedError when a process of the service is near a limit of the system."""
        if self._resources is not None:
            self._resources.require_room()

    def _started(self, settings: Settings) -> tuple[SparkSession, WarmUp]:
        # The reference needs pandas, and Python waits while Spark starts.
        threading.Thread(target=importlib.import_module, args=["pandas"], name="tidemark-import", daemon=True).start()
        spark = session.build(settings, master=self._master, is_shared=self._is_shared)
        self._resources = ProcessResources(spark, self._metrics)
        self._resources.start()
        return spark, WarmUp(spark)

    def close(self) -> None:
        """Stop Spark, for at most five seconds: the process is about to end, and the JVM with it."""
        if self._running is None:
            return
        spark, _ = self._running
        if self._resources is not None:
            self._resources.close()

        def stop() -> None:
            with suppress(Exception):  # Spark may have ended already
                spark.stop()

        stopping = threading.Thread(target=stop, name="tidemark-spark-stop", daemon=True)
        stopping.start()
        stopping.join(_ENDS_S)

"""The Spark application of the process: one for all its pipelines, started by the first one that needs it."""

import importlib
import threading
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

from service.settings import Settings
from service.spark import session
from service.spark.warm_up import WarmUp

_ENDS_S = 5.0
"""How long the end of the process waits for the end of Spark."""


class Application:
    """Spark, started on demand. `on_start` is called when it runs, in the thread that has asked for it."""

    def __init__(self, master: str | None, on_start: Callable[[], object]) -> None:
        """`master` is Spark's, for runs without spark-submit."""
        self._master, self._on_start = master, on_start
        self._spark: SparkSession | None = None
        self._warm_up: WarmUp | None = None

    def open(self, settings: Settings) -> tuple[SparkSession, WarmUp]:
        """Return a session for a pipeline with these settings, and the warm-up of the application. Raises SetupError."""
        # The reference needs pandas, and Python waits while Spark starts.
        threading.Thread(target=importlib.import_module, args=["pandas"], name="tidemark-import", daemon=True).start()
        self._spark = session.build(settings, master=self._master)
        self._warm_up = WarmUp(self._spark)
        self._on_start()
        return self._spark, self._warm_up

    def close(self) -> None:
        """Stop Spark, for at most five seconds: the process is about to end, and the JVM with it."""
        spark = self._spark
        if spark is None:
            return

        def stop() -> None:
            with suppress(Exception):  # Spark may have ended already
                spark.stop()

        stopping = threading.Thread(target=stop, name="tidemark-spark-stop", daemon=True)
        stopping.start()
        stopping.join(_ENDS_S)

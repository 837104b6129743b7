"""Work beside the query: in a thread of its own, again and again, and no failure of it ends the stream."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

from service.errors import FencedError
from service.redis.link import WritesLostError

AGAIN_S = 10.0
_log = logging.getLogger(__name__)


class SideJob:
    """Does `work` whenever it is woken, and every `every_s` seconds where that is given; what fails is tried
    again after `again_s`.

    Its Spark jobs are of the group `name`. `failed` gets what `work` raises. That the writer is fenced, or its writes are lost,
    is no failure of the work's: the query's thread or the lease meets it, too, and ends the term; here it ends the thread.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        work: Callable[[], None],
        failed: Callable[[Exception], None],
        every_s: float | None = None,
        *,
        again_s: float = AGAIN_S,
    ) -> None:
        self._spark = spark
        self._name = name
        self._work = work
        self._failed = failed
        self._every_s = every_s
        self._again_s = again_s
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    @property
    def is_ending(self) -> bool:
        """Whether what goes on should not."""
        return self._ending.is_set()

    def start(self) -> None:
        """Begin; with `every_s` at once."""
        self._thread.start()

    def wake(self) -> None:
        """There is something to do; returns at once."""
        self._wake.set()

    def close(self, interrupt: Callable[[], None] = lambda: None) -> None:
        """End, and wait for it for 5 s; what it was doing is done again by the next one.

        `interrupt` ends what it waits for beside Spark; what fails by that is no failure.
        """
        self._ending.set()
        self._wake.set()
        interrupt()
        if self._thread.is_alive():
            with suppress(Exception):  # Spark may be gone
                self._spark.sparkContext.cancelJobGroup(self._name)
            self._thread.join(5.0)

    def _serve(self) -> None:
        self._spark.sparkContext.setJobGroup(self._name, "beside the query", interruptOnCancel=True)
        wait_s = None if self._every_s is None else 0.0
        while True:
            self._wake.wait(wait_s)
            self._wake.clear()
            if self.is_ending:
                return
            wait_s = self._every_s
            try:
                self._work()
            except (FencedError, WritesLostError):
                return
            except Exception as error:  # whatever it is, the stream goes on, and the next try comes
                if self.is_ending:
                    return
                self._failed(error)
                self._ending.wait(self._again_s)
                self._wake.set()

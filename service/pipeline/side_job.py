"""Run work repeatedly in another thread than the query's. A failure of it does not end the query."""

import secrets
import threading
from contextlib import suppress

from pyspark.sql import SparkSession

from service.errors import FencedError
from service.redis.link import WritesLostError
from service.spark import session
from service.threads import Thread

AGAIN_S = 10.0


class SideJob:
    """Calls `work` after each `wake` and, if `every_s` is given, every `every_s` seconds; after a failure again in `again_s`.

    Subclasses have `work` and `failed`. The Spark jobs of `work` have a group of their own. FencedError and WritesLostError end
    the thread; the query's thread or the lease meets them as well and ends the term. The next SideJob repeats unfinished work.
    """

    def __init__(
        self, spark: SparkSession, name: str, every_s: float | None = None, *, again_s: float = AGAIN_S
    ) -> None:
        self._spark = spark
        self._group = f"{name}-{secrets.token_hex(4)}"
        self._every_s = every_s
        self._again_s = again_s
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread = Thread(target=self._serve, name=name, daemon=True)

    def work(self) -> None:
        """Do what is due. May raise any exception."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Report an exception of `work`."""
        raise NotImplementedError

    @property
    def is_ending(self) -> bool:
        """Whether `close` was called: `work` should return."""
        return self._ending.is_set()

    def rest(self, seconds: float) -> None:
        """Wait, for `work` that spares the query; until `close`."""
        self._ending.wait(max(0.0, seconds))

    def start(self) -> None:
        """Start the thread; with `every_s` the first call of `work` is at once."""
        self._thread.start()

    def wake(self) -> None:
        """Have `work` called soon; returns at once."""
        self._wake.set()

    def interrupt(self) -> None:
        """End waits of `work` outside of Spark."""

    def close(self) -> None:
        """Cancel the Spark jobs, end the thread, and wait for it for 5 s.

        Exceptions after this call are not passed to `failed`.
        """
        self._ending.set()
        self._wake.set()
        self.interrupt()
        if self._thread.is_alive():
            with suppress(Exception):  # Spark may be gone
                self._spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(5.0)

    def _serve(self) -> None:
        session.join_pool(self._spark)
        self._spark.sparkContext.setJobGroup(self._group, "beside the query", interruptOnCancel=True)
        wait_s = None if self._every_s is None else 0.0
        while True:
            self._wake.wait(wait_s)
            self._wake.clear()
            if self.is_ending:
                return
            wait_s = self._every_s
            try:
                self.work()
            except (FencedError, WritesLostError):
                return
            except Exception as error:
                if self.is_ending:
                    return
                self.failed(error)
                self._ending.wait(self._again_s)
                self._wake.set()

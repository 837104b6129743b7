"""Keeps the reference fresh: reads the database in a thread of its own, swaps between two batches."""

import logging
import threading
from pathlib import Path

from pyspark.sql import SparkSession

from service import checkpoint, clock, reference
from service.errors import SettingsError, TidemarkError
from service.metrics import Metrics
from service.reference import UnreadableError
from service.settings import Reference, Settings

_log = logging.getLogger(__name__)


class Refresher:
    """The snapshot that a process's queries join with; `holder.frame` is the same for all of them."""

    def __init__(self, spark: SparkSession, settings: Settings, source: Reference, metrics: Metrics) -> None:
        """Take the first snapshot: the last good one when it is younger than `refresh`, so that a restart in that time
        goes on with what it had; else the database's; else the last good one if it is not older than `max_age`.

        Raises UnreadableError when there is neither, ReferenceDataError when what was read is refused.
        """
        self._spark = spark
        self._reference = source
        self._metrics = metrics
        self._folder = snapshot_folder(settings)
        wanted = {column for view in settings.views for column in view.by if column != "device"}
        first = reference.load(
            spark, source, self._folder, fallback=True, fresh_ms=source.refresh_ms, require=sorted(wanted)
        )
        age_ms = clock.now_ms() - first.read_ms
        if age_ms > self._reference.max_age_ms:
            what = (
                f"The last good reference {first.version} was read {age_ms // 1000} s ago, "
                f"reference.max_age is {self._reference.max_age_ms // 1000} s"
            )
            raise UnreadableError(what, remedy="Bring the database back, or raise reference.max_age")
        self._columns = reference.columns(first, self._reference)
        self.holder = reference.Holder(spark, self._folder, self._columns, resume=True)
        self._newest = first
        self._show()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="tidemark-reference", daemon=True)
        self._thread.start()

    def swap(self) -> None:
        """At the end of a batch, in the query's thread: take what has been read since. Never fails a batch."""
        try:
            if self.holder.swap(self._newest):
                _log.info("reference %s is in use", self.holder.snapshot.version)
        except TidemarkError as error:
            self._failed(error)
        self._show()

    def close(self) -> None:
        self._ending.set()

    def _refresh(self) -> None:
        every_ms = self._reference.refresh_ms
        left_ms = every_ms - (clock.now_ms() - self._newest.read_ms)
        wait_ms = left_ms if 0 < left_ms < every_ms else every_ms
        while not self._ending.wait(wait_ms / 1000):
            wait_ms = every_ms
            try:
                self._newest = reference.load(self._spark, self._reference, self._folder, require=self._columns)
            except Exception as error:  # whatever it is, the last good snapshot serves on, and the next try comes
                if not self._ending.is_set():
                    self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._metrics.failures.labels("reference").inc()
        _log.warning("%s. Going on with reference %s", error, self.holder.snapshot.version)

    def _show(self) -> None:
        read_ms = max(self.holder.snapshot.read_ms, 0)
        self._metrics.reference(self.holder.snapshot.version, lambda: (clock.now_ms() - read_ms) / 1000)


def snapshot_folder(settings: Settings) -> Path:
    """Where the last good reference lives: beside the query's own files in the checkpoint."""
    folder = checkpoint.local(settings.service.checkpoint)
    if folder is None:
        what = f"service.checkpoint = {settings.service.checkpoint!r}: with [reference] it must be a folder"
        raise SettingsError(what, remedy="Name a folder that the driver and every executor share")
    return folder / "reference"

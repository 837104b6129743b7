"""The refresher: reads the reference database in a thread of its own, and swaps the snapshot between two batches.

When the database is away, hangs, refuses, or returns rows that the expectations refuse, the last good snapshot stays in use,
also after a restart. The log, the metrics, /readyz and /status report it. A snapshot older than `reference.max_age` is not
used: the running service ends with ReferenceTooOldError, and a start waits for the database.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from service import clock
from service.aggregation.windows import NONE
from service.errors import ReferenceDataError, ReferenceTooOldError, SettingsError, TidemarkError
from service.monitoring.metrics import Metrics
from service.reference import snapshots
from service.reference.current_snapshot import CurrentSnapshot
from service.reference.database import UnreadableError, reason_of
from service.reference.folder import snapshot_folder
from service.settings import Reference, Settings, View
from service.threads import Thread
from service.units import format_duration
from state.calendar import VERSION
from state.keyed_calendar import are_zones

AGAIN = 10
"""After a failure the next read comes this many times sooner than `reference.refresh`, at most once a second."""
_log = logging.getLogger(__name__)


class Refresher:
    """Keeps `current_snapshot` fresh, one object for all queries of the process."""

    def __init__(self, spark: SparkSession, settings: Settings, source: Reference, metrics: Metrics) -> None:
        """Take the first snapshot: the last good one if it is younger than `refresh`, so that a quick restart changes
        nothing; else the database's; else the last good one if it is not older than `max_age`.

        Raises UnreadableError when there is none, ReferenceDataError when the expectations refuse the rows.
        """
        self._spark = spark
        self._reference = source
        self._metrics = metrics
        self._folder = snapshot_folder(spark, settings.service.checkpoint)
        self._failure: Mapping[str, Any] | None = None
        own = {"device", *settings.columns}
        grouped = {column for view in settings.views for column in view.by if column not in own}
        required = sorted(grouped | {*source.limit_columns})
        first, error = snapshots.load_or_keep(spark, source, self._folder, fresh_ms=source.refresh_ms, require=required)
        if error is not None:
            self._note(error)
            self._require_young(first, error)
        self._columns = tuple(dict.fromkeys((*snapshots.columns(first, source), *source.limit_columns)))
        self.current_snapshot = CurrentSnapshot(self._folder, self._columns, resume=True)
        self._newest = first
        self._is_repeated = True  # until `rewind` knows
        self._zone_columns: tuple[str, ...] = ()
        self._show()
        self._ending = threading.Event()
        self._thread = Thread(target=self._refresh, name="tidemark-reference", daemon=True)
        self._thread.start()

    def rewind(self, *, is_repeated: bool) -> None:
        """Before a start of the query: go back to the snapshot of the last batch if that is repeated."""
        self._is_repeated = is_repeated
        if is_repeated:
            self.current_snapshot.rewind()

    def begin(self) -> None:
        """At the top of a batch, in the query's thread: choose its snapshot, and note it for a replay."""
        if not self._is_repeated:
            self.swap()  # the last batch may be long ago
        self._is_repeated = False
        self.current_snapshot.before_batch()

    def swap(self) -> None:
        """Between two batches, in the query's thread: put the newest snapshot in use. Never fails a batch."""
        try:
            if self.current_snapshot.swap(self._newest):
                snapshot = self.current_snapshot.snapshot
                _log.info("Reference %s with %d devices is in use", snapshot.version, snapshot.table.num_rows)
                self._show_zones()
        except TidemarkError as error:
            self._failed(error)
        self._show()

    def require(self, columns: Iterable[str]) -> None:
        """Raise SettingsError for columns that the snapshots of this process lack."""
        lacking = sorted({*columns} - {*self._columns})
        if lacking:
            what = (
                f"views: {', '.join(lacking)}: no column of the reference; there are {', '.join(sorted(self._columns))}"
            )
            raise SettingsError(
                what, remedy="Correct the name. The service has to restart to read a column that is new"
            )

    def serve(self, views: Iterable[View]) -> None:
        """Show how many devices lack the time zone that one of these views takes from the reference."""
        columns = dict.fromkeys(view.zone_column for view in views if view.zone_column in self._columns)
        self._zone_columns = tuple(filter(None, columns))
        self._show_zones()

    def require_young(self) -> None:
        """Raise ReferenceTooOldError when the newest snapshot is older than `max_age`."""
        self._require_young(self._newest, None)

    def document(self) -> Mapping[str, Any]:
        """Return the part of /status: the snapshot in use, its age, and the `failure` of the last read, else None."""
        snapshot = self.current_snapshot.snapshot
        return {
            "version": snapshot.version,
            "rows": snapshot.table.num_rows,
            "read_ms": self._newest.read_ms,
            "age_s": round(self._age_s()),
            "failure": self._failure,
        }

    def close(self) -> None:
        """End the thread; returns at once."""
        self._ending.set()

    def _refresh(self) -> None:
        every_ms = self._reference.refresh_ms
        again_ms = min(every_ms, max(1_000, every_ms // AGAIN))
        left_ms = every_ms - (clock.now_ms() - self._newest.read_ms)
        wait_ms = left_ms if 0 < left_ms < every_ms else every_ms
        if self._failure is not None:
            wait_ms = again_ms
        while not self._ending.wait(wait_ms / 1000):
            try:
                self._newest = snapshots.load(
                    self._spark, self._reference, self._folder, require=self._columns, former=self._newest
                )
            except Exception as error:  # after any error the last good snapshot stays in use, and the next read comes
                wait_ms = again_ms
                if not self._ending.is_set():
                    self._failed(error)
            else:
                wait_ms = every_ms
                self._succeeded()

    def _require_young(self, snapshot: snapshots.Snapshot, error: ReferenceDataError | None) -> None:
        age_ms = clock.now_ms() - snapshot.read_ms
        if age_ms <= self._reference.max_age_ms:
            return
        limit = format_duration(self._reference.max_age_ms)
        what = (
            f"The last good reference {snapshot.version} was read {age_ms // 1000} s ago, reference.max_age is {limit}"
        )
        if self._failure is not None:
            what += f"; since then: {self._failure['text']}"
        remedy = "Bring the database back, mend its data, or raise reference.max_age"
        if error is None:
            raise ReferenceTooOldError(what, remedy=remedy)
        raise UnreadableError(what, remedy=remedy) if isinstance(error, UnreadableError) else error

    def _failed(self, error: Exception) -> None:
        self._note(error)
        _log.warning("%s. Reference %s stays in use", error, self.current_snapshot.snapshot.version)

    def _note(self, error: Exception) -> None:
        reason = reason_of(error)
        self._failure = {"reason": reason, "text": str(error), "at_ms": clock.now_ms()}
        self._metrics.failures.labels("reference").inc()
        self._metrics.reference_failures.labels(reason).inc()
        self._metrics.reference_kept.set(1)
        self._metrics.note("reference", f"the last good snapshot serves on, {reason}: {error}")

    def _succeeded(self) -> None:
        if self._failure is not None:
            _log.info("Reference %s is read. The last failure was: %s", self._newest.version, self._failure["reason"])
        self._failure = None
        self._metrics.reference_kept.set(0)
        self._metrics.note("reference", "")

    def _age_s(self) -> float:
        """Seconds since the database last gave a good answer."""
        return (clock.now_ms() - max(self._newest.read_ms, 0)) / 1000

    def _show_zones(self) -> None:
        table, count = self.current_snapshot.snapshot.table, 0
        for name in self._zone_columns:
            lacking = table.filter(pc.invert(are_zones(table[name])))
            count += lacking.num_rows
            if lacking.num_rows:
                device, zone = (lacking[column][0].as_py() for column in ("device", name))
                _log.warning(
                    "%d devices of the reference have no time zone in %s that tzdata %s has, such as %s, which has %r. "
                    "Their windows are of UTC, and %s is in their keys",
                    *(lacking.num_rows, name, VERSION, device, zone, NONE),
                )
        self._metrics.reference_without_zone.set(count)

    def _show(self) -> None:
        snapshot = self.current_snapshot.snapshot
        self._metrics.reference(snapshot.version, snapshot.table.num_rows, self._age_s)

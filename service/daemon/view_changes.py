"""Changes to the views while the service runs.

The settings file is the truth. `tidemark views` and editors change it. The service reads it again after SIGHUP:

    1  the file is read and validated, and the query's plan is built with its views      look, in the main thread
    2  the query ends between two batches                                                before_batch, or an idle query
    3  the views from the next batch on are written to the checkpoint                    service/checkpoint/view_versions.py
    4  the query starts again with them: same process, same term, same checkpoint        Runner._serve_term

A file with a problem, or with a change outside of [[views]], changes nothing: the log, the metrics, /readyz and /status have the
reason. A batch that was begun before a change is repeated with the views that it had.

A term begins with the views of the file, which `open` reads: the file may have changed while the process waited for the lease, or
since the last run of the pipeline. If the file is refused, the views of the checkpoint stay. Those of the process may be older.

The past of a new view is computed beside the query (service/recompute/fill.py). `filled` is a change of the views, too.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from service import clock, failpoint
from service.checkpoint import event_time, manifest, view_versions
from service.checkpoint.view_versions import Filled, Versions, ViewsChangedError
from service.errors import SettingsError, TidemarkError
from service.monitoring.metrics import Metrics
from service.redis.keys import shards
from service.redis.link import reader
from service.settings import Settings
from service.spark.files import opened
from service.spark.internals.offset_log import Position

_log = logging.getLogger(__name__)


class ViewChanges:
    """The views of the query, and those that it is to have next.

    `check` raises TidemarkError for views that no query can have. `load` reads the settings file; without it nothing changes.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        metrics: Metrics,
        check: Callable[[Settings], None],
        load: Callable[[], Settings] | None = None,
    ) -> None:
        self._settings, self._metrics, self._check = settings, metrics, check
        self._load = load or (lambda: self._settings)
        self._files = opened(spark, settings.service.checkpoint)
        self._log = view_versions.Log(self._files)
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._versions = Versions()
        self._filled: dict[str, Filled] = {}
        self._repeated: int | None = None
        self._is_changed = False
        self._refusal: Mapping[str, Any] | None = None

    @property
    def versions(self) -> Versions:
        """The views of the running query."""
        return self._versions

    def open(self, position: Position | None, settings: Settings) -> Settings:
        """Return the settings with the views of the next batch, for a start of the query at `position`. Reads the settings file
        if that was asked for.

        Raises CheckpointError, SetupError, SinkError.
        """
        self._settings = settings.model_copy(update={"views": self._settings.views})
        batch = position.batch if position is not None else 0
        self._repeated = batch if position is not None and position.is_repeated else None
        versions = self._log.at(batch)
        if versions is None:
            if batch:
                what = (
                    f"{self._files} has batches, and no file in {view_versions.FOLDER} with their views, as with 0.2.0"
                )
                raise manifest.too_old(what)
            versions = view_versions.begun(settings, self._meta())
            self._log.write(batch, versions)
        self._versions = versions
        if self._asked.is_set() and not self._read():
            self._settings = view_versions.kept(self._settings, versions)
        if batch and any(view.calendar for view in versions.views):
            newest_ms = event_time.read(self._files, batch - 1)[0].newest_ms
            view_versions.require_rules(versions, self._settings, newest_ms)
        self._compare()
        if self.is_due:
            self._write(batch)
        effective = view_versions.applied(settings, self._versions)
        self._metrics.serves(effective)
        self._metrics.incomplete_views.set(len(self._versions.incomplete))
        return effective

    def ask(self) -> None:
        """Have the settings file read soon; for signal handlers and any thread."""
        self._asked.set()

    def look(self) -> None:
        """Read the settings file if that was asked for. Never fails."""
        if self._asked.is_set() and self._read() and not self._is_changed:
            _log.info("The settings file is read again: its views are those that are computed")

    @property
    def is_due(self) -> bool:
        """Whether the next batch is to have other views. False while a batch of the former views waits for its replay."""
        return self._is_changed and self._repeated is None

    def committed(self) -> None:
        """Note that the query has committed a batch: the one that was begun before its start is not repeated any more."""
        self._repeated = None

    def before_batch(self, batch: int) -> None:
        """Write the views that begin with this batch, and raise ViewsChangedError; return if it has those of the query."""
        if batch != self._repeated and self._is_changed:
            self._write(batch)
            raise ViewsChangedError

    def filled(self, done: Mapping[str, Filled]) -> None:
        """Note that the past of versions, by name in keys, is computed."""
        with self._lock:
            self._filled |= done
        self._compare()

    def document(self) -> dict[str, Any]:
        """Return the part of /status: the views with what they wait for, and why the settings file is not used, else None."""
        return {
            "list": [
                {
                    "name": view.of,
                    "keys": view.name,
                    **self._settings.view_definition(view),
                    "next": view.is_next,
                    "complete_from_ms": max(view.incomplete.values(), default=None),
                }
                for view in self._versions.views
            ],
            "refused": self._refusal,
        }

    def _read(self) -> bool:
        """Take the views of the settings file; return whether it is not refused. Never fails."""
        self._asked.clear()
        try:
            self._take()
        except TidemarkError as error:
            self._refusal = {"code": error.code, "text": str(error), "at_ms": clock.now_ms()}
            self._metrics.view_changes.labels("refused").inc()
            self._metrics.note("views", f"the settings file is not used: {error}")
            _log.error("The settings file is not used, the views stay as they are: %s", error)
            return False
        return True

    def _take(self) -> None:
        settings, current = self._load(), self._settings
        others = [
            name
            for name in type(settings).model_fields
            if name not in {"views", "sessions"} and getattr(settings, name) != getattr(current, name)
        ]
        buckets = current.sessions.buckets
        if settings.sessions.model_copy(update={"buckets": buckets}) != current.sessions:
            others.append("sessions")
        if others:
            what = f"[{'], ['.join(others)}] changed, too; a running service takes changes of [[views]] only"
            raise SettingsError(what, remedy="Set them back and send SIGHUP again, or restart the service")
        if settings.views != current.views:  # else the start of the query analyses them
            self._require(settings)
        self._settings, self._refusal = current.model_copy(update={"views": settings.views}), None
        self._metrics.note("views", "")
        self._compare()

    def _require(self, settings: Settings) -> None:
        """Raise SettingsError for views that the running query cannot change to."""
        after = view_versions.changed(self._versions, settings, 0)
        effective = view_versions.applied(settings, after)
        if effective.pane_ms < 1_000:
            what = (
                f"views: with the versions that still serve, the windows have the common measure {effective.pane_ms} ms"
            )
            raise SettingsError(what, remedy="Choose a length that is a multiple of a second")
        self._check(effective)

    def _compare(self) -> None:
        self._is_changed = self._next(0) is not self._versions

    def _next(self, newest_ms: int) -> Versions:
        with self._lock:
            done = view_versions.filled(self._versions, self._filled)
        return view_versions.changed(done if done != self._versions else self._versions, self._settings, newest_ms)

    def _write(self, batch: int) -> None:
        """Write the versions from this batch on. A crash before it leaves the former ones, one after it has these."""
        newest_ms = event_time.read(self._files, batch - 1)[0].newest_ms
        before, after = self._versions, view_versions.since(batch, self._versions, self._next(newest_ms))
        failpoint.hit("before_views")
        self._log.write(batch, after)
        failpoint.hit("after_views")
        self._versions, self._is_changed = after, False
        self._metrics.view_changes.labels("applied").inc()
        for line in view_versions.described(before, after):
            _log.info("From batch %d on: %s", batch, line)

    def _meta(self) -> str:
        keys = shards(self._settings.redis)[0]
        with reader(self._settings.redis, keys, "the views that are published") as (client, budget):
            text = budget.attempt(partial(client.get, keys.meta))
        return (text or b"").decode()

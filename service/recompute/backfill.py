"""Backfill: compute closed values of a span of event time from Kafka or an archive, for Redis and outlets, beside the writer.

    1  take the fence of corrections, and note the run ids of Redis              service/rejects/fence.py
    2  cut the span into parts, the oldest first, for windows and then for sessions    service/recompute/job.py
       windows of very different lengths have parts of their own: a part is as long as its longest window, and is held in memory
    3  for each part: compute the closed values that begin in it, by the stream's own steps
    4  write those that have not expired to Redis, over no open and no richer value    service/publication/publish.lua
    5  store all of them for the outlets, and note the part as done                 service/recompute/job_log.py

A run that is cut off goes on with the part that it had begun. Values that Redis has already are the same and are not written.
The running service is not involved, but for the outlets: it takes the entries of step 5 between two batches.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from service import clock, failpoint
from service.admission.readings import REASONS
from service.aggregation.sessions import longest_gap_ms
from service.errors import SettingsError
from service.kafka import topics
from service.outlets import recomputed
from service.outlets.outbox import views_of
from service.publication.closed_sink import Values
from service.recompute import archive, decisions, engine, job, late
from service.recompute.archive import Archive, Place, Records
from service.recompute.engine import Chosen, Span
from service.recompute.job import Job, Report, Say, Watch
from service.recompute.job_log import SESSIONS, WINDOWS, Log, Sessions, prune
from service.recompute.sources import KafkaRecords, Part, Reach
from service.rejects import former
from service.rejects.fence import Fence
from service.settings import Settings, View
from service.units import format_time
from state import codec
from state.layout import session_schema
from state.rules import EVENT_MS_LIMIT
from state.windows import concat

MOST_STEPS = 100
"""Views are computed together whose longest window is at most so many of the shortest ones: a part has up to twice as many of
each key. For each further group of views the records are read once more."""
AT_ONCE = 10_000
"""Rows in an entry for the outlets: a batch of the service waits until they are written."""


def backfill(
    settings: Settings,
    span: Span,
    views: Sequence[str],
    say: Say,
    watch: Watch = lambda _done, _total: None,
    *,
    source: Place | None = None,
    rate: int | None = None,
    dry: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Compute the values that begin in a span (ms), of these views, or of all views and of sessions.

    The records come from Kafka, or from an archive, the `source`. `rate` limits the records that are read per second; that of
    the settings if None. `watch` gets ms of event time. With `dry` nothing is written, and no other run is fenced. Without
    `spark` a session is started. Raises TidemarkError; then run it again with the same arguments.
    """
    _chosen(settings, views)  # a name that does not exist: before another run is fenced, and before Spark starts
    valid = max(0, span[0]), min(span[1], EVENT_MS_LIMIT)  # Spark and Kafka refuse much larger times
    with (
        nullcontext() if dry else closing(Fence(settings.redis)) as fence,
        job.of_command(settings, fence, spark, say, lambda served: _chosen(served, views)) as of,
    ):
        _Backfill(of, source, rate or settings.service.fill_rate, say, watch).run(valid, has_sessions=not views)
    of.report.say(say, dry=dry)
    if settings.outlets and not dry:
        say("the service writes all of them to the outlets with its next batches")
    return of.report


def _chosen(settings: Settings, views: Sequence[str]) -> Settings:
    """Return the settings with these views only, by their names in the settings. Raises SettingsError."""
    known = {view.of for view in settings.closing_views}
    if unknown := sorted(set(views) - known):
        what = f"--view {unknown[0]}: there is no view with windows of this name"
        raise SettingsError(what, remedy=f"Views: {', '.join(sorted(known))}")
    chosen = tuple(view for view in settings.closing_views if view.of in views)
    return settings.model_copy(update={"views": chosen}) if views else settings


def passes(settings: Settings) -> Mapping[str, Settings]:
    """Return the settings with the views whose windows are computed together, by the name of the pass, the shortest first."""

    def between_ms(view: View) -> int:
        return view.longest_ms if view.calendar is not None else view.step_ms

    groups: list[list[View]] = []
    for view in sorted(settings.closing_views, key=lambda view: view.longest_ms):
        if not groups or view.longest_ms > MOST_STEPS * min(map(between_ms, [*groups[-1], view])):
            groups.append([])
        groups[-1].append(view)
    if len(groups) < 2:
        return {WINDOWS: settings}
    return {
        f"{WINDOWS} of {', '.join(view.of for view in views)}": settings.model_copy(update={"views": tuple(views)})
        for views in groups
    }


class _Backfill:
    """One run, from an archive or Kafka, at most `rate` records a second."""

    def __init__(self, of: Job, source: Place | None, rate: int, say: Say, watch: Watch) -> None:
        self._job, self._source, self._rate, self._say, self._watch = of, source, rate, say, watch
        self._settings, self._report = of.settings, of.report
        # All rejects are read, because the report counts them by their reasons.
        log = late.read(of.settings, 0, 0, former=former.read(of.outbox.files))
        self._decided = decisions.of_log(of.run, log)

    def run(self, span: Span, *, has_sessions: bool) -> None:
        """Do steps 2 to 5."""
        watermark_ms = self._job.sink.micro_batch.watermark_ms
        chosen = {**passes(self._settings), **({SESSIONS: self._settings} if has_sessions else {})}
        kinds, counts = tuple(chosen), next(iter(chosen))
        files = self._job.outbox.files
        log = Log.load(files, span, self._identity(kinds), self._job.number)
        if not self._job.is_dry:
            prune(files, clock.now_ms(), log.key)
        if watermark_ms < span[1]:
            self._say(f"what ends after {format_time(watermark_ms)} is open, and the service writes it")
        for number, (kind, settings) in enumerate(chosen.items()):
            length_ms, reached_ms = span[1] - span[0], log.place.reached_ms.get(kind, span[0])
            records = self._records(kind, settings, span[1])
            if reached_ms > span[0]:
                self._say(f"going on: {kind} that begin before {format_time(reached_ms)} are done")
            ends_ms = records.ends_ms()
            if ends_ms is not None and ends_ms < span[1]:
                begin = format_time(max(span[0], ends_ms))
                self._say(f"{kind} that begin from {begin} on lack records in the archive, and are left out")
            left = reached_ms, span[1]
            for part, read in job.parts(self._job.run, records, left, self._decided, self._rate, oldest_first=True):
                self._part(kind, settings, read, part, ends_ms, log, counts=kind == counts)
                self._watch(number * length_ms + part[1] - span[0], len(kinds) * length_ms)
        self._report.rejected = +log.place.rejected
        if not self._job.is_dry:
            log.end()

    def _identity(self, kinds: tuple[str, ...]) -> list[str]:
        """Return what another run must have in common to go on with this one's log: the source, the values, the outlets."""
        views = sorted(view.name for view in self._settings.closing_views)
        outlets = sorted(outlet.name for outlet in self._settings.outlets)
        return [str(self._source or ""), *kinds, *views, "", *outlets]

    def _records(self, kind: str, of: Settings, newest_ms: int) -> Records:
        settings, spark, batch = self._settings, self._job.run.spark, self._job.sink.micro_batch
        reach = Reach.of_sessions(of) if kind == SESSIONS else Reach.of_windows(of)
        if self._source is not None:
            frame = archive.frame(spark, settings, batch, self._source)
            return Archive(self._source, frame, archive.covered(frame, batch, self._source), settings, reach)
        open_ms = None if topics.have_broker_times(settings.kafka) else newest_ms
        return KafkaRecords(spark, settings, batch, reach, open_ms)

    def _part(
        self, kind: str, of: Settings, read: Part, part: Span, ends_ms: int | None, log: Log, *, counts: bool
    ) -> None:
        """Do steps 3 to 5 for a part: the views of the settings `of`. Rejects are counted in one pass alone."""
        report, watermark_ms, rejects = self._report, self._job.sink.micro_batch.watermark_ms, Observation()
        report.lacking.update(dict.fromkeys(read.lacking))
        begin = part if ends_ms is None else (part[0], min(part[1], ends_ms))
        # Where a session begins depends on the one before it, unless a silence separates them.
        known = {device: start for device, (start, _) in log.place.sessions.items() if start >= read.whole_from_ms}
        only = Chosen({}, begin, known=known)
        if kind != SESSIONS:
            only = Chosen(dict.fromkeys(of.closing, begin), expired=True)
        counted = _counted(read.admitted, part, rejects)
        # The records are admitted by all settings, as late readings are that are added to them.
        run = replace(self._job.run, settings=of)
        closed = engine.closed_values(run, counted, watermark_ms, read.whole_from_ms, only)
        changes = [codec.unpack_changes(each) for each in closed.frame.toArrow()["payload"].to_pylist()]
        windows = concat([each.windows for each in changes])
        sessions = pa.concat_tables(
            [session_schema(()).empty_table(), *(each.sessions for each in changes)], promote_options="default"
        )
        for name, many in zip((WINDOWS, SESSIONS), closed.unrecoverable, strict=True):
            report.unrecoverable[name] += many
        values = self._job.write(windows, sessions)
        if values is not None:
            failpoint.hit("half_backfilled")
            self._store(values, log)
        if kind != SESSIONS:
            rejected = Counter[str]()
            if counts:
                rejected.update(self._decided.rejected(part))
                rejected.update(rejects.get)
            log.reach(kind, part[1], rejected, {})
        else:
            log.reach(SESSIONS, part[1], {}, self._newest(log.place.sessions, sessions, part[1]))
        if values is not None:
            log.save()

    def _newest(self, known: Sessions, sessions: pa.Table, end_ms: int) -> Sessions:
        """Return the newest session of each device, of those that a reading at a time or later may belong to or follow."""
        newest = dict(known)
        for device, start, last in zip(
            *(sessions[name].to_pylist() for name in ("device", "start", "last")), strict=True
        ):
            newest[device] = max(newest.get(device, (start, last)), (start, last))
        gap_ms = longest_gap_ms(self._settings)
        return {device: (start, last) for device, (start, last) in newest.items() if last + gap_ms >= end_ms}

    def _store(self, values: tuple[Values, Values], log: Log) -> None:
        """Store the values for the outlets, the changed ones with a new revision."""
        log.begin()
        if self._settings.outlets:
            windows, sessions = (
                recomputed.with_revision(each.table, self._job.began_ms, each.revisions) for each in values
            )
            for start in range(0, max(windows.num_rows, sessions.num_rows), AT_ONCE):
                log.store(views_of(self._settings), windows.slice(start, AT_ONCE), sessions.slice(start, AT_ONCE))
        self._job.check()


def _counted(admitted: DataFrame, part: Span, rejects: Observation) -> DataFrame:
    """Count the rejects among the records that the broker got in a part, by reason."""
    reason = F.get_json_object("reject", "$.reason")
    is_in = (F.col("broker_ms") >= part[0]) & (F.col("broker_ms") < part[1])
    return admitted.observe(rejects, *[F.count(F.when(is_in & (reason == name), 1)).alias(name) for name in REASONS])

"""Backfill: compute the closed values of a span of event time from Kafka, for Redis and the outlets, beside the writer.

    1  take the fence of corrections, and note the run ids of Redis              service/rejects/fence.py
    2  cut the span into parts, the oldest first                                     service/recompute/spans.py
    3  for each part: compute the closed windows and sessions that begin in it, by the stream's own steps
    4  write those that have not expired to Redis, over no open and no richer value    service/recompute/correct.lua
    5  store all of them for the outlets, and note the part as done                 service/recompute/backfill_log.py

A run that is cut off goes on with the part that it had begun. Values that Redis has already are the same and are not written.
The running service is not involved, but for the outlets: it takes the entries of step 5 between two batches.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from service import clock, failpoint
from service.admission import catalogs, column_values
from service.admission.readings import REASONS
from service.checkpoint import view_versions
from service.errors import SettingsError
from service.kafka import topics
from service.outlets import corrections
from service.pipeline import batch_report, failure
from service.recompute import closed_sink, late, past, rebuild
from service.recompute.backfill_log import Log, Sessions
from service.recompute.closed_sink import ClosedSink
from service.recompute.correct import serving_attributes
from service.recompute.rebuild import Chosen, Recomputation, Span
from service.recompute.spans import Reader, around_ms, longest_gap_ms, records_of
from service.rejects.fence import Fence
from service.settings import Settings
from service.spark import session
from service.spark.files import Files, opened
from service.units import format_time
from state import codec
from state.layout import session_schema
from state.windows import concat

AT_ONCE = 50_000
"""Rows in an entry for the outlets."""

Say = Callable[[str], object]
Watch = Callable[[int, int], object]


@dataclass(slots=True)
class Report:
    """What a run did. Values: `windows` and `sessions` computed; of them `written` to Redis, `same` there already, `poorer`
    than those in Redis; the others have expired there. `unrecoverable` windows and sessions lack readings. `rejected` counts the
    records that the broker got in the span and that no value has, by reason, also those of earlier runs that were cut off.
    `lacking` describes records that Kafka has deleted.
    """

    windows: int = 0
    sessions: int = 0
    written: int = 0
    same: int = 0
    poorer: int = 0
    unrecoverable: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    lacking: dict[str, None] = field(default_factory=dict)

    def lines(self, *, has_outlets: bool) -> Iterator[str]:
        """For people."""
        yield f"computed {self.windows} windows and {self.sessions} sessions"
        yield f"in Redis {self.written} of them are written, {self.same} were right already"
        if has_outlets:
            yield "the service writes all of them to the outlets with its next batches"
        if self.poorer:
            yield f"{self.poorer} values have more readings in Redis, and are left as they are"
        if self.unrecoverable.total():
            what = " and ".join(f"{many} {name}" for name, many in self.unrecoverable.items() if many)
            yield f"{what} are left out: Kafka lacks a part of their readings"
        for text in self.lacking:
            yield f"not to be read again: {text}"
        if self.rejected.total():
            reasons = ", ".join(f"{many} {reason}" for reason, many in self.rejected.most_common())
            yield f"{self.rejected.total()} records of the span were rejected: {reasons}"


def backfill(
    settings: Settings,
    span: Span,
    views: Sequence[str],
    say: Say,
    watch: Watch = lambda _done, _total: None,
    *,
    rate: int | None = None,
    dry: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Compute the values that begin in a span (ms), of these views, or of all views and of sessions.

    `rate` limits the records that are read per second; that of the settings if None. `watch` gets the ms of the span that are
    done, and all of them. With `dry` nothing is written, and no other run is fenced. Without `spark` a session is started. Raises
    TidemarkError; then run it again with the same arguments.
    """
    fence = None if dry else Fence(settings.redis)
    try:
        servers = closed_sink.servers(settings)
        sink = ClosedSink(settings, closed_sink.progress(settings), 0 if fence is None else fence.number, servers)
        running = spark or session.build(settings, master="local[*]")
        try:
            served = view_versions.stored(settings, Files(running, settings.service.checkpoint))
            chosen = _chosen(served, views)
            if settings.reference is not None:
                say("devices get the attributes of the reference snapshot that the service uses now")
            run = _Backfill(
                running, replace(sink, settings=chosen), fence, not views, rate or settings.service.fill_rate
            )
            report = run.run(span, sorted(views), say, watch)
        except Exception as error:  # also Spark's and py4j's
            raise failure.classify(error) from error
        finally:
            if spark is None:
                running.stop()
    finally:
        if fence is not None:
            fence.close()
    for line in report.lines(has_outlets=bool(settings.outlets)):
        say(f"nothing is written; without --dry-run: {line}" if dry else line)
    return report


def _chosen(settings: Settings, views: Sequence[str]) -> Settings:
    """Return the settings with these views only, by their names in the settings. Raises SettingsError."""
    known = {view.of for view in settings.closing_views}
    if unknown := sorted(set(views) - known):
        what = f"--view {unknown[0]}: there is no view with windows of this name"
        raise SettingsError(what, remedy=f"Views: {', '.join(sorted(known))}")
    chosen = tuple(view for view in settings.closing_views if not views or view.of in views)
    if filling := [view.of for view in chosen if view.is_marked]:
        what = f"The service computes the past of the view {filling[0]} at this moment"
        raise SettingsError(what, remedy="Run it again when `tidemark views list` shows the view as complete")
    return settings if not views else settings.model_copy(update={"views": chosen})


class _Backfill:
    """One run. Without a fence nothing is written. Sessions only with `has_sessions`."""

    def __init__(
        self, spark: SparkSession, sink: ClosedSink, fence: Fence | None, has_sessions: bool, rate: int
    ) -> None:
        self._spark, self._fence, self._rate = spark, fence, rate
        self._settings, self._has_sessions = sink.settings, has_sessions
        committed = batch_report.committed(spark, self._settings.service.checkpoint)
        start = committed.start if committed else {}
        self._sink = replace(sink, micro_batch=replace(sink.micro_batch, start=start))
        known = catalogs.new_catalog(spark, self._settings).recorded()
        values = column_values.stored(self._settings, Files(spark, self._settings.service.checkpoint))
        self._recomputation = Recomputation(
            spark, self._settings, serving_attributes(spark, self._settings), known, values
        )
        self._decided = past.decisions(self._recomputation, late.read(self._settings, 0, 0))
        self._report = Report()

    def run(self, span: Span, views: Sequence[str], say: Say, watch: Watch) -> Report:
        """Do steps 2 to 5."""
        watermark_ms = self._sink.micro_batch.watermark_ms
        files = opened(self._spark, self._settings.service.checkpoint)
        log = Log(files, "", 0, span[0])
        if self._fence is not None:
            log = Log.load(files, span, views, self._fence.number)
        if log.reached_ms > span[0]:
            say(f"going on: what begins before {format_time(log.reached_ms)} is done")
        if watermark_ms < span[1]:
            say(f"what ends after {format_time(watermark_ms)} is open, and the service writes it")
        reader = self._reader(span[1])
        for part in reader.parts((log.reached_ms, span[1]), oldest_first=True):
            began_s = clock.monotonic_s()
            records = self._part(reader, part, log)
            watch(part[1] - span[0], span[1] - span[0])
            time.sleep(max(0.0, records / self._rate - (clock.monotonic_s() - began_s)))
        self._report.rejected = +log.rejected
        if self._fence is not None:
            log.end()
        return self._report

    def _reader(self, newest_ms: int) -> Reader:
        settings = self._settings
        before_ms, after_ms = settings.admission.max_ahead_ms, around_ms(settings)
        if self._has_sessions:
            # A session that has begun before a part is read from its start on, and one that begins in it to its end.
            longest_ms = settings.sessions.max_duration_ms + 2 * longest_gap_ms(settings)
            before_ms += longest_ms
            after_ms = max(after_ms, longest_ms + settings.admission.max_delay_ms + 1)
        is_open = not topics.have_broker_times(settings.kafka)
        batch = self._sink.micro_batch
        return Reader(self._spark, settings, batch, before_ms, after_ms, newest_ms, is_open, self._rate)

    def _part(self, reader: Reader, part: Span, log: Log) -> int:
        """Do steps 3 to 5 for a part; returns the number of records that were read."""
        settings, report = self._settings, self._report
        source = reader.source(part)
        report.lacking.update(dict.fromkeys(source.lacking))
        admitted, whole_from_ms = past.admitted(self._recomputation, source, self._decided)
        rejects = Observation()
        spans = {(view.name, each): part for view in settings.closing_views for each in settings.view_measures(view)}
        # Where a session begins depends on the one before it, unless a silence separates them.
        known = {device: start for device, (start, _) in log.sessions.items() if start >= whole_from_ms}
        only = Chosen(spans, part if self._has_sessions else None, expired=True, known=known)
        watermark_ms = reader.committed.watermark_ms
        counted = _counted(admitted, part, rejects)
        closed = rebuild.closed_values(self._recomputation, counted, watermark_ms, whole_from_ms, only)
        changes = [codec.unpack_changes(each) for each in closed.frame.toArrow()["payload"].to_pylist()]
        windows = concat([each.windows for each in changes])
        sessions = pa.concat_tables(
            [session_schema(()).empty_table(), *(each.sessions for each in changes)], promote_options="default"
        )
        report.windows, report.sessions = report.windows + windows.num_rows, report.sessions + sessions.num_rows
        rejected = self._decided.rejected(part)
        rejected.update(rejects.get)
        for name, many in zip(("windows", "sessions"), closed.unrecoverable, strict=True):
            report.unrecoverable[name] += many
        if self._fence is not None:
            self._write(windows, sessions)
            failpoint.hit("half_backfilled")
            log.begin()
            if settings.outlets:
                self._store(windows, sessions, log)
            self._fence.check()
        log.reach(part[1], rejected, self._newest(log.sessions, sessions, part[1]))
        if self._fence is not None:
            log.save()
        return records_of(source)

    def _newest(self, known: Sessions, sessions: pa.Table, end_ms: int) -> Sessions:
        """Return the newest session of each device, of those that a reading at a time or later may belong to or follow."""
        newest = dict(known)
        for device, start, last in zip(
            *(sessions[name].to_pylist() for name in ("device", "start", "last")), strict=True
        ):
            newest[device] = max(newest.get(device, (start, last)), (start, last))
        gap_ms = longest_gap_ms(self._settings)
        return {device: (start, last) for device, (start, last) in newest.items() if last + gap_ms >= end_ms}

    def _write(self, windows: pa.Table, sessions: pa.Table) -> None:
        """Do step 4."""
        start = self._sink.micro_batch.start
        sink = replace(self._sink, micro_batch=replace(closed_sink.progress(self._settings), start=start))
        for written in sink.write_values(windows, sessions):
            self._report.written += written.written
            self._report.same += written.same
            self._report.poorer += written.poorer
        sink.confirm()

    def _store(self, windows: pa.Table, sessions: pa.Table, log: Log) -> None:
        """Store the values for the outlets, with the revisions that Redis has."""
        for start in range(0, max(windows.num_rows, sessions.num_rows), AT_ONCE):
            some = [table.slice(start, AT_ONCE) for table in (windows, sessions)]
            rows = [
                corrections.with_revisions(each, closed_sink.revisions(self._settings, each), expired=0)
                for each in some
            ]
            if any(table.num_rows for table in rows):
                log.store(*rows)


def _counted(admitted: DataFrame, part: Span, rejects: Observation) -> DataFrame:
    """Count the rejects among the records that the broker got in a part, by reason."""
    reason = F.get_json_object("reject", "$.reason")
    is_in = (F.col("broker_ms") >= part[0]) & (F.col("broker_ms") < part[1])
    return admitted.observe(rejects, *[F.count(F.when(is_in & (reason == name), 1)).alias(name) for name in REASONS])

"""A run of a backfill: the parts of a span, for windows and then for sessions, computed and written (see backfill.py).

Windows need the records of a window's length around a part, sessions those of `sessions.max_duration`. So they have parts of
their own: the values of a part are in memory, and windows are many.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from service import clock, failpoint
from service.admission.readings import REASONS
from service.aggregation.sessions import longest_gap_ms
from service.kafka import topics
from service.outlets import recomputed
from service.outlets.outbox import views_of
from service.recompute import archive, closed_sink, command_session, decisions, engine, late
from service.recompute.archive import Archive, Place
from service.recompute.closed_sink import ClosedSink, Values
from service.recompute.engine import Chosen, Span
from service.recompute.job_log import SESSIONS, WINDOWS, Log, Sessions
from service.recompute.sources import Reader, Records, around_ms
from service.rejects.fence import Fence
from service.spark.files import opened
from service.units import format_time
from state import codec
from state.layout import session_schema
from state.windows import concat

AT_ONCE = 10_000
"""Rows in an entry for the outlets: a batch of the service waits until they are written."""

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


class Run:
    """One run, from an archive or Kafka, at most `rate` records a second. Without a fence nothing is written."""

    def __init__(
        self, spark: SparkSession, sink: ClosedSink, fence: Fence | None, source: Place | None, rate: int
    ) -> None:
        self._spark, self._fence, self._source, self._rate = spark, fence, source, rate
        self._settings = sink.settings
        self._sink, self._recomputation = command_session.with_recomputation(spark, sink)
        self._decided = decisions.decisions(self._recomputation, late.read(self._settings, 0, 0))
        self._report = Report()

    def run(self, span: Span, say: Say, watch: Watch, *, has_sessions: bool) -> Report:
        """Do steps 2 to 5."""
        watermark_ms = self._sink.micro_batch.watermark_ms
        files = opened(self._spark, self._settings.service.checkpoint)
        kinds = (WINDOWS, SESSIONS) if has_sessions else (WINDOWS,)
        log = Log.new(files, span, self._identity(kinds), 0)
        if self._fence is not None:
            log = Log.load(files, span, self._identity(kinds), self._fence.number)
        if watermark_ms < span[1]:
            say(f"what ends after {format_time(watermark_ms)} is open, and the service writes it")
        for number, kind in enumerate(kinds):
            length_ms, reached_ms = span[1] - span[0], log.reached_ms[kind]
            records = self._records(kind, span[1])
            if reached_ms > span[0]:
                say(f"going on: {kind} that begin before {format_time(reached_ms)} are done")
            ends_ms = records.ends_ms()
            if ends_ms is not None and ends_ms < span[1]:
                begin = format_time(max(span[0], ends_ms))
                say(f"{kind} that begin from {begin} on lack records in the archive, and are left out")
            for part in records.parts((reached_ms, span[1]), oldest_first=True):
                began_s = clock.monotonic_s()
                many = self._part(kind, records, part, log)
                watch(number * length_ms + part[1] - span[0], len(kinds) * length_ms)
                time.sleep(max(0.0, many / self._rate - (clock.monotonic_s() - began_s)))
        self._report.rejected = +log.rejected
        if self._fence is not None:
            log.end()
        return self._report

    def _identity(self, kinds: tuple[str, ...]) -> list[str]:
        """Return what another run must have in common to go on with this one's log: the source, the values, the outlets."""
        views = sorted(view.name for view in self._settings.closing_views)
        outlets = sorted(outlet.name for outlet in self._settings.outlets)
        return [str(self._source or ""), *kinds, *views, "", *outlets]

    def _records(self, kind: str, newest_ms: int) -> Records:
        settings = self._settings
        before_ms, after_ms = settings.admission.max_ahead_ms, around_ms(settings)
        if kind == SESSIONS:
            # A session that has begun before a part is read from its start on, and one that begins in it to its end.
            longest_ms = settings.sessions.max_duration_ms + 2 * longest_gap_ms(settings)
            before_ms, after_ms = before_ms + longest_ms, longest_ms + settings.admission.max_delay_ms + 1
        batch = self._sink.micro_batch
        if self._source is not None:
            frame = archive.frame(self._spark, settings, batch, self._source)
            covers = archive.covered(frame, batch, self._source)
            return Archive(self._source, frame, covers, settings, before_ms, after_ms, self._rate)
        is_open = not topics.have_broker_times(settings.kafka)
        return Reader(self._spark, settings, batch, before_ms, after_ms, newest_ms, is_open, self._rate)

    def _part(self, kind: str, records: Records, part: Span, log: Log) -> int:
        """Do steps 3 to 5 for a part; returns the number of records that were read."""
        settings, report, ends_ms = self._settings, self._report, records.ends_ms()
        read = records.read(self._recomputation, part, self._decided)
        report.lacking.update(dict.fromkeys(read.lacking))
        begin = part if ends_ms is None else (part[0], min(part[1], ends_ms))
        # Where a session begins depends on the one before it, unless a silence separates them.
        known = {device: start for device, (start, _) in log.sessions.items() if start >= read.whole_from_ms}
        only = Chosen({}, begin, known=known)
        if kind == WINDOWS:
            only = Chosen(dict.fromkeys(settings.closing, begin), expired=True)
        watermark_ms, rejects = self._sink.micro_batch.watermark_ms, Observation()
        counted = _counted(read.admitted, part, rejects)
        closed = engine.closed_values(self._recomputation, counted, watermark_ms, read.whole_from_ms, only)
        changes = [codec.unpack_changes(each) for each in closed.frame.toArrow()["payload"].to_pylist()]
        windows = concat([each.windows for each in changes])
        sessions = pa.concat_tables(
            [session_schema(()).empty_table(), *(each.sessions for each in changes)], promote_options="default"
        )
        report.windows, report.sessions = report.windows + windows.num_rows, report.sessions + sessions.num_rows
        for name, many in zip((WINDOWS, SESSIONS), closed.unrecoverable, strict=True):
            report.unrecoverable[name] += many
        if self._fence is not None:
            values = self._write(windows, sessions)
            failpoint.hit("half_backfilled")
            log.begin()
            if settings.outlets:
                self._store(values, log, self._fence)
            self._fence.check()
        if kind == WINDOWS:
            rejected = self._decided.rejected(part)
            rejected.update(rejects.get)
            log.reach(WINDOWS, part[1], rejected, {})
        else:
            log.reach(SESSIONS, part[1], {}, self._newest(log.sessions, sessions, part[1]))
        if self._fence is not None:
            log.save()
        return read.records

    def _newest(self, known: Sessions, sessions: pa.Table, end_ms: int) -> Sessions:
        """Return the newest session of each device, of those that a reading at a time or later may belong to or follow."""
        newest = dict(known)
        for device, start, last in zip(
            *(sessions[name].to_pylist() for name in ("device", "start", "last")), strict=True
        ):
            newest[device] = max(newest.get(device, (start, last)), (start, last))
        gap_ms = longest_gap_ms(self._settings)
        return {device: (start, last) for device, (start, last) in newest.items() if last + gap_ms >= end_ms}

    def _write(self, windows: pa.Table, sessions: pa.Table) -> tuple[Values, Values]:
        """Do step 4. Return the values for the outlets."""
        start = self._sink.micro_batch.start
        sink = replace(self._sink, micro_batch=replace(closed_sink.progress(self._settings), start=start))
        values = sink.write_values(windows, sessions)
        for written in (each.written for each in values):
            self._report.written += written.written
            self._report.same += written.same
            self._report.poorer += written.poorer
        sink.confirm()
        return values

    def _store(self, values: tuple[Values, Values], log: Log, fence: Fence) -> None:
        """Store the values for the outlets, the changed ones with a new revision."""
        windows, sessions = (recomputed.with_revision(each.table, fence.began_ms, each.revisions) for each in values)
        for start in range(0, max(windows.num_rows, sessions.num_rows), AT_ONCE):
            log.store(views_of(self._settings), windows.slice(start, AT_ONCE), sessions.slice(start, AT_ONCE))


def _counted(admitted: DataFrame, part: Span, rejects: Observation) -> DataFrame:
    """Count the rejects among the records that the broker got in a part, by reason."""
    reason = F.get_json_object("reject", "$.reason")
    is_in = (F.col("broker_ms") >= part[0]) & (F.col("broker_ms") < part[1])
    return admitted.observe(rejects, *[F.count(F.when(is_in & (reason == name), 1)).alias(name) for name in REASONS])

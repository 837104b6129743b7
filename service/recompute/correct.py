"""Correct: write late readings that were rejected into the final windows and closed sessions that they belong to.

    1  take the fence: runs that began earlier cannot write any more                     service/rejects/fence.py
       note the run id of Redis: a restarted Redis may have lost writes, and gets no more from this run
    2  read progress from Redis, which says what is closed, and the marks, which say what is in values
    3  leave late readings whose window or session is open for a later run: the daemon writes open values. A window that is longer
       than sessions may be is not waited for: a later run adds the reading to it
    4  compute the other windows and sessions from Kafka: admitted, earlier corrected and these late readings
    5  mark these late readings as `correcting`                                          service/rejects/marks.py
    6  write windows and sessions to Redis, over closed values only, `revision` grows    service/publication/publish.lua
    7  mark the late readings as `corrected`, for ever, unless another run has begun, or the service has got a view since; those
       that a longer window waits for stay `correcting`, with its end

The next run finishes a run that was killed, for any span: it includes every reading marked `correcting`. It computes the same
values, and does not write values that are in Redis already. A running daemon is not involved: it never
writes a value that step 3 finds closed. A republish writes again what Redis loses after step 7 (`restore`).
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from service import failpoint
from service.aggregation.sessions import rules
from service.checkpoint import view_versions
from service.errors import CheckpointError, FencedError, SinkError
from service.outlets import recomputed
from service.outlets.outbox import views_of
from service.publication import closed_sink
from service.publication.closed_sink import ClosedSink
from service.publication.policy import WritePolicy
from service.recompute import decisions, engine, job, late, sources
from service.recompute.decisions import Decisions
from service.recompute.engine import Partials
from service.recompute.job import Job, Report, Say
from service.recompute.late import Log
from service.recompute.sources import Part
from service.rejects import former, marks
from service.rejects.fence import Fence
from service.rejects.marks import Mark, State
from service.rejects.reject_log import Coordinates
from service.settings import Settings
from service.spark.files import Files
from state.columns import Ints, ints
from state.late_sessions import corrected
from state.windows import concat

NO_WINDOW_MS = np.iinfo(np.int64).max
AT_ONCE = 20_000
"""Late readings in one batch run. The driver holds their windows and runs in memory."""


def correct(
    settings: Settings,
    since_ms: int | None,
    until_ms: int | None,
    say: Say,
    *,
    again: bool = False,
    dry: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Correct the values of the late rejects of a span; with `again`, also of those that are marked as corrected.

    The span is of the records' broker time. Without `spark`, a session is started if there is something to correct. With
    `dry`, nothing is written, and no other run is fenced. Raises TidemarkError; then run it again.
    """
    with nullcontext() if dry else closing(Fence(settings.redis)) as fence:
        log = late.read(settings, since_ms, until_ms)
        # Without a late reading the command ends here, also where the service has published nothing yet.
        if not log.todo(sys.maxsize, again=again) or not log.todo(
            closed_sink.progress(settings).watermark_ms, again=again
        ):
            say("no late reading is to be corrected")
            return Report(corrected=0)
        with job.of_command(settings, fence, spark, say, lambda served: served) as of:
            # A checkpoint that has no rejects of an earlier one has read them all.
            if earlier := former.read(of.outbox.files):
                log = late.read(settings, since_ms, until_ms, former=earlier)
            Correction(of, log).run(log.todo(of.sink.micro_batch.watermark_ms, again=again))
    of.report.say(say, dry=dry)
    return of.report


def restore(spark: SparkSession, settings: Settings, shard_marks: Mapping[int, str]) -> Report:
    """Write corrected values again where Redis has older ones, as a part of the republish of the shards with these marks.

    Raises TidemarkError.
    """
    servers = closed_sink.servers(settings, shard_marks)
    earlier = former.read(Files(spark, settings.service.checkpoint))
    micro_batch = closed_sink.progress(settings, shard_marks)
    log = late.in_values(settings, marks.read(settings.kafka), earlier)
    from_ms = sources.needed_from_ms(settings, micro_batch.watermark_ms)
    todo = [] if log is None else [place for place, each in log.marks.items() if _is_restored(each, from_ms)]
    if log is None or not todo:
        return Report(corrected=0)
    with closing(Fence(settings.redis)) as fence:
        of = Job(
            spark,
            ClosedSink(settings, micro_batch, servers, policy=WritePolicy.correct(fence.number, shard_marks)),
            fence,
        )
        try:
            Correction(of, log, is_marking=False).run(todo)
        except FencedError as error:  # by a command: the daemon is not fenced, and tries again
            raise SinkError(str(error), remedy="It is tried again") from error
    return of.report


def _is_restored(mark: Mark, from_ms: int) -> bool:
    """Whether values that have not expired may have the reading."""
    is_written = mark.state == "corrected" or late.NEXT in mark.details
    return is_written and int(mark.details.get("event_ms", -1)) >= from_ms


class Correction:
    """One run. `log` has the late readings to correct and those in values. Without `is_marking` they have their marks already."""

    def __init__(self, of: Job, log: Log, *, is_marking: bool = True) -> None:
        self._job, self._log, self._is_marking = of, log, is_marking and not of.is_dry
        self._settings, self._run, self._report = of.settings, of.run, of.report
        self._rounds = 0
        settings, waits_ms = of.settings, of.settings.sessions.max_duration_ms
        self._longer = [
            each for each in settings.closing_views if each.longest_ms + (each.carry_for_ms or 0) > waits_ms
        ]
        self._others = [each for each in settings.closing_views if each not in self._longer]

    def run(self, todo: Sequence[Coordinates]) -> None:
        """Steps 3 to 7."""
        report, watermark_ms = self._report, self._job.sink.micro_batch.watermark_ms
        chosen = set(todo)
        admitted, report.refused = late.admitted(self._run, self._log.rejects.values(), self._log.marks)
        admitted = admitted.sort_by("event_ms")
        readings = late.of(admitted, chosen)
        earlier = late.of(admitted, {reject.place for reject in self._log.in_values()} - chosen)
        if self._settings.admission.distinct and readings.num_rows:
            is_copy = decisions.copies(readings, earlier, self._read(int(ints(readings, "event_ms").min())).admitted)
            report.refused += int(is_copy.sum())
            readings = readings.filter(pa.array(~is_copy))
        is_open = engine.ends_ms(ints(readings, "event_ms"), self._others) > watermark_ms
        report.corrected, report.waiting = 0, int(is_open.sum())
        readings = readings.filter(pa.array(~is_open))
        for start in range(0, readings.num_rows, AT_ONCE):
            earlier = pa.concat_tables([earlier, self._round(readings.slice(start, AT_ONCE), earlier)])

    def _read(self, from_ms: int, corrected: pa.Table | None = None) -> Part:
        """Return every admitted reading from an event time on, and `corrected` ones."""
        begin_ms = max(0, from_ms - self._settings.admission.max_ahead_ms)
        source = sources.readable(self._run.spark, self._settings, self._job.sink.micro_batch, begin_ms)
        return sources.admitted(self._run, source, Decisions(self._log.refused, corrected, self._log.gone_ms + 1))

    def _round(self, readings: pa.Table, earlier: pa.Table) -> pa.Table:
        """Correct some late readings, ascending; `earlier` are in values already. Returns those that are corrected now."""
        run, settings, watermark_ms = self._run, self._settings, self._job.sink.micro_batch.watermark_ms
        all_folded = self._fold(readings)

        def fold(some: pa.Table) -> Partials:
            # Unless some have to wait, all steps use the fold of all of them.
            return all_folded if some.num_rows == readings.num_rows else self._fold(some)

        first = _first(readings)
        anchors = _anchors(closed_sink.session_starts(settings, first), first)
        gaps = _gaps(all_folded.runs, settings.sessions.gap_ms)
        from_ms = {device: anchors.get(device, ms - gaps[device]) for device, ms in first.items()}
        carried_ms = max(engine.carries(settings).values(), default=0)
        needed_ms = max(0, min([*(ints(all_folded.windows, "start") - carried_ms).tolist(), *from_ms.values()]))
        read = self._read(needed_ms, late.plain(earlier.filter(pc.greater_equal(earlier["event_ms"], needed_ms))))
        whole_ms = read.whole_from_ms
        base = engine.targeted(run, read.admitted, all_folded.windows, from_ms)
        unrecoverable = _unrecoverable(base.runs, first, anchors.keys(), from_ms, whole_ms)
        runs, recoverable = _without(base.runs, unrecoverable), _without(readings, unrecoverable)
        sessions = corrected(runs, recoverable, lambda some: fold(some).runs, watermark_ms, rules(settings))
        waiting = set(late.places(recoverable.filter(pa.array(sessions.waiting))))
        ready = late.of(readings, set(late.places(readings)) - waiting)
        self._report.waiting += len(waiting)
        self._report.unrecoverable["devices' sessions"] += len(unrecoverable)
        if ready.num_rows:
            self._mark("correcting", ready)
            self._write(
                engine.with_late(base.windows, fold(ready).windows, settings.fills), sessions.sessions, whole_ms
            )
            failpoint.hit("corrected_before_marked")
            next_ms = self._next_ms(ready)
            is_whole = next_ms == NO_WINDOW_MS
            self._mark("corrected", ready.filter(pa.array(is_whole)))
            self._mark("correcting", ready.filter(pa.array(~is_whole)), next_ms[~is_whole])
            self._report.corrected = (self._report.corrected or 0) + ready.num_rows
            self._report.longer += int(np.count_nonzero(~is_whole))
        return ready

    def _fold(self, readings: pa.Table) -> Partials:
        """The closed windows of late readings, as far as they are not open in a longer view, and their runs."""
        folded = engine.fold(self._run, late.plain(readings), self._others)
        tables = [folded.windows]
        for view in self._longer:
            closed = engine.ends_ms(ints(readings, "event_ms"), [view]) <= self._job.sink.micro_batch.watermark_ms
            if closed.any():
                tables.append(engine.fold(self._run, late.plain(readings.filter(pa.array(closed))), [view]).windows)
        return replace(folded, windows=concat(tables))

    def _next_ms(self, readings: pa.Table) -> Ints:
        """The end of the first window in a longer view that is not closed yet; NO_WINDOW_MS for a reading without one."""
        next_ms = np.full(readings.num_rows, NO_WINDOW_MS)
        for view in self._longer:
            ends = engine.ends_ms(ints(readings, "event_ms"), [view])
            is_open = ends > self._job.sink.micro_batch.watermark_ms
            next_ms[is_open] = np.minimum(next_ms, ends)[is_open]
        return next_ms

    def _write(self, windows: pa.Table, sessions: pa.Table, whole_ms: int) -> None:
        """Step 6."""
        complete = windows.filter(pa.array(engine.are_whole(windows, whole_ms, engine.carries(self._settings))))
        self._report.unrecoverable["windows"] += windows.num_rows - complete.num_rows
        values = self._job.write(complete, sessions)
        if values is None:
            return
        if self._settings.outlets and self._is_marking:  # else they were left when the marks were made
            self._rounds += 1
            rows = [recomputed.with_revision(each.table, self._job.began_ms + self._rounds) for each in values]
            recomputed.leave(self._job.outbox, self._job.number, self._rounds, views_of(self._settings), *rows)
        self._job.check()
        self._require_views()

    def _require_views(self) -> None:
        """Raise CheckpointError if the service has views or measures that this run does not know.

        Their past is computed by service/recompute/fill.py, perhaps before these readings had the mark `correcting`.
        """
        settings = self._settings
        served = view_versions.stored(settings, self._job.outbox.files)
        if added := sorted(set(served.closing) - set(settings.closing)):
            what = f"The service has got the view {added[0][0]} with {added[0][1]} since this run began"
            raise CheckpointError(what, remedy="Run it again: it finishes what this run has begun, with that view")

    def _mark(self, state: State, table: pa.Table, next_ms: Ints | None = None) -> None:
        if not self._is_marking or not table.num_rows:
            return
        ends = [None] * table.num_rows if next_ms is None else next_ms.tolist()
        rows = zip(late.places(table), table["event_ms"].to_pylist(), late.keys(self._run, table), ends, strict=True)
        some = [
            Mark(
                place,
                state,
                {"event_ms": ms, **({"keys": keys} if keys else {}), **({} if end is None else {late.NEXT: end})},
            )
            for place, ms, keys, end in rows
        ]
        marks.write(self._settings.kafka, some)


def _first(readings: pa.Table) -> dict[str, int]:
    """The time of each device's first reading, of rows ascending by time."""
    pairs = zip(reversed(readings["device"].to_pylist()), reversed(readings["event_ms"].to_pylist()), strict=True)
    return dict(pairs)


def _gaps(runs: pa.Table, gap_ms: int) -> dict[str, int]:
    """The session gap of each device: its own, or that of the settings."""
    pairs = zip(runs["device"].to_pylist(), ints(runs, "gap").tolist(), strict=True)
    return {device: own_ms if own_ms >= 0 else gap_ms for device, own_ms in pairs}


def _anchors(starts: Mapping[str, list[int]], first: Mapping[str, int]) -> dict[str, int]:
    """The newest session start of each device that is not after its first late reading: no late reading moves it."""
    before = {device: [start for start in starts.get(device, ()) if start <= ms] for device, ms in first.items()}
    return {device: max(sessions) for device, sessions in before.items() if sessions}


def _without(table: pa.Table, devices: Collection[str]) -> pa.Table:
    """The rows of other devices."""
    return table.filter(pa.array([device not in devices for device in table["device"].to_pylist()], pa.bool_()))


def _unrecoverable(
    runs: pa.Table, first: Mapping[str, int], anchored: Collection[str], from_ms: Mapping[str, int], whole_ms: int
) -> set[str]:
    """The devices whose sessions cannot be computed.

    Kafka lacks readings since the anchor; or there is no anchor, and readings right before the first late one show that a
    session began at an unknown time.
    """
    devices = {device for device, ms in from_ms.items() if ms < whole_ms}
    for device, start in zip(runs["device"].to_pylist(), ints(runs, "start").tolist(), strict=True):
        if device not in anchored and start < first[device]:
            devices.add(device)
    return devices

"""Correct: write late readings that were rejected into the final windows and closed sessions that they belong to.

    1  take the fence: runs that began earlier cannot write any more                     service/rejects/fence.py
       note the run id of Redis: a restarted Redis may have lost writes, and gets no more from this run
    2  read progress from Redis, which says what is closed, and the marks, which say what is in values
    3  leave late readings whose window or session is open for a later run: the daemon writes open values
    4  compute the other windows and sessions from Kafka: admitted, earlier corrected and these late readings
    5  mark these late readings as `correcting`                                          service/rejects/marks.py
    6  write windows and sessions to Redis, over closed values only, `revision` grows    service/recompute/correct.lua
    7  mark the late readings as `corrected`, for ever, unless another run has begun, or the service has got a view since

The next run finishes a run that was killed, for any span: it includes every reading marked `correcting`. It computes the same
values, and does not write values that are in Redis already. A running daemon is not involved: it never
writes a value that step 3 finds closed. A republish writes again what Redis loses after step 7 (`restore`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from service import failpoint
from service.aggregation.sessions import rules
from service.checkpoint import view_versions
from service.errors import CheckpointError, FencedError, SinkError
from service.outlets import recomputed
from service.outlets.outbox import Outbox, views_of
from service.recompute import closed_sink, command_session, correction, engine, late
from service.recompute.closed_sink import ClosedSink
from service.recompute.copies import copies
from service.recompute.correction import Partials
from service.recompute.late import Log
from service.rejects import marks
from service.rejects.fence import Fence
from service.rejects.marks import Mark, State
from service.rejects.reject_log import Coordinates
from service.settings import Settings
from service.spark.files import opened
from state.columns import Bools, ints
from state.late_sessions import corrected

AT_ONCE = 20_000
"""Late readings in one batch run. The driver holds their windows and runs in memory."""

Say = Callable[[str], object]


@dataclass(slots=True)
class Report:
    """What a run did. Late readings: `corrected`; `waiting` for an open window or session; `refused`, for another reason
    than being late, as copies of other readings, or because their bytes are gone. Values: `windows` and `sessions` written;
    `same`, which were right already; `poorer`, of which Redis has more readings than Kafka; `unrecoverable`, of which Kafka has
    deleted a part.
    """

    corrected: int = 0
    waiting: int = 0
    refused: int = 0
    windows: int = 0
    sessions: int = 0
    same: int = 0
    poorer: int = 0
    unrecoverable: Counter[str] = field(default_factory=Counter)

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"corrected {self.corrected} late readings: {self.windows} windows and {self.sessions} sessions written"
        if self.same:
            yield f"{self.same} values were right already"
        if self.waiting:
            yield f"{self.waiting} late readings belong to windows or sessions that are not closed yet: try later"
        if self.refused:
            why = "would not have been admitted in time either, are copies, or are gone"
            yield f"{self.refused} {why}: see `tidemark rejects show`"
        if self.poorer:
            yield f"{self.poorer} values have more readings than the topic gives now, and are left as they are"
        if self.unrecoverable.total():
            what = " and ".join(f"{many} {name}" for name, many in self.unrecoverable.items() if many)
            yield f"{what} are left as they are: Kafka has deleted a part of their readings"


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
        todo = log.todo(again=again)
        if not todo:
            say("no late reading is to be corrected")
            return Report()
        with command_session.writing(settings, fence, spark) as (running, sink):
            command_session.require_complete(sink.settings.closing_views)
            for line in command_session.unknown_attributes(running, settings):
                say(line)
            report = Correction(running, sink, log, fence).run(todo)
    for line in report.lines():
        say(f"nothing is written; without --dry-run: {line}" if dry else line)
    return report


def restore(spark: SparkSession, settings: Settings, shard_marks: Mapping[int, str]) -> Report:
    """Write corrected values again where Redis has older ones, as a part of the republish of the shards with these marks.

    Raises TidemarkError.
    """
    servers = closed_sink.servers(settings, shard_marks)
    micro_batch, log = closed_sink.progress(settings, shard_marks), late.in_values(settings, marks.read(settings.kafka))
    from_ms = engine.needed_from_ms(settings, micro_batch.watermark_ms)
    todo = [] if log is None else [place for place, each in log.marks.items() if _is_restored(each, from_ms)]
    if log is None or not todo:
        return Report()
    with closing(Fence(settings.redis)) as fence:
        sink = ClosedSink(settings, micro_batch, fence.number, servers, shard_marks)
        try:
            return Correction(spark, sink, log, fence, is_marking=False).run(todo)
        except FencedError as error:  # by a command: the daemon is not fenced, and tries again
            raise SinkError(str(error), remedy="It is tried again") from error


def _is_restored(mark: Mark, from_ms: int) -> bool:
    """Whether values that have not expired may have the reading."""
    return mark.state == "corrected" and int(mark.details.get("event_ms", -1)) >= from_ms


class Correction:
    """One run. `log` has the late readings to correct and those in values.

    Without a fence nothing is written or marked, and the report counts each value that would be computed as written. Without
    `is_marking`, the late readings have their marks already.
    """

    def __init__(
        self, spark: SparkSession, sink: ClosedSink, log: Log, fence: Fence | None, *, is_marking: bool = True
    ) -> None:
        self._fence, self._is_marking = fence, is_marking and fence is not None
        self._settings, self._log = sink.settings, log
        self._sink, self._recomputation = command_session.with_recomputation(spark, sink)
        self._report = Report()
        self._rounds = 0

    def run(self, todo: Sequence[Coordinates]) -> Report:
        """Steps 3 to 7."""
        report, watermark_ms = self._report, self._sink.micro_batch.watermark_ms
        chosen = set(todo)
        admitted, report.refused = late.admitted(self._recomputation, self._log.rejects.values(), self._log.marks)
        admitted = admitted.sort_by("event_ms")
        readings = late.of(admitted, chosen)
        earlier = late.of(admitted, {reject.place for reject in self._log.in_values()} - chosen)
        if self._settings.admission.distinct and readings.num_rows:
            is_copy = self._copies(readings, earlier)
            report.refused += int(is_copy.sum())
            readings = readings.filter(pa.array(~is_copy))
        is_open = correction.ends_ms(ints(readings, "event_ms"), self._settings) > watermark_ms
        report.waiting += int(is_open.sum())
        readings = readings.filter(pa.array(~is_open))
        for start in range(0, readings.num_rows, AT_ONCE):
            earlier = pa.concat_tables([earlier, self._round(readings.slice(start, AT_ONCE), earlier)])
        return report

    def _copies(self, readings: pa.Table, earlier: pa.Table) -> Bools:
        run, settings = self._recomputation, self._settings
        from_ms = max(0, int(ints(readings, "event_ms").min()) - settings.admission.max_ahead_ms)
        source = engine.readable(run.spark, settings, self._sink.micro_batch, from_ms)
        records = engine.records(run.spark, settings, source, refused=self._log.refused)
        return copies(readings, earlier, run.admit(records))

    def _round(self, readings: pa.Table, earlier: pa.Table) -> pa.Table:
        """Correct some late readings, ascending; `earlier` are in values already. Returns those that are corrected now."""
        run, settings, micro_batch = self._recomputation, self._settings, self._sink.micro_batch
        all_folded = correction.fold(run, late.plain(readings))

        def fold(some: pa.Table) -> Partials:
            # Unless some have to wait, all steps use the fold of all of them.
            return all_folded if some.num_rows == readings.num_rows else correction.fold(run, late.plain(some))

        first = _first(readings)
        anchors = _anchors(closed_sink.session_starts(settings, first), first)
        gaps = _gaps(all_folded.runs, settings.sessions.gap_ms)
        from_ms = {device: anchors.get(device, ms - gaps[device]) for device, ms in first.items()}
        needed_ms = min([*all_folded.windows["start"].to_pylist(), *from_ms.values()])
        # Every admitted reading since then is in the source.
        source = engine.readable(run.spark, settings, micro_batch, max(0, needed_ms - settings.admission.max_ahead_ms))
        whole_ms = max(source.whole_from_ms, self._log.gone_ms + 1)
        corrected_before = late.plain(earlier.filter(pc.greater_equal(earlier["event_ms"], needed_ms)))
        records = engine.records(run.spark, settings, source, refused=self._log.refused)
        admitted = run.admit(records, corrected_before)
        base = correction.base(run, admitted, all_folded.windows, from_ms)
        unrecoverable = _unrecoverable(base.runs, first, anchors.keys(), from_ms, whole_ms)
        runs, recoverable = _without(base.runs, unrecoverable), _without(readings, unrecoverable)
        sessions = corrected(runs, recoverable, lambda some: fold(some).runs, micro_batch.watermark_ms, rules(settings))
        waiting = set(late.places(recoverable.filter(pa.array(sessions.waiting))))
        ready = late.of(readings, set(late.places(readings)) - waiting)
        self._report.waiting += len(waiting)
        self._report.unrecoverable["devices' sessions"] += len(unrecoverable)
        if ready.num_rows:
            self._mark("correcting", ready)
            self._write(correction.with_late(base.windows, fold(ready).windows), sessions.sessions, whole_ms)
            if self._fence is not None:
                self._sink.confirm()
                self._fence.check()
                self._require_views()
            failpoint.hit("corrected_before_marked")
            self._mark("corrected", ready)
            self._report.corrected += ready.num_rows
        return ready

    def _write(self, windows: pa.Table, sessions: pa.Table, whole_ms: int) -> None:
        """Step 6."""
        settings, report = self._settings, self._report
        complete = windows.filter(pc.greater_equal(windows["start"], whole_ms))
        report.unrecoverable["windows"] += windows.num_rows - complete.num_rows
        if self._fence is None:
            report.windows, report.sessions = report.windows + complete.num_rows, report.sessions + sessions.num_rows
            return
        values = self._sink.write_values(complete, sessions)
        final, closed = (each.written for each in values)
        report.windows, report.sessions = report.windows + final.written, report.sessions + closed.written
        report.same += final.same + closed.same
        report.poorer += final.poorer + closed.poorer
        if settings.outlets and self._is_marking:  # else they were left when the marks were made
            files = opened(self._recomputation.spark, settings.service.checkpoint)
            self._rounds += 1
            rows = [recomputed.with_revision(each.table, self._fence.began_ms + self._rounds) for each in values]
            recomputed.leave(Outbox(files), self._sink.number, self._rounds, views_of(settings), *rows)

    def _require_views(self) -> None:
        """Raise CheckpointError if the service has views or measures that this run does not know.

        Their past is computed by service/recompute/fill.py, perhaps before these readings had the mark `correcting`.
        """
        settings = self._settings
        served = view_versions.stored(settings, opened(self._recomputation.spark, settings.service.checkpoint))
        if added := sorted(set(served.closing) - set(settings.closing)):
            what = f"The service has got the view {added[0][0]} with {added[0][1]} since this run began"
            raise CheckpointError(what, remedy="Run it again: it finishes what this run has begun, with that view")

    def _mark(self, state: State, table: pa.Table) -> None:
        if not self._is_marking:
            return
        rows = zip(
            late.places(table), table["event_ms"].to_pylist(), late.keys(self._recomputation, table), strict=True
        )
        marks.write(
            self._settings.kafka,
            [Mark(place, state, {"event_ms": ms, **({"keys": keys} if keys else {})}) for place, ms, keys in rows],
        )


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
    runs: pa.Table,
    first: Mapping[str, int],
    anchored: Collection[str],
    from_ms: Mapping[str, int],
    whole_ms: int,
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

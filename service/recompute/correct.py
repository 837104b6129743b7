"""Correct: late readings that were rejected become part of the final windows and closed sessions that they belong to.

    1  the fence: every run that began earlier may not write any more                    service/rejects/fence.py
       the run of Redis: after a restart, which may have lost what was written, this one writes no more
    2  progress in Redis says what is closed; the marks say which late readings are in values, or were on their way
    3  a late reading waits for another run while a window or session that it belongs to is open: the daemon has those
    4  what the others touch is computed again from Kafka: what was admitted, what was corrected before, and they
    5  `correcting`: these late readings are on their way into values                    service/rejects/marks.py
    6  windows and sessions to Redis, over closed values only, `revision` grows          service/recompute/correct.lua
    7  `corrected`: they are there, for ever

A run that ends in between is finished by the next one, whatever time that is asked for: what is marked `correcting` is
always taken along. The values are the same then, and what is there already is not written again. A running daemon is not
asked, and shares nothing with this: it never writes again what step 3 takes for closed. What Redis loses after step 7 a
republish writes again (`restore`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from service import failpoint
from service.admission import schema_catalog
from service.aggregation.sessions import rules
from service.errors import ReferenceDataError
from service.pipeline import batch_report, failure
from service.publication.rows import as_of_watermark, session_rows, view_keys, window_rows
from service.recompute import closed_sink, correction, late, rebuild
from service.recompute.closed_sink import ClosedSink
from service.recompute.late import Log
from service.recompute.rebuild import Source
from service.redis.keys import Keys
from service.reference import lookup, snapshots
from service.reference.attributes import SERVING, Attributes
from service.reference.lookup import LookUp
from service.reference.snapshots import snapshot_folder
from service.rejects import marks
from service.rejects.fence import Fence
from service.rejects.marks import Mark, State
from service.rejects.reject_log import Coordinates
from service.settings import Settings
from service.spark import session
from state.columns import ints
from state.corrected import corrected

AT_ONCE = 20_000
"""So many late readings are corrected in one batch run; what they touch is held in memory."""

Say = Callable[[str], object]


@dataclass(slots=True)
class Report:
    """What a run did. Late readings: `corrected`; `waiting` for what is open; `refused`, for another reason than being
    late, or because their bytes are gone. Values: `windows` and `sessions` written; `same`, which were right already;
    `poorer`, of which Redis has more readings than Kafka gives; `unrecoverable`, of which Kafka has deleted a part.
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
            yield f"{self.refused} would not have been admitted in time either, or are gone: see `tidemark rejects show`"
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
    """Correct what the late rejects of a span touch; with `again`, also those that are marked as corrected.

    The span is of the broker's time for the records. Spark is started when it is needed, unless there is one. With `dry`,
    nothing is written, and no other run is fenced. Raises TidemarkError; then run it again.
    """
    fence = None if dry else Fence(settings.redis)
    try:
        log = late.read(settings, since_ms, until_ms)
        todo = log.todo(again=again)
        if not todo:
            say("no late reading is to be corrected")
            return Report()
        server = closed_sink.server(settings)
        sink = ClosedSink(settings, closed_sink.held(settings), 0 if fence is None else fence.number, server)
        running = spark or session.build(settings, master="local[*]")
        try:
            report = Correction(running, sink, log, dry=dry).run(todo)
        except Exception as error:  # Spark's and py4j's get a name
            raise failure.classify(error) from error
        finally:
            if spark is None:
                running.stop()
    finally:
        if fence is not None:
            fence.close()
    for line in report.lines():
        say(f"dry run: {line}" if dry else line)
    return report


def restore(spark: SparkSession, settings: Settings, mark: str) -> Report:
    """Write again what corrections had made of closed values, where Redis has older ones, as a part of a republish.

    `mark` is that of the republish. Raises TidemarkError.
    """
    server = closed_sink.server(settings)
    micro_batch, log = closed_sink.held(settings, mark), late.in_values(settings)
    from_ms = rebuild.needed_from_ms(settings, micro_batch.watermark_ms)
    todo = [] if log is None else [place for place, each in log.marks.items() if _is_restored(each, from_ms)]
    if log is None or not todo:
        return Report()
    fence = Fence(settings.redis)
    try:
        sink = ClosedSink(settings, micro_batch, fence.number, server, mark)
        return Correction(spark, sink, log, is_marking=False).run(todo)
    finally:
        fence.close()


def _is_restored(mark: Mark, from_ms: int) -> bool:
    """Whether values that have not expired may have the reading."""
    return mark.state == "corrected" and int(mark.details.get("event_ms", -1)) >= from_ms


class Correction:
    """One run, of which `todo` is what is to be corrected. `log` has that and what is in values. With `dry`, nothing is written
    or marked, and the report counts each value that the late readings belong to as written. `is_marking` says whether late
    readings are marked; else they are already."""

    def __init__(
        self, spark: SparkSession, sink: ClosedSink, log: Log, *, dry: bool = False, is_marking: bool = True
    ) -> None:
        self._dry, self._is_marking = dry, is_marking and not dry
        self._spark, self._settings, self._log = spark, sink.settings, log
        committed = batch_report.committed(spark, self._settings.service.checkpoint)
        self._sink = replace(sink, micro_batch=replace(sink.micro_batch, start=committed.start if committed else {}))
        self._attributes, self._look_up = _reference(self._settings)
        self._schemas = schema_catalog.new_catalog(spark, self._settings).recorded()
        # Half of the cores: there may be a service beside this.
        self._tasks = max(1, spark.sparkContext.defaultParallelism // 2)
        self._report = Report()

    def run(self, todo: Sequence[Coordinates]) -> Report:
        """Steps 3 to 7."""
        report, watermark_ms = self._report, self._sink.micro_batch.watermark_ms
        asked = set(todo)
        table, report.refused = late.admitted(
            self._spark, self._settings, self._log.rejects.values(), self._look_up, self._schemas
        )
        table = table.sort_by("event_ms")
        found = late.of(table, asked)
        held = late.of(table, {reject.place for reject in self._log.held()} - asked)
        opened = correction.ends_ms(ints(found, "event_ms"), self._settings) > watermark_ms
        report.waiting += int(opened.sum())
        found = found.filter(pa.array(~opened))
        for start in range(0, found.num_rows, AT_ONCE):
            held = pa.concat_tables([held, self._round(found.slice(start, AT_ONCE), held)])
        return report

    def _round(self, found: pa.Table, held: pa.Table) -> pa.Table:
        """Some late readings, ascending; `held` are in values already. Returns those that are, too, now."""
        first = _first(found)
        anchors = _anchors(closed_sink.session_starts(self._settings, first), first)
        gaps = _gaps(self._runs(found), self._settings.sessions.gap_ms)
        from_ms = {device: anchors.get(device, ms - gaps[device]) for device, ms in first.items()}
        windows = correction.touched(late.plain(found), self._settings, self._attributes)
        needed_ms = min([*windows["start"].to_pylist(), *from_ms.values()])
        source = self._source(max(0, needed_ms))
        whole_ms = max(source.whole_from_ms, self._log.gone_ms + 1)
        earlier = late.plain(held.filter(pc.greater_equal(held["event_ms"], needed_ms)))
        base = correction.base(
            self._spark,
            self._settings,
            source,
            windows,
            earlier,
            self._log.refused,
            from_ms,
            self._attributes,
            self._look_up,
            self._schemas,
            self._tasks,
        )
        unrecoverable = _unrecoverable(base.runs, first, anchors.keys(), from_ms, whole_ms)
        told = found.filter(
            pa.array([device not in unrecoverable for device in found["device"].to_pylist()], pa.bool_())
        )
        runs = base.runs.filter(
            pa.array([device not in unrecoverable for device in base.runs["device"].to_pylist()], pa.bool_())
        )
        sessions = corrected(runs, told, self._runs, self._sink.micro_batch.watermark_ms, rules(self._settings))
        waiting = set(late.places(told.filter(pa.array(sessions.waiting))))
        ready = late.of(found, set(late.places(found)) - waiting)
        self._report.waiting += len(waiting)
        self._report.unrecoverable["devices' sessions"] += len(unrecoverable)
        if ready.num_rows:
            self._mark("correcting", ready)
            self._write(base.windows, ready, sessions.sessions, whole_ms)
            if not self._dry:
                self._sink.confirm()
            failpoint.hit("corrected_before_marked")
            self._mark("corrected", ready)
            self._report.corrected += ready.num_rows
        return ready

    def _runs(self, found: pa.Table) -> pa.Table:
        return correction.late_runs(late.plain(found), self._settings, self._attributes)

    def _write(self, base: pa.Table, ready: pa.Table, sessions: pa.Table, whole_ms: int) -> None:
        """Step 6."""
        settings, report = self._settings, self._report
        keys, retained = Keys(settings.redis.prefix), {view.name: view.retain_ms for view in settings.views}
        windows = correction.with_late(base, correction.touched(late.plain(ready), settings, self._attributes))
        told = windows.filter(pc.greater_equal(windows["start"], whole_ms))
        report.unrecoverable["windows"] += windows.num_rows - told.num_rows
        if self._dry:
            report.windows, report.sessions = report.windows + told.num_rows, report.sessions + sessions.num_rows
            return
        at = self._sink.micro_batch.watermark_ms, settings.sessions.gap_ms
        wrote = self._sink.write(as_of_watermark(window_rows(told, keys, retained), *at)[0])
        ended = self._sink.write(as_of_watermark(session_rows(sessions, keys, settings.sessions.retain_ms), *at)[0])
        report.windows, report.sessions = report.windows + wrote.written, report.sessions + ended.written
        report.same += wrote.same + ended.same
        report.poorer += wrote.poorer + ended.poorer
        for view, (scores, members) in view_keys(told).items():
            self._sink.keys(view, scores, members, retained[view])

    def _mark(self, state: State, table: pa.Table) -> None:
        if not self._is_marking:
            return
        times = table["event_ms"].to_pylist()
        marks.write(
            self._settings.kafka,
            [Mark(place, state, {"event_ms": ms}) for place, ms in zip(late.places(table), times, strict=True)],
        )

    def _source(self, needed_ms: int) -> Source:
        """What to read of the topics so that every admitted reading since an event time is in it."""
        micro_batch, ahead_ms = self._sink.micro_batch, self._settings.admission.max_ahead_ms
        from_ms = max(0, needed_ms - ahead_ms)
        return rebuild.source(micro_batch, rebuild.ask(self._settings, micro_batch, from_ms), from_ms, ahead_ms)


def _reference(settings: Settings) -> tuple[Attributes | None, LookUp | None]:
    """What the service looks devices up in: the snapshot that serves, or served last."""
    if settings.reference is None:
        return None, None
    folder = snapshot_folder(settings)
    snapshot = snapshots.latest(folder, pointer=SERVING) or snapshots.latest(folder)
    if snapshot is None:
        what = f"{folder}: there is no reference snapshot"
        raise ReferenceDataError(what, remedy="Run this where the service's checkpoint is")
    attributes = snapshot.attributes()
    return attributes, lookup.UdfLookUp(attributes, lookup.bounds(settings)) if lookup.needed(settings) else None


def _first(found: pa.Table) -> dict[str, int]:
    """The time of each device's first reading, of rows ascending by time."""
    pairs = zip(reversed(found["device"].to_pylist()), reversed(found["event_ms"].to_pylist()), strict=True)
    return dict(pairs)


def _gaps(runs: pa.Table, gap_ms: int) -> dict[str, int]:
    """Each device's session gap: its own, or that of the settings."""
    pairs = zip(runs["device"].to_pylist(), ints(runs, "gap").tolist(), strict=True)
    return {device: own_ms if own_ms >= 0 else gap_ms for device, own_ms in pairs}


def _anchors(starts: Mapping[str, list[int]], first: Mapping[str, int]) -> dict[str, int]:
    """By device the last beginning of a session that no late reading can move: it is not later than the first of them."""
    found = {device: [start for start in starts.get(device, ()) if start <= ms] for device, ms in first.items()}
    return {device: max(before) for device, before in found.items() if before}


def _unrecoverable(
    runs: pa.Table,
    first: Mapping[str, int],
    anchored: Collection[str],
    from_ms: Mapping[str, int],
    whole_ms: int,
) -> set[str]:
    """Devices of whose sessions nothing can be told: Kafka lacks their readings since the session began that is known, or
    none is known, and readings right before the first late one say that there was one."""
    found = {device for device, ms in from_ms.items() if ms < whole_ms}
    for device, start in zip(runs["device"].to_pylist(), ints(runs, "start").tolist(), strict=True):
        if device not in anchored and start < first[device]:
            found.add(device)
    return found

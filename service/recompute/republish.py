"""Republish: publish again what Redis has lost, from the state and from Kafka.

Redis may lose acknowledged writes: FLUSHALL, a restart without persistence or before the last fsync, an old backup, a
replica promoted too early. One of three checks detects the loss:

    every call of publish.lua       the epoch is gone or older; progress is gone or behind what this writer wrote
    the lease's renewal             the same, so that it needs no input
    the beginning of a term         progress is gone or behind the checkpoint: lost while no service ran

Each shard is checked on its own. Only shards that have lost data, or have the mark, are published again.

The first two end the term, which stops the query. The next term begins with these steps:

    1  set the mark `<prefix>:republish`                                       before the query starts
    2  remove windows that the watermark of the last committed batch has passed and that Redis does not
       call final: they may lack readings
    3  publish open windows and sessions, and the devices, from the state
    4  write the progress key: all values include the last committed batch
    5  publish final windows and closed sessions, from Kafka                   while the query runs
    6  remove sessions that are open in an older state of Redis and not in this term
    7  write corrected values again where Redis has older ones                           service/recompute/correct.py
    8  remove `<prefix>:republish`

In step 5 closed values that Redis still has cover their spans (service/publication/covered.py). The mark has the time at
which the loss was detected, and the watermark up to which Redis was complete.

A crash between two steps leaves the mark, or no progress, and the next term starts with step 1. `tidemark republish` sets the
mark on request. A running service then does 3 and 5 to 8 in parallel with its batches, whose newer values replace older ones.
Without a running service the command takes the lease and does these steps.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from pyspark.sql import DataFrame

from service import clock
from service.aggregation.sessions import longest_gap_ms
from service.checkpoint import beginnings, skips, topic_log
from service.checkpoint.skips import Span
from service.micro_batch import MicroBatch, parse_offsets, ranges
from service.pipeline import batch_report, builder
from service.pipeline.batch_publisher import Sink
from service.pipeline.outcome import Outcome
from service.pipeline.side_job import SideJob
from service.pipeline.term import Term
from service.publication import covered, meta
from service.publication.covered import Covered
from service.publication.policy import WritePolicy
from service.recompute import correct, decisions, engine, sources
from service.redis import client as redis_client
from service.redis.keys import shards, text_of
from service.redis.link import Reply
from service.settings import Settings
from service.spark.files import Files
from service.units import format_time

LOST, ASKED = "lost", "asked"
"""The reasons to publish values again, which are the first word of the mark in Redis."""

LOOK_S = 1.0

_log = logging.getLogger(__name__)


def mark(why: str, watermark_ms: int | None = None) -> str:
    """Return the text of a mark: the reason, the time, and the watermark up to which Redis was complete (None: see progress)."""
    return f"{why} {clock.now_ms()}" + ("" if watermark_ms is None else f" {watermark_ms}")


def parse_mark(text: str) -> tuple[int, int | None]:
    """Return a mark's time, and the watermark up to which Redis was complete; 0 for a loss whose mark does not have it."""
    why, at_ms, *watermark_ms = text.split()
    return int(at_ms), int(watermark_ms[0]) if watermark_ms else (0 if why == LOST else None)


def lost(
    progress: MicroBatch | None,
    committed: MicroBatch | None,
    skipped: Sequence[Span] = (),
    came: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
) -> str:
    """Describe what Redis lacks of the last committed batch, "" when it lacks nothing. `progress` is that of Redis.

    `skipped` offsets are not lacking: the end of a committed batch is moved behind them (service/checkpoint/narrow.py). So is
    a topic that came after the progress was written, at the offsets `came` (service/checkpoint/topics.py).

    Progress is written before a batch is committed, so it may be ahead by a batch, or by many where the checkpoint is an
    older copy or a new one. Batch numbers and epochs of two checkpoints are not comparable. Their offsets are, and so is
    the watermark, which grows also with a batch that has no records.
    """
    if committed is None:
        return ""
    if progress is None:
        return f"there is no progress, batch {committed.batch} is committed"
    reached = skips.jumped(progress.end, skipped)
    for topic, partition, offset, end in sorted(ranges({**came, **reached}, committed.end)):
        if offset < end:
            at = f"progress (batch {progress.batch} of epoch {progress.epoch}) is at {topic}[{partition}]@{offset}"
            return f"{at}, batch {committed.batch} is committed up to {end}"
    if progress.watermark_ms < committed.watermark_ms:
        at = f"progress (batch {progress.batch} of epoch {progress.epoch}) is at watermark {progress.watermark_ms}"
        return f"{at}, batch {committed.batch} is committed with {committed.watermark_ms}"
    return ""


def is_read_again(progress: MicroBatch, committed: MicroBatch | None) -> bool:
    """Whether the query is going to read again what was published: its checkpoint is new, or an old copy.

    A batch that was published and not committed does not count: its replay has the same values.
    """
    if committed is None:
        return progress.watermark_ms > 0
    return progress.watermark_ms > committed.watermark_ms and progress.batch - committed.batch not in {0, 1}


@dataclass(frozen=True, slots=True)
class Stored:
    """What a shard has: progress, None without it; the marks of a republish and of a rebuild; meta.

    `ends_ms` is the event time by which every window ends, `final_ms` that up to which windows are final.
    """

    progress: MicroBatch | None
    republish_mark: str
    rebuild_mark: str
    meta: str
    ends_ms: int
    final_ms: int

    @property
    def lacks_meta(self) -> bool:
        """Whether `meta` is gone, as by an eviction: a progress with `final` was written by a version that writes both."""
        return self.progress is not None and self.final_ms >= 0 and not self.meta


def read(sink: Sink) -> list[Stored]:
    """What each shard has. Raises SinkError, WritesLostError, FencedError."""
    return [_stored(reply) for reply in sink.run("read_progress").values()]


def _stored(reply: Reply) -> Stored:
    epoch, batch, watermark, offsets, reference, republish_mark, rebuild_mark, meta_text, ends, final, *_ = map(
        text_of, reply
    )
    progress = None
    if epoch and batch and watermark and offsets:
        progress = MicroBatch(int(epoch), int(batch), int(watermark), {}, parse_offsets(offsets), reference)
    return Stored(progress, republish_mark, rebuild_mark, meta_text, int(ends or 0), int(final or -1))


def settled_ms(stored: Sequence[Stored], settings: Settings) -> int | None:
    """Term.settled_ms, given what Redis has at the term's beginning; None while lost or former values are written again."""
    if any(shard.republish_mark or shard.rebuild_mark for shard in stored):
        return None
    # A view may have got a longer window since: one that begins before `ends_ms` has the key of a stored one.
    return max(shard.ends_ms for shard in stored) + max((view.longest_ms for view in settings.closing_views), default=0)


def _rebuild_mark(stored: Sequence[Stored]) -> str:
    """Return the mark of a rebuild from any shard: a writer that is killed may leave it in some shards only."""
    return next((shard.rebuild_mark for shard in stored if shard.rebuild_mark), "")


def mark_rebuild(settings: Settings, epoch: int) -> str:
    """Mark in Redis that its values are read again from another checkpoint, up to the newest final window. Return the mark.

    Raises SinkError, WritesLostError, FencedError.
    """
    sink = Sink(settings, MicroBatch(epoch, 0, 0, {}, {}))
    stored = read(sink)
    text = f"{clock.now_ms()} {max(shard.final_ms for shard in stored)} {epoch}"
    for number, shard in enumerate(stored):
        # A former mark is of another checkpoint, which has been read again and continued since.
        sink.run_in(number, "mark", mark=text, former=shard.rebuild_mark, rebuild=True)
    return text


class Republisher(SideJob):
    """Finds the values that Redis has lost in a term, and publishes them again.

    `on_done` gets the outcome, and the numbers of windows and sessions that cannot be computed.
    """

    def __init__(
        self, term: Term, on_done: Callable[[Outcome, tuple[int, int]], object] = lambda _outcome, _unrecoverable: None
    ) -> None:
        super().__init__(term.spark, "tidemark-republish", LOOK_S)
        self.term, self._settings, self._epoch = term, term.settings, term.epoch
        self._on_done = on_done
        self._begun: dict[int, str] = {}
        self._batch = -1  # the last batch of the same checkpoint that was published before this term

    def begin(self, known: str = "") -> None:
        """Do steps 1 to 4 if needed; no query may run. Sets the term's `published`, `covered` and `settled_ms`.

        `known` describes a loss that was detected before. Raises SinkError, WritesLostError, FencedError, CheckpointError.
        """
        committed = batch_report.committed(self._spark, self._settings.service.checkpoint)
        stored = read(self._sink(committed or MicroBatch(0, 0, 0, {}, {})))
        published = {number: shard.progress for number, shard in enumerate(stored) if shard.progress is not None}
        without_meta = [number for number, shard in enumerate(stored) if shard.lacks_meta]
        for number in published.keys() - without_meta:
            meta.require(self._settings.redis, stored[number].meta)
            meta.require_views(self._settings, stored[number].meta)
        meta.require_stored(self._settings.redis)
        for progress in published.values():
            meta.require_topics(self._settings, progress.end)
        files = Files(self._spark, self._settings.service.checkpoint)
        skipped, came = skips.read(files), topic_log.read(files).came
        losses = {
            number: loss
            for number, shard in enumerate(stored)
            if (loss := lost(shard.progress, committed, skipped, came))
        }
        losses |= dict.fromkeys(without_meta, "meta is gone")
        if known and not losses:
            losses = dict.fromkeys(range(len(stored)), known)
        rebuild_mark = _rebuild_mark(stored)
        if any(is_read_again(progress, committed) for progress in published.values()):
            rebuild_mark = mark_rebuild(self._settings, self._epoch)
        if rebuild_mark:
            at_ms, until_ms, _ = map(int, rebuild_mark.split())
            self.term.covered = covered.read(self._settings, self._epoch, before_ms=at_ms, until_ms=until_ms)
        elif published:
            self._batch = max(progress.batch for progress in published.values())
        self._warn_of_future(committed, max(shard.final_ms for shard in stored))
        reached = {number: (progress.epoch, progress.batch) for number, progress in published.items()}
        if committed is not None and losses:
            self._repair(committed, stored, losses)
            reached |= dict.fromkeys(losses, (self._epoch, committed.batch))
        elif not rebuild_mark:
            self.term.settled_ms = settled_ms(stored, self._settings)
        if len(reached) == len(stored):
            self.term.published = min(reached.values())

    def _warn_of_future(self, committed: MicroBatch | None, final_ms: int) -> None:
        """Log why values will be refused: Redis, or the checkpoint, is ahead of this checkpoint's or this machine's time."""
        watermark_ms = committed.watermark_ms if committed is not None else 0
        latest_ms = clock.now_ms() + self._settings.admission.max_ahead_ms
        if max(watermark_ms, final_ms) > latest_ms:
            text = (
                "Event time is ahead of this machine's clock: the checkpoint's watermark is %s, and Redis calls windows final "
                "up to %s. Until then readings are late, or their windows are refused. If the clock is right, a record of the "
                "future was admitted. The way back: docs/operator/event-time.md#after-a-record-of-the-future"
            )
            _log.warning(text, format_time(watermark_ms), format_time(max(final_ms, 0)))
        elif final_ms > watermark_ms:
            text = (
                "Redis calls windows final up to %s, and the checkpoint's watermark is %s. Windows until there that Redis lacks "
                "are refused, and published when the watermark has passed them"
            )
            _log.warning(text, format_time(final_ms), format_time(watermark_ms))

    def _repair(self, committed: MicroBatch, stored: Sequence[Stored], losses: Mapping[int, str]) -> None:
        """Steps 1 to 4 for the shards that have lost data."""
        self.term.metrics.redis_loses_data()
        for number, loss in losses.items():
            where = redis_client.address(self._settings.redis, shards(self._settings.redis)[number])
            _log.warning("Redis at %s has lost writes: %s. Open windows and sessions are published again", where, loss)
        sink = replace(self._sink(committed), only=frozenset(losses))
        servers = sink.servers()
        removed = 0
        for number in losses:
            final_ms = stored[number].final_ms
            reply = sink.run_in(number, "mark", mark=mark(LOST, max(final_ms, 0)))
            self._begun[number] = text_of(reply[0])
            if final_ms < committed.watermark_ms:
                of_shard = replace(sink, only=frozenset({number}))
                removed += of_shard.scan("forget", "window", watermark=str(committed.watermark_ms))
        self._open(sink)
        sink.progress(servers)
        if removed:
            _log.warning(
                "%d windows behind the watermark may lack readings and are removed. They are published again", removed
            )

    def everything(self, marks: Mapping[int, str]) -> None:
        """Do steps 3 and 5 to 8 for the shards that have these marks, as of the last committed batch.

        Raises as `begin`, and SourceError.
        """
        committed = batch_report.committed(self._spark, self._settings.service.checkpoint)
        only = frozenset(marks)
        sink = replace(self._sink(committed or MicroBatch(0, 0, 0, {}, {})), only=only)
        servers = sink.servers()
        if committed is not None:
            waiting = {number for number, text in marks.items() if text != self._begun.get(number)}
            if waiting:  # `begin` has done it for the others
                self._open(replace(sink, only=frozenset(waiting)))
                # Meanwhile the stream may have made windows final that were open: these are published as closed ones.
                committed = batch_report.committed(self._spark, self._settings.service.checkpoint) or committed
                sink = replace(self._sink(committed), only=only)
            known: dict[int, Covered] = {}
            for text in set(marks.values()):
                at_ms, whole_ms = parse_mark(text)
                numbers = [number for number in marks if marks[number] == text]
                known |= covered.read(self._settings, self._epoch, numbers, before_ms=at_ms, until_ms=whole_ms)
            self._closed(replace(sink, policy=WritePolicy.republish(known)), committed)
            # A session of a batch that was published and is not committed yet is in no state.
            is_ahead = committed.batch < self._batch
            self._remove_stale(
                sink, self._epoch, committed.watermark_ms - longest_gap_ms(self._settings) if is_ahead else None
            )
            self._corrected(marks)
        for number, text in marks.items():
            sink.run_in(number, "unmark", servers[number], mark=text)

    def asked(self, otherwise: str = "") -> dict[int, str]:
        """Return the marks in Redis by shard. With `otherwise`, set it in every shard that has none."""
        sink = Sink(self._settings, MicroBatch(self._epoch, 0, 0, {}, {}))
        if otherwise:
            return {number: text_of(reply[0]) for number, reply in sink.run("mark", mark=otherwise).items()}
        return {number: shard.republish_mark for number, shard in enumerate(read(sink)) if shard.republish_mark}

    def end_rebuild(self) -> None:
        """When a new checkpoint has caught up with the former values, remove the sessions that it does not have, and ask for a
        republish of what was final."""
        sink = self._sink(MicroBatch(self._epoch, 0, 0, {}, {}))
        rebuild_mark = _rebuild_mark(read(sink))
        if not rebuild_mark:
            return
        _, until_ms, epoch = map(int, rebuild_mark.split())
        committed = batch_report.committed(self._spark, self._settings.service.checkpoint)
        if committed is not None and committed.watermark_ms >= until_ms:  # else its last batch may be repeated
            sink = replace(sink, micro_batch=replace(committed, epoch=self._epoch))
            servers = sink.servers()
            self._remove_stale(sink, epoch, committed.watermark_ms - longest_gap_ms(self._settings))
            # Final windows that Redis did not have were not written. The next look writes them, complete.
            sink.run("mark", servers, mark=mark(ASKED))
            sink.run("unmark", servers, mark=rebuild_mark, rebuild=True)

    def work(self) -> None:
        """Do steps 5 to 8, and those of `tidemark republish`."""
        self.end_rebuild()
        marks = self.asked()
        if marks:
            self.everything(marks)

    def failed(self, error: Exception) -> None:
        self.term.metrics.fails("republish")
        _log.warning("Values are not published again yet: %s. The republisher tries again", error)

    def _open(self, sink: Sink) -> None:
        frame = engine.open_values(self._spark, self._settings, sink.micro_batch)
        self._done("Open values", self._write(frame, sink), (0, 0))

    def _closed(self, sink: Sink, committed: MicroBatch) -> None:
        settings, watermark_ms = self._settings, committed.watermark_ms
        source = sources.readable(self._spark, settings, committed, sources.needed_from_ms(settings, watermark_ms))
        if source.lacking:
            text = "These records cannot be read again: %s. Windows and sessions that begin before %s cannot be published again"
            _log.warning(text, ", ".join(source.lacking), format_time(source.whole_from_ms))
        run = decisions.of_term(self.term, settings)
        read = sources.admitted(run, source, decisions.present(run))
        closed = engine.closed_values(run, read.admitted, watermark_ms, read.whole_from_ms)
        outcome = self._write(closed.frame, sink)
        self._done("Closed values", outcome, closed.unrecoverable)

    def _corrected(self, marks: Mapping[int, str]) -> None:
        """Step 7. Step 5 does not write over closed values, so corrections of them are written here."""
        report = correct.restore(self._spark, self._settings, marks)
        if report.windows + report.sessions:
            _log.info("Corrections of %d windows and %d sessions are published again", report.windows, report.sessions)

    def _remove_stale(self, sink: Sink, epoch: int, last_ms: int | None = None) -> None:
        """Remove open sessions of earlier epochs that ended before `last_ms`. All open sessions of the state have this epoch."""
        removed = sink.scan("stale", "session", before=epoch, last="" if last_ms is None else str(last_ms))
        if removed:
            _log.warning("%d sessions are removed: they were open in an older state of Redis only", removed)

    def _write(self, frame: DataFrame, sink: Sink) -> Outcome:
        return builder.write_on_executors(frame, sink, whole=False)

    def _done(self, what: str, outcome: Outcome, unrecoverable: tuple[int, int]) -> None:
        self.term.metrics.republishes(outcome, unrecoverable)
        self._on_done(outcome, unrecoverable)
        _log.info("%s: %s", what, summary(outcome, unrecoverable))

    def _sink(self, committed: MicroBatch) -> Sink:
        snapshot = self.term.snapshot
        micro_batch = replace(committed, epoch=self._epoch, reference=snapshot.version if snapshot else "")
        begun = beginnings.stored(Files(self._spark, self._settings.service.checkpoint), self._settings.endless)
        values_of = builder.attributes(snapshot, self._settings)
        return Sink(self._settings, micro_batch, values_of, policy=WritePolicy.republish(), begun=begun)


def summary(outcome: Outcome, unrecoverable: tuple[int, int]) -> str:
    """Return the numbers of published values, and of the windows and sessions that cannot be computed, for people."""
    text = f"republished {outcome.windows} windows, {outcome.sessions} sessions, {outcome.devices} devices"
    if outcome.refused_old:
        text += f"; {outcome.refused_old} values were not: Redis has newer ones, or closed ones that cover their time"
    lacking = f"; {unrecoverable[0]} windows and {unrecoverable[1]} sessions were not: Kafka has deleted some of their records"
    return text + (lacking if any(unrecoverable) else "")

"""Fill: compute the past of a new view from Kafka, beside the query.

A view that is added counts readings from then on. Windows that begin before its `complete_from` lack the readings of earlier
batches; Redis has those that the query writes, with a field that says so. The filler computes all of them from Kafka, by the
engine of a republication, and publishes those that the watermark has closed:

    first     at once: what was closed when the view was added
    last      when the watermark has passed every window that begins before `complete_from`: what was open then

After the last pass no window of the view lacks a reading that Kafka has. `done` gets the versions, and the next batch begins with
them: a new version of a view then serves its name.

The past is read in spans of event time, the newest first, with pauses: `service.fill_rate` records a second on average. A pass
that ends half-way is repeated: publish.lua keeps windows that are complete as they are.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from service import failpoint
from service.checkpoint.view_versions import Filled
from service.micro_batch import MicroBatch
from service.pipeline import batch_report, builder
from service.pipeline.batch_publisher import Sink
from service.pipeline.outcome import Outcome
from service.pipeline.side_job import SideJob
from service.pipeline.term import Term
from service.publication.policy import WritePolicy
from service.recompute import decisions, engine, job
from service.recompute.engine import Chosen, Recomputation, Span
from service.recompute.sources import KafkaRecords, Part, Reach
from service.settings import EVENTS, ViewVersion
from service.units import format_time

LOOK_S = 1.0

_log = logging.getLogger(__name__)


class Filler(SideJob):
    """Fills the incomplete views of a term, in a thread of its own. `done` gets the versions by name in keys."""

    def __init__(self, term: Term, done: Callable[[Mapping[str, Filled]], object]) -> None:
        super().__init__(term.spark, "tidemark-fill", LOOK_S)
        self.term, self._done = term, done
        self._reached: dict[str, int] = {}

    def start(self) -> None:
        """Start the thread if a view is incomplete."""
        if self._incomplete():
            super().start()

    def work(self) -> None:
        """Do the passes that are due. Raises TidemarkError."""
        views = self._incomplete()
        committed = batch_report.committed(self.term.spark, self.term.settings.service.checkpoint)
        if not views or committed is None:
            return
        last = [view for view in views if committed.watermark_ms >= ends_ms(view)]
        first = [view for view in views if view.name not in self._reached and view not in last]
        for chosen in filter(None, (first, last)):
            filled = self._pass(chosen, committed, is_last=chosen is last)
            if chosen is last and filled:
                failpoint.hit("filled_before_noted")
                self._done(filled)
                for view in last:
                    self._reached[view.name] = -1

    def _incomplete(self) -> list[ViewVersion]:
        views = [view for view in self.term.settings.views if isinstance(view, ViewVersion) and view.incomplete]
        return [view for view in views if self._reached.get(view.name) != -1]

    def _pass(self, views: Sequence[ViewVersion], committed: MicroBatch, *, is_last: bool) -> dict[str, Filled]:
        """Publish the windows of these views that are closed and begin before their `complete_from`, the newest first."""
        term, watermark_ms = self.term, committed.watermark_ms
        settings = term.settings.model_copy(update={"views": tuple(map(plain, views))})
        snapshot = term.snapshot
        micro_batch = replace(committed, epoch=term.epoch, reference=snapshot.version if snapshot else "")
        values_of = builder.attributes(snapshot, settings)
        sink = Sink(settings, micro_batch, values_of, policy=WritePolicy.fill(is_last=is_last))
        servers = sink.servers()
        from_ms = min(self._from_ms(view, watermark_ms) for view in views)
        until_ms = max(max(view.incomplete.values()) for view in views)
        records = KafkaRecords(term.spark, settings, committed, Reach.of_windows(settings), until_ms)
        # No correction begins beside this one, and an earlier one ends with an error if it sees the new views (correct.py).
        run = decisions.of_term(term, settings)
        decided, rate = decisions.present(run), settings.service.fill_rate
        begins_ms, windows, lacking = from_ms, 0, dict[str, None]()
        pass_ = job.parts(run, records, (from_ms, until_ms), decided, rate, oldest_first=False, rest=self.rest)
        for span, read in pass_:
            windows += self._write(run, read, views, span, sink).windows
            whole_from_ms = engine.whole_from_ms(read.whole_from_ms, settings)
            begins_ms = max(begins_ms, whole_from_ms if whole_from_ms > span[0] else 0)
            lacking.update(dict.fromkeys(read.lacking))
            if self.is_ending:
                return {}
            failpoint.hit("half_filled")
        if is_last:
            # Where the attributes of then are not known, readings are in windows of other keys now. A window that had no other
            # readings is not computed.
            for view in views:
                sink.scan("parts", f"window:{view.name}", begins=str(begins_ms))
        sink.run("read_progress", servers)  # raises if a Redis has lost what was written
        names = ", ".join(view.name for view in views)
        text = "%d windows of the past of %s are published: those that begin from %s on and end by %s"
        _log.info(text, windows, names, format_time(begins_ms), format_time(watermark_ms))
        if lacking:
            _log.warning("Not to be read again: %s. The past of %s begins later", ", ".join(lacking), names)
        for view in views:
            self._reached[view.name] = watermark_ms
        return {view.name: Filled(view.incomplete, begins_ms if begins_ms > from_ms else 0) for view in views}

    def _write(self, run: Recomputation, read: Part, views: Sequence[ViewVersion], span: Span, sink: Sink) -> Outcome:
        """Publish the windows that begin in a span of event time, of what was read for them."""
        only = {
            (view.name, measure): (
                max(span[0], engine.whole_from_ms(read.whole_from_ms, run.settings)),
                min(span[1], ms),
            )
            for view in views
            for measure, ms in view.incomplete.items()
        }
        watermark_ms = sink.micro_batch.watermark_ms
        closed = engine.closed_values(run, read.admitted, watermark_ms, read.whole_from_ms, Chosen(only))
        outcome = builder.write_on_executors(closed.frame, sink, whole=False)
        self.term.metrics.fills(outcome)
        return outcome

    def _from_ms(self, view: ViewVersion, watermark_ms: int) -> int:
        """The oldest start of a window that a pass has to write."""
        reached_ms = self._reached.get(view.name, watermark_ms - view.retain_ms)
        return max(0, reached_ms - view.longest_ms)

    def failed(self, error: Exception) -> None:
        self.term.metrics.fails("fill")
        _log.warning("The past of new views is not computed yet: %s. The filler tries again", error)


def ends_ms(view: ViewVersion) -> int:
    """Return the event time by which every window ends that begins before the view's `complete_from`."""
    mark = max(view.incomplete.values())
    return mark + view.window_ms if view.calendar is None else int(view.latest_end(np.array([mark - 1]))[0])


def plain(view: ViewVersion) -> ViewVersion:
    """Return the view with its incomplete measures only, as complete: rows of the past have no mark."""
    measures = tuple(name for name in view.incomplete if name != EVENTS)
    return view.model_copy(update={"measures": measures, "incomplete": {}})

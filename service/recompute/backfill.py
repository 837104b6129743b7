"""Backfill: compute closed values of a span of event time from Kafka or an archive, for Redis and outlets, beside the writer.

    1  take the fence of corrections, and note the run ids of Redis              service/rejects/fence.py
    2  cut the span into parts, the oldest first, for windows and then for sessions    service/recompute/spans.py
    3  for each part: compute the closed values that begin in it, by the stream's own steps
    4  write those that have not expired to Redis, over no open and no richer value    service/recompute/correct.lua
    5  store all of them for the outlets, and note the part as done                 service/recompute/backfill_log.py

A run that is cut off goes on with the part that it had begun. Values that Redis has already are the same and are not written.
The running service is not involved, but for the outlets: it takes the entries of step 5 between two batches.
service/recompute/backfill_run.py has steps 2 to 5.
"""

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from service.checkpoint import view_versions
from service.errors import SettingsError
from service.pipeline import failure
from service.recompute import closed_sink
from service.recompute.archive import Place
from service.recompute.backfill_run import Report, Run, Say, Watch
from service.recompute.closed_sink import ClosedSink
from service.recompute.rebuild import Span
from service.rejects.fence import Fence
from service.settings import Settings
from service.spark import session
from service.spark.files import Files
from state.rules import EVENT_MS_LIMIT


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
    the settings if None. `watch` gets how much is done, and all there is, in ms of event time. With `dry` nothing is written,
    and no other run is fenced. Without `spark` a session is started. Raises TidemarkError; then run it again with the same
    arguments.
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
            sink = replace(sink, settings=chosen)
            each_second = rate or settings.service.fill_rate
            run = Run(running, sink, fence, source, each_second)
            valid = max(0, span[0]), min(span[1], EVENT_MS_LIMIT)  # Spark and Kafka refuse much larger times
            report = run.run(valid, say, watch, has_sessions=not views)
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

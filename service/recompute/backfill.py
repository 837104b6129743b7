"""Backfill: compute closed values of a span of event time from Kafka or an archive, for Redis and outlets, beside the writer.

    1  take the fence of corrections, and note the run ids of Redis              service/rejects/fence.py
    2  cut the span into parts, the oldest first, for windows and then for sessions    service/recompute/sources.py
    3  for each part: compute the closed values that begin in it, by the stream's own steps
    4  write those that have not expired to Redis, over no open and no richer value    service/recompute/correct.lua
    5  store all of them for the outlets, and note the part as done                 service/recompute/job_log.py

A run that is cut off goes on with the part that it had begun. Values that Redis has already are the same and are not written.
The running service is not involved, but for the outlets: it takes the entries of step 5 between two batches.
service/recompute/job.py has steps 2 to 5.
"""

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

from pyspark.sql import SparkSession

from service.errors import SettingsError
from service.recompute import command_session
from service.recompute.archive import Place
from service.recompute.engine import Span
from service.recompute.job import Report, Run, Say, Watch
from service.rejects.fence import Fence
from service.settings import Settings
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
    with (
        nullcontext() if dry else closing(Fence(settings.redis)) as fence,
        command_session.writing(settings, fence, spark) as (running, sink),
    ):
        chosen = replace(sink, settings=_chosen(sink.settings, views))
        for line in command_session.unknown_attributes(running, settings):
            say(line)
        run = Run(running, chosen, fence, source, rate or settings.service.fill_rate)
        valid = max(0, span[0]), min(span[1], EVENT_MS_LIMIT)  # Spark and Kafka refuse much larger times
        report = run.run(valid, say, watch, has_sessions=not views)
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
    command_session.require_complete(chosen)
    return settings if not views else settings.model_copy(update={"views": chosen})

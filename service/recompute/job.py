"""A job computes values of the past again and publishes them: what republish, fill, backfill and correct have in common.

    parts     cut a span of event time into parts, read each, and rest so that no more than a rate of records is read in a second
    Job       of a command: a fence, a session, a sink that writes beside the running service, and a report
    Report    what a command did, for people

Windows need the records of a window's length around a part, sessions those of `sessions.max_duration`. So they have parts of
their own. service/recompute/job_log.py notes how far a job of a command is.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from service import clock
from service.admission import catalogs
from service.checkpoint import view_versions
from service.errors import CheckpointError, SettingsError
from service.outlets.outbox import Outbox
from service.pipeline import batch_report, failure
from service.publication import closed_sink
from service.publication.closed_sink import ClosedSink, Values
from service.publication.policy import WritePolicy
from service.recompute import decisions
from service.recompute.archive import Records
from service.recompute.decisions import Decisions
from service.recompute.engine import Recomputation, Span
from service.recompute.sources import Part
from service.rejects.fence import Fence
from service.settings import Settings, View
from service.spark import session
from service.spark.files import Files, opened

Say = Callable[[str], object]
Watch = Callable[[int, int], object]
"""Gets how much is done and how much there is."""


def parts(
    run: Recomputation,
    records: Records,
    span: Span,
    decided: Decisions,
    rate: int,
    *,
    oldest_first: bool,
    rest: Callable[[float], object] = time.sleep,
) -> Iterator[tuple[Span, Part]]:
    """Read a span in parts, at most `rate` records in a second on average; `rest` waits for some seconds after a part."""
    for part in records.parts(span, rate, oldest_first=oldest_first):
        began_s = clock.monotonic_s()
        read = records.read(run, part, decided)
        yield part, read
        rest(max(0.0, read.records / rate - (clock.monotonic_s() - began_s)))


@dataclass(slots=True)
class Report:
    """What the job of a command did.

    Values: `windows` and `sessions` computed; of them `written` to Redis, `same` there already, `poorer` than those in Redis; the
    others have expired there. `unrecoverable` values lack readings. `lacking` describes records that cannot be read again.
    Late readings: `corrected`; `longer`, those of them that longer windows wait for; `waiting` for an open window or session;
    `refused`, for another reason than being late, as copies of other readings, or because their bytes are gone. `rejected` counts
    the records that the broker got in the span and that no value has, by reason, also those of earlier runs that were cut off.
    """

    windows: int = 0
    sessions: int = 0
    written: int = 0
    same: int = 0
    poorer: int = 0
    unrecoverable: Counter[str] = field(default_factory=Counter)
    lacking: dict[str, None] = field(default_factory=dict)
    corrected: int | None = None
    longer: int = 0
    waiting: int = 0
    refused: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def lines(self, *, dry: bool) -> Iterator[str]:
        """For people."""
        if self.corrected is not None:
            yield f"corrected {self.corrected} late readings"
        yield f"computed {self.windows} windows and {self.sessions} sessions"
        if not dry:
            yield f"in Redis {self.written} of them are written, {self.same} were right already"
        if self.longer:
            yield f"{self.longer} late readings are added to longer windows when these are closed: run it again then"
        if self.waiting:
            yield f"{self.waiting} late readings belong to windows or sessions that are not closed yet: try later"
        if self.refused:
            why = "would not have been admitted in time either, are copies, or are gone"
            yield f"{self.refused} {why}: see `tidemark rejects show`"
        if self.poorer:
            yield f"{self.poorer} values have more readings in Redis, and are left as they are"
        if self.unrecoverable.total():
            what = " and ".join(f"{many} {name}" for name, many in self.unrecoverable.items() if many)
            yield f"{what} are left as they are: Kafka lacks a part of their readings"
        for text in self.lacking:
            yield f"not to be read again: {text}"
        if self.rejected.total():
            reasons = ", ".join(f"{many} {reason}" for reason, many in self.rejected.most_common())
            yield f"{self.rejected.total()} records of the span were rejected: {reasons}"

    def say(self, say: Say, *, dry: bool) -> None:
        for line in self.lines(dry=dry):
            say(f"nothing is written; without --dry-run: {line}" if dry else line)


class Job:
    """The job of a command that writes closed values beside the running service; without a fence it writes nothing."""

    def __init__(self, spark: SparkSession, sink: ClosedSink, fence: Fence | None) -> None:
        """Raises TidemarkError."""
        self.settings, self.fence, self.report = sink.settings, fence, Report()
        committed = batch_report.committed(spark, self.settings.service.checkpoint)
        if committed is None:  # on another host: skips and decisions are not known, and outlets would get nothing
            what = f"{self.settings.service.checkpoint} has no committed batch, and Redis has the values of one"
            raise CheckpointError(what, remedy="Run this where the service's checkpoint is")
        # Progress in Redis does not have the start.
        self.sink = replace(sink, micro_batch=replace(sink.micro_batch, start=committed.start))
        known = catalogs.new_catalog(spark, self.settings).recorded()
        newest = decisions.serving_attributes(spark, self.settings)
        self.run = decisions.recomputation(spark, self.settings, known, newest)

    @property
    def is_dry(self) -> bool:
        return self.fence is None

    @property
    def number(self) -> int:
        """The number of the run, larger than that of any run before; 0 if nothing is written."""
        return 0 if self.fence is None else self.fence.number

    @property
    def began_ms(self) -> int:
        """The time in the number: the revisions of a run are not below it, and below that of the next run."""
        return 0 if self.fence is None else self.fence.began_ms

    @property
    def outbox(self) -> Outbox:
        """The checkpoint, for entries for the outlets."""
        return Outbox(opened(self.run.spark, self.settings.service.checkpoint))

    def check(self) -> None:
        """Raise FencedError if another run has begun since."""
        if self.fence is not None:
            self.fence.check()

    def write(self, windows: pa.Table, sessions: pa.Table) -> tuple[Values, Values] | None:
        """Write closed values to Redis, and count them. Return those that outlets are to have; None if nothing is written."""
        report = self.report
        report.windows, report.sessions = report.windows + windows.num_rows, report.sessions + sessions.num_rows
        if self.is_dry:
            return None
        now = self.sink.as_of_now()
        values = now.write_values(windows, sessions)
        for each in (one.written for one in values):
            report.written, report.same = report.written + each.written, report.same + each.same
            report.poorer += each.poorer
        now.confirm()
        return values


@contextmanager
def of_command(
    settings: Settings, fence: Fence | None, spark: SparkSession | None, say: Say, views: Callable[[Settings], Settings]
) -> Iterator[Job]:
    """Give a job that writes as of the last progress; its settings have the views that the service has now.

    `views` chooses among them. Without `spark` a session is started, and ended with the block. Errors of the block, also Spark's
    and py4j's, are raised as TidemarkError.
    """
    servers = closed_sink.servers(settings)
    policy = WritePolicy.correct(0 if fence is None else fence.number)
    sink = ClosedSink(settings, closed_sink.progress(settings), servers, policy=policy)
    running = spark or session.build(settings, master="local[*]")
    try:
        served = views(view_versions.stored(settings, Files(running, settings.service.checkpoint)))
        require_complete(served.closing_views)
        for line in decisions.unknown_attributes(running, served):
            say(line)
        yield Job(running, replace(sink, settings=served), fence)
    except Exception as error:
        raise failure.classify(error) from error
    finally:
        if spark is None:
            running.stop()


def require_complete(views: Iterable[View]) -> None:
    """Raise SettingsError if the service computes the past of a view: it would write over what is written beside it."""
    if filling := [view.of for view in views if view.is_marked]:
        what = f"The service computes the past of the view {filling[0]} at this moment"
        raise SettingsError(
            what, remedy="Run it again, for a span that begins as early, when `tidemark views list` has it as complete"
        )

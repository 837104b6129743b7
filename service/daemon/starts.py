"""Counts how often in a row the query has ended at the same batch without a known reason: the checkpoint's `starts.json`.

    {"batch": 812, "ends": 2, "running": true, "unreadable": 0}

`batch` is the batch at which the query was started last, `ends` is how often it had ended at that batch before. `running` stays
true unless the query ends for a known reason: Redis is away, the writer is fenced, a stop is requested. A killed process writes
nothing. The death of a worker or of Spark counts as unknown, because a lack of memory kills them, too. After LIMIT such ends the
service probes the offsets of the batch (service/daemon/probe.py). Unreadable records end it with UnreadableRecordError. If there
are none, the query starts, reads one record at a time until the batch is committed, and the count starts at 0.
"""

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from service.checkpoint import skips
from service.checkpoint.document import Document
from service.checkpoint.skips import Care
from service.daemon import probe
from service.errors import (
    CheckpointError,
    ExhaustedError,
    FencedError,
    QueryError,
    SetupError,
    SourceError,
    UnreadableRecordError,
)
from service.micro_batch import Offsets
from service.pipeline import failure
from service.settings import Kafka, Settings
from service.spark.files import Folder, Local, local, opened
from service.spark.internals import offset_log

LIMIT = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Starts:
    """The content of the file; `unreadable` is the number of unreadable offsets in the last probe."""

    batch: int = -1
    ends: int = 0
    running: bool = False
    unreadable: int = 0

    def again(self, batch: int, *, is_replay: bool) -> "Starts":
        """Return the content for a start at `batch`. `is_replay`: the batch was begun before."""
        ends = self.ends if self.batch == batch else 0
        return Starts(batch, ends + self.running if is_replay else 0, running=True)


DOCUMENT = Document[Starts]("starts.json", Starts)


def read(folder: Folder) -> Starts:
    """Return the content of the file; a file that cannot be read counts as empty."""
    try:
        return DOCUMENT.read(folder) or Starts()
    except CheckpointError:
        return Starts()


def unreadable(settings: Settings) -> int:
    """Return the number of unreadable offsets in the last probe; 0 if the checkpoint is not on this machine."""
    path = local(settings.service.checkpoint)
    return read(Local(path)).unreadable if path is not None else 0


def counts(error: BaseException) -> bool:
    """Whether the records may have caused this end: a process of the query has died, or lacked memory."""
    if isinstance(error, failure.PLANNED):
        return False
    named = failure.classify(error)
    if isinstance(named, ExhaustedError):
        return False
    return isinstance(named, QueryError) or (isinstance(named, SetupError) and "OutOfMemoryError" in named.what)


@contextmanager
def counted(spark: SparkSession, settings: Settings) -> Iterator[Care]:
    """Count a start of the query, and its end by the exception that leaves this context. Yields how the query must read.

    Raises UnreadableRecordError.
    """
    folder = opened(spark, settings.service.checkpoint)
    spans, position = skips.read(folder), offset_log.position(folder)
    batch = position.batch if position is not None else 0
    starts = read(folder).again(batch, is_replay=position is not None and offset_log.last(folder) == batch)
    pending = skips.pending(position.offsets, spans) if position is not None else spans
    careful = batch if position is not None and skips.is_near(position.offsets, pending) else None
    if position is not None and starts.ends >= LIMIT:
        _log.warning("The query has ended %d times at batch %d. The service probes its records", starts.ends, batch)
        bad_spans = _probe(settings.kafka, position.offsets, offset_log.ends(folder, batch), spans)
        if bad_spans:
            _write(folder, replace(starts, running=False, unreadable=sum(span.offsets for span in bad_spans)))
            raise _unreadable_error(batch, bad_spans)
        starts, careful = replace(starts, ends=0), batch
    _write(folder, starts)
    try:
        yield Care(pending, careful)
    except BaseException as error:
        if not counts(error) and not isinstance(error, FencedError):  # a fenced writer no longer owns the file
            _write(folder, replace(starts, running=False))
        raise
    _write(folder, replace(starts, running=False))


def _probe(kafka: Kafka, begin: Offsets, end: Offsets, spans: tuple[skips.Span, ...]) -> tuple[skips.Span, ...]:
    try:
        return probe.unreadable(kafka, begin, end, spans)
    except SourceError as error:  # the query meets the same error, and waits
        _log.warning("The batch is not probed: %s", error)
        return ()


def _write(folder: Folder, starts: Starts) -> None:
    with suppress(CheckpointError, SetupError):  # on a full disk the query fails with an error of its own
        DOCUMENT.write(folder, starts)


def _unreadable_error(batch: int, spans: tuple[skips.Span, ...]) -> UnreadableRecordError:
    shown = shlex.join(map(str, spans))
    what = (
        f"Batch {batch} has ended the query {LIMIT} times, and these offsets cannot be read, with {probe.LARGEST >> 20} MiB "
        f"for a record and {probe.MEMORY >> 20} MiB for a process: {shown}"
    )
    return UnreadableRecordError(
        what, remedy=f"Skip exactly them: `tidemark skip --dry-run {shown}`, then without --dry-run"
    )

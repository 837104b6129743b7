"""How often in a row the query has ended at the same batch without a known reason: the checkpoint's `starts.json`.

    {"batch": 812, "ends": 2, "running": true, "unreadable": 0}

`batch` is where the query went on when it was started last, `ends` is how often it had ended at that batch by then. `running`
stays true unless the query ends for a known reason: Redis away, fenced, told to stop. A process that vanishes writes nothing, and
the death of a worker or of Spark is no known reason: memory kills in both ways. After LIMIT such ends the range of the batch is
probed (service/daemon/probe.py). Unreadable records end the service by name. When there are none, the cause is another one:
the start goes on, reads one record at a time until the batch is committed, and the count begins anew.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from pyspark.sql import SparkSession

from service.admission.schema_catalog import NewSchemaError
from service.checkpoint import logs, skips
from service.checkpoint.skips import Care, ReadAnewError
from service.daemon import probe
from service.errors import FencedError, QueryError, SetupError, SourceError, UnreadableRecordError
from service.micro_batch import Offsets
from service.pipeline import failure
from service.settings import Kafka, Settings
from service.spark.files import Files, Folder, Local, local

NAME = "starts.json"
LIMIT = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Starts:
    """What the file holds; `unreadable` is how many offsets the last probe has named."""

    batch: int = -1
    ends: int = 0
    running: bool = False
    unreadable: int = 0

    def again(self, batch: int, *, is_replay: bool) -> "Starts":
        """The same when the query is started at `batch`, which was begun before, or not."""
        ends = self.ends if self.batch == batch else 0
        return Starts(batch, ends + self.running if is_replay else 0, running=True)


def read(folder: Folder) -> Starts:
    """The file's content. It is only a count: one that cannot be read begins anew."""
    try:
        return Starts(**json.loads(folder.read(NAME)))
    except (OSError, ValueError, TypeError):
        return Starts()


def unreadable(settings: Settings) -> int:
    """How many offsets the service has named as unreadable when it ended last, where the checkpoint is on this machine."""
    path = local(settings.service.checkpoint)
    return read(Local(path)).unreadable if path is not None else 0


def counts(error: BaseException) -> bool:
    """Whether an end may have been caused by what was read: a process that worked for the query has died, or lacked memory."""
    if isinstance(error, NewSchemaError | ReadAnewError):
        return False
    found = failure.classify(error)
    return isinstance(found, QueryError) or (isinstance(found, SetupError) and "OutOfMemoryError" in found.what)


@contextmanager
def counted(spark: SparkSession, settings: Settings) -> Iterator[Care]:
    """Count a start of the query, and its end by what leaves this context; how the query has to read.

    Raises UnreadableRecordError, and what leaves the context.
    """
    path = local(settings.service.checkpoint)
    folder: Files | Local = Local(path) if path is not None else Files(spark, settings.service.checkpoint)
    spans, position = skips.read(folder), logs.position(folder)
    batch = position.batch if position is not None else 0
    starts = read(folder).again(batch, is_replay=position is not None and logs.last_batch(folder) == batch)
    pending = skips.pending(position.offsets, spans) if position is not None else spans
    careful = batch if position is not None and skips.is_near(position.offsets, pending) else None
    if position is not None and starts.ends >= LIMIT:
        _log.warning("batch %d has ended the query %d times: probing its records", batch, starts.ends)
        found = _probe(settings.kafka, position.offsets, logs.ends(folder, batch), spans)
        if found:
            _write(folder, replace(starts, running=False, unreadable=sum(span.offsets for span in found)))
            raise _named(batch, found)
        starts, careful = replace(starts, ends=0), batch
    _write(folder, starts)
    try:
        yield Care(pending, careful)
    except BaseException as error:
        if not counts(error) and not isinstance(error, FencedError):  # then the file is the new writer's
            _write(folder, replace(starts, running=False))
        raise
    _write(folder, replace(starts, running=False))


def _probe(kafka: Kafka, begin: Offsets, end: Offsets, spans: tuple[skips.Span, ...]) -> tuple[skips.Span, ...]:
    try:
        return probe.unreadable(kafka, begin, end, spans)
    except SourceError as error:  # the query asks for the same, and waits for it
        _log.warning("the batch was not probed: %s", error)
        return ()


def _write(folder: Files | Local, starts: Starts) -> None:
    with suppress(OSError):  # a full disk has an error of its own, from what the query writes
        folder.replace(NAME, json.dumps(asdict(starts)).encode())


def _named(batch: int, found: tuple[skips.Span, ...]) -> UnreadableRecordError:
    shown = " ".join(map(str, found))
    what = (
        f"Batch {batch} has ended the query {LIMIT} times, and these offsets cannot be read, with {probe.LARGEST >> 20} MiB "
        f"for a record and {probe.MEMORY >> 20} MiB for a process: {shown}"
    )
    return UnreadableRecordError(
        what, remedy=f"Skip exactly them: `tidemark skip --config FILE --dry-run {shown}`, then without --dry-run"
    )

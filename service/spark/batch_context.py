"""The context of a batch: what its tasks need and only the driver has.

The driver sets it before each run of a batch, as one local property of its thread, which Spark hands to the tasks of the thread's
jobs. A task reads it once. What is large is a file that Spark hands to the executors, and the context has its name
(handed_out.py, service/reference/folder.py).
"""

import base64
import pickle
from dataclasses import dataclass, field
from functools import lru_cache

from pyspark import SparkContext, TaskContext

from state.waiting import AT_ONCE, Pace
from state.watermark import EventTime

_PROPERTY = "tidemark.batch"
_KEPT = 8
"""Contexts that a worker keeps: it runs the tasks of several queries in turns."""
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class BatchContext:
    """What the tasks of a batch need; the defaults are those of a batch run over the past.

    `before` is the event time before the batch, `unread` the numbers of partitions with unread records
    (`readings.partition_of`). `now_ms` is the service's time for the batch, which a replay has too. A record whose broker's time
    is after `latest_ms` is ahead (None: no limit), unless its topic is one of `trusted`, the numbers of topics whose brokers set
    the times. `devices` is the file with the list of admitted devices, "" for all, and `reference` that of the reference's
    snapshot, "" without a reference. `replaced` are the places of readings whose copies count (two_places.py). `distinct` is
    where the keys of duplicates are: the checkpoint, the batch, the epoch, and the time (ms) below which keys are forgotten.
    `refused` are the schema ids to reject, with commas between, or "*"; None is all. `column_values` are the decisions on values
    of columns (column_values.py). `pace` says which values leave (state/waiting.py).
    """

    before: EventTime = field(default_factory=EventTime)
    unread: frozenset[int] = _NONE
    now_ms: int = 0
    latest_ms: int | None = None
    trusted: frozenset[int] = _NONE
    devices: str = ""
    reference: str = ""
    replaced: tuple[tuple[int, int, int, bool], ...] = ()
    distinct: tuple[str, int, int, int] | None = None
    refused: str | None = None
    column_values: str = ""
    pace: Pace = AT_ONCE


def set_for_tasks(context: SparkContext, batch: BatchContext) -> None:
    """Set the context for the tasks of this thread's next jobs."""
    context.setLocalProperty(_PROPERTY, base64.b64encode(pickle.dumps(batch)).decode())


def of_task() -> BatchContext:
    """Return, in a task, the context that was set for it; the defaults without one."""
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(_PROPERTY)
    return BatchContext() if not text else _parsed(text)


@lru_cache(maxsize=_KEPT)
def _parsed(text: str) -> BatchContext:
    batch: BatchContext = pickle.loads(base64.b64decode(text))  # noqa: S301 - the driver's
    return batch

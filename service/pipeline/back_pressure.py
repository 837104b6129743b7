"""Back-pressure: how many records the next batch may have, from the time that the last batches took.

    limit = service.target_batch x the slowest rate of the last RECENT measured batches

A rate is in records a second and in bytes a second, and the one that gives fewer records of the present size counts. The limit at
most doubles from one batch to the next and never exceeds `kafka.max_per_batch`. It begins with FIRST, because a cold JVM is slow.
Measured is a batch that reached its limit, or that took longer than the target. Other batches have read all that there was: their
rate is the rate of the input, so they leave the limit as it is.

A batch also has a cost that does not depend on its records. If less than half of a cut in records is saved in time, that cost is
the larger part, and smaller batches only lower the throughput. Then the limit goes back to what it was before the cut, and the
time of that batch takes the place of the target. It falls by a fifth with each batch, so that cuts are tried again.
docs/decisions/0031-batches-by-time.md has the figures.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from service.pipeline import batch_report
from service.settings import Settings

FIRST = 100_000
"""Records in the first batch of a process."""
LEAST = 1_000
"""Records that a batch may always have."""
GROWTH = 2
"""The largest ratio of two successive limits."""
RECENT = 3
"""Measured batches whose slowest rate counts."""
RETRY = 0.8
"""The share that a time in place of the target keeps with each batch."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a batch took: `bytes` are those of the records' keys and values."""

    records: int
    bytes: int
    seconds: float


@dataclass(slots=True)
class BatchLimit:
    """The limit of the next batch. It lives as long as the process, over restarts of the query."""

    ceiling: int
    target_s: float
    """0 for no back-pressure: the limit is the ceiling."""
    records: int = field(init=False)
    _recent: deque[Measured] = field(default_factory=lambda: deque(maxlen=RECENT))
    _cut_from: Measured | None = None
    _held_s: float = 0.0
    """The time in place of a target that smaller batches cannot meet."""

    def __post_init__(self) -> None:
        self.records = min(FIRST, self.ceiling) if self.target_s else self.ceiling

    @classmethod
    def of(cls, settings: Settings) -> "BatchLimit":
        """Return the limit of a process that starts. A trigger longer than the target is the target: a batch may fill it."""
        service = settings.service
        target_ms = max(service.target_batch_ms, service.trigger_ms) if service.target_batch_ms else 0
        return cls(settings.kafka.max_per_batch, target_ms / 1000)

    def measure(self, batch: Measured, *, is_full: bool) -> None:
        """Set the limit of the next batch after `batch`; `is_full` says that it reached its limit."""
        is_long = batch.seconds > self.target_s
        if not self.target_s or not batch.records or not (is_full or is_long):
            return
        self._held_s = self._held_s * RETRY if is_long else 0.0
        former, self._cut_from = self._cut_from, None
        if is_full and is_long and former is not None and not _has_paid(former, batch):
            self._held_s, self.records = former.seconds, former.records
            self._recent.clear()
            return
        self._recent.append(batch)
        wanted = max(self.target_s, self._held_s) * self._rate(batch)
        if wanted < batch.records:
            self._cut_from = batch
        self.records = min(self.ceiling, max(LEAST, int(min(wanted, GROWTH * batch.records))))

    def _rate(self, batch: Measured) -> float:
        """Return records a second, for records of the size that those of `batch` have."""
        rate = min(each.records / each.seconds for each in self._recent)
        if batch.bytes:
            of_bytes = min(each.bytes / each.seconds for each in self._recent if each.bytes)
            rate = min(rate, of_bytes * batch.records / batch.bytes)
        return rate


def _has_paid(before: Measured, after: Measured) -> bool:
    """Whether fewer records took less time, by at least half of the share."""
    return 1 - after.seconds / before.seconds >= (1 - after.records / before.records) / 2


def set_read_limit(spark: SparkSession, query_name: str, records: int) -> None:
    """Set the most records of the batches that the running query has not planned yet. Raises QueryError.

    The option `maxOffsetsPerTrigger` is read once, when the query starts. The engine keeps the limit of each source in the
    volatile field `uniqueSources` and reads it again for each batch (Spark 4.1.1, MicroBatchExecution.constructNextBatch).
    """
    jvm: Any = spark._jvm
    execution = batch_report.query(spark, query_name).streamingQuery()
    limits = execution.uniqueSources()
    limit = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(records)
    getattr(execution, "uniqueSources_$eq")(limits.updated(limits.head()._1(), limit))

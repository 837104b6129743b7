"""Read a batch from the engine: its offsets while it runs, and its progress after it is committed.

Both come from the query inside the JVM. A Python listener is called a median 371 ms after the end of a batch and competes with
foreachBatch for py4j's callbacks (Spark 4.1.1), so the main thread polls instead.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from service import clock
from service.checkpoint import logs
from service.micro_batch import MicroBatch, at
from service.spark.files import opened
from service.spark.internals import execution, jvm

_LOGS = ("walCommit", "commitOffsets", "commitBatch")
_UPLOADED = "SnapshotLastUploaded.partition_"


def running_batch(spark: SparkSession, query_name: str, batch: int, epoch: int, reference: str = "") -> MicroBatch:
    """Return the offsets of the running `batch`, from inside its foreachBatch. The watermark is 0: the logs here lack it.

    `spark` is the session that started the query; the batch frame's session is a clone without queries. A replay has the same
    offsets and the same time, because the offset log is written before a batch runs. The first batch begins at the offsets that
    the source stored when the checkpoint was made. A partition added since the previous batch begins at 0, otherwise the source
    reports data loss.

    Raises QueryError when no such query is active, CheckpointError when the offset log lacks this batch or the one before.
    """
    before, end, at_ms = execution.planned(spark, query_name, batch)
    start = {
        topic: {partition: at(before, topic, partition, 0) for partition in partitions}
        for topic, partitions in end.items()
    }
    return MicroBatch(epoch, batch, 0, start, end, reference, clock.shown_ms(at_ms))


def committed(spark: SparkSession, checkpoint: str) -> MicroBatch | None:
    """`logs.committed` of a checkpoint on any file system that Spark reads."""
    return logs.committed(opened(spark, checkpoint))


@dataclass(frozen=True, slots=True)
class Progress:
    """One committed batch as the engine reports it.

    `durations_ms` are Spark's own phases (addBatch, queryPlanning, ...), `state_bytes` is the memory of its state store,
    `begun_ms` is when its trigger began (ms since the epoch). `state_ms` is the time of all tasks for the commit of the state.
    `snapshot_batches` is how many batches the oldest snapshot in the checkpoint is behind: a restart reads as many changelogs.
    It is None where the engine does not tell, as without a snapshot.
    """

    batch: int
    rows: int
    durations_ms: Mapping[str, int]
    state_bytes: int
    begun_ms: int = 0
    state_ms: int = 0
    snapshot_batches: int | None = None

    @property
    def log_ms(self) -> int:
        """The time for Spark's two logs in the checkpoint."""
        return sum(self.durations_ms.get(name, 0) for name in _LOGS)

    @classmethod
    def parse(cls, text: str) -> "Progress":
        """Parse the JSON of Spark's StreamingQueryProgress."""
        document = json.loads(text)
        operators = document.get("stateOperators", ())
        return cls(
            batch=document["batchId"],
            rows=sum(source.get("numInputRows") or 0 for source in document.get("sources", ())),
            durations_ms=document.get("durationMs", {}),
            state_bytes=sum(item["memoryUsedBytes"] for item in operators),
            begun_ms=round(datetime.fromisoformat(document["timestamp"]).timestamp() * 1000),
            state_ms=sum(item.get("commitTimeMs", 0) for item in operators),
            snapshot_batches=_behind(document["batchId"], operators),
        )


def _behind(batch: int, operators: Iterable[Mapping[str, Any]]) -> int | None:
    # Spark tells the oldest five stores (4.1.1). A store's version after a batch is the number of the next one.
    uploaded = [
        int(version)
        for item in operators
        for name, version in item.get("customMetrics", {}).items()
        if name.startswith(_UPLOADED)
    ]
    return batch + 1 - min(uploaded) if uploaded and min(uploaded) >= 0 else None


class Poll:
    """Yields each committed batch of a query once, in order.

    Call it from one thread, at least once in 100 batches: the engine keeps the progress of the last 100.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = jvm.query(query)
        self._seen = -1

    def __call__(self) -> Iterator[Progress]:
        """Yield the batches committed since the last call. Never waits; also works on a query that has ended."""
        last = self._query.lastProgress()
        if last is None or last.batchId() <= self._seen:
            return
        # Newest first: a steady service has one new batch in the engine's ring, and each access is a round trip.
        fresh = []
        for item in reversed(self._query.recentProgress()):
            if item.batchId() <= self._seen:
                break
            fresh.append(Progress.parse(item.json()))
        for progress in reversed(fresh):
            # A query's first trigger without data also reports progress, under the number of the next batch.
            if "addBatch" in progress.durations_ms and progress.batch > self._seen:
                self._seen = progress.batch
                yield progress

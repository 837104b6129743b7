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
from service.errors import CheckpointError, QueryError
from service.micro_batch import MicroBatch, Offsets, parse_offsets
from service.spark.files import opened

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
    running = query(spark, query_name)
    execution = running.streamingQuery()
    log = execution.offsetLog()
    entry = _entry(log, batch)
    end = _offsets(entry, batch)
    if running.lastProgress() is None:
        _fetch_latest_offsets(execution, entry)
    before = _offsets(_entry(log, batch - 1), batch - 1) if batch > 0 else _initial(execution)
    start = {
        topic: {partition: before.get(topic, {}).get(partition, 0) for partition in partitions}
        for topic, partitions in end.items()
    }
    planned_ms = clock.shown_ms(int(entry.metadata().get().batchTimestampMs()))
    return MicroBatch(epoch, batch, 0, start, end, reference, planned_ms)


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
        handle: Any = query
        self._query = handle._jsq
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


def query(spark: SparkSession, query_name: str) -> Any:
    """Return the JVM's handle of an active query. Raises QueryError when the session has none of that name."""
    session: Any = spark
    for each in session._jsparkSession.streams().active():
        if each.name() == query_name:
            return each
    what = f"The query {query_name!r} is not active in this session"
    raise QueryError(what, remedy="Call this in the query's foreachBatch, with the session that started the query")


def _entry(log: Any, batch: int) -> Any:
    entry = log.get(batch)
    if not entry.isDefined():
        what = f"The checkpoint's offset log has no batch {batch}"
        raise CheckpointError(what, remedy="Restore the complete checkpoint, or start with a new one")
    return entry.get()


def _offsets(entry: Any, batch: int) -> Offsets:
    # The log lists a source once for each branch of the plan that reads it, each time with the same offsets.
    sources = entry.offsets()
    documents = {_json(sources.apply(i)) for i in range(sources.size())}
    if len(documents) != 1:
        what = f"Batch {batch} of the checkpoint reads {len(documents)} sources, not one"
        raise CheckpointError(what, remedy="Another program wrote this checkpoint: name an empty folder")
    return parse_offsets(documents.pop())


def _json(offset: Any) -> str:
    return str(offset.get().json()) if offset.isDefined() else "{}"


def _initial(execution: Any) -> Offsets:
    # The source stores them in the checkpoint (sources/0/0) on the first request, before batch 0 runs.
    return parse_offsets(execution.sources().apply(0).initialOffset().json())


def _fetch_latest_offsets(execution: Any, entry: Any) -> None:
    """Have the source fetch Kafka's latest offsets, as it does before every batch but a replayed one.

    Otherwise a query whose first batch is a replay fails after that batch is committed: the engine reports the source's metrics
    and reads a null (Spark 4.1.0 and 4.1.1, a regression of SPARK-54027, apache/spark#55236).
    """
    source, offset = execution.sources().apply(0), entry.offsets().apply(0)
    if offset.isDefined():
        source.latestOffset(source.deserializeOffset(offset.get().json()), source.getDefaultReadLimit())

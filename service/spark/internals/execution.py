"""The running query inside the JVM: what its batch reads, and how much the next one may read (MicroBatchExecution, 4.1.4)."""

from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from service.errors import CheckpointError, QueryError
from service.micro_batch import Offsets, parse_offsets
from service.spark.internals import jvm


class Planned(NamedTuple):
    """A batch as the offset log has it: the ends of the batch before and of this one, and when it was planned (ms)."""

    before: Offsets
    end: Offsets
    at_ms: int


def planned(spark: SparkSession, query_name: str, batch: int) -> Planned:
    """Return the plan of the running batch. Raises QueryError, and CheckpointError if the offset log lacks it."""
    handle = _active(spark, query_name)
    execution = handle.streamingQuery()
    log = execution.offsetLog()
    entry = _entry(log, batch)
    end = _offsets(entry, batch)
    if handle.lastProgress() is None:
        _fetch_latest_offsets(execution, entry)
    before = _offsets(_entry(log, batch - 1), batch - 1) if batch > 0 else _initial(execution)
    return Planned(before, end, int(entry.metadata().get().batchTimestampMs()))


def set_read_limit(spark: SparkSession, query_name: str, records: int) -> None:
    """Set the most records of the batches that the running query has not planned yet. Raises QueryError.

    The option `maxOffsetsPerTrigger` is read once, when the query starts. The engine keeps the limit of each source in the
    volatile field `uniqueSources` and reads it again for each batch (MicroBatchExecution.constructNextBatch).
    """
    execution = _active(spark, query_name).streamingQuery()
    limits = execution.uniqueSources()
    limit = jvm.of(spark).org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(records)
    getattr(execution, "uniqueSources_$eq")(limits.updated(limits.head()._1(), limit))


def _active(spark: SparkSession, query_name: str) -> Any:
    for each in jvm.session(spark).streams().active():
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

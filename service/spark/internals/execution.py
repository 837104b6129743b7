"""The running query inside the JVM: what its batch reads, and how much the next one may read (MicroBatchExecution, 4.1.4)."""

from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from service.errors import QueryError
from service.micro_batch import Offsets, format_offsets
from service.spark.files import opened
from service.spark.internals import jvm, offset_log


class Planned(NamedTuple):
    """A batch as the offset log has it: the ends of the batch before and of this one, and when it was planned (ms)."""

    before: Offsets
    end: Offsets
    at_ms: int


def planned(spark: SparkSession, query_name: str, batch: int) -> Planned:
    """Return the plan of the running batch. Raises QueryError, and CheckpointError if the offset log lacks it."""
    handle = _active(spark, query_name)
    folder = opened(spark, jvm.checkpoint(handle))
    end, at_ms = offset_log.plan(folder, batch)
    if handle.lastProgress() is None:
        _fetch_latest_offsets(handle.streamingQuery(), end)
    return Planned(offset_log.ends(folder, batch - 1), end, at_ms)


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


def _fetch_latest_offsets(execution: Any, end: Offsets) -> None:
    """Have the source fetch Kafka's latest offsets, as it does before every batch but a replayed one.

    Otherwise a query whose first batch is a replay fails after that batch is committed: the engine reports the source's metrics
    and reads a null (Spark 4.1.0 and 4.1.1, a regression of SPARK-54027, apache/spark#55236).
    """
    source = execution.sources().apply(0)
    source.latestOffset(source.deserializeOffset(format_offsets(end)), source.getDefaultReadLimit())

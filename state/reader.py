"""The sessions, devices and windows that a checkpoint holds, read with Spark's own state data source.

Reading changes nothing and takes no lock: it shows the last batch that was committed when it began, also of a query
that runs. It does not promise to finish if the query cleans that batch's files away meanwhile (which it does after
`spark.sql.streaming.minBatchesToRetain` further batches): read again.
The session must use the state store provider that wrote the checkpoint: `transformWithState` needs RocksDB.
"""

from collections.abc import Iterator
from operator import itemgetter

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from state import codec
from state.columns import plain, together
from state.layout import BucketState, device_schema, run_schema
from state.processor import STATE_NAME
from state.store import restore
from state.windows import SCHEMA


def buckets(spark: SparkSession, checkpoint: str, batch: int | None = None) -> DataFrame:
    """(bucket int, stored array<binary>: `state.store.restore`) of a checkpoint directory, after `batch` or the last batch.

    A checkpoint without our state is Spark's AnalysisException.
    """
    # The executors ask the driver's coordinator of state stores, which the manager of streams brings (Spark 4.1.1): a session
    # that has had no query yet has none.
    _ = spark.streams
    source = (
        spark.read.format("statestore").option("stateVarName", STATE_NAME).option("flattenCollectionTypes", "false")
    )
    if batch is not None:
        source = source.option("batchId", batch)
    # Spark gives the entries of a map in no order.
    stored = "transform(array_sort(map_entries(map_value)), entry -> entry.value.data)"
    return source.load(checkpoint).selectExpr("key.bucket AS bucket", f"{stored} AS stored")


def states(spark: SparkSession, checkpoint: str, batch: int | None = None) -> Iterator[tuple[int, BucketState]]:
    """The buckets of a checkpoint directory and their states, in no order; of stored bytes only one task's are in memory.

    `state.codec.CodecError` names the bucket whose bytes this version cannot read.
    """
    for row in buckets(spark, checkpoint, batch).toLocalIterator():
        try:
            yield row.bucket, restore([bytes(data) for data in row.stored])
        except codec.CodecError as error:
            raise codec.CodecError(f"bucket {row.bucket} of {checkpoint}: {error}") from error


def read(spark: SparkSession, checkpoint: str) -> tuple[pa.Table, pa.Table, pa.Table]:
    """(runs of the open sessions, devices, open windows) of all buckets of a checkpoint directory, in the order of buckets.

    The tables are those of `state.layout.BucketState` behind a column `bucket` (int32); texts are plain strings.
    A measure that only some buckets know is null in the others. Errors are those of `states`.
    """
    runs = [_prefixed(0, run_schema(()).empty_table())]
    devices = [_prefixed(0, device_schema(()).empty_table())]
    windows = [_prefixed(0, SCHEMA.empty_table())]
    for bucket, state in sorted(states(spark, checkpoint), key=itemgetter(0)):
        runs.append(_prefixed(bucket, state.runs))
        devices.append(_prefixed(bucket, state.devices))
        windows.append(_prefixed(bucket, state.windows))
    return together(runs), together(devices), together(windows)


def _prefixed(bucket: int, table: pa.Table) -> pa.Table:
    buckets = pa.repeat(pa.scalar(bucket, pa.int32()), table.num_rows)
    return plain(table).add_column(0, pa.field("bucket", pa.int32(), nullable=False), buckets)

"""The sessions, devices and windows that a checkpoint holds, read with Spark's own state data source.

Reading changes nothing and takes no lock: it shows the last batch that was committed when it began, also of a query
that runs. It does not promise to finish if the query cleans that batch's files away meanwhile (which it does after
`spark.sql.streaming.minBatchesToRetain` further batches): read again.
The session must use the state store provider that wrote the checkpoint: `transformWithState` needs RocksDB.
"""

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from state import codec
from state.columns import array
from state.layout import device_schema, run_schema
from state.processor import STATE_NAME
from state.windows import SCHEMA

# What Spark's operator metadata calls ours; the part after it differs between its Pandas and Row forms.
OPERATOR = "transformWithState"


def operators(spark: SparkSession, checkpoint: str) -> list[int]:
    """Ids of the session operators of a checkpoint directory. An unusable one is Spark's AnalysisException."""
    found = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "operatorName").distinct()
    return sorted(row.operatorId for row in found.collect() if row.operatorName.startswith(OPERATOR))


def buckets(
    spark: SparkSession, checkpoint: str, batch: int | None = None, operator_id: int | None = None
) -> DataFrame:
    """(bucket int, state binary: `state.codec.decode`) of a checkpoint directory, after `batch` or the last batch.

    Without `operator_id` the checkpoint must have one session operator (LookupError).
    """
    if operator_id is None:
        ids = operators(spark, checkpoint)
        if len(ids) != 1:
            msg = f"{checkpoint} has {len(ids)} session operators (ids {ids}): one was expected, or name its id"
            raise LookupError(msg)
        operator_id = ids[0]
    # The executors ask the driver's coordinator of state stores, which the manager of streams brings (Spark 4.1.1): a session
    # that has had no query yet has none.
    _ = spark.streams
    source = spark.read.format("statestore").option("operatorId", operator_id).option("stateVarName", STATE_NAME)
    if batch is not None:
        source = source.option("batchId", batch)
    return source.load(checkpoint).selectExpr("key.bucket AS bucket", "value.state AS state")


def read(spark: SparkSession, checkpoint: str, operator_id: int | None = None) -> tuple[pa.Table, pa.Table, pa.Table]:
    """(runs of the open sessions, devices, open windows) of all buckets of a checkpoint directory.

    The tables are those of `state.layout.BucketState` behind a column `bucket` (int32); texts are plain strings.
    A measure that only some buckets know is null in the others. Without `operator_id` the checkpoint must have one
    session operator (LookupError). `state.codec.CodecError` names the bucket whose bytes this version cannot read.
    """
    rows = buckets(spark, checkpoint, operator_id=operator_id).orderBy("bucket").collect()
    runs = [_prefixed(0, run_schema(()).empty_table())]
    devices = [_prefixed(0, device_schema(()).empty_table())]
    windows = [_prefixed(0, SCHEMA.empty_table())]
    for row in rows:
        try:
            state = codec.decode(bytes(row.state))
        except codec.CodecError as error:
            msg = f"bucket {row.bucket} of {checkpoint}: {error}"
            raise codec.CodecError(msg) from error
        runs.append(_prefixed(row.bucket, state.runs))
        devices.append(_prefixed(row.bucket, state.devices))
        windows.append(_prefixed(row.bucket, state.windows))
    return _together(runs), _together(devices), _together(windows)


def _prefixed(bucket: int, table: pa.Table) -> pa.Table:
    for number, each in enumerate(table.schema):
        if pa.types.is_dictionary(each.type):
            column = array(table.column(number)).cast(pa.string())
            table = table.set_column(number, pa.field(each.name, pa.string(), nullable=False), column)
    buckets = pa.repeat(pa.scalar(bucket, pa.int32()), table.num_rows)
    return table.add_column(0, pa.field("bucket", pa.int32(), nullable=False), buckets)


def _together(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="default").combine_chunks()

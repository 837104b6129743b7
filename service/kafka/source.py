"""Configure Spark's Kafka source, for the stream and for batch reads."""

from typing import TypeVar

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from service.kafka import starting
from service.kafka.clients import READ_COMMITTED
from service.kafka.options import java
from service.settings import Kafka

Reader = TypeVar("Reader", DataFrameReader, DataStreamReader)

# The consumer's default of 500 records a poll halves the source's rate.
CONSUMER_OPTIONS = {
    "max.poll.records": "10000",
    "max.partition.fetch.bytes": str(8 << 20),
    "fetch.max.bytes": str(64 << 20),
    "receive.buffer.bytes": str(1 << 20),
    **READ_COMMITTED,
}
READ_AHEAD = int(CONSUMER_OPTIONS["max.poll.records"])
"""The client may decompress so many records after the end of its range."""
ONE_AT_A_TIME = {"kafka.max.poll.records": "1"}
"""For a reader that must not read ahead: the client decompresses all records of a poll, also those after the end of the range."""


def stream(
    spark: SparkSession, kafka: Kafka, *, limit: int | None = None, careful: bool = False, headers: bool = False
) -> DataFrame:
    """Return the topics as a stream of Kafka records: key, value, topic, partition, offset, timestamp.

    A batch ends at the last stable offset of each partition. The offsets of aborted records and of transactions' markers have no
    rows. `limit` is the most records of a batch, `kafka.max_per_batch` by default. With `careful` the source never reads ahead,
    which is slower. With `headers` there is one more column.
    """
    return (
        with_options(spark.readStream.format("kafka"), kafka)
        .option("subscribe", ",".join(kafka.topics))
        .option("maxOffsetsPerTrigger", limit or kafka.max_per_batch)
        .option("includeHeaders", str(headers).lower())
        .options(**starting.options(kafka), **(ONE_AT_A_TIME if careful else {}))
        .load()
    )


def with_options(reader: Reader, kafka: Kafka) -> Reader:
    """Add the options that every reader of the topics has. Raises SettingsError."""
    reader = reader.option("failOnDataLoss", str(kafka.on_data_loss == "stop").lower())
    for key, value in {**CONSUMER_OPTIONS, **java(kafka)}.items():
        reader = reader.option(f"kafka.{key}", value)
    return reader

"""How failures of a real query are classify: what was raised in a Python worker, and what the engine itself refuses."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType
from typing_extensions import override

from service.daemon import starts
from service.errors import CheckpointError, QueryError, SinkError, TidemarkError, WorkerLostError
from service.pipeline.failure import classify, transient

pytestmark = pytest.mark.spark


def ended(frame: DataFrame, checkpoint: Path, write: Callable[[DataFrame, int], None]) -> TidemarkError:
    """Run the query until it fails; what foreachBatch raised, and the query, are what the runner has, too."""
    raised: list[BaseException] = []

    def batch(rows: DataFrame, number: int) -> None:
        try:
            write(rows, number)
        except BaseException as error:
            raised.append(error)
            raise

    query = (
        frame.writeStream.foreachBatch(batch)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(120)
    return classify(raised[0] if raised else None, query)


def rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()


class Dies(StatefulProcessor):
    """A processor whose worker does not survive its first rows."""

    @override
    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("count", StructType([StructField("n", LongType())]))

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from ()

    @override
    def close(self) -> None:
        pass


def refuse(batches: Any) -> Any:
    for batch in batches:
        if batch.num_rows:
            raise SinkError("Redis at h:1/0: OOM command not allowed", remedy="Raise Redis's maxmemory")
        yield batch


def divide(batches: Any) -> Any:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"value": [1 // (value * 0) for value in batch["value"].to_pylist()]})


def test_an_error_of_ours_in_a_python_worker_keeps_its_name_and_text(spark: SparkSession, tmp_path: Path) -> None:
    error = ended(rate(spark), tmp_path, lambda rows, _: rows.mapInArrow(refuse, rows.schema).toArrow() and None)
    assert type(error) is SinkError
    assert str(error) == "Redis at h:1/0: OOM command not allowed. Raise Redis's maxmemory"


def die(batches: Any) -> Any:
    for _ in batches:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from ()


def test_a_python_worker_that_is_killed_may_pass(spark: SparkSession, tmp_path: Path) -> None:
    error = ended(rate(spark), tmp_path, lambda rows, _: rows.mapInArrow(die, rows.schema).toArrow() and None)
    assert type(error) is WorkerLostError, error
    assert transient(error)


def test_a_worker_of_the_state_operator_that_is_killed_may_pass_too(spark: SparkSession, tmp_path: Path) -> None:
    output = StructType([StructField("value", LongType())])
    stateful = (
        rate(spark)
        .groupBy("value")
        .transformWithStateInPandas(Dies(), outputStructType=output, outputMode="update", timeMode="none")
    )
    error = ended(stateful, tmp_path, lambda rows, _: rows.toArrow() and None)
    assert type(error) is WorkerLostError, error


def test_any_other_error_in_a_python_worker_is_a_query_error_and_no_other(spark: SparkSession, tmp_path: Path) -> None:
    error = ended(rate(spark), tmp_path, lambda rows, _: rows.mapInArrow(divide, "value long").toArrow() and None)
    assert type(error) is QueryError
    assert "ZeroDivisionError" in str(error)


def test_an_unforeseen_error_of_a_task_is_no_damaged_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    def fail(rows: DataFrame, _number: int) -> None:
        rows.select(F.raise_error(F.lit("no such thing"))).toArrow()

    error = ended(rate(spark).groupBy("value").count(), tmp_path / "checkpoint", fail)
    assert type(error) is QueryError, error
    assert error.what.startswith("SparkRuntimeException: [USER_RAISED_EXCEPTION] no such thing")
    assert starts.counts(error), "records may have caused it"


def test_an_error_in_foreach_batch_does_not_accuse_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    def fail(_rows: DataFrame, _number: int) -> None:
        raise KeyError("no such thing")

    error = ended(rate(spark), tmp_path / "org.apache.kafka.checkpoint", fail)
    assert type(error) is QueryError
    assert "KeyError: 'no such thing'" in str(error)


def test_an_operator_added_to_a_checkpoint_is_a_checkpoint_error(spark: SparkSession, tmp_path: Path) -> None:
    stateless = rate(spark).select("value")
    query = (
        stateless.writeStream.foreachBatch(lambda rows, _: rows.count() and None)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    stateful = rate(spark).groupBy("value").agg(F.count("*"))
    error = ended(stateful, tmp_path, lambda rows, _: rows.count() and None)
    assert type(error) is CheckpointError, error
    assert str(tmp_path) in str(error)


def test_a_damaged_file_of_the_checkpoint_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n")
    error = ended(rate(spark), tmp_path, lambda rows, _: rows.count() and None)
    assert type(error) is CheckpointError, error
    assert "offsets/0 is damaged" in str(error)

"""The context of a batch on real Spark: what the driver sets is what a task reads."""

import pyarrow as pa
import pytest

from service.spark import batch_context
from service.spark.batch_context import BatchContext
from state.watermark import EventTime

pytestmark = pytest.mark.spark

CONTEXT = BatchContext(
    EventTime(5, 9),
    frozenset({3, 1 << 20}),
    now_ms=7,
    latest_ms=8,
    trusted=frozenset({0}),
    devices="devices-1",
    reference="2.arrow",
    replaced=((1, 2, -1, True), (1, 3, 0, False)),
    distinct=("/a b/é", 4, 5, -6),
    refused="7,8",
    column_values='["", {"line": ["a  \\"b\\""]}, []]',
)


def in_task(spark):
    """The contexts that the tasks of a job read."""

    def read(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"text": [repr(batch_context.of_task())]})

    return {row.text for row in spark.range(2).repartition(2).mapInArrow(read, "text string").collect()}


def test_a_task_reads_what_the_driver_has_set_and_the_defaults_without_it(spark):
    batch_context.set_for_tasks(spark.sparkContext, CONTEXT)
    try:
        assert in_task(spark) == {repr(CONTEXT)}
    finally:
        batch_context.set_for_tasks(spark.sparkContext, BatchContext())
    assert in_task(spark) == {repr(BatchContext())}

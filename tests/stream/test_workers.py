"""Python workers as Spark's tasks have them."""

import sys
import zipimport
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def archives(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The import path and the importers of this task's worker that are of archives."""
    importers = (name for name, each in sys.path_importer_cache.items() if isinstance(each, zipimport.zipimporter))
    yield pa.RecordBatch.from_pydict({"entry": [*(e for e in sys.path if e.endswith((".zip", ".jar"))), *importers]})


def test_a_task_reads_no_archive_when_it_begins(spark: SparkSession) -> None:
    # importlib.invalidate_caches reads the directory of each: 20 to 70 ms of a task.
    assert spark.range(1).mapInArrow(archives, "entry string").collect() == []

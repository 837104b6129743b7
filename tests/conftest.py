"""What all tests share: one Spark session a process, made the way the service makes its own."""

import gc
import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from service import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores and the settings of deploy/spark-defaults.conf."""
    running = session.build(master="local[2]", app_name="tests")
    running.sparkContext.setLogLevel("ERROR")
    yield running
    running.stop()
    with warnings.catch_warnings():
        # py4j leaves its sockets to the garbage collector, which must not be some other test's warning.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()

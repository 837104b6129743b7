"""Start executors while the driver still reads the checkpoint and plans the query.

The executors of a cluster start within seconds. Each then needs a second until its Python workers have imported Arrow and pandas.
The driver works on the checkpoint and the plan in the meantime, and needs no executor for that.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import SparkSession

from service import clock
from service.spark import session
from service.spark.internals import jvm

PATIENCE_S = 30.0
"""How long the first batch waits for the cores of a cluster before it begins with the available ones."""
_POLL_S = 0.1


class WarmUp:
    """Run one small job on all cores through Python's workers, in a thread of its own."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._are_there = threading.Event()
        threading.Thread(target=self._run, name="tidemark-warm-up", daemon=True).start()

    def wait_for_cores(self, stop: threading.Event) -> None:
        """Wait until the cluster has given all cores of spark.cores.max (with dynamic allocation, those of the first executors),
        for at most PATIENCE_S, or until `stop` is set.

        An executor keeps the state of the first batch that it ran. If the first executor ran all of the batch, the others would
        stay without work.
        """
        while not self._are_there.wait(_POLL_S) and not stop.is_set():
            pass

    def _run(self) -> None:
        with suppress(Exception):  # Spark may be ending; otherwise the first batch says what is wrong
            cores = session.cores_at_start(self._spark.conf.get)
            deadline = clock.monotonic_s() + PATIENCE_S
            while jvm.cores(self._spark) < cores and clock.monotonic_s() < deadline:
                time.sleep(_POLL_S)
        self._are_there.set()
        with suppress(Exception):
            tasks = self._spark.sparkContext.defaultParallelism
            self._spark.range(0, tasks, numPartitions=tasks).mapInArrow(_as_they_are, "id bigint").toArrow()


def _as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches

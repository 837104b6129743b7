"""Start executors while the driver still reads the checkpoint and plans the query.

A cluster's executors take seconds to come, and each then a second to have Python import Arrow and pandas, and to load what Spark
needs to talk to it. The driver has enough to do meanwhile that needs none of them.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from service import clock
from service.spark import session

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
        """Until the cluster has given the cores asked for by spark.cores.max, PATIENCE_S are over, or `stop` is set.

        An executor keeps the state of the first batch that it ran. Were all of that on the first executor that comes, the
        others would have nothing to do for ever.
        """
        while not self._are_there.wait(_POLL_S) and not stop.is_set():
            pass

    def _run(self) -> None:
        with suppress(Exception):  # Spark may be ending; otherwise the first batch says what is wrong
            wanted = session.cores_asked(self._spark.conf.get)
            deadline = clock.monotonic_s() + PATIENCE_S
            while self._cores() < wanted and clock.monotonic_s() < deadline:
                time.sleep(_POLL_S)
        self._are_there.set()
        with suppress(Exception):
            tasks = self._spark.sparkContext.defaultParallelism
            self._spark.range(0, tasks, numPartitions=tasks).mapInArrow(_as_they_are, "id bigint").toArrow()

    def _cores(self) -> int:
        context: Any = self._spark.sparkContext
        executors = context._jsc.sc().statusStore().executorList(True)
        return sum(executors.apply(i).totalCores() for i in range(executors.size()))


def _as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches

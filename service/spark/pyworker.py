"""The daemon that forks Spark's Python workers, without archives on its import path.

Spark puts the spark-core jar, pyspark.zip and py4j's zip on the import path. Workers call `importlib.invalidate_caches()` at the
start of every task, and Python 3.11 then reads the directories of all archives again: 45 % of a worker's samples in a steady
query (Spark 4.1.1). All modules of the archives are in site-packages too.

This module imports pandas, Arrow and Tidemark's modules once, before it forks workers. Otherwise each worker needs two seconds of
a core to import them, and the first batch of a service needs half a dozen workers at once.

pyspark.daemon collects garbage after every task (4.1.1). Looking through the imported modules, which are never garbage, took
56 ms of a core for each task, a fifth of a steady batch. `gc.freeze` before the fork excludes them, and no page
of them is copied.

After each task a worker gives memory that it has freed back to the system (service/spark/memory.py).

`spark.python.daemon.module` names this module. The JVM runs `python -m service.spark.pyworker pyspark.worker`.
"""

import gc
import importlib
import runpy
import sys
import traceback
from typing import Any

ARCHIVES = (".zip", ".jar")
PRELOADED = (
    "pyspark.worker",
    "pandas",
    "state.processor",
    "service.aggregation.partial_aggregation",
    "service.pipeline.batch_publisher",
)
"""None of them starts a thread or opens a connection when it is imported, so a fork inherits nothing but modules."""

CLOSED = (EOFError, BrokenPipeError, ConnectionResetError)
"""What a worker gets when the JVM has closed its connection."""


def drop_archives() -> None:
    """Take zips and jars off `sys.path` and forget their importers; workers inherit both by fork.

    To be called before other modules are imported: pickle looks for `org.python`, and a folder `org` that is found in the
    spark-core jar stays a package with an importer of its own.
    """
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(ARCHIVES)]
    for entry in [entry for entry in sys.path_importer_cache if entry.endswith(ARCHIVES)]:
        del sys.path_importer_cache[entry]


def hide_closed_connections() -> None:
    """Print no traceback of a worker whose connection the JVM has closed.

    The JVM closes the connection of a worker that was idle for a minute, or whose task was cancelled. The worker's next read or
    flush fails, and pyspark.daemon prints a traceback of that before the process ends (Spark 4.1.1).
    """
    print_exc = traceback.print_exc

    def print_others(*arguments: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], CLOSED):
            print_exc(*arguments, **options)

    traceback.print_exc = print_others


if __name__ == "__main__":
    drop_archives()
    hide_closed_connections()
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    gc.callbacks.append(importlib.import_module("service.spark.memory").settle_after_collection)
    # Not an import: pyspark.daemon starts its manager only as __main__, and reads the worker's module from sys.argv.
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)

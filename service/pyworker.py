"""The daemon that forks Spark's Python workers, without archives on its import path (service/import_path.py).

What the workers need is imported here once, before they are forked: pandas, Arrow and our own modules take each worker
two seconds of a core otherwise, and the first batch of a service needs half a dozen workers at once.

pyspark.daemon collects garbage after every task (4.1.1), and what was imported here is never garbage: looking through it took
56 ms of a core a task, a fifth of a steady batch. Frozen before the fork it is not looked at, nor copied page by page.

Named by `spark.python.daemon.module`; the JVM runs it as `python -m service.pyworker pyspark.worker`.
"""

import gc
import importlib
import runpy

from service.import_path import drop_archives

PRELOADED = ("pyspark.worker", "pandas", "state.processor", "service.aggregation.fold", "service.publication.publish")
"""None of them starts a thread or opens a connection when it is imported, so a fork inherits nothing but modules."""


if __name__ == "__main__":
    drop_archives()
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    # Not an import: pyspark.daemon starts its manager only as __main__, and reads the worker's module from sys.argv.
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)

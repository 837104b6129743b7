"""The Spark session of a command."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from pyspark.sql import SparkSession

from service.pipeline import failure
from service.settings import Settings
from service.spark import session


def start(build: Callable[[], SparkSession]) -> Future[SparkSession]:
    """Call `build` in a thread, and return the session to be: the JVM takes seconds, which need no time of Python."""
    executor = ThreadPoolExecutor(1, "tidemark-spark")
    try:
        return executor.submit(build)
    finally:
        executor.shutdown(wait=False)


@contextmanager
def started(
    settings: Settings,
    *,
    master: str = "local[*]",
    is_brief: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[SparkSession]:
    """Start Spark, call `meanwhile`, and stop Spark with the block.

    Errors of the block, also Spark's and py4j's, are raised as TidemarkError.
    """
    starting = start(lambda: session.build(settings, master=master, is_brief=is_brief))
    try:
        meanwhile()
        yield starting.result()
    except Exception as error:
        raise failure.classify(error) from error
    finally:
        if starting.exception() is None:
            starting.result().stop()

"""The Spark session of a command."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from service.pipeline import failure
from service.settings import Settings
from service.spark import session


@contextmanager
def started(settings: Settings, *, master: str = "local[*]", is_brief: bool = False) -> Iterator[SparkSession]:
    """Start Spark, and stop it with the block. Errors of the block, also Spark's and py4j's, are raised as TidemarkError."""
    spark = session.build(settings, master=master, is_brief=is_brief)
    try:
        yield spark
    except Exception as error:
        raise failure.classify(error) from error
    finally:
        spark.stop()

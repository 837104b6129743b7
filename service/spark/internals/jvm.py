"""The JVM and the Java objects behind PySpark's: private fields of PySpark 4.1.4, and objects that Spark does not document."""

import os
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing."
"""The package of the classes by which Spark commits files of a checkpoint."""


def started() -> Any:
    """Return the packages of the JVM, which starts if there is none. Needs no session."""
    SparkContext._ensure_initialized()
    return SparkContext._jvm


def launch(settings: Mapping[str, str], errors: int) -> None:
    """Start the JVM with Spark's settings, as a session would; `errors` is the file of its standard error, which is closed here.

    Do nothing if this process has a JVM.
    """
    try:
        if SparkContext._gateway is None:
            conf, launch = SparkConf().setAll(list(settings.items())), cast("Any", launch_gateway)  # it has no types
            SparkContext._ensure_initialized(gateway=launch(conf, popen_kwargs={"stderr": errors}))
    finally:
        os.close(errors)


def with_callbacks() -> Any:
    """Return the packages of the JVM, which can call Python from now on."""
    jvm = started()
    gateway: Any = SparkContext._gateway
    ensure: Any = ensure_callback_server_started
    ensure(gateway)
    return jvm


def of(spark: SparkSession) -> Any:
    """Return the packages of a session's JVM."""
    return _private(spark, "_jvm")


def session(spark: SparkSession) -> Any:
    """Return the Java session."""
    return _private(spark, "_jsparkSession")


def context(spark: SparkSession) -> Any:
    """Return Scala's SparkContext."""
    return _private(spark.sparkContext, "_jsc").sc()


def settings(spark: SparkSession) -> dict[str, str]:
    """Return the settings of the application, without those of the session."""
    return dict(_private(spark.sparkContext, "_conf").getAll())


def query(handle: StreamingQuery) -> Any:
    """Return the Java query."""
    return _private(handle, "_jsq")


def checkpoint(java_query: Any) -> str:
    """Return the folder of a query's checkpoint. Spark keeps it as a URI, in which a space is %20."""
    return unquote(str(java_query.streamingQuery().resolvedCheckpointRoot()))


def throwable(error: BaseException) -> Any:
    """Return the Java exception behind an exception of py4j or PySpark, None without one."""
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def cores(spark: SparkSession) -> int:
    """Return the cores of all executors that are connected."""
    executors = context(spark).statusStore().executorList(True)
    return sum(executors.apply(i).totalCores() for i in range(executors.size()))


def work_folders(spark: SparkSession) -> list[str]:
    """Return the folders of `spark.local.dir` as Spark uses them."""
    return [str(each) for each in of(spark).org.apache.spark.util.Utils.getConfiguredLocalDirs(context(spark).conf())]


def own_folders(spark: SparkSession) -> list[str]:
    """Return the driver's own folders: of files that tasks get, and of blocks."""
    spark_jvm = of(spark).org.apache.spark
    blocks = spark_jvm.SparkEnv.get().blockManager().diskBlockManager().localDirsString()
    return [str(each) for each in (spark_jvm.util.Utils.getLocalDir(context(spark).conf()), *blocks)]


def hadoop_settings(spark: SparkSession) -> Any:
    """Return Hadoop's configuration of the session, with its credentials."""
    return session(spark).sessionState().newHadoopConf()


def file_manager(jvm: Any, path: Any, conf: Any) -> Any:
    """Return the object by which Spark commits files below a path: `createAtomic` writes one in full or not at all."""
    return getattr(getattr(jvm, f"{MANAGERS}CheckpointFileManager$"), "MODULE$").create(path, conf)


def _private(holder: Any, name: str) -> Any:
    return getattr(holder, name)

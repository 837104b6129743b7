"""Measure what the service uses, every ten seconds, in threads of their own: no batch and no scrape waits for them.

A measurement that fails sets its gauges to NaN and counts in `tidemark_resource_failures_total`; the others go on.
"""

import logging
import math
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from redis.exceptions import RedisError

from service.monitoring.resource_metrics import ProcessMetrics, StoreMetrics
from service.redis import client as redis_client
from service.redis.keys import shards
from service.settings import Settings
from service.spark.files import local
from service.threads import Thread

EVERY_S = 10.0
_log = logging.getLogger(__name__)


class _Measuring(Thread):
    """Measures until `close`."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.is_set():
            self.measure()
            self._ending.wait(EVERY_S)

    def close(self) -> None:
        """End the thread; returns at once."""
        self._ending.set()

    def measure(self) -> None:
        """Measure everything once."""
        raise NotImplementedError


class StoreResources(_Measuring):
    """Disks and Redis, as a pipeline uses them."""

    def __init__(self, spark: SparkSession, settings: Settings, metrics: StoreMetrics) -> None:
        super().__init__("tidemark-resources")
        self._metrics = metrics
        context: Any = spark.sparkContext
        work = context._jvm.org.apache.spark.util.Utils.getConfiguredLocalDirs(context._jsc.sc().conf())[0]
        self._folders = {"checkpoint": local(settings.service.checkpoint), "work": Path(str(work))}
        self._clients = {
            number: (redis_client.client(settings.redis, keys, decode_responses=True), keys.changes)
            for number, keys in enumerate(shards(settings.redis))
        }
        metrics.shards(settings.redis.shards)

    def measure(self) -> None:
        self._measure_disks()
        self._measure_redis()

    def _measure_disks(self) -> None:
        for folder, path in self._folders.items():
            usage = None
            with suppress(OSError):
                usage = shutil.disk_usage(_existing(path)) if path is not None else None
            self._metrics.disk_free.labels(folder).set(usage.free if usage else math.nan)
            self._metrics.disk_size.labels(folder).set(usage.total if usage else math.nan)

    def _measure_redis(self) -> None:
        for number, (client, feed) in self._clients.items():
            shard = str(number)
            memory = limit = entries = math.nan
            try:
                information = client.info("memory")
                memory, limit = information["used_memory"], information.get("maxmemory") or math.inf
                entries = client.xlen(feed)
            except (RedisError, OSError) as error:
                self._metrics.failures.labels("redis").inc()
                _log.debug("Redis could not be measured: %s", error)
            self._metrics.redis_memory.labels(shard).set(memory)
            self._metrics.redis_limit.labels(shard).set(limit)
            self._metrics.feed.labels(shard).set(entries)


class ProcessResources(_Measuring):
    """Memory of the process and its children. The JVM is the driver's: on a cluster the executors have heaps of their own."""

    def __init__(self, spark: SparkSession, metrics: ProcessMetrics) -> None:
        super().__init__("tidemark-memory")
        self._metrics = metrics
        context: Any = spark.sparkContext
        self._jvm: Any = context._jvm
        self._java = int(self._jvm.java.lang.ProcessHandle.current().pid())
        self._application = str(spark.sparkContext.applicationId)

    def measure(self) -> None:
        self._measure_processes()
        self._measure_jvm()

    def _measure_jvm(self) -> None:
        management = self._jvm.java.lang.management.ManagementFactory
        try:
            heap = management.getMemoryMXBean().getHeapMemoryUsage()
            sizes = {"used": heap.getUsed(), "committed": heap.getCommitted(), "max": heap.getMax()}
            for collector in management.getGarbageCollectorMXBeans():
                totals = collector.getCollectionCount(), collector.getCollectionTime()
                self._metrics.collected(str(collector.getName()), *totals)
        except (Py4JError, OSError) as error:
            sizes = dict.fromkeys(("used", "committed", "max"), math.nan)
            self._metrics.failures.labels("jvm").inc()
            _log.debug("The JVM could not be measured: %s", error)
        for kind, size in sizes.items():
            self._metrics.heap.labels(kind).set(size)

    def _measure_processes(self) -> None:
        executors: list[int] = []
        workers: list[int] = []
        for process in _below([self._java, *self._executors()]):
            if process.pid in {self._java, os.getpid()}:
                continue
            with suppress(psutil.Error):
                (executors if process.name() == "java" else workers).append(process.pid)
        groups = {
            "driver_jvm": [self._java],
            "driver_python": [os.getpid()],
            "executors": executors,
            "python_workers": workers,
        }
        for name, pids in groups.items():
            self._metrics.memory.labels(name).set(sum(map(_memory, pids)))
        self._metrics.workers.set(len(workers))

    def _executors(self) -> Iterator[int]:
        """The JVMs of this application's executors on this host: on a standalone cluster their parent is the worker."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.name() == "java" and self._application in process.cmdline():
                    yield process.pid


def _below(pids: Iterable[int]) -> Iterator[psutil.Process]:
    """These processes and all below them, each once."""
    seen = set()
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                if each.pid not in seen:
                    seen.add(each.pid)
                    yield each


def _memory(pid: int) -> int:
    """Return the bytes of a process, of a shared page its share (Linux), else the resident bytes; 0 when it is gone."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        full: Any = process.memory_full_info()
        return int(getattr(full, "pss", full.rss))
    return 0


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists: Spark makes the checkpoint later."""
    return next(each for each in (path, *path.parents) if each.exists())

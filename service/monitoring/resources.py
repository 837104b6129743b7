"""Measure what the service uses, every ten seconds, in threads of their own: no batch and no scrape waits for them.

A measurement that fails sets its gauges to NaN and counts in `tidemark_resource_failures_total`; the others go on.
"""

import itertools
import logging
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from service.errors import ExhaustedError
from service.monitoring.evictions import Evictions
from service.monitoring.handles import handles, thread_share
from service.monitoring.resource_metrics import ProcessMetrics, StoreMetrics
from service.redis import client as redis_client
from service.redis.keys import shards
from service.settings import Settings
from service.spark.files import local
from service.spark.internals import jvm
from service.threads import Thread

EVERY_S = 10.0
_FILES_EVERY = 6
"""Measurements from one count of files to the next."""
ENDS_AT = 0.9
"""The share of a limit at which the service ends: a JVM that cannot open a file fails in the middle of a batch, by any error."""
_log = logging.getLogger(__name__)


class _Measuring(Thread):
    """Measures until `close`."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._ending = threading.Event()

    def run(self) -> None:
        is_counted = is_failing = False
        for number in itertools.count():
            if self._ending.is_set():
                return
            try:
                self.measure()
                if number % _FILES_EVERY == 0 or not is_counted:
                    is_counted = self.count_files()
                is_failing = False
            except Exception:  # a thread that ends would leave its gauges as they are
                if not is_failing:
                    _log.exception("What the service uses is not measured. It is tried again in %.0f s", EVERY_S)
                is_failing = True
            self._ending.wait(EVERY_S)

    def close(self) -> None:
        """End the thread; returns at once."""
        self._ending.set()

    def measure(self) -> None:
        """Measure once what costs little."""
        raise NotImplementedError

    def count_files(self) -> bool:
        """Count files once: it reads folders. Return False if there was none to read yet."""
        raise NotImplementedError


class StoreResources(_Measuring):
    """Disks and Redis, as a pipeline uses them. `on_loss` is called when Redis has evicted keys."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        metrics: StoreMetrics,
        on_loss: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__("tidemark-resources")
        self._metrics = metrics
        self._folders = {"checkpoint": local(settings.service.checkpoint), "work": Path(jvm.work_folders(spark)[0])}
        self._shards = [
            Evictions(
                redis_client.client(settings.redis, keys, decode_responses=True),
                keys,
                redis_client.address(settings.redis, keys),
                str(number),
                metrics,
                on_loss,
            )
            for number, keys in enumerate(shards(settings.redis))
        ]
        metrics.shards(settings.redis.shards)

    def measure(self) -> None:
        self._measure_disks()
        self._measure_redis()

    def count_files(self) -> bool:
        folder = ""
        if (checkpoint := self._folders["checkpoint"]) is None:
            return True
        with suppress(OSError):
            for folder in (each.path for each in os.scandir(checkpoint) if each.is_dir()):
                count = sum(len(names) for _, _, names in os.walk(folder))
                self._metrics.checkpoint_files.labels(os.path.basename(folder)).set(count)
        return bool(folder)

    def _measure_disks(self) -> None:
        for folder, path in self._folders.items():
            usage = None
            with suppress(OSError):
                usage = shutil.disk_usage(_existing(path)) if path is not None else None
            self._metrics.disk_free.labels(folder).set(usage.free if usage else math.nan)
            self._metrics.disk_size.labels(folder).set(usage.total if usage else math.nan)

    def _measure_redis(self) -> None:
        for evictions in self._shards:
            shard = evictions.shard
            memory = limit = entries = math.nan
            try:
                information = evictions.client.info()
                memory, limit = information["used_memory"], information.get("maxmemory") or math.inf
                entries = evictions.client.xlen(evictions.keys.changes)
                evictions.look(information)
            except Exception as error:  # a proxy may answer INFO without the memory
                memory = limit = entries = math.nan
                self._metrics.redis_evicts.labels(shard).set(math.nan)
                self._metrics.failures.labels("redis").inc()
                _log.debug("Redis could not be measured: %s", error)
            self._metrics.redis_memory.labels(shard).set(memory)
            self._metrics.redis_limit.labels(shard).set(limit)
            self._metrics.feed.labels(shard).set(entries)


class ProcessResources(_Measuring):
    """Memory, files and threads of the process and its children on this host.

    The JVM is the driver's: on a cluster the executors have heaps of their own.
    """

    def __init__(self, spark: SparkSession, metrics: ProcessMetrics) -> None:
        super().__init__("tidemark-memory")
        self._metrics = metrics
        self._jvm = jvm.of(spark)
        self._java = int(self._jvm.java.lang.ProcessHandle.current().pid())
        self._application = str(spark.sparkContext.applicationId)
        self._temporary = Path(str(self._jvm.java.lang.System.getProperty("java.io.tmpdir")))
        self._folders = list(map(Path, jvm.own_folders(spark)))
        self._exhausted = ""

    def measure(self) -> None:
        self._measure_processes()
        self._measure_jvm()

    def require_room(self) -> None:
        """Raise ExhaustedError when a process of the service has nearly as many files or threads as the system allows."""
        if self._exhausted:
            remedy = (
                "A new process continues from the checkpoint. Raise the limit (LimitNOFILE= and TasksMax= of the unit, ulimits "
                "of the container), and watch tidemark_process_open_files: a number that grows with the batches is a leak"
            )
            raise ExhaustedError(self._exhausted, remedy=remedy)

    def _measure_jvm(self) -> None:
        management = self._jvm.java.lang.management.ManagementFactory
        try:
            heap = management.getMemoryMXBean().getHeapMemoryUsage()
            sizes = {"used": heap.getUsed(), "committed": heap.getCommitted(), "max": heap.getMax()}
            for collector in management.getGarbageCollectorMXBeans():
                totals = collector.getCollectionCount(), collector.getCollectionTime()
                self._metrics.collected(str(collector.getName()), *totals)
            self._measure_direct_memory()
        except (Py4JError, OSError) as error:
            sizes = dict.fromkeys(("used", "committed", "max"), math.nan)
            self._metrics.failures.labels("jvm").inc()
            _log.debug("The JVM could not be measured: %s", error)
        for kind, size in sizes.items():
            self._metrics.heap.labels(kind).set(size)

    def _measure_direct_memory(self) -> None:
        """Java's own direct buffers, and those of Netty, which Java does not count; Arrow's buffers are Netty's."""
        management = self._jvm.java.lang.management.ManagementFactory
        pools = management.getPlatformMXBeans(
            self._jvm.java.lang.Class.forName("java.lang.management.BufferPoolMXBean")
        )
        netty = self._jvm.io.netty.util.internal.PlatformDependent
        used = {
            "java": sum(pool.getMemoryUsed() for pool in pools if pool.getName() == "direct"),
            "netty": max(0, netty.usedDirectMemory()),
        }
        for owner, size in used.items():
            self._metrics.direct.labels(owner).set(size)
        # Both limits are the size of the heap unless a JVM option sets another.
        self._metrics.limit_used.labels("direct_memory").set(max(used.values()) / netty.maxDirectMemory())

    def count_files(self) -> bool:
        with suppress(OSError):
            self._metrics.temporary.labels("java").set(len(os.listdir(self._temporary)))
        count = sum(len(names) for folder in self._folders for _, _, names in os.walk(folder))
        self._metrics.temporary.labels("spark").set(count)
        return True

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
        share = 0.0
        for name, pids in groups.items():
            self._metrics.memory.labels(name).set(sum(map(_memory, pids)))
            opened = handles(pids)
            self._metrics.open_files.labels(name).set(opened.files)
            self._metrics.open_files_limit.labels(name).set(opened.limit)
            self._metrics.sockets.labels(name).set(opened.sockets)
            self._metrics.threads.labels(name).set(opened.threads)
            if opened.share >= ENDS_AT:
                self._exhausted = (
                    f"A process of {name} has {opened.share:.0%} of the open files that it may have: {opened.limit:.0f}"
                )
            share = max(share, opened.share)
        self._metrics.workers.set(len(workers))
        self._metrics.limit_used.labels("open_files").set(share)
        used = thread_share()
        self._metrics.limit_used.labels("threads").set(used)
        if used >= ENDS_AT:
            self._exhausted = f"The service's control group has {used:.0%} of the threads that it may have (pids.max)"

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

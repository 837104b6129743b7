"""Metrics of what the service uses: memory, disk, Redis. service/monitoring/resources.py measures them."""

import math

from prometheus_client import Counter

from service.monitoring.series import Series

HEAP = ("used", "committed", "max")
PROCESSES = ("driver_jvm", "driver_python", "executors", "python_workers")
FOLDERS = ("checkpoint", "work")
LIMITS = ("open_files", "threads", "direct_memory")
DIRECT = ("java", "netty")
TEMPORARY = ("java", "spark")


class ProcessMetrics:
    """Resources of the process and its children, for all pipelines together. A gauge is NaN while it cannot be measured."""

    def __init__(self, series: Series) -> None:
        self.registry = series.registry
        self.heap = series.gauge("jvm_heap_bytes", "Heap of the driver's JVM", "kind")
        self.gc_seconds = series.counter("jvm_gc_seconds", "Time of garbage collections of the driver", "collector")
        self.collections = series.counter("jvm_gc_collections", "Garbage collections of the driver's JVM", "collector")
        self.memory = series.gauge("process_memory_bytes", "Memory of processes on this host", "process")
        self.workers = series.gauge("python_workers", "Python processes that Spark has started on this host")
        self.open_files = series.gauge("process_open_files", "Open files and sockets of processes", "process")
        self.open_files_limit = series.gauge("process_open_files_limit", "The lowest limit of open files", "process")
        self.sockets = series.gauge("process_sockets", "Sockets among the open files", "process")
        self.threads = series.gauge("process_threads", "Threads of processes on this host", "process")
        self.direct = series.gauge("jvm_direct_bytes", "Memory of the driver's buffers outside the heap", "owner")
        self.temporary = series.gauge("temporary_files", "Files that exist in a folder for temporary files", "folder")
        self.limit_used = series.gauge("limit_used_ratio", "The used share of a limit of the system", "limit")
        self.failures = _failures(series)
        self.failures.labels("jvm")
        for gauge, labels in (
            (self.direct, DIRECT),
            (self.temporary, TEMPORARY),
            (self.limit_used, LIMITS),
            (self.open_files, PROCESSES),
            (self.open_files_limit, PROCESSES),
            (self.sockets, PROCESSES),
            (self.threads, PROCESSES),
            (self.memory, PROCESSES),
            (self.heap, HEAP),
        ):
            for label in labels:
                gauge.labels(label).set(math.nan)
        self._collected: dict[str, tuple[int, int]] = {}

    def collected(self, collector: str, count: int, time_ms: int) -> None:
        """Set a collector's totals since the start of the JVM."""
        former_count, former_ms = self._collected.get(collector, (0, 0))
        self.collections.labels(collector).inc(max(0, count - former_count))
        self.gc_seconds.labels(collector).inc(max(0, time_ms - former_ms) / 1000)
        self._collected[collector] = count, time_ms


class StoreMetrics:
    """Use of disks and of Redis by a pipeline. A gauge is NaN while it cannot be measured."""

    def __init__(self, series: Series, failures: Counter | None = None) -> None:
        """`failures` is the counter of the process, if it is in the same registry."""
        self.disk_free = series.gauge("disk_free_bytes", "Free bytes for the service on the disk of a folder", "folder")
        self.disk_size = series.gauge("disk_size_bytes", "Size of the disk of a folder", "folder")
        self.checkpoint_files = series.gauge("checkpoint_files", "Files of the checkpoint, by its folder", "folder")
        self.redis_memory = series.gauge("redis_memory_bytes", "used_memory of the Redis that has the shard", "shard")
        self.redis_limit = series.gauge(
            "redis_memory_limit_bytes", "maxmemory of the shard's Redis; +Inf without", "shard"
        )
        self.redis_evicts = series.gauge("redis_evicts", "1 if maxmemory-policy is not noeviction", "shard")
        self.redis_evicted = series.counter("redis_evicted_keys", "Keys that the shard's Redis has evicted", "shard")
        self.feed = series.gauge("feed_entries", "Entries of the change feed", "shard")
        self.failures = failures or _failures(series)
        self.failures.labels("redis")
        for folder in FOLDERS:
            for gauge in (self.disk_free, self.disk_size):
                gauge.labels(folder).set(math.nan)

    def shards(self, count: int) -> None:
        """Export the series of every shard from the start."""
        for shard in range(count):
            for gauge in (self.redis_memory, self.redis_limit, self.redis_evicts, self.feed):
                gauge.labels(str(shard)).set(math.nan)
            self.redis_evicted.labels(str(shard))


def _failures(series: Series) -> Counter:
    return series.counter("resource_failures", "Measurements that failed", "part")

"""What ten open pages cost the service: batches with the pages against batches without, in turn."""

import statistics
import time
from contextlib import suppress

import psutil

from load.browser.readers import Readers
from load.servers.dashboard import Dashboard
from load.testbed import Testbed, total

_SUM, _COUNT = "tidemark_batch_seconds_sum", 'tidemark_batch_seconds_count{phase="run"}'
SETTLE_S = 3.0


def compare(testbed: Testbed, dashboard: Dashboard, pairs: int, seconds: float) -> dict[str, float]:
    """Return the mean batch without pages and with ten of them, and the median of the ratios of neighbours.

    Without pages, the dashboard and the command that lists rejects for it are paused: else they would go on reading for a minute
    after the last page was closed.
    """
    device = testbed.fleet.names[0]
    without, with_pages, cores = [], [], []
    process = psutil.Process(dashboard.pid)
    for _ in range(pairs):
        dashboard.pause()
        children = process.children(recursive=True)
        for child in children:
            child.suspend()
        try:
            without.append(_batch_ms(testbed, seconds))
        finally:
            for child in children:
                child.resume()
            dashboard.resume()
        with Readers(dashboard.url, device) as readers:
            used, began = _cpu_s(process), time.monotonic()
            with_pages.append(_batch_ms(testbed, seconds))
            cores.append((_cpu_s(process) - used) / (time.monotonic() - began))
        if not readers.events:
            raise AssertionError("the ten pages have got no events")
    ratios = [one / other for one, other in zip(with_pages, without, strict=True)]
    return {
        "batch_ms": round(statistics.median(without), 1),
        "batch_ms_ten_pages": round(statistics.median(with_pages), 1),
        "dashboard_cores": round(statistics.median(cores), 2),
        "dashboard_mb": round(process.memory_info().rss / 2**20),
        "ten_pages_ratio": round(statistics.median(ratios), 3),
    }


def _batch_ms(testbed: Testbed, seconds: float) -> float:
    time.sleep(SETTLE_S)
    before = testbed.metrics()
    time.sleep(seconds)
    after = testbed.metrics()
    batches = after[_COUNT] - before[_COUNT]
    return 1000 * (total(after, _SUM) - total(before, _SUM)) / max(1.0, batches)


def _cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process, of its children that have ended, and of those that run."""
    cpu_s = float(sum(process.cpu_times()[:4]))
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            cpu_s += float(sum(child.cpu_times()[:4]))
    return cpu_s

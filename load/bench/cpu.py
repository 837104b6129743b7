"""The CPU that the parts of a testbed use: unlike seconds, it depends little on what else the machine does."""

from collections.abc import Mapping

import psutil

from load.testbed import Testbed

PARTS = ("service", "redis", "kafka")


class Cpu:
    """Counts from its creation on, for a service that runs."""

    def __init__(self, testbed: Testbed) -> None:
        trees = [testbed.service_tree], testbed.redis_pids, [testbed.broker.pid]
        self._pids = dict(zip(PARTS, trees, strict=True))
        self._before = self._now()

    def us_per_reading(self, readings: float) -> dict[str, float]:
        """Return microseconds of CPU for each reading, by part."""
        now = self._now()
        return {name: round((now[name] - self._before[name]) / max(1.0, readings) * 1e6, 2) for name in PARTS}

    def _now(self) -> Mapping[str, float]:
        return {name: sum(map(seconds_of_tree, pids)) for name, pids in self._pids.items()}


def seconds_of_tree(pid: int) -> float:
    """Return the CPU seconds of a process and its children, also of those that it has waited for."""
    total = 0.0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            total += seconds_of_process(process)
        except psutil.NoSuchProcess:
            continue
    return total


def seconds_of_process(process: psutil.Process) -> float:
    """Return the CPU seconds of a process, and of the children that it has waited for."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def role(process: psutil.Process) -> str:
    """Return whether a process of the service is its `jvm`, the `driver` or one of the `workers`."""
    line = process.cmdline()
    if process.name() == "java":
        return "jvm"
    return "workers" if any("pyworker" in word for word in line) else "driver"

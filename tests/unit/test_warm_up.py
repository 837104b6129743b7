"""The first batch waits for the cores that were asked for, and for nothing else."""

import threading
from typing import Any, Self

import pytest

from service.spark import warm_up
from service.spark.warm_up import WarmUp


class Cluster:
    """As much of a Spark session as is asked about cores: `wanted` by the settings, `given` by executors so far."""

    def __init__(self, wanted: str, given: list[int], master: str = "spark://a:7077") -> None:
        self.wanted, self.given, self.master = wanted, given, master
        self.asked = threading.Semaphore(0)
        self.tasks: list[int] = []
        self.sparkContext: Any = self
        self.defaultParallelism = 4

    @property
    def conf(self) -> Any:
        return {"spark.master": self.master, **({"spark.cores.max": self.wanted} if self.wanted else {})}

    @property
    def _jsc(self) -> Self:
        return self

    def sc(self) -> Self:
        return self

    def statusStore(self) -> Self:  # noqa: N802 - Spark's name
        return self

    def executorList(self, active: bool) -> Any:  # noqa: N802 - as it is called
        assert active
        self.asked.release()
        return Executors(self.given)

    def range(self, _start: int, _end: int, *, numPartitions: int) -> Self:  # noqa: N803 - Spark's name
        self.tasks.append(numPartitions)
        return self

    def mapInArrow(self, *_args: Any) -> Self:  # noqa: N802 - Spark's name
        return self

    def toArrow(self) -> None:  # noqa: N802 - Spark's name
        raise RuntimeError("the cluster is away")


class Executors:
    def __init__(self, cores: list[int]) -> None:
        self.cores = list(cores)

    def size(self) -> int:
        return len(self.cores)

    def apply(self, index: int) -> Any:
        return type("Summary", (), {"totalCores": lambda _self: self.cores[index]})()


def waiter(cluster: Cluster, stop: threading.Event) -> threading.Thread:
    warm = WarmUp(cluster)  # type: ignore[arg-type] - as much of one as is used
    thread = threading.Thread(target=warm.wait_for_cores, args=(stop,), daemon=True)
    thread.start()
    return thread


def test_waits_for_all_cores() -> None:
    cluster = Cluster("4", [0, 2])
    thread = waiter(cluster, threading.Event())
    for _ in range(3):
        assert cluster.asked.acquire(timeout=10)
    assert thread.is_alive()
    assert not cluster.tasks
    cluster.given.append(2)
    thread.join(10)
    assert not thread.is_alive()


def test_a_stop_ends_the_wait() -> None:
    stop = threading.Event()
    thread = waiter(Cluster("4", [0]), stop)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_the_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "PATIENCE_S", 0.0)
    thread = waiter(Cluster("4", [0]), threading.Event())
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("cluster", [Cluster("", [0]), Cluster("4", [2], "local[2]")])
def test_nothing_is_waited_for_where_nothing_was_asked_for(cluster: Cluster) -> None:
    thread = waiter(cluster, threading.Event())
    thread.join(10)
    assert not thread.is_alive()

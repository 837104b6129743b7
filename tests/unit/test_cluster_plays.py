"""The plays of `make cluster`, and the guide that lists them."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from load.cluster.executors import worker_drained
from load.cluster.plays import worker_lost
from load.cluster.rack import Rack
from load.cluster.rows import rows
from load.cluster.scene import Function, Scene
from load.faults.run import Run
from service.errors import SetupError
from service.spark import session
from service.spark.places import DEPLOY

GUIDE = (Path(__file__).parents[2] / "docs" / "operator" / "hosts.md").read_text()


def test_the_guide_names_every_play() -> None:
    assert [name for name in rows() if f"| `{name}` |" not in GUIDE] == []


def test_the_guide_has_the_times_of_the_clusters_settings() -> None:
    settings = session.conf(DEPLOY / "cluster.conf")
    assert f"| `spark.worker.timeout` | `deploy/cluster.conf` | {settings['spark.worker.timeout']} s |" in GUIDE
    recovery = settings["spark.deploy.recoveryTimeout"].removesuffix("s")
    assert f"| `spark.deploy.recoveryTimeout` | `deploy/cluster.conf` | {recovery} s |" in GUIDE


def test_a_signal_drains_a_worker_and_its_executors() -> None:
    """Spark ends a worker at SIGPWR, and executors refuse to be decommissioned, unless both have the setting."""
    for file in ("cluster.conf", "spark-defaults.conf"):
        assert session.conf(DEPLOY / file)["spark.decommission.enabled"] == "true", file
    assert "kill -PWR" in GUIDE


class _Hosts:
    """The driver is on one, executors on none."""

    def driver_host(self) -> str:
        return "worker-1"

    def other_worker(self, name: str) -> str:
        return "worker-2"

    def executor_pids(self, host: str) -> list[int]:
        return []

    def until(self, answer: Callable[[], object], within_s: float, what: str) -> None:
        if not answer():
            raise SetupError(what)


@pytest.mark.parametrize("play", [worker_lost, worker_drained])
def test_a_worker_without_executors_is_not_taken_away(play: Function) -> None:
    """Nothing would run again elsewhere, whatever the service does."""
    run = SimpleNamespace(observer=SimpleNamespace(epoch=1))
    with pytest.raises(SetupError, match="an executor on worker-2"):
        play(Scene(cast("Run", run), cast("Rack", _Hosts()), {}))

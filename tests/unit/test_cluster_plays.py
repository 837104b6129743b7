"""The plays of `make cluster`, and the guide that lists them."""

from pathlib import Path

from load.cluster.rows import rows
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

"""The plays of `make cluster`, and the guide that lists them."""

from pathlib import Path

from load.cluster import plays
from service.spark import session
from service.spark.places import DEPLOY

GUIDE = (Path(__file__).parents[2] / "docs" / "operator" / "hosts.md").read_text()


def test_the_guide_names_every_play() -> None:
    assert [name for name in plays.rows() if f"| `{name}` |" not in GUIDE] == []


def test_the_guide_has_the_times_of_the_clusters_settings() -> None:
    settings = session.conf(DEPLOY / "cluster.conf")
    assert f"| `spark.worker.timeout` | `deploy/cluster.conf` | {settings['spark.worker.timeout']} s |" in GUIDE
    recovery = settings["spark.deploy.recoveryTimeout"].removesuffix("s")
    assert f"| `spark.deploy.recoveryTimeout` | `deploy/cluster.conf` | {recovery} s |" in GUIDE

"""What all tests share: one Spark session a process, made the way the service makes its own."""

import gc
import os
import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from service import session

# Most JVMs of the tests live for less than a minute: they spend more on C2's compilations than those save. A service that
# starts, publishes a batch and stops takes 32 s of a core with this option and 56 s without (JDK 17, Spark 4.1.1). The launcher
# prepends the variable's options to those of the command line.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests for `pytest -n 2 --dist loadgroup --no-loadscope-reorder`, which runs each group in one process.

    Unit tests come first, because they fail soonest. The tests of the shared Spark session are one group, so that it is
    started once and works beside the services that the other process starts and waits for. Every other file is a group.
    """
    if not config.pluginmanager.hasplugin("xdist"):
        return

    def rank(item: pytest.Item) -> int:
        if item.path.parent.name == "unit":
            return 0
        if "spark" in getattr(item, "fixturenames", ()):
            return 1
        return 2 if item.get_closest_marker("end_to_end") else 3

    items.sort(key=rank)
    for item in items:
        group = "spark" if rank(item) == 1 else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores and the settings of deploy/spark-defaults.conf."""
    running = session.build(master="local[2]", app_name="tests")
    running.sparkContext.setLogLevel("ERROR")
    yield running
    running.stop()
    with warnings.catch_warnings():
        # py4j leaves its sockets to the garbage collector, which must not be some other test's warning.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()

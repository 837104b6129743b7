"""What all tests share: one Spark session a process, made the way the service makes its own."""

import gc
import os
import warnings
from collections.abc import Iterator

import hypothesis
import pytest
from pyspark.sql import SparkSession

from service import session

# Most JVMs of the tests live for less than a minute: they spend more on C2's compilations than those save. A service that
# starts, publishes a batch and stops takes 32 s of a core with this option and 56 s without (JDK 17, Spark 4.1.1). The launcher
# prepends the variable's options to those of the command line.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# An example has no deadline: how long it takes depends on what else the machine does. `make check` tries fewer examples of
# the properties that do not ask for a number of them.
hypothesis.settings.register_profile("full", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.load_profile("full")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests for `pytest -n 2 --dist loadgroup --no-loadscope-reorder`, which runs each group in one process.

    Unit tests come first, because they fail soonest. The tests of the shared Spark session are one group, so that it is
    started once and works beside the services that the other process starts and waits for. Every other file is a group.
    xdist reads the groups in a hook of the same name, so this one runs first.
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


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """What the service and its commands get for a session of their own in this test: the shared one, which they cannot end.

    With it `runner.run` and `service.cli.main` run in the tests' process, without the start of another JVM.
    """
    monkeypatch.setattr(session, "build", lambda *_args, **_options: spark)
    monkeypatch.setattr(session, "on_jvm_signals", lambda *_: None)
    monkeypatch.setattr(spark, "stop", lambda: None)
    return spark

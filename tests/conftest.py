"""What all tests share: one Spark session a process, made the way the service makes its own."""

import gc
import os
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from pyspark.sql import SparkSession
from xdist.scheduler import LoadScopeScheduling

from service.spark import session

# Most JVMs of the tests live for less than a minute: they spend more on C2's compilations than those save. A service that
# starts, publishes a batch and stops takes 32 s of a core with this option and 56 s without (JDK 17, Spark 4.1.1). The launcher
# prepends the variable's options to those of the command line.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# An example has no deadline: how long it takes depends on what else the machine does. `make check` tries fewer examples, also of
# the properties that ask for a number of them (tests/examples.py).
hypothesis.settings.register_profile("full", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.load_profile("full")


_TAKES_SPARK = re.compile(r"def \w+\([^)]*\b(shared_)?spark\b")


@cache
def _group(path: str) -> str:
    """Files whose tests or fixtures take the shared Spark session are one group, every other file is one."""
    return "spark" if _TAKES_SPARK.search((Path(__file__).parents[1] / path).read_text(encoding="utf-8")) else path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests come first, because they fail soonest, then those of the Spark session: the largest group."""

    def rank(item: pytest.Item) -> int:
        if item.path.parent.name == "unit":
            return 0
        if _group(item.nodeid.partition("::")[0]) == "spark":
            return 1
        return 2 if item.get_closest_marker("end_to_end") else 3

    items.sort(key=rank)


class _Groups(LoadScopeScheduling):
    """Each group runs in one process: the Spark session is started once, and what a file's tests share is not made twice.

    `--dist loadgroup` would do that by marks; pytest 9.2 keeps a test's id where xdist 3.8 cannot add the group to it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """For `pytest -n 3 --dist loadscope --no-loadscope-reorder`."""
    return _Groups(config, log)


def _refuse_to_stop() -> None:
    """Keep the session for the tests that follow: `getOrCreate` gives it to a command that runs in the tests' process."""
    message = "This test would end the shared Spark session: let it take the fixture shared_spark"
    raise AssertionError(message)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores and the settings of deploy/spark-defaults.conf."""
    with pytest.MonkeyPatch.context() as patch:
        # Functions of tests run in Python workers, which do not look into the working folder (PYTHONSAFEPATH).
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        running = session.build(master="local[2]", app_name="tests")
    running.sparkContext.setLogLevel("ERROR")
    stop, running.stop = running.stop, _refuse_to_stop
    yield running
    stop()
    with warnings.catch_warnings():
        # py4j leaves its sockets to the garbage collector, which must not be some other test's warning.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True)
def _no_session_by_chance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse a session in the tests' process to tests without the fixture `spark`.

    Otherwise they would get a session of their own or the shared one, which they may not end, by the order of the tests.
    """
    if "spark" in request.fixturenames:
        return

    def refuse(*_arguments: object, **_options: object) -> None:
        message = "This test starts Spark in the tests' process: let it take the fixture shared_spark"
        raise AssertionError(message)

    monkeypatch.setattr(session, "build", refuse)


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """What the service and its commands get for a session of their own in this test: the shared one, which they cannot end.

    With it `runner.run` and `service.cli.main` run in the tests' process, without the start of another JVM.
    """
    monkeypatch.setattr(session, "build", lambda *_args, **_options: spark)
    monkeypatch.setattr(session, "on_jvm_signals", lambda *_: None)
    monkeypatch.setattr(spark, "stop", lambda: None)
    return spark

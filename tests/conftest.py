"""What all tests share: one Spark session a process, made the way the service makes its own."""

import gc
import json
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

from load import classes
from service.spark import session
from tests import durations

# What a service takes of a core that starts, publishes a batch and stops (JDK 17, Spark 4.1.1): 56 s with both compilers, 32 s
# with C1 alone; on a faster core 19 s with C1 alone, 17 s if its classes are not verified, 13 s if most come from an archive.
# The launcher prepends the variable's options to those of the command line.
_ARCHIVE = Path(__file__).parents[1] / ".build" / "classes" / "tests.jsa"
_FROM_ARCHIVE = f"-XX:SharedArchiveFile={_ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off" if _ARCHIVE.exists() else ""
_UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
os.environ.setdefault("JDK_JAVA_OPTIONS", f"{classes.TESTS} {_UNVERIFIED} {_FROM_ARCHIVE}")

# An example has no deadline: how long it takes depends on what else the machine does. `make test` tries half of the examples and
# `make check` fewer, also of the properties that ask for a number of them (tests/examples.py).
hypothesis.settings.register_profile("full", deadline=None)
hypothesis.settings.register_profile("half", deadline=None, max_examples=50)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.load_profile("full")


_TAKES_SPARK = re.compile(r"def \w+\([^)]*\b((shared_)?spark|parts: Parts)\b|usefixtures\(\"shared_spark\"\)")
_SESSIONS = 2
"""Processes that have a Spark session while other tests are left: a session costs ten seconds of a core and 1 GB."""
_LONGEST = (
    "integration/test_supervise.py",
    "faults/test_faults.py",
    "integration/test_end_to_end.py",
    "integration/test_tutorial.py",
)
"""Files that take longest, the longest first: begun last, one of them would run while the other processes have no work."""


@cache
def _takes_spark(path: str) -> bool:
    """Whether tests or fixtures of this file take the shared Spark session."""
    return bool(_TAKES_SPARK.search((Path(__file__).parents[1] / path).read_text(encoding="utf-8")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first and unit tests last: these are short, so that all processes end at the same time."""

    def rank(item: pytest.Item) -> int:
        name = f"{item.path.parent.name}/{item.path.name}"
        if name in _LONGEST:
            return _LONGEST.index(name)
        return len(_LONGEST) + (item.path.parent.name not in {"integration", "stream"})

    items.sort(key=rank)


_REPORTS = ("silent", "shapes")
"""Marks whose cases have a report: `make silent` and `make shapes`."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep the case that a test with one of the marks plays, for the report."""
    item.user_properties += [(name, str(mark.args[0])) for name in _REPORTS for mark in item.iter_markers(name)]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which files take longer than in the last run, as written to .build/durations.json. With TIDEMARK_SILENT=FILE or
    TIDEMARK_SHAPES=FILE, write the cases that the run has played and those that failed."""
    each = (report for reports in terminalreporter.stats.values() for report in reports)
    if grown := durations.keep(report for report in each if isinstance(report, pytest.TestReport)):
        terminalreporter.section("files that take longer than in the run before")
        terminalreporter.write_line("\n".join(grown))
    for name in _REPORTS:
        if file := os.environ.get(f"TIDEMARK_{name.upper()}"):
            _write_report(terminalreporter, name, Path(file))


def _write_report(terminalreporter: Any, name: str, file: Path) -> None:
    outcomes = [
        (dict(report.user_properties).get(name), report.outcome)
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and (report.when == "call" or report.failed)
    ]
    played = sorted({case for case, _ in outcomes if case})
    failed = sorted({case for case, outcome in outcomes if case and outcome != "passed"})
    result: dict[str, Any] = {"cases": len(played), "violations": len(failed), "played": played, "failed": failed}
    right = {case for reports in terminalreporter.stats.values() for each in reports for case in _proposed_right(each)}
    if right:
        result |= {"proposed_right": len(right), "not_sure": sorted({*played} - right)}
    file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _proposed_right(report: Any) -> list[str]:
    """Return the case whose settings `tidemark init` has proposed as they are, if the test of a report says it."""
    return [str(value) for name, value in getattr(report, "user_properties", ()) if name == "proposed_right"]


class _Files(LoadScopeScheduling):
    """Each file runs in one process: what its tests share is made once. Files that take Spark go to few processes."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        """Assign the first file for this process: of the first _SESSIONS processes one that takes Spark, while there are any."""
        has_session = list(self.assigned_work).index(node) < _SESSIONS
        suitable = (path for path in self.workqueue if _takes_spark(path) == has_session)
        self.workqueue.move_to_end(next(suitable, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """For `pytest -n 3 --dist loadscope --no-loadscope-reorder`."""
    return _Files(config, log)


def _refuse_to_stop() -> None:
    """Keep the session for the tests that follow: `getOrCreate` gives it to a command that runs in the tests' process."""
    raise AssertionError("This test would end the shared Spark session: let it take the fixture shared_spark")


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
        raise AssertionError("This test starts Spark in the tests' process: let it take the fixture shared_spark")

    monkeypatch.setattr(session, "build", refuse)


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """What the service and its commands get for a session of their own in this test: the shared one, which they cannot end.

    With it `process.run` and `service.cli.main` run in the tests' process, without the start of another JVM.
    """
    monkeypatch.setattr(session, "build", lambda *_args, **_options: spark)
    monkeypatch.setattr(session, "on_jvm_signals", lambda *_: None)
    monkeypatch.setattr(spark, "stop", lambda: None)
    return spark

"""Archives of the classes that the JVMs of the service and of its commands load: with them they start sooner.

    python -m load.classes FOLDER         # make classes: driver.jsa, executor.jsa (deploy/submit), brief.jsa
    python -m load.classes FOLDER brief   # brief.jsa alone, which service/spark/session.py looks for
    python -m load.classes FOLDER tests   # tests.jsa, which tests/conftest.py looks for

For driver and executor the service runs on a cluster of its own with readings of each kind and is killed once, because a start
from a checkpoint loads more. The JVM then ends in order and writes what it has loaded (-XX:ArchiveClassesAtExit, JDK 17). The
driver's is of one that does its tasks itself, which loads more than one with executors. An archive is good for this JDK and
these jars at these paths; other JVMs ignore it. That of the tests is of a service with the tests' options, which is stopped in
order. brief.jsa is of `tidemark check`.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.generator import Generator
from load.report import print_error
from load.servers.kafka import LOG_APPEND_TIME
from load.servers.machine import check_machine
from load.servers.spark_cluster import TASKS_IN_DRIVER
from load.testbed import ROOT, TOPIC, VIEWS, Testbed
from service.errors import SetupError, TidemarkError
from service.spark import session

BATCHES = 10
WITHIN_S = 180.0
TESTS = "-XX:TieredStopAtLevel=1"
"""Options of the JVMs of tests. Most live for less than a minute: they spend more on C2's compilations than those save."""
_FLEET = Fleet(7, FleetSettings(devices=200, rate=200.0))


def archive(folder: Path, scratch: Path) -> list[Path]:
    """Make the archives in `folder`; everything else goes to `scratch`. Raises SetupError when a JVM does not."""
    return [
        *(
            _archived(folder / f"{name}.jsa", name, scratch, options)
            for name, options in (("driver", TASKS_IN_DRIVER), ("executor", ()))
        ),
        *archive_for_commands(folder, scratch),
    ]


def archive_for_commands(folder: Path, scratch: Path) -> list[Path]:
    """Make brief.jsa in `folder`; everything else goes to `scratch`. Raises SetupError when the JVM does not."""
    file = folder / session.BRIEF_ARCHIVE
    file.unlink(missing_ok=True)
    options = f'spark.driver.extraJavaOptions="-XX:ArchiveClassesAtExit={file}" -Xlog:disable'
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--conf {shlex.quote(options)} pyspark-shell"}
    with Testbed(scratch, _FLEET, views=VIEWS, topic_config=LOG_APPEND_TIME) as testbed:
        Generator(testbed.broker.bootstrap, TOPIC, _FLEET).send(1_000)
        # Captured output ends with the JVM, which writes the archive after the command.
        subprocess.run(testbed.command("check"), cwd=ROOT, env=environment, capture_output=True, check=False)
    return [_require(file)]


def archive_for_tests(folder: Path, scratch: Path) -> list[Path]:
    """Make tests.jsa in `folder`; everything else goes to `scratch`. Raises SetupError when the JVM does not."""
    file = folder / "tests.jsa"
    file.unlink(missing_ok=True)
    with Testbed(scratch, _FLEET, views=VIEWS, master="local[2]") as testbed:
        generator = Generator(testbed.broker.bootstrap, TOPIC, _FLEET)
        testbed.start_service({"JDK_JAVA_OPTIONS": f"{TESTS} -XX:ArchiveClassesAtExit={file} -Xlog:disable"})
        _batches(testbed, generator, epoch=1)
        testbed.stop_service(WITHIN_S)
    return [_require(file)]


def _archived(file: Path, name: str, scratch: Path, submit_options: Sequence[str]) -> Path:
    file.unlink(missing_ok=True)
    setting = f"spark.{name}.extraJavaOptions=-XX:ArchiveClassesAtExit={file} -Xlog:disable"
    with Testbed(
        scratch, _FLEET, views=VIEWS, supervised=True, submit_options=["--conf", setting, *submit_options]
    ) as testbed:
        generator = Generator(testbed.broker.bootstrap, TOPIC, _FLEET)
        testbed.start_service()
        _batches(testbed, generator, epoch=1)
        testbed.kill_driver()
        _batches(testbed, generator, epoch=2)
        _end(testbed)
    return _require(file)


def _require(file: Path) -> Path:
    if not file.exists():
        raise SetupError(f"{file} was not written", remedy="It needs a full JDK 17 and 400 MB of disk")
    return file


def _batches(testbed: Testbed, generator: Generator, epoch: int) -> None:
    """Wait for some under `epoch`, with readings flowing."""

    def enough() -> bool:
        generator.run(1.0)
        progress = testbed.progress()
        return int(progress.get("epoch", 0)) >= epoch and int(progress["batch"]) >= BATCHES * epoch

    testbed.wait(enough, WITHIN_S, f"batch {BATCHES * epoch} of epoch {epoch}")


def _end(testbed: Testbed) -> None:
    """In order, and for as long as it takes: a worker would kill an executor that writes for ten seconds.

    -Xlog:disable keeps them from printing, because nobody reads their output meanwhile.
    """
    jvms = [psutil.Process(pid) for pid in (testbed.service_pid, *testbed.cluster.executor_pids())]
    worker = jvms[0].parent()
    assert worker is not None  # noqa: S101
    worker.suspend()  # nobody waits for a frozen worker's children: they end as zombies
    os.kill(jvms[0].pid, signal.SIGTERM)
    testbed.wait(
        lambda: all(jvm.status() == psutil.STATUS_ZOMBIE for jvm in jvms), WITHIN_S, "driver and executor to end"
    )


_KINDS = {"service": archive, "brief": archive_for_commands, "tests": archive_for_tests}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m load.classes", description="Archives the classes of JVMs.")
    parser.add_argument("folder", type=Path, help="for the archives")
    parser.add_argument("kind", choices=_KINDS, default="service", nargs="?", help="whose classes")
    args = parser.parse_args(argv)
    folder = args.folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_machine(folder=folder)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            for file in _KINDS[args.kind](folder, Path(scratch) / "run"):
                print(f"{file}: {file.stat().st_size >> 20} MB")
    except TidemarkError as error:
        return print_error(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())

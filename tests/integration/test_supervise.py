"""The service on a standalone cluster under load, submitted as in production: each process of it is killed once.

Every time the service is back by itself and goes on from its checkpoint; in the end it is stopped in order, and every
value is compared with the oracle.
"""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil
import pytest

from load.cluster import DEPLOY, ENDED, TASKS_IN_DRIVER, Cluster
from load.compare import compare
from load.demo import SECTIONS
from load.fleet import Fleet, FleetSettings
from load.generator import Generator, Summary
from load.part import is_alive
from load.stage import TOPIC, Stage

pytestmark = pytest.mark.end_to_end

STARTS_S = 180.0
RATE = 400.0
HIDDEN = "xyzzy-of-the-day"
FLEET = FleetSettings(devices=200, rate=RATE, dropout_share=0.2, dropout_ms=14_000, dropout_every_ms=30_000)
VIEWS = ({"name": "type", "by": ["type"], "window": "10 s", "retain": "1 d"},)


@dataclass
class Load:
    """A stage whose service runs, and the readings that flow until the end."""

    stage: Stage
    generator: Generator
    finish: Callable[[], Summary]

    def published(self) -> int:
        """Records up to which everything is in Redis."""
        return sum(self.stage.progress().get("offsets", {}).get(TOPIC, {}).values())

    def term(self) -> tuple[int, int]:
        """Epoch and batch of the last batch."""
        progress = self.stage.progress()
        return int(progress["epoch"]), int(progress["batch"])

    def wait_caught_up(self, epoch: int) -> None:
        """Until all that has been sent by now is published, under `epoch` or a later one."""
        sent = self.generator.sent
        published = f"{sent} readings under epoch {epoch}"
        self.stage.wait(lambda: self.published() >= sent and self.term()[0] >= epoch, STARTS_S, published)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    folder = tmp_path_factory.mktemp("supervise") / "stage"
    with Stage(folder, Fleet(17, FLEET), views=VIEWS, sections=SECTIONS, supervised=True) as stage:
        with stage.redis.client() as client:
            client.acl_setuser("service", enabled=True, passwords=[f"+{HIDDEN}"], keys=["*"], categories=["+@all"])
        with_secret = stage.redis.url.replace("redis://", f"redis://service:{HIDDEN}@")
        stage.start_service({"TIDEMARK_REDIS__URL": with_secret})
        generator = Generator(stage.broker.bootstrap, TOPIC, stage.fleet)
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(generator.run)

            def finish() -> Summary:
                generator.stop()
                return running.result()

            try:
                stage.wait_ready(STARTS_S)
                yield Load(stage, generator, finish)
            finally:
                generator.stop()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


# Faults. Each says whether a new driver has to follow.


def restart_master(stage: Stage) -> bool:
    """The master dies and is started again. In the rare case that the runbook names, what it says is done."""
    cluster, known = stage.cluster, stage.cluster.drivers()
    cluster.kill_master()
    cluster.start_master()
    stage.wait(lambda: "RUNNING" in cluster.drivers().values(), STARTS_S, "the master to remember its driver")
    return cluster.drivers() != known and restart_worker(stage)


def kill_executor(stage: Stage) -> bool:
    kill(stage.cluster.executor_pids()[0])
    return False


def kill_driver(stage: Stage) -> bool:
    kill(stage.cluster.driver_pids()[0])
    return True


def kill_python(stage: Stage) -> bool:
    kill(stage.cluster.driver_pids()[1])
    return True


def restart_worker(stage: Stage) -> bool:
    """The worker dies and is started again when its driver and executors have followed it."""
    cluster = stage.cluster
    orphans = [*(each.pid for each in cluster.driver_processes()), *cluster.executor_pids()]
    cluster.kill_worker()
    stage.wait(lambda: not any(map(is_alive, orphans)), 60, "the driver to follow its worker")
    cluster.start_worker()
    return True


# The master first: the ones after it are supervised by a master that has recovered.
@pytest.mark.parametrize("fault", [restart_master, kill_executor, kill_driver, kill_python, restart_worker])
def test_what_is_killed_comes_back_and_goes_on(load: Load, fault: Callable[[Stage], bool]) -> None:
    stage = load.stage
    epoch, batch = load.term()
    load.wait_caught_up(epoch)
    old = stage.cluster.driver_pids()

    is_new_driver = fault(stage)
    load.wait_caught_up(epoch + is_new_driver)

    assert load.term()[1] > batch
    assert is_new_driver or load.term()[0] == epoch
    assert (stage.cluster.driver_pids() != old) == is_new_driver
    assert is_new_driver != all(map(is_alive, old))


def test_no_page_log_or_command_line_shows_a_secret(load: Load) -> None:
    cluster = load.stage.cluster
    driver, _ = newest(cluster)
    logs = [*cluster.folder.rglob("std*"), *cluster.folder.glob("*/*.log")]
    shown: dict[object, str] = {path: path.read_text(errors="replace") for path in logs}
    of_driver = [f"{cluster.worker_page}/logPage/?driverId={driver}&logType={log}" for log in ("stdout", "stderr")]
    for page in [cluster.page, cluster.worker_page, *of_driver]:
        with urllib.request.urlopen(f"http://{page}", timeout=10) as answer:
            shown[page] = answer.read().decode()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            shown[process.pid] = " ".join(process.cmdline())

    assert [where for where, text in shown.items() if HIDDEN in text] == []
    # It is there to be found: the driver was given it, and what the master has to remember nobody else may read.
    assert HIDDEN in psutil.Process(cluster.driver_pids()[1]).environ()["TIDEMARK_REDIS__URL"]
    assert any("Launch Command" in text and str(load.stage.config) in text for text in shown.values())
    assert stat.S_IMODE((cluster.folder / "recovery").stat().st_mode) == 0o700


def test_sigterm_ends_it_for_good_and_every_value_is_that_of_the_oracle(load: Load) -> None:
    stage = load.stage
    summary = load.finish()
    assert summary.is_whole
    stage.wait_published({partition: end for partition, (_, end) in summary.offsets.items()})

    assert stage.stop_service() == 0, stage.log_tail()

    with stage.redis.client() as client:
        assert client.get("tidemark:lease") is None
    assert newest(stage.cluster)[1] == "FINISHED"
    assert stage.cluster.executor_pids() == []
    verdict = compare(stage.config)
    assert verdict.ok, "\n".join(verdict.examples)
    assert min(verdict.compared[what] for what in ("windows", "sessions", "devices", "rejects")) > 0


def test_a_driver_that_does_its_tasks_itself_takes_over_comes_back_and_is_killed_by_the_script(load: Load) -> None:
    """The checkpoint is that of the driver with executors."""
    stage, cluster = load.stage, load.stage.cluster
    epoch = load.term()[0]
    driver = cluster.submit(stage.config, options=TASKS_IN_DRIVER)
    assert_publishes_after(load, epoch)
    assert f"{driver} RUNNING on worker-" in status(cluster)

    epoch = load.term()[0]
    kill(cluster.driver_pids()[0])
    assert_publishes_after(load, epoch)

    cluster.kill_driver(driver)
    stage.wait(lambda: newest(cluster)[1] in ENDED, 60, "the driver to end")
    assert newest(cluster) in {(driver, "FINISHED"), (driver, "KILLED")}
    assert "{} {}".format(*newest(cluster)) in status(cluster)


def assert_publishes_after(load: Load, epoch: int) -> None:
    """New readings are published under an epoch after that one, and no executor is there."""
    stage, batch = load.stage, load.term()[1]
    sent = Generator(stage.broker.bootstrap, TOPIC, stage.fleet).once()
    ends = sum(end for _, end in sent.offsets.values())
    what = f"{ends} readings under an epoch after {epoch}"
    stage.wait(lambda: load.published() >= ends and load.term()[0] > epoch, STARTS_S, what)
    assert load.term()[1] > batch
    assert stage.cluster.executor_pids() == []


def newest(cluster: Cluster) -> tuple[str, str]:
    """Id and state; a worker that was lost leaves an id behind."""
    return [*cluster.drivers().items()][-1]


def status(cluster: Cluster) -> str:
    command = [DEPLOY / "driver", "status", f"http://{cluster.page}"]
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout

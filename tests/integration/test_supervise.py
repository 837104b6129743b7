"""The service on a standalone cluster under load, submitted as in production: each process of it is killed once.

Every time the service is back by itself and goes on from its checkpoint; in the end it is stopped in order, and every
value is compared with the oracle.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from load.demo import SECTIONS
from load.fleet.encode import SCHEMAS
from load.fleet.fleet import Fleet, FleetSettings
from load.fleet.generator import Generator, Summary
from load.judge.compare import compare
from load.servers.certificates import Authority
from load.servers.schema_registry import Registry
from load.servers.server_process import is_alive
from load.servers.spark_cluster import DEPLOY, TASKS_IN_DRIVER, Cluster
from load.servers.supervisor import ENDED
from load.testbed import TOPIC, Testbed, to_toml
from service.errors import SetupError
from tests import exposure

pytestmark = pytest.mark.end_to_end

STARTS_S = 180.0
RATE = 400.0
FLEET = FleetSettings(devices=200, rate=RATE, dropout_share=0.2, dropout_ms=14_000, dropout_every_ms=30_000)
VIEWS = ({"name": "type", "by": ["type"], "window": "10 s", "retain": "1 d"},)
OPERATORS = "-Dtidemark.operator=of-the-{}"
OPTIONS = tuple(f"spark.{name}.extraJavaOptions={OPERATORS.format(name)}" for name in ("driver", "executor"))
USER = "tidemark"


@dataclass
class Load:
    """A stage whose service runs, and the readings that flow until the end."""

    testbed: Testbed
    generator: Generator
    finish: Callable[[], Summary]
    without_secrets: Path
    """The settings of somebody who reads the same by ways that ask for none."""
    secrets: dict[str, str] = field(default_factory=dict)

    def published(self) -> int:
        """Records up to which everything is in Redis."""
        return sum(self.testbed.progress().get("offsets", {}).get(TOPIC, {}).values())

    def term(self) -> tuple[int, int]:
        """Epoch and batch of the last batch."""
        progress = self.testbed.progress()
        return int(progress["epoch"]), int(progress["batch"])

    def wait_caught_up(self, epoch: int) -> None:
        """Until all that has been sent by now is published, under `epoch` or a later one."""
        sent = self.generator.sent
        published = f"{sent} readings under epoch {epoch}"
        self.testbed.wait(lambda: self.published() >= sent and self.term()[0] >= epoch, STARTS_S, published)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    folder = tmp_path_factory.mktemp("supervise")
    authority = Authority(folder / "authority")
    options = [word for option in OPTIONS for word in ("--conf", option)]
    made = Testbed(
        folder / "stage",
        Fleet(17, FLEET),
        views=VIEWS,
        sections=SECTIONS,
        supervised=True,
        submit_options=options,
        authority=authority,
    )
    with ExitStack() as parts:
        testbed = parts.enter_context(made)
        without_secrets = testbed.config
        hidden = with_secrets(testbed, authority, parts)
        testbed.start_service()
        hidden["cluster"] = testbed.cluster.secret.read_bytes()[-64:].decode()
        generator = Generator(testbed.broker.bootstrap, TOPIC, testbed.fleet)
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(generator.run)

            def finish() -> Summary:
                generator.stop()
                return running.result()

            try:
                testbed.wait_ready(STARTS_S)
                yield Load(testbed, generator, finish, without_secrets, hidden)
            finally:
                generator.stop()


def with_secrets(testbed: Testbed, authority: Authority, parts: ExitStack) -> dict[str, str]:
    """Everything that the service connects to asks for a password, each from a file; returns them by whose they are."""
    hidden = {name: f"canary-{name}-{secrets.token_hex(8)}" for name in ("kafka", "redis", "registry", "reference")}
    files = {name: testbed.folder / f"{name}.password" for name in hidden}
    for name, file in files.items():
        file.write_text(hidden[name])
        testbed.settings.setdefault(name, {})["password_file"] = str(file)
    registry = parts.enter_context(Registry(user=USER, password=hidden["registry"]))
    for file in sorted(SCHEMAS.glob("*.avsc")):
        assert registry.register(f"{TOPIC}-value", json.loads(file.read_text())) == int(file.stem)
    testbed.settings["input"]["reader_schema"] = int(file.stem)
    testbed.broker.add_user(USER, hidden["kafka"])
    with testbed.redis.client() as client:
        client.acl_setuser(USER, enabled=True, passwords=[f"+{hidden['redis']}"], keys=["*"], categories=["+@all"])
    testbed.settings["kafka"] |= {
        "bootstrap": testbed.broker.secure("SCRAM"),
        "user": USER,
        "ca_file": str(authority.ca_file),
    }
    testbed.settings["redis"]["url"] = testbed.redis.url.replace("://", f"://{USER}@")
    testbed.settings["registry"] |= {"url": registry.url, "user": USER}
    testbed.settings["reference"]["user"] = USER
    testbed.config = testbed.folder / "with-secrets.toml"
    testbed.config.write_text(to_toml({**testbed.settings, "views": testbed.settings.pop("views")}))
    return hidden


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


# Faults. Each says whether a new driver has to follow. A driver is killed further below; `make faults` kills executors (F2)
# and the driver's Python (F1), too.


def restart_master(testbed: Testbed) -> bool:
    """The master dies and is started again. In the rare case that the runbook names, what it says is done."""
    cluster, known = testbed.cluster, testbed.cluster.drivers()
    cluster.kill_master()
    cluster.start_master()
    testbed.wait(lambda: "RUNNING" in cluster.drivers().values(), STARTS_S, "the master to remember its driver")
    return cluster.drivers() != known and restart_worker(testbed)


def restart_worker(testbed: Testbed) -> bool:
    """The worker dies and is started again when its driver and executors have followed it."""
    cluster = testbed.cluster
    orphans = [*(each.pid for each in cluster.driver_processes()), *cluster.executor_pids()]
    cluster.kill_worker()
    testbed.wait(lambda: not any(map(is_alive, orphans)), 60, "the driver to follow its worker")
    cluster.start_worker()
    return True


# The master first: the ones after it are supervised by a master that has recovered.
@pytest.mark.thorough
@pytest.mark.parametrize("fault", [restart_master, restart_worker])
def test_what_is_killed_comes_back_and_goes_on(load: Load, fault: Callable[[Testbed], bool]) -> None:
    testbed = load.testbed
    epoch, batch = load.term()
    load.wait_caught_up(epoch)
    old = testbed.cluster.driver_pids()

    is_new_driver = fault(testbed)
    load.wait_caught_up(epoch + is_new_driver)

    assert load.term()[1] > batch
    assert is_new_driver or load.term()[0] == epoch
    assert (testbed.cluster.driver_pids() != old) == is_new_driver
    assert is_new_driver != all(map(is_alive, old))


def test_no_secret_is_in_a_log_a_page_a_command_line_an_environment_the_checkpoint_or_what_the_master_remembers(
    load: Load,
) -> None:
    testbed, cluster = load.testbed, load.testbed.cluster
    driver, _ = newest(cluster)
    logs = [f"{cluster.worker_page}/logPage/?driverId={driver}&logType={log}" for log in ("stdout", "stderr")]
    own = f"127.0.0.1:{testbed.metrics_port}"
    paths = [f"{own}/{path}" for path in ("metrics", "status", "quality", "healthz", "readyz")]
    pages = [page for each in (cluster.page, cluster.worker_page) for page in (each, f"{each}/json/")]
    answers = {page: answer(page) for page in (*pages, *logs, *paths)}
    kept = dict(exposure.files(cluster.folder, testbed.folder / "checkpoint"))
    del kept[cluster.secret]
    running = dict(exposure.processes())

    assert exposure.shown(load.secrets, [*answers.items(), *kept.items(), *running.items()]) == []
    # The search looks at the right places: each of them names the driver's configuration.
    config = str(testbed.config).encode()
    for looked_at in (answers, kept, running):
        assert any(config in text for text in looked_at.values())
    assert any(config in text for path, text in kept.items() if "recovery" in str(path))
    environ = psutil.Process(cluster.driver_pids()[1]).environ()
    assert environ[exposure.FROM_WORKER] == load.secrets["cluster"]


def test_nobody_beyond_this_host_and_user_reaches_a_port_or_a_file(load: Load) -> None:
    cluster = load.testbed.cluster
    addresses = exposure.listeners(exposure.tree(*cluster.pids()))
    assert addresses
    assert exposure.beyond_loopback(addresses) == []

    folders = [cluster.folder / name for name in ("recovery", "work", "local", "tmp")]
    assert exposure.open_to_others(*folders, load.testbed.folder / "checkpoint") == []


@pytest.mark.thorough
def test_who_has_another_secret_is_not_heard_by_the_master(load: Load, tmp_path: Path) -> None:
    cluster = load.testbed.cluster
    subprocess.run([DEPLOY / "secret", tmp_path / "other"], check=True)
    before = cluster.drivers()
    with pytest.raises(SetupError, match="ended with status"):
        cluster.kill_driver(newest(cluster)[0], {"TIDEMARK_CLUSTER_SECRET": str(tmp_path / "other")})
    assert cluster.drivers() == before


def test_a_submission_with_a_secret_in_its_environment_is_refused(load: Load) -> None:
    for name, value in (("TIDEMARK_KAFKA__PASSWORD", "x"), ("TIDEMARK_REDIS__URL", "redis://me:x@127.0.0.1:1")):
        with pytest.raises(SetupError, match=f"the master would keep the secret in {name}"):
            load.testbed.cluster.submit(load.testbed.config, {name: value})


def test_an_operators_java_options_are_added_to_ours(load: Load) -> None:
    cluster = load.testbed.cluster
    for name, pid in (("driver", cluster.driver_pids()[0]), ("executor", cluster.executor_pids()[0])):
        words = psutil.Process(pid).cmdline()
        assert OPERATORS.format(name) in words
        assert "-Dorg.apache.avro.limits.bytes.maxLength=1048576" in words


def answer(page: str) -> bytes:
    """What it answers, whatever its status."""
    try:
        with urllib.request.urlopen(f"http://{page}", timeout=10) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.read()


@pytest.mark.thorough
def test_sigterm_ends_it_for_good_and_every_value_is_that_of_the_oracle(load: Load) -> None:
    testbed = load.testbed
    summary = load.finish()
    assert summary.is_whole
    testbed.wait_published({partition: end for partition, (_, end) in summary.offsets.items()})

    assert testbed.stop_service() == 0, testbed.log_tail()

    with testbed.redis.client() as client:
        assert client.get("tidemark:lease") is None
    assert newest(testbed.cluster)[1] == "FINISHED"
    assert testbed.cluster.executor_pids() == []
    verdict = compare(load.without_secrets)
    assert verdict.ok, "\n".join(verdict.examples)
    assert min(verdict.compared[what] for what in ("windows", "sessions", "devices", "rejects")) > 0


@pytest.mark.thorough
def test_a_driver_that_does_its_tasks_itself_takes_over_comes_back_and_is_killed_by_the_script(load: Load) -> None:
    """The checkpoint is that of the driver with executors. At first Redis refuses its password, and nothing shows that."""
    testbed, cluster = load.testbed, load.testbed.cluster
    epoch = load.term()[0]
    password = Path(testbed.settings["redis"]["password_file"])
    password.write_text("canary-wrong")
    driver = cluster.submit(testbed.config, options=TASKS_IN_DRIVER)
    log = cluster.work / driver / "stdout"
    testbed.wait(lambda: log.exists() and "SINK_REFUSED" in log.read_text(), STARTS_S, "Redis to refuse the password")
    wrong = {"wrong": "canary-wrong", **load.secrets}
    texts = [*exposure.files(cluster.work, cluster.folder / "recovery"), *exposure.processes()]
    assert exposure.shown(wrong, texts) == []
    password.write_text(load.secrets["redis"])
    assert_publishes_after(load, epoch)
    assert f"{driver} RUNNING on worker-" in status(cluster)

    epoch = load.term()[0]
    kill(cluster.driver_pids()[0])
    assert_publishes_after(load, epoch)

    cluster.kill_driver(driver)
    testbed.wait(lambda: newest(cluster)[1] in ENDED, 60, "the driver to end")
    assert newest(cluster) in {(driver, "FINISHED"), (driver, "KILLED")}
    assert "{} {}".format(*newest(cluster)) in status(cluster)


def assert_publishes_after(load: Load, epoch: int) -> None:
    """New readings are published under an epoch after that one, and no executor is there."""
    testbed, batch = load.testbed, load.term()[1]
    sent = Generator(testbed.broker.bootstrap, TOPIC, testbed.fleet).once()
    ends = sum(end for _, end in sent.offsets.values())
    what = f"{ends} readings under an epoch after {epoch}"
    testbed.wait(lambda: load.published() >= ends and load.term()[0] > epoch, STARTS_S, what)
    assert load.term()[1] > batch
    assert testbed.cluster.executor_pids() == []


def newest(cluster: Cluster) -> tuple[str, str]:
    """Id and state; a worker that was lost leaves an id behind."""
    return [*cluster.drivers().items()][-1]


def status(cluster: Cluster) -> str:
    command = [DEPLOY / "driver", "status", f"http://{cluster.page}"]
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout

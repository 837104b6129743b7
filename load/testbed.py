"""The testbed: all parts of a run in one folder, on loopback, with the service under spark-submit on it.

The demo, the benchmark and the end-to-end tests set it up the same way:

    with Testbed(folder, fleet, views=VIEWS) as testbed:
        testbed.start_service()
        testbed.wait_ready()
        ...
        testbed.stop_service()

With `supervised=True` the service runs on a standalone cluster that starts it again whenever it dies; the rest is the same.
Everything is kept in the folder, temporary files of the JVM included, and no process outlives the `with` block.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
from prometheus_client.parser import text_string_to_metric_families

from load.fleet.encode import SCHEMAS
from load.fleet.fleet import RANGES, REFERENCE_QUERY, Fleet, write_reference_sqlite
from load.fleet.options import options_of
from load.servers.certificates import Authority
from load.servers.child_process import Child, spawn
from load.servers.kafka import LOG_APPEND_TIME, Broker
from load.servers.redis import Redis
from load.servers.redis_cluster import RedisCluster
from load.servers.sentinels import Sentinels
from load.servers.server_process import HOST, PATIENCE, Started, free_port, until
from load.servers.spark_cluster import Cluster
from load.servers.supervisor import ENDED, Supervisor
from load.servers.web import answer
from service.errors import SetupError

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "readings"
PARTITIONS = 4
POLL_S = 0.1
FLUSH_S = 90.0
"""A generator that was told to end waits a minute at most until Kafka has acknowledged what it has sent."""

T = TypeVar("T")

VIEWS: tuple[Mapping[str, Any], ...] = (
    {"name": "device", "by": ["device"], "window": "1 m", "retain": "1 d"},
    {"name": "type", "by": ["type"], "window": "1 m", "retain": "1 d"},
    {"name": "site", "by": ["site"], "window": "10 m", "slide": "1 m", "retain": "1 d"},
    {"name": "all", "window": "1 m", "retain": "1 d"},
)


class Testbed(Started):
    """Broker, Redis, reference and service in `folder`, which is emptied first. With `keep` they go on with what is there.

    `sections` replace or extend sections of the settings key by key; `views` are the settings' views. `supervised`: on
    `cluster`, by deploy/submit, or on another `supervisor`; `master` is ignored then. `redis` are settings of redis.conf. With
    an `authority` the broker has listeners with TLS, too. With `cluster_shards` > 0 there is a Redis Cluster, `redis_cluster`,
    in place of `redis`, and the service has so many shards. With `sentinels` there is a primary that they watch, `sentinels`.
    `broker` is the group of the broker's jars, `partitions` are those of each topic.
    """

    __test__ = False  # pytest takes every class whose name begins with Test for tests

    def __init__(
        self,
        folder: Path,
        fleet: Fleet,
        *,
        views: Sequence[Mapping[str, Any]] = VIEWS,
        sections: Mapping[str, Any] | None = None,
        topic_config: Mapping[str, str] = LOG_APPEND_TIME,
        master: str = "local[*]",
        submit_options: Sequence[str] = (),
        supervised: bool = False,
        supervisor: Callable[[Path], Supervisor] | None = None,
        redis: Mapping[str, str] | None = None,
        authority: Authority | None = None,
        cluster_shards: int = 0,
        sentinels: bool = False,
        keep: bool = False,
        broker: str = "broker",
        partitions: int = PARTITIONS,
    ) -> None:
        self.folder = folder.absolute()
        self.fleet = fleet
        self.master = master
        self.submit_options = tuple(submit_options)
        self._topic_config = dict(topic_config)
        self._partitions = partitions
        self._keep = keep
        shutil.rmtree(self.folder / "tmp" if keep else self.folder, ignore_errors=True)
        (self.folder / "tmp").mkdir(parents=True)
        self.broker = Broker(self.folder, authority=authority, group=broker)
        server = RedisCluster if cluster_shards else Sentinels if sentinels else Redis
        self._redis = server(self.folder, settings=redis)
        self._shards = cluster_shards
        self.metrics_port = free_port()
        self.config = self.folder / "tidemark.toml"
        self._others: list[Path] = []
        self._service: Child | None = None
        start = supervisor or (Cluster if supervised else None)
        self._cluster = start(self.folder / "cluster") if start is not None else None
        self._driver = ""
        self.settings = self._settings(views, sections or {})

    def _settings(self, views: Sequence[Mapping[str, Any]], sections: Mapping[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = {
            "service": {"checkpoint": str(self.folder / "checkpoint")},
            "kafka": {"bootstrap": self.broker.bootstrap, "topics": [TOPIC]},
            "input": {
                "format": "avro",
                "schemas": str(SCHEMAS),
                "device_id": "device_id",
                "event_time": "event_time",
                "event_time_unit": "logical",
                "measures": {"temperature": "temperature"},
            },
            "admission": {
                "max_delay": "10 s",
                "max_ahead": "5 s",
                "ranges": {name: list(limits) for name, limits in RANGES.items()},
            },
            "reference": {
                "url": f"jdbc:sqlite:{self.folder / 'reference.db'}",
                "query": REFERENCE_QUERY,
                "columns": ["type", "site", "model"],
                "expectations": str(ROOT / "schemas" / "reference.expectations.json"),
            },
            "sessions": {"gap": "30 s", "max_duration": "1 h", "retain": "1 d"},
            "redis": {"url": self._redis.url, **({"cluster": True, "shards": self._shards} if self._shards else {})},
            "metrics": {"address": HOST, "port": self.metrics_port},
        }
        if "inputs" in sections:
            del document["input"], document["kafka"]["topics"]
        for name, section in sections.items():
            is_table = isinstance(section, Mapping)
            document[name] = {**document.get(name, {}), **section} if is_table else [dict(each) for each in section]
        measures = {name for given in document.get("inputs", [document.get("input")]) for name in given["measures"]}
        ranges = document["admission"]["ranges"]
        document["admission"]["ranges"] = {name: limits for name, limits in ranges.items() if name in measures}
        return {**document, "views": [dict(view) for view in views]}

    def start(self) -> None:
        """Start everything but the service."""
        self.broker.start()
        self._redis.start()
        known = self.broker.admin.list_topics(timeout=30).topics if self._keep else {}
        for topic in self.topics:
            if topic not in known:
                self.broker.create_topic(topic, self._partitions, self._topic_config)
        if not (self.folder / "reference.db").exists():
            write_reference_sqlite(self.folder / "reference.db", self.fleet)
        self.write_settings()

    def close(self) -> None:
        """End all, in the order in which they need each other."""
        self.kill_service()
        self._redis.close()
        self.broker.close()

    def add_pipeline(self, config: Path) -> None:
        """Have the service run the settings of a file as a second pipeline; before `start_service`, without a supervisor.

        What the testbed says of the service stays that of its own settings.
        """
        self._others.append(config)

    def write_settings(self) -> None:
        self.config.write_text(to_toml(self.settings), encoding="utf-8")

    def command(self, *words: str) -> list[str]:
        """Return the command line of `tidemark` with the service's file."""
        return [sys.executable, "-m", "service.cli", *words, "--config", str(self.config)]

    @property
    def topics(self) -> list[str]:
        inputs = self.settings.get("inputs", [self.settings["kafka"]])
        return [topic for given in inputs for topic in given["topics"]]

    @property
    def first_input(self) -> dict[str, Any]:
        """Its settings; the only one, where there is one."""
        given: dict[str, Any] = self.settings["inputs"][0] if "inputs" in self.settings else self.settings["input"]
        return given

    @property
    def redis(self) -> Redis:
        assert isinstance(self._redis, Redis), "the testbed has more than one Redis"  # noqa: S101
        return self._redis

    @property
    def sentinels(self) -> Sentinels:
        """The primary, its replica and the sentinels of a testbed with `sentinels`."""
        assert isinstance(self._redis, Sentinels), "the testbed has no sentinels"  # noqa: S101
        return self._redis

    @property
    def redis_cluster(self) -> RedisCluster:
        """The Redis Cluster of a testbed with `cluster_shards`."""
        assert isinstance(self._redis, RedisCluster), "the testbed has no Redis Cluster"  # noqa: S101
        return self._redis

    @property
    def redis_pids(self) -> list[int]:
        """Of the Redis, or of all nodes."""
        return [self.redis.pid] if isinstance(self._redis, Redis) else [node.pid for node in self._redis.nodes]

    def redis_client(self, **options: Any) -> Any:
        """A new client of the Redis or of the Redis Cluster; answers are `str` unless `decode_responses=False` is given."""
        return self._redis.client(**options)

    # The service.

    def start_generator(self, rate: float, *options: str, topic: str = TOPIC, log: str = "generator") -> Child:
        """Send readings of the fleet in a process of its own, until it is ended. `options` replace those of the fleet."""
        command = [sys.executable, "-m", "load.fleet.generator", "--bootstrap", self.broker.bootstrap, "--topic", topic]
        command += ["--seed", str(self.fleet.seed), "--rate", str(rate), *options_of(self.fleet.settings), *options]
        return spawn(command, cwd=ROOT, log=self.folder / f"{log}.log")

    def end_generator(self, generator: Child, log: str = "generator") -> dict[str, Any]:
        """End it once all that it has sent is acknowledged, and return its summary. Raises SetupError if there is none."""
        file = self.folder / f"{log}.log"
        generator.terminate()
        ended(generator, FLUSH_S, "the generator", file)
        output = file.read_text(errors="replace")
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if not lines:
            raise SetupError(f"The generator ended with status {generator.returncode} and no summary:\n{output}")
        summary: dict[str, Any] = json.loads(lines[-1])
        return summary

    @property
    def cluster(self) -> Cluster:
        """The cluster of a service that is supervised on one host."""
        assert isinstance(self._cluster, Cluster), "the testbed has no cluster on one host"  # noqa: S101
        return self._cluster

    @property
    def supervisor(self) -> Supervisor:
        """Whatever starts a supervised service again."""
        assert self._cluster is not None, "the testbed is not supervised"  # noqa: S101
        return self._cluster

    @property
    def log(self) -> Path:
        """Where the service writes: with a supervisor, the newest driver's own file."""
        if self._cluster is None:
            return self.folder / "service.log"
        return (self._cluster.driver_logs() or [self._cluster.folder / "submit.log"])[-1]

    def start_service(self, environment: Mapping[str, str] | None = None) -> None:
        """spark-submit it, in client mode; returns at once. With a supervisor: when the master has taken it.

        A supervised service gets of `environment` what deploy/submit lets through: TIDEMARK_*, for one.
        """
        if self._cluster is not None:
            self._cluster.start()
            self._driver = self._cluster.submit(self.config, environment, self.submit_options)
            return
        env = {**self.environ(), **(environment or {})}
        env.pop("SPARK_LOCAL_IP", None)  # deploy/run has a default
        configs = ",".join(map(str, [self.config, *self._others]))
        command = [str(ROOT / "deploy" / "run"), configs, "--master", self.master, *self.submit_options]
        self._service = spawn(command, cwd=self.folder, log=self.log, environ=env)

    def environ(self) -> dict[str, str]:
        """The environment of a service whose temporary files are in the folder."""
        temporary = str(self.folder / "tmp")
        own = {"PYSPARK_PYTHON": sys.executable, "TMPDIR": temporary, "SPARK_LOCAL_DIRS": temporary}
        # perf data of a JVM would be a file in the machine's own temporary folder.
        return {**os.environ, **own, "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData"}

    @property
    def service_pid(self) -> int:
        """The process id of the driver's JVM; raises SetupError with the end of its log when it is not running.

        A supervised one may not be running for a moment, and has another id after each restart.
        """
        if self._cluster is not None:
            return self._cluster.driver_pids()[0]
        if self._service is None or self._service.poll() is not None:
            status = None if self._service is None else self._service.returncode
            what = f"The service is not running (status {status}); the last lines of {self.log}:\n{self.log_tail()}"
            raise SetupError(what)
        return self._service.pid

    @property
    def service_tree(self) -> int:
        """The process above all of the service's: the driver's JVM, or with a cluster the worker, which has executors, too."""
        return self.service_pid if self._cluster is None else self.cluster.pids()[1]

    @property
    def exit_status(self) -> int | None:
        """Of a service without a supervisor that has ended by itself; None while it runs and when there is none."""
        return None if self._service is None else self._service.poll()

    def stop_service(self, patience_s: float = 60.0) -> int:
        """SIGTERM, wait, and return the exit status. With a supervisor: 0 when it takes the service to have finished."""
        os.kill(self.service_pid, signal.SIGTERM)
        if self._cluster is not None:
            cluster, driver = self._cluster, self._newest_driver()
            self._driver = ""
            state = self.wait(lambda: ENDED & {cluster.drivers().get(driver, "")}, patience_s, f"the end of {driver}")
            return 0 if state == {"FINISHED"} else 1
        service = self._service
        assert service is not None  # noqa: S101
        status = ended(service, patience_s, "the service", self.log)
        self._service = None
        return status

    def kill_driver(self) -> None:
        """SIGKILL the driver's JVM, which the supervisor answers with a restart."""
        os.kill(self.supervisor.driver_pids()[0], signal.SIGKILL)

    def kill_service(self) -> None:
        """SIGKILL it, its children and its supervisor; nothing happens when it is down."""
        if self._cluster is not None:
            self._driver = ""
            self._cluster.close()
        service, self._service = self._service, None
        if service is not None:
            kill_tree(service)

    def _newest_driver(self) -> str:
        """A worker that was lost gives its driver another id when it is back."""
        drivers = self.supervisor.drivers()
        return next((each for each in reversed(drivers) if drivers[each] not in ENDED), self._driver)

    def check_service(self) -> None:
        """Raise SetupError when a service that was started has ended for good."""
        if self._service is not None:
            _ = self.service_pid
        if self._driver:
            drivers = self.supervisor.drivers()  # none while the master is away
            if drivers and drivers.get(self._newest_driver()) in ENDED:
                raise SetupError(f"The service has ended: {drivers}; the last lines of {self.log}:\n{self.log_tail()}")

    def log_tail(self, lines: int = 20) -> str:
        return log_tail(self.log, lines)

    def last_words(self) -> str:
        return last_words(self.log)

    # What it says.

    def get(self, path: str, port: int = 0, pipeline: str = "") -> tuple[int, str]:
        """Status and body from the service's metrics port, or another's; status 0 while nobody answers, or not to the end.

        `pipeline` is that of another than the testbed's own settings, where the service has several.
        """
        address = HOST if self._cluster is None or port else self._cluster.driver_address()
        query = f"?pipeline={pipeline or self.config.stem}" if self._others and not port else ""
        return answer(f"http://{address}:{port or self.metrics_port}{path}{query}")

    def metrics(self, port: int = 0, pipeline: str = "") -> dict[str, float]:
        """The service's samples by `name{label="value"}`, or another's; {} while it does not answer. Arguments as for `get`."""
        status, text = self.get("/metrics", port, pipeline)
        samples: dict[str, float] = {}
        if status == 200:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
                    samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return samples

    def progress(self) -> dict[str, Any]:
        """The progress key; `offsets` is parsed. {} before the first batch. Of several shards: of the one that is most behind."""
        shards = self.settings["redis"].get("shards", 1)
        prefixes = [f"{{tidemark:{shard}}}" for shard in range(shards)] if shards > 1 else ["tidemark"]
        with self.redis_client() as client:
            all_fields: list[Any] = [client.hgetall(f"{prefix}:progress") for prefix in prefixes]
        if not all(all_fields):
            return {}
        fields = min(all_fields, key=lambda each: (int(each["epoch"]), int(each["batch"])))
        return {**fields, "offsets": json.loads(fields["offsets"])}

    def wait_ready(self, within_s: float = 120.0) -> None:
        """Until /readyz says so: the first batch is done."""
        self.wait(lambda: self.get("/readyz")[0] == 200, within_s, "the service to be ready")

    def wait_metrics(self) -> dict[str, float]:
        """Return the samples when the service answers: differences to an empty answer would be figures since its start."""
        return self.wait(self.metrics, 60.0, "the metrics of the service")

    def wait_published(self, ends: Mapping[int, int], within_s: float = 120.0, topic: str = TOPIC) -> None:
        """Until progress has reached `ends` (partition -> offset) of a topic, and no open value waits: all are written."""
        offsets = {str(partition): end for partition, end in ends.items()}

        def is_written() -> bool:
            progress = self.progress()
            return progress.get("offsets", {}).get(topic) == offsets and "waiting" not in progress

        self.wait(is_written, within_s, f"progress to be {offsets}, and no value to wait")

    def wait(self, condition: Callable[[], T], within_s: float, what: str) -> T:
        """Ask until the answer is true, and return it; SetupError when the service ends or the time is over."""

        def answer() -> T:
            if not (found := condition()):
                self.check_service()
            return found

        def why() -> str:
            return f"the last lines of {self.log}:\n{self.log_tail()}"

        return until(answer, within_s * PATIENCE, what, why, every_s=POLL_S)


def ended(child: Child, within_s: float, name: str, log: Path) -> int:
    """Wait until a process that was told to end has ended, and return its status; else kill it, and raise SetupError."""
    try:
        return child.wait(within_s * PATIENCE)
    except subprocess.TimeoutExpired:
        kill_tree(child)
    what = f"{name} had not ended after {within_s * PATIENCE:.0f} s and was killed; the last lines of {log}:\n{log_tail(log)}"
    raise SetupError(what)


def kill_tree(child: Child) -> None:
    """SIGKILL a process and its children; nothing happens when it has ended."""
    if child.poll() is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in psutil.Process(child.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    child.kill()
    child.wait()


def output_of(
    command: Sequence[str], cwd: Path = ROOT, environ: Mapping[str, str] | None = None, within_s: float = 600.0
) -> str:
    """Run a command to its end, and return what it prints. Raises SetupError with its messages if it fails or hangs."""
    shown = " ".join(command)
    try:
        done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, timeout=within_s, check=False)
    except subprocess.TimeoutExpired as problem:
        raise SetupError(f"{shown} had not ended after {within_s:.0f} s and was killed") from problem
    printed, messages = (each.decode(errors="backslashreplace") for each in (done.stdout, done.stderr))
    if done.returncode:
        raise SetupError(f"{shown} ended with status {done.returncode}:\n{(printed + messages)[-2_000:]}")
    return printed


def log_tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, "" while there is none."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def last_words(log: Path) -> str:
    """Why a service ended: its own last line, `tidemark: CODE: ...`, or the log's last line when it has none.

    Spark's threads may write after it while the JVM ends.
    """
    lines = log.read_text(errors="replace").splitlines()[-40:] if log.exists() else []
    own = [line for line in lines if line.startswith("tidemark: ")]
    return (own or lines or [""])[-1]


def total(samples: Mapping[str, float], name: str) -> float:
    """The sum of a metric over its labels."""
    return math.fsum(value for key, value in samples.items() if key == name or key.startswith(f"{name}{{"))


def by_label(samples: Mapping[str, float], name: str) -> dict[str, float]:
    """The values of a metric by its only label."""
    return {key.split('"')[1]: value for key, value in samples.items() if key.startswith(f"{name}{{")}


def percentile(samples: Mapping[str, float], share: float, name: str = "tidemark_event_to_redis_seconds") -> float:
    """The `share` quantile of a histogram in ms, interpolated inside its bucket; NaN when it is empty."""
    buckets = sorted(
        (float(key.split('le="')[1].split('"')[0]), value)
        for key, value in samples.items()
        if key.startswith(f"{name}_bucket")
    )
    total = buckets[-1][1] if buckets else 0.0
    below_bound, below = 0.0, 0.0
    for bound, cumulative in buckets:
        if total and cumulative >= share * total:
            if bound == float("inf"):
                return below_bound * 1000
            inside = (share * total - below) / (cumulative - below)
            return (below_bound + (bound - below_bound) * inside) * 1000
        below_bound, below = bound, cumulative
    return float("nan")


def to_toml(document: Mapping[str, Any]) -> str:
    """A settings document as TOML: sections of scalars, lists and inline tables, then the views."""

    def value(item: Any) -> str:
        if isinstance(item, Mapping):
            return "{" + ", ".join(f"{json.dumps(key)} = {value(each)}" for key, each in item.items()) + "}"
        if isinstance(item, list | tuple):
            return "[" + ", ".join(value(each) for each in item) + "]"
        return json.dumps(item)

    lines: list[str] = []
    for name, section in document.items():
        for table in section if isinstance(section, list) else [section]:
            lines.append(f"[[{name}]]" if isinstance(section, list) else f"[{name}]")
            lines += [f"{key} = {value(item)}" for key, item in table.items()]
            lines.append("")
    return "\n".join(lines)

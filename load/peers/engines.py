"""The peers of Tidemark: their jars, their classes, their settings and their processes."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from string import Template

from load.servers.child_process import Child, spawn
from load.servers.server_process import Started
from load.testbed import ROOT, TOPIC
from service.errors import SetupError
from service.kafka.source import CONSUMER_OPTIONS
from service.spark import jars, repository
from service.spark.jars import FLINK, KAFKA_STREAMS
from service.spark.java import java

SOURCES = Path(__file__).parent / "java"
SQL = Path(__file__).parent / "flink.sql"
CLASSES = ROOT / ".build" / "peers" / "classes"
CORES = 2
CHECKPOINT_MS = 10_000
"""Of Flink, whose sinks get their rows when a window closes."""
COMMIT_MS = 1_000
"""Of Kafka Streams, whose caches give their rows to the sink with a commit; 100 by default where it is exactly once."""
CACHE = 256 << 20
PEERS: Mapping[str, tuple[str, str]] = {
    "flink-sql": (FLINK, "FlinkSql"),
    "flink-stream": (FLINK, "FlinkStream"),
    "kafka-streams": (KAFKA_STREAMS, "Streams"),
}
"""By name: the group of its jars and its main class. A name is also the prefix of its keys in Redis."""
_MEMORY = {FLINK: "1600m", KAFKA_STREAMS: "2g"}
"""Of the heap. Flink has 400 MB more outside of it, Kafka Streams RocksDB's blocks."""
_LOGGING = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
# Flink's own `env.java.opts.all` for Java 17, as far as a local job needs it.
_OPENED = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.util", "java.time")]


def build() -> None:
    """Fetch the jars of the peers and compile their classes. Raises SetupError if that fails."""
    for group in (FLINK, KAFKA_STREAMS):
        repository.fetch(group, jars.root())
    shutil.rmtree(CLASSES, ignore_errors=True)
    CLASSES.mkdir(parents=True)
    compiler = str(Path(java()).resolve().with_name("javac"))
    class_path = os.pathsep.join(map(str, [*jars.complete(FLINK), *jars.complete(KAFKA_STREAMS)]))
    options = ["-nowarn", "-proc:none", "-d", str(CLASSES), "-cp", class_path]
    command = [compiler, *options, *map(str, sorted(SOURCES.glob("*.java")))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"{SOURCES} could not be compiled:\n{done.stderr}")


def settings(name: str, folder: Path, bootstrap: str, redis: str) -> dict[str, str]:
    """Return the properties of a peer."""
    consumer = {"bootstrap.servers": bootstrap, **CONSUMER_OPTIONS}
    own = {"topic": TOPIC, "redis": redis, "prefix": name}
    if name == "kafka-streams":
        streams = {
            "application.id": name,
            "bootstrap.servers": bootstrap,
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": COMMIT_MS,
            "statestore.cache.max.bytes": CACHE,
            "num.stream.threads": CORES,
            "replication.factor": 1,
            "state.dir": folder / name,
            **{f"consumer.{option}": value for option, value in CONSUMER_OPTIONS.items()},
        }
        return own | {f"streams.{option}": str(value) for option, value in streams.items()}
    flink = {
        "parallelism.default": CORES,
        "execution.checkpointing.interval": f"{CHECKPOINT_MS} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": (folder / name).as_uri(),
        "state.backend.type": "hashmap",
        "pipeline.object-reuse": "true",
        "restart-strategy.type": "none",
        "taskmanager.memory.managed.size": "256m",
        "taskmanager.memory.network.min": "128m",
        "taskmanager.memory.network.max": "128m",
        "table.local-time-zone": "UTC",
    }
    options = ",\n  ".join(f"'properties.{option}' = '{value}'" for option, value in consumer.items())
    sql = Template(SQL.read_text()).substitute(own, consumer=options)
    own |= {f"consumer.{option}": value for option, value in consumer.items()}
    return own | {"sql": sql} | {f"flink.{option}": str(value) for option, value in flink.items()}


class Peer(Started):
    """The process of a peer, which reads the topic from its beginning."""

    def __init__(self, name: str, folder: Path, bootstrap: str, redis: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._settings = settings(name, folder, bootstrap, redis)
        self._child: Child | None = None

    def start(self) -> None:
        group, main = PEERS[self.name]
        file = self._folder / f"{self.name}.properties"
        file.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in self._settings.items()))
        class_path = os.pathsep.join(map(str, [CLASSES, *jars.complete(group)]))
        options = [f"-Xmx{_MEMORY[group]}", f"-Djava.io.tmpdir={self._folder / 'tmp'}", _LOGGING, *_OPENED]
        command = [java(), *options, "-cp", class_path, f"tidemark.peers.{main}", str(file)]
        self._child = spawn(command, cwd=self._folder, log=self.log)

    @property
    def pid(self) -> int:
        """The process id. Raises SetupError with the end of its log if it has ended."""
        if self._child is None or self._child.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
            raise SetupError(f"{self.name} has ended; the last lines of {self.log}:\n{tail}")
        return self._child.pid

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")

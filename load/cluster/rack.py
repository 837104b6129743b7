"""Two masters and two workers on hosts of their own, started by deploy's scripts, with ZooKeeper as the masters' memory."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from load.cluster.host import Host
from load.cluster.namespaces import NETWORK, SERVERS, Network
from load.servers.server_process import START_S, until
from load.servers.supervisor import DRIVER_MAIN, EXECUTOR_MAIN, Supervisor, driver_states, page_state, submitted
from load.servers.zookeeper import ZooKeeper
from service.errors import SetupError
from service.spark.places import DEPLOY

MASTERS = {"master-1": f"{NETWORK}11", "master-2": f"{NETWORK}12"}
WORKERS = {"worker-1": f"{NETWORK}21", "worker-2": f"{NETWORK}22"}
MASTER_PORT, MASTER_PAGE, WORKER_PORT, WORKER_PAGE = 7077, 8080, 7078, 8081
_WORKER_MAIN = "org.apache.spark.deploy.worker.Worker"

T = TypeVar("T")

_RESTART = 'while :; do "$@"; echo "ended with status $?" >&2; sleep 1; done'
"""systemd's Restart=always, RestartSec=1: deploy/systemd."""


class Rack(Supervisor):
    """The hosts of a run.

    Each worker has room for a driver and three executors: after a cut, the master gives the cut-off driver both of its executors
    on the other worker, and the new driver needs one more.
    """

    def __init__(self, folder: Path, options: Mapping[str, str] | None = None, memory: str = "5g") -> None:
        self.folder = folder.absolute()
        self.network = Network()
        self.zookeeper = ZooKeeper(self.folder)
        self._secret = self.folder / "cluster.secret"
        self._hosts_file = self.folder / "hosts"
        self.hosts = {
            name: Host(name, address, self.folder, self.network, self._hosts_file)
            for name, address in {**MASTERS, **WORKERS}.items()
        }
        self._memory = memory
        self._options = dict(options or {})

    @property
    def masters_url(self) -> str:
        return "spark://" + ",".join(f"{address}:{MASTER_PORT}" for address in MASTERS.values())

    def start(self) -> None:
        """Turn all hosts on, with nothing remembered, and wait until both workers are the leading master's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        names = "".join(f"{address} {name}\n" for name, address in {**MASTERS, **WORKERS}.items())
        self._hosts_file.write_text(f"127.0.0.1 localhost\n{SERVERS} servers\n{names}")
        subprocess.run([str(DEPLOY / "secret"), str(self._secret)], check=True, env=self._environ("secret"))
        self.network.start()
        self.zookeeper.start()
        for name in self.hosts:
            self.turn_on(name)
        self.until(lambda: self.alive_workers() == len(WORKERS), START_S, "both workers to register")

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        self.network.heal()
        self.zookeeper.close()

    def turn_on(self, name: str) -> None:
        """Start a host with its program, as it does after a boot."""
        host = self.hosts[name]
        host.start()
        environ = self._environ(name)
        if name in MASTERS:
            ports = ["--port", str(MASTER_PORT), "--webui-port", str(MASTER_PAGE)]
            command = [str(DEPLOY / "master"), *ports]
        else:
            ports = ["--port", str(WORKER_PORT), "--webui-port", str(WORKER_PAGE)]
            size = ["--cores", "4", "--memory", self._memory]
            command = [str(DEPLOY / "worker"), self.masters_url, *ports, *size]
        host.run("program", ["sh", "-c", _RESTART, name, *command], environ)

    def submit(self, config: Path, environment: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> str:
        """deploy/submit on the first master's host."""
        host = self.hosts["master-1"]
        log = host.folder / "submit.log"
        environ = {**self._environ("submit"), "SPARK_LOCAL_IP": host.address, **(environment or {})}
        command = [str(DEPLOY / "submit"), str(config), "--master", self.masters_url, *options]
        child = host.run("submit", command, environ)
        return self.until(
            lambda: submitted(child, log.read_text(errors="replace") if log.exists() else ""),
            START_S,
            "a master to take the driver",
        )

    # What there is.

    def leader(self) -> str:
        """The name of the leading master's host, "" while there is none."""
        return next((name for name in MASTERS if self._state(name).get("status") == "ALIVE"), "")

    def alive_workers(self) -> int:
        """Workers of the leading master."""
        return int(self._state(self.leader()).get("aliveworkers", 0))

    def drivers(self) -> dict[str, str]:
        return driver_states(self._state(self.leader()))

    def driver_hosts(self) -> list[str]:
        """The hosts on which a driver's JVM runs, the one of the oldest first."""
        running = [(each.create_time(), name) for name in WORKERS for each in self._of(name, DRIVER_MAIN)]
        return [name for _, name in sorted(running)]

    def driver_host(self) -> str:
        """The host of the newest driver. Raises SetupError when there is none."""
        hosts = self.driver_hosts()
        if not hosts:
            raise SetupError(f"There is no driver on any host: {self.drivers()}")
        return hosts[-1]

    def other_worker(self, name: str) -> str:
        return next(each for each in WORKERS if each != name)

    def driver_pids(self, host: str = "") -> tuple[int, int]:
        """Of the driver on a host, or of the newest one."""
        name = host or self.driver_host()
        for jvm in reversed(self._of(name, DRIVER_MAIN)):
            with contextlib.suppress(psutil.Error):
                pythons = [child.pid for child in jvm.children() if child.cmdline()[-2:-1] == ["--config"]]
                if pythons:
                    return jvm.pid, pythons[0]
        raise SetupError(f"The driver on {name} has no Python yet")

    def executor_pids(self, host: str = "") -> list[int]:
        """The executors' JVMs, of one host or of all."""
        return [each.pid for name in WORKERS if host in {"", name} for each in self._of(name, EXECUTOR_MAIN)]

    def working_executors(self) -> int:
        """Executors that have had a task of Python's."""
        working = 0
        for pid in self.executor_pids():
            with contextlib.suppress(psutil.Error):
                working += bool(psutil.Process(pid).children())
        return working

    def driver_logs(self) -> list[Path]:
        files = [path for name in WORKERS for path in (self.folder / name / "work").glob("driver-*/stdout")]
        return sorted(files, key=lambda path: path.stat().st_mtime)

    def driver_address(self) -> str:
        """That of the newest driver whose query runs, else of the newest driver, else the first worker's."""
        hosts = self.driver_hosts()
        return WORKERS[hosts[-1]] if hosts else next(iter(WORKERS.values()))

    # Faults.

    def drain_worker(self, name: str) -> psutil.Process:
        """Tell a worker to give its executors up when their tasks have ended; return its process, which stays."""
        [worker] = self._of(name, _WORKER_MAIN)
        worker.send_signal(signal.SIGPWR)
        return worker

    def cut_from_masters(self, name: str) -> None:
        """Cut a worker's host off from both masters, until `network.heal`."""
        for address in MASTERS.values():
            self.network.cut(WORKERS[name], address)

    def cut_from_port(self, name: str, port: int) -> None:
        """Cut a worker's host off from a port of the servers', until `network.heal`."""
        self.network.cut(WORKERS[name], SERVERS, port)

    def until(self, answer: Callable[[], T], within_s: float, what: str) -> T:
        """Ask until the answer is true, and return it; SetupError when the time is over."""
        return until(answer, within_s, what, lambda: f"see the logs in {self.folder}")

    def _of(self, name: str, main: str) -> list[psutil.Process]:
        return [each for each in self.hosts[name].processes(main) if _is_java(each)]

    def _state(self, name: str) -> dict[str, Any]:
        return page_state(f"{MASTERS[name]}:{MASTER_PAGE}") if name and self.hosts[name].is_on else {}

    def _environ(self, name: str) -> dict[str, str]:
        """The environment of a program on a host: what an operator sets in its unit."""
        temporary = self.folder / name / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        recovery = f"-Dspark.deploy.recoveryMode=ZOOKEEPER -Dspark.deploy.zookeeper.url={self.zookeeper.address}"
        environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SPARK_")},
            "PYSPARK_PYTHON": sys.executable,
            "TIDEMARK_DATA": str(self.folder / name),
            "TIDEMARK_CLUSTER_SECRET": str(self._secret),
            "TMPDIR": str(temporary),
            # perf data of a JVM would be a file in the machine's own temporary folder. Seven JVMs that begin at once share the
            # cores of one machine: with C1 alone they need a third of the time, and no play measures how fast a batch is.
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData -XX:TieredStopAtLevel=1",
            "SPARK_MASTER_OPTS": recovery,
            **self._options,
        }
        if name in MASTERS:
            environ["SPARK_MASTER_HOST"] = MASTERS[name]
        if name in WORKERS:
            environ["SPARK_WORKER_HOST"] = WORKERS[name]
        return environ


def _is_java(process: psutil.Process) -> bool:
    """Whether it is a JVM, and not the shell that starts one; False for a process that has ended meanwhile."""
    with contextlib.suppress(psutil.Error):
        return "java" in Path(process.cmdline()[0]).name
    return False

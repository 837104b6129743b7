"""A Spark standalone cluster on loopback, started by deploy's own scripts: one master, one worker, in one folder.

    with Cluster(folder) as cluster:
        driver = cluster.submit(config)     # deploy/submit: cluster mode, --supervise
        os.kill(cluster.driver_pids()[0], signal.SIGKILL)
        cluster.kill_worker()
        cluster.start_worker()

Master and worker end with this process (load/servers/child_process.py), drivers and executors with their worker. `close`
also ends what a killed worker left behind. Every file is in the folder, temporary ones of the JVMs included.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from load.servers.child_process import Child, spawn
from load.servers.server_process import HOST, POLL_S, START_S, ServerProcess, free_port, is_alive, until
from load.servers.supervisor import DRIVER_MAIN, EXECUTOR_MAIN, Supervisor, driver_states, page_state, submitted
from service.errors import SetupError
from service.spark import session

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TASKS_IN_DRIVER = ("--driver-cores", "2", "--conf", f"{session.TASKS}=driver")
"""Options of deploy/submit with which the driver does its tasks itself, on two cores, and has no executors."""

_ELSEWHERE = frozenset({"SPARK_WORKER_DIR", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP"})
_GONE_S = 20.0

T = TypeVar("T")


class _Daemon(ServerProcess):
    """Master or worker: a JVM with a web page that tells its state as JSON."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        super().__init__(folder)
        self.page = free_port()
        self._variables = environ

    def _environ(self) -> Mapping[str, str]:
        return self._variables

    def state(self) -> dict[str, Any]:
        """The content of its page; {} while it does not answer or its page is empty."""
        return page_state(f"{HOST}:{self.page}")

    def end_alone(self) -> None:
        """SIGKILL this process and nothing that it started."""
        os.kill(self.pid, signal.SIGKILL)
        while self.is_running():
            time.sleep(POLL_S)


class _Master(_Daemon):
    name = "master"

    def _command(self) -> Sequence[str]:
        return [str(DEPLOY / "master"), "--port", str(self.port), "--webui-port", str(self.page)]

    def _answers(self) -> bool:
        return self.state().get("status") == "ALIVE"


class _Worker(_Daemon):
    name = "worker"

    def __init__(self, folder: Path, environ: Mapping[str, str], master: str, cores: int, memory: str) -> None:
        super().__init__(folder, environ)
        self._master, self._cores, self._memory = master, cores, memory

    def _command(self) -> Sequence[str]:
        ports = ["--port", str(self.port), "--webui-port", str(self.page)]
        return [str(DEPLOY / "worker"), self._master, *ports, "--cores", str(self._cores), "--memory", self._memory]

    def _answers(self) -> bool:
        return bool(self.state())


class Cluster(Supervisor):
    """One master and one worker whose executors have `cores` cores and, with the driver, `memory`; all in `folder`."""

    def __init__(self, folder: Path, cores: int = 2, memory: str = "6g") -> None:
        self.folder = folder.absolute()
        self.work = self.folder / "work"
        self.secret = self.folder / "cluster.secret"
        self._cores = cores
        self._submissions: list[Child] = []
        temporary = self.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        own = {"PYSPARK_PYTHON": sys.executable, "TIDEMARK_DATA": str(self.folder)}
        self._environ = {name: value for name, value in {**os.environ, **own}.items() if name not in _ELSEWHERE}
        environ = {
            **self._environ,
            "TMPDIR": str(temporary),
            # perf data of a JVM would be a file in the machine's own temporary folder.
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData",
        }
        self._master = _Master(self.folder, environ)
        # The driver takes a core of the worker's, which need not be a real one.
        self._worker = _Worker(self.folder, environ, self.master_url, cores + 1, memory)

    @property
    def master_url(self) -> str:
        """spark://host:port"""
        return f"spark://{self._master.address}"

    @property
    def page(self) -> str:
        """host:port of the master's web page."""
        return f"{HOST}:{self._master.page}"

    @property
    def worker_page(self) -> str:
        """host:port of the worker's."""
        return f"{HOST}:{self._worker.page}"

    def start(self) -> None:
        """Start both, with nothing remembered of an earlier life, and wait until the worker is the master's."""
        if self._master.is_running() or self._worker.is_running():
            return
        shutil.rmtree(self.folder / "recovery", ignore_errors=True)
        self._master.start()
        self._worker.start()
        self._until(lambda: self._master.state().get("aliveworkers"), "the worker to register")

    def close(self) -> None:
        """SIGKILL all of it, the driver and its executors too; returns when no process is left."""
        for part in (self._worker, self._master):  # the worker first: nobody is there to start a driver again
            part.kill()
        for child in self._submissions:
            if child.poll() is None:
                child.kill()
            child.wait()
        self._submissions.clear()
        until(self._are_killed, _GONE_S, f"the processes of {self.folder} to end", lambda: str([*self._left()]))

    # The daemon on it.

    def submit(self, config: Path, environment: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> str:
        log = self.folder / "submit.log"
        offset = log.stat().st_size if log.exists() else 0
        environ = {**self._environ, **(environment or {})}
        cores = f"spark.cores.max={self._cores}"
        command = [str(DEPLOY / "submit"), str(config), "--master", self.master_url, "--conf", cores, *options]
        child = spawn(command, cwd=self.folder, log=log, environ=environ)
        self._submissions.append(child)  # it stays for five seconds to report the driver's state

        return self._until(
            lambda: submitted(child, log.read_bytes()[offset:].decode(errors="replace")),
            "the master to take the driver",
        )

    def kill_driver(self, driver: str, environment: Mapping[str, str] | None = None) -> None:
        """deploy/driver kill: the orderly end through the master; returns when the master has the request."""
        command = [str(DEPLOY / "driver"), "kill", self.master_url, driver]
        environ = {**self._environ, **(environment or {})}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=START_S)
        if done.returncode:
            raise SetupError(f"deploy/driver kill {driver} ended with status {done.returncode}: {done.stderr}")

    def drivers(self) -> dict[str, str]:
        return driver_states(self._master.state())

    def driver_processes(self) -> list[psutil.Process]:
        """The driver's JVM and its Python, as far as they run."""
        processes = []
        for jvm in self._children(DRIVER_MAIN):
            processes.append(jvm)
            with contextlib.suppress(psutil.NoSuchProcess):
                processes += [child for child in jvm.children() if child.cmdline()[-2:-1] == ["--config"]]
        return processes[:2]

    def driver_pids(self) -> tuple[int, int]:
        processes = self.driver_processes()
        if len(processes) < 2:
            raise SetupError(f"There is no driver under the worker: {self.drivers()}")
        return processes[0].pid, processes[1].pid

    def executor_pids(self) -> list[int]:
        return [process.pid for process in self._children(EXECUTOR_MAIN)]

    def pids(self) -> tuple[int, int]:
        """Of master and worker."""
        return self._master.pid, self._worker.pid

    def driver_logs(self) -> list[Path]:
        return sorted(self.work.glob("driver-*/stdout"), key=lambda path: path.stat().st_mtime)

    # Faults. A worker that dies takes its driver and executors with it, within two seconds; nobody does it here.

    def kill_master(self) -> None:
        """SIGKILL."""
        self._master.end_alone()

    def start_master(self) -> None:
        """Start it again; it recovers what it knew from its folder."""
        self._master.start()

    def kill_worker(self) -> None:
        """SIGKILL the worker alone."""
        self._worker.end_alone()

    def start_worker(self) -> None:
        """Start it again, on the same port."""
        self._worker.start()

    def _children(self, main: str) -> Iterator[psutil.Process]:
        if not self._worker.is_running():
            return
        for child in psutil.Process(self._worker.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if main in child.cmdline():
                    yield child

    def _are_killed(self) -> bool:
        left = [*self._left()]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return not left

    def _left(self) -> Iterator[psutil.Process]:
        """Return the processes below a worker of this folder, which have the worker's environment."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SPARK_WORKER_DIR") == str(self.work) and is_alive(process):
                    yield process

    def _until(self, answer: Callable[[], T], what: str) -> T:
        return until(answer, START_S, what, lambda: f"see the logs in {self.folder}")

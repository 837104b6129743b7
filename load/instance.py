"""One more instance of the service on a testbed: same settings, its own port, perhaps its own checkpoint, no supervisor."""

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from load.servers.child_process import Child, spawn
from load.servers.server_process import HOST, free_port
from load.testbed import ROOT, Testbed, ended, kill_tree, last_words


class Instance:
    """A service under deploy/run; `status` is its exit status, None while it runs or has not begun."""

    def __init__(
        self,
        testbed: Testbed,
        name: str,
        checkpoint: Path,
        config: Path | None = None,
        tree: Path = ROOT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = testbed.folder / f"instance-{name}.log"
        self._stage = testbed
        self._checkpoint = checkpoint
        self._config = config or testbed.config
        self._tree = tree
        self._environment = dict(environment or {})
        self._port = free_port()
        self._child: Child | None = None

    def start(self) -> None:
        """Start it; returns at once. May be called again after its end."""
        environ = {
            **self._stage.environ(),
            "SPARK_LOCAL_IP": HOST,
            "TIDEMARK_METRICS__PORT": str(self._port),
            "TIDEMARK_SERVICE__CHECKPOINT": str(self._checkpoint),
            **self._environment,
        }
        if self._tree != ROOT:  # it must be found before the installed package
            jars = os.environ.get("TIDEMARK_JARS") or str(ROOT / ".build" / "jars")
            environ |= {"PYTHONPATH": str(self._tree), "TIDEMARK_JARS": jars}
        command = [str(self._tree / "deploy" / "run"), str(self._config), "--master", "local[2]"]
        self._child = spawn(command, cwd=self._stage.folder, log=self.log, environ=environ)

    @property
    def status(self) -> int | None:
        return None if self._child is None else self._child.poll()

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        assert self._child is not None, "the instance was not started"  # noqa: S101
        return self._child.pid

    def metrics(self) -> dict[str, float]:
        return self._stage.metrics(self._port)

    def is_waiting(self) -> bool:
        """Whether it says that it waits for somebody else's lease."""
        return "holds the lease" in self._stage.get("/readyz", self._port)[1]

    def last_words(self) -> str:
        return last_words(self.log)

    def stop(self) -> int:
        """SIGTERM, wait, and return the exit status."""
        os.kill(self.pid, signal.SIGTERM)
        assert self._child is not None  # noqa: S101
        return ended(self._child, 60.0, f"the instance {self.name}", self.log)

    def kill(self) -> None:
        """SIGKILL it and its children; nothing happens when it is down."""
        if self._child is not None:
            kill_tree(self._child)


def tree(pids: Iterable[int]) -> list[psutil.Process]:
    """These processes and all their children."""
    processes: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            processes += [process, *process.children(recursive=True)]
    return processes


def send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    """Signal each that is still there."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)

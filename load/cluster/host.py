"""A host: namespaces of its own for network, names, mounts and processes, all of which end with its first process (init.py)."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from load.cluster import init
from load.cluster.namespaces import Network
from load.servers.child_process import Child, spawn
from load.servers.server_process import START_S, Started, until

_SPACES = ("--net", "--mount", "--pid", "--uts")


class Host(Started):
    """A host at `address`; its logs are in `folder`, its disk is the one of all hosts."""

    def __init__(self, name: str, address: str, folder: Path, network: Network, hosts: Path) -> None:
        self.name, self.address, self.folder = name, address, folder / name
        self._network, self._hosts = network, hosts
        self._child: Child | None = None
        self._init: psutil.Process | None = None
        self._link = ""
        self._programs: list[Child] = []

    @property
    def is_on(self) -> bool:
        return self._init is not None and self._init.is_running()

    def start(self) -> None:
        """Turn it on: an init and a cable, no program."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "init.log"
        log.unlink(missing_ok=True)
        program = [sys.executable, "-I", "-S", init.__file__, self.name, str(self._hosts)]
        command = ["unshare", *_SPACES, "--fork", "--mount-proc", "--kill-child", *program]
        child = self._child = spawn(command, cwd=self.folder, log=log)

        def is_ready() -> bool:
            return log.exists() and init.READY in log.read_text()

        until(is_ready, START_S, f"the host {self.name}", log.read_text, goes_on=lambda: child.poll() is None)
        [self._init] = psutil.Process(self._child.pid).children()
        self._link = self._network.connect(self.address, self._init.pid)

    def run(self, name: str, command: Sequence[str], environ: Mapping[str, str]) -> Child:
        """Start a program on it; its output is in `<name>.log` of the host's folder."""
        assert self._init is not None, f"{self.name} is off"  # noqa: S101
        enter = ["nsenter", "--target", str(self._init.pid), *_SPACES]
        child = spawn([*enter, *command], cwd=self.folder, log=self.folder / f"{name}.log", environ=environ)
        self._programs.append(child)
        return child

    def close(self) -> None:
        self.power_off()

    def power_off(self, *, silently: bool = False) -> None:
        """SIGKILL all of its processes at once. `silently`: the network first, so that no peer hears of it."""
        if silently:
            self._network.pull(self._link)
        if self._init is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._init.kill()
        for child in (*self._programs, *([self._child] if self._child is not None else [])):
            child.wait(START_S)
        self._programs.clear()
        self._network.pull(self._link)
        self._child = self._init = None

    def processes(self, main: str) -> list[psutil.Process]:
        """Its processes with an argument `main`, oldest first."""
        found = []
        for process in self._all():
            with contextlib.suppress(psutil.Error):
                if main in process.cmdline():
                    process.create_time()  # psutil keeps it: the process may have ended when they are sorted
                    found.append(process)
        return sorted(found, key=lambda process: process.create_time())

    def _all(self) -> list[psutil.Process]:
        """Children of the init, and of what `run` has started from outside."""
        roots = [process.pid for process in self._programs if process.poll() is None]
        roots += [self._init.pid] if self.is_on and self._init is not None else []
        found: list[psutil.Process] = []
        for pid in roots:
            with contextlib.suppress(psutil.Error):
                found += psutil.Process(pid).children(recursive=True)
        return found

"""A server process: a child process on a port of loopback, started, watched and always ended."""

import atexit
import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import psutil

from load.servers.child_process import Child, spawn
from service.errors import SetupError

HOST_VARIABLE = "TIDEMARK_TEST_HOST"
HOST = os.environ.get(HOST_VARIABLE, "127.0.0.1")
"""The address of all parts: loopback, or in `make cluster` an address that only hosts in namespaces reach."""

# Below Linux's ephemeral range (32768-60999): a client that polls for a part not yet up cannot be given the part's own
# port as its source port, which would connect it to itself and keep the part from binding.
PORTS = range(20_000, 32_000)
PATIENCE = float(os.environ.get("TIDEMARK_PATIENCE", "1"))
"""Factor for the waits of tests and load programs, and for P8's minute: above 1 where other work keeps the cores busy."""
START_S = 90.0 * PATIENCE
_STOP_S = 20.0
POLL_S = 0.02
T = TypeVar("T")

_reservations: list[socket.socket] = []
_running: list["ServerProcess"] = []


def port_is_free(port: int) -> bool:
    """Whether a server could listen on loopback's `port` now; what lingers in TIME_WAIT does not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return True
        return False


def free_port() -> int:
    """A loopback port that nobody listens on and that no process has got from here before, while that process lives.

    A bound UDP socket on the same number is the reservation: it is in no TCP server's way, and the kernel releases it when
    the process ends. Two processes of tests would otherwise give away the same port before either of them listens on it.
    """
    for port in random.SystemRandom().sample(PORTS, 200):
        if port_is_free(port) and reserve(port):
            return port
    raise SetupError(f"None of 200 ports tried in {PORTS.start}-{PORTS.stop} is free", remedy="Stop what holds them.")


def reserve(port: int) -> bool:
    """Keep a port from every other process of tests while this one lives; False when another one has it."""
    reservation = socket.socket(type=socket.SOCK_DGRAM)
    try:
        reservation.bind((HOST, port))
    except OSError:
        reservation.close()
        return False
    _reservations.append(reservation)
    return True


def until(
    condition: Callable[[], T],
    within_s: float,
    what: str,
    why: Callable[[], str] = lambda: "",
    *,
    goes_on: Callable[[], bool] = lambda: True,
    every_s: float = POLL_S,
) -> T:
    """Ask until the answer is true, and return it.

    Raises SetupError with `what` was waited for, and `why` it may not have come, when the time is over or nothing goes on.
    """
    began = time.monotonic()
    while not (answer := condition()):
        waited_s = time.monotonic() - began
        if waited_s > within_s or not goes_on():
            message = ": ".join(filter(None, [f"Waited {waited_s:.0f} s for {what}", why()]))
            raise SetupError(message)
        time.sleep(every_s)
    return answer


class Started:
    """A `with` block starts it and closes it, also when it did not start whole."""

    def start(self) -> object:
        """Start it; may raise when only some of it is there."""
        raise NotImplementedError

    def close(self) -> None:
        """End it, in whatever state it is."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Repeated(Started):
    """Calls `act` every `every_s` seconds in a thread of its own, from `start` to `close`, or until a call fails."""

    def __init__(self, every_s: float, act: Callable[[], object]) -> None:
        self._every_s, self._act = every_s, act
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Return when the last call has ended. Raises what a call has raised: what follows from the calls would lack the rest."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            while not self._over.wait(self._every_s):
                self._act()
        except Exception as error:  # for `close`
            self._error = error


class ServerProcess(Started):
    """One child process on a port of loopback; what all parts have in common.

    `folder` is the caller's: the part keeps everything in a sub-folder of its own name there. `port` 0 means any free
    one. Entering the `with` block starts the part, leaving it stops it; `start` after `stop` or `kill` goes on with the
    same data and port.
    """

    name = "part"
    death = signal.SIGKILL

    def __init__(self, folder: Path | str, port: int = 0) -> None:
        self.folder = Path(folder).absolute() / self.name
        self.port = port or free_port()
        self.log = self.folder / f"{self.name}.log"
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """host:port"""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id; raises SetupError when the part is not running."""
        if self._child is None or self._child.poll() is not None:
            raise SetupError(f"{self.name} on {self.address} is not running", remedy="Call start() first.")
        return self._child.pid

    def is_running(self) -> bool:
        """Whether the process is there; a paused one is."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> Self:
        """Start and wait until it answers. Nothing happens when it runs already.

        Raises SetupError when the port is taken, or with the end of its log when it ends or does not answer in 90 s.
        """
        if self.is_running():
            return self
        if not port_is_free(self.port):
            what = f"Port {self.port} on {HOST} is in use, {self.name} cannot have it"
            raise SetupError(what, remedy="Stop what listens there, or give another port.")
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._prepare()
            self._launch()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """End it in order (SIGTERM, or what the part prefers), after 20 s by force. Nothing happens when it is down."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL it and its children; the data stays as it is."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: it hangs, its connections stay open. Returns when every thread of it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        until(
            lambda: psutil.Process(self.pid).status() == psutil.STATUS_STOPPED, _STOP_S, f"{self.name} to stand still"
        )

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop for good; the data stays in the folder."""
        self.stop()

    def log_tail(self) -> str:
        """The last lines it wrote."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:]) or "(its log is empty)"

    # What a part defines.

    def _prepare(self) -> None:
        """Make what the first start needs; called before every start."""

    def _command(self) -> Sequence[str]:
        raise NotImplementedError

    def _user(self) -> str:
        return ""

    def _environ(self) -> Mapping[str, str] | None:
        """Its environment; None is ours."""
        return None

    def _answers(self) -> bool:
        """One attempt to use it, bounded to about a second."""
        raise NotImplementedError

    # How it is run.

    def _launch(self) -> None:
        child = self._child = spawn(
            self._command(),
            cwd=self.folder,
            log=self.log,
            user=self._user(),
            death=self.death,
            environ=self._environ(),
        )
        if self not in _running:
            _running.append(self)

        def why() -> str:
            return f"its status is {child.poll()}, the last lines of {self.log} are\n{self.log_tail()}"

        def answers() -> bool:
            return _listens(self.port) and self._answers()

        until(answers, START_S, f"{self.name} on {self.address}", why, goes_on=lambda: child.poll() is None)

    def _run(self, command: Sequence[str]) -> None:
        """Run a tool of the part to its end."""
        tool = spawn(command, cwd=self.folder, log=self.log, user=self._user())
        try:
            status = tool.wait(START_S)
        finally:
            tool.kill()
            tool.wait()
        if status:
            tail = f"the last lines of {self.log}:\n{self.log_tail()}"
            raise SetupError(f"{Path(command[0]).name} for {self.name} ended with status {status}; {tail}")

    def _end(self, how: signal.Signals) -> None:
        child, self._child = self._child, None
        if self in _running:
            _running.remove(self)
        if child is None:
            return
        tree = []
        if child.poll() is None:
            # By id and not by process group: PostgreSQL's children each lead a session of their own.
            with contextlib.suppress(psutil.NoSuchProcess):
                tree = psutil.Process(child.pid).children(recursive=True)
            child.send_signal(how)
            child.send_signal(signal.SIGCONT)  # a paused part must see the signal
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for left in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()  # psutil checks that the id still names the same process
        deadline = time.monotonic() + _STOP_S
        while any(is_alive(left) for left in tree) and time.monotonic() < deadline:
            time.sleep(POLL_S)


def is_alive(process: psutil.Process | int) -> bool:
    """Whether a process, or the one of this id, runs. A zombie does not: in a container nobody may ever collect it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        target = psutil.Process(process) if isinstance(process, int) else process
        return target.is_running() and target.status() != psutil.STATUS_ZOMBIE
    return False


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
        return True
    return False


@atexit.register
def _close_all() -> None:
    for part in _running[:]:
        part.close()

"""Child processes that cannot outlive their parent: `spawn` starts one, and run as a program this file becomes it.

On Linux the kernel ends such a child when its parent is gone, however the parent went (PR_SET_PDEATHSIG, prctl(2)).
Elsewhere only an orderly end of the parent ends it.

The signal has to be asked for in the child, after any change of user (which clears it) and before exec. A `preexec_fn`
runs between fork and exec of a threaded process, where any lock may be held; so the child starts as this small program,
ties itself, and then becomes the command. Its process id is the command's.
"""

import ctypes
import os
import pwd
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

_PR_SET_PDEATHSIG = 1

Child = subprocess.Popen[bytes]


class _Spawner:
    """One thread that forks for all: the kernel sends the signal when the forking *thread* ends, not the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._calls: queue.SimpleQueue[tuple[Callable[[], Child], Future[Child]]] = queue.SimpleQueue()

    def call(self, fork: Callable[[], Child]) -> Child:
        result: Future[Child] = Future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="tidemark-spawner", daemon=True)
                self._thread.start()
        self._calls.put((fork, result))
        return result.result()

    def _serve(self) -> None:
        while True:
            fork, result = self._calls.get()
            try:
                result.set_result(fork())
            except BaseException as problem:
                result.set_exception(problem)


_spawner = _Spawner()


def spawn(
    command: Sequence[str],
    *,
    cwd: Path,
    log: Path,
    user: str = "",
    death: signal.Signals = signal.SIGKILL,
    environ: Mapping[str, str] | None = None,
) -> Child:
    """Start `command` in a session of its own, tied to this process, its output appended to `log`.

    `user` is the account to run as ("" = ours; another needs root), `death` the signal the child gets when we are gone.
    Raises OSError when Python itself cannot be started; a command that cannot be run ends with status 127 and says why
    in the log. Ctrl-C in a terminal reaches this process alone, which then ends its children in order.
    """
    shim = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(death)), user, *command]

    def fork() -> Child:
        with log.open("ab") as out:
            return subprocess.Popen(
                shim, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    return _spawner.call(fork)


def _become(parent: int, death: int, user: str, command: list[str]) -> None:
    if user:
        account = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death)
    if os.getppid() != parent:  # it died before we were tied to it
        return
    try:
        os.execvp(command[0], command)
    except OSError as problem:
        sys.exit(f"{command[0]}: {problem.strerror}")


if __name__ == "__main__":
    _become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    sys.exit(127)

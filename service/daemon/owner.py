"""The name of a lease's holder, from which a restarted service can prove that its former process is gone.

The name is `host:pid:start:machine`. Host and pid are for people to read. The start of the process is there because pids are
reused, and the machine, a hash of the running system and the pid namespace, because a pid is valid only there. The proof needs
Linux; elsewhere no process counts as gone, and the lease has to expire.
"""

import contextlib
import hashlib
import os
import socket
from pathlib import Path

_PROC = Path("/proc")
_DEAD = frozenset("ZXx")
_STATE, _START = 0, 19
"""Fields of /proc/PID/stat after the program's name, see proc(5): 3 and 22 there."""


def here() -> str:
    start = (_stat(os.getpid()) or [""] * 20)[_START]
    return f"{socket.gethostname()}:{os.getpid()}:{start}:{_machine()}"


def is_gone(owner: str) -> bool:
    """Whether the process named `owner` ran on this system and has ended. A frozen process is not gone.

    False for a text of any other form.
    """
    fields = owner.split(":")
    if len(fields) != 4 or not fields[1].isdecimal() or not fields[3] or fields[3] != _machine():
        return False
    pid = int(fields[1])
    try:
        os.kill(pid, 0)  # /proc may hide the processes of other users, this does not
    except ProcessLookupError:
        return True
    except OSError:
        return False
    stat = _stat(pid)
    return bool(stat) and (stat[_STATE] in _DEAD or stat[_START] != fields[2])


def pid_of(owner: str) -> int | None:
    """Return the pid of the process named `owner` if it runs on this system, so that a signal reaches it."""
    fields = owner.split(":")
    is_here = len(fields) == 4 and fields[1].isdecimal() and fields[3] and fields[3] == _machine()
    return int(fields[1]) if is_here and not is_gone(owner) else None


def _stat(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _machine() -> str:
    with contextlib.suppress(OSError):
        boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        return hashlib.sha256(f"{boot} {(_PROC / 'self' / 'ns' / 'pid').readlink()}".encode()).hexdigest()[:8]
    return ""

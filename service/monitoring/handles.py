"""Open files, sockets and threads of processes, with the limits that the system sets for them (Linux)."""

import math
import os
import resource
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUP_V2 = Path("/sys/fs/cgroup")
_CGROUP_V1 = _CGROUP_V2 / "pids"


@dataclass(frozen=True, slots=True)
class Handles:
    """Open handles of some processes. `share` is the largest share of its limit of open files that a process uses."""

    files: int = 0
    limit: float = math.nan
    """The lowest limit of open files among the processes; NaN without processes."""
    sockets: int = 0
    threads: int = 0
    share: float = 0.0


def handles(pids: Iterable[int]) -> Handles:
    """Count what these processes have open now. A process that is gone, or belongs to another user, is left out."""
    files = sockets = threads = 0
    limits: list[float] = []
    share = 0.0
    for pid in pids:
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            targets = _open_files(pid)
            soft, _ = process.rlimit(psutil.RLIMIT_NOFILE)
            limit = math.inf if soft == resource.RLIM_INFINITY else float(soft)
            threads += process.num_threads()
            files += len(targets)
            sockets += sum(target.startswith("socket:") for target in targets)
            limits.append(limit)
            share = max(share, len(targets) / limit)
    return Handles(files, min(limits, default=math.nan), sockets, threads, share)


def thread_share() -> float:
    """Return the share that is used of the number of threads that the control group of this process may have; 0 without a limit.

    A container's runtime and systemd's `TasksMax` set it. The limit counts the threads of all processes in the group.
    """
    share = 0.0
    for group in _groups():
        with suppress(OSError, ValueError):  # "max", or no file: no limit
            share = max(share, int(_text(group / "pids.current")) / int(_text(group / "pids.max")))
    return share


def _groups() -> list[Path]:
    """The folders of this process's control group, and of those above it: each may have a limit."""
    groups = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in {"", "pids"}:
                continue
            root = _CGROUP_V1 if controllers else _CGROUP_V2
            group = root / path.lstrip("/")
            groups += [each for each in (group, *group.parents) if each == root or root in each.parents]
    return groups


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _open_files(pid: int) -> list[str]:
    """Return the target of each descriptor of the process; "" for a descriptor that was closed meanwhile."""
    folder = f"/proc/{pid}/fd"
    targets = []
    for name in os.listdir(folder):
        target = ""
        with suppress(OSError):
            target = os.readlink(f"{folder}/{name}")
        targets.append(target)
    return targets

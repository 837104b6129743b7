"""What starts a service again that has died: a Spark standalone cluster, on one host (spark_cluster.py) or on several."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from load.servers.child_process import Child
from load.servers.server_process import HOST, Started
from load.servers.web import answer
from service.errors import SetupError

ENDED = frozenset({"FINISHED", "FAILED", "ERROR", "KILLED"})
"""States of a driver that nobody starts again."""
DRIVER_MAIN = "org.apache.spark.deploy.worker.DriverWrapper"
EXECUTOR_MAIN = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Supervisor(Started):
    """Masters and workers with all their files in `folder`."""

    folder: Path

    def submit(self, config: Path, environment: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> str:
        """deploy/submit; return the driver's id as soon as the master has given it."""
        raise NotImplementedError

    def drivers(self) -> dict[str, str]:
        """State of every driver by id, in the order of their submission; {} when no master answers."""
        raise NotImplementedError

    def driver_pids(self) -> tuple[int, int]:
        """The driver's JVM and its Python; raises SetupError when they do not run, or not yet."""
        raise NotImplementedError

    def executor_pids(self) -> list[int]:
        """The executors' JVMs."""
        raise NotImplementedError

    def driver_logs(self) -> list[Path]:
        """The drivers' stdout files, oldest first; each takes what the JVM and Python of all its restarts print."""
        raise NotImplementedError

    def driver_address(self) -> str:
        """The address at which the driver's HTTP server answers."""
        return HOST


def page_state(address: str) -> dict[str, Any]:
    """Return what a master's or a worker's page tells; {} when it does not answer, or with nothing yet."""
    with contextlib.suppress(json.JSONDecodeError):
        state: dict[str, Any] = json.loads(answer(f"http://{address}/json/", 2.0)[1])
        return state
    return {}


def driver_states(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the state of every driver by id, in the order of their submission, from a master's page."""
    each = [*state.get("completeddrivers", []), *state.get("activedrivers", [])]
    return {driver["id"]: driver["state"] for driver in sorted(each, key=lambda driver: int(driver["starttime"]))}


def submitted(child: Child, output: str) -> str:
    """Return the driver's id from what deploy/submit has printed, "" before it is there. Raises SetupError."""
    if child.poll():
        raise SetupError(f"deploy/submit ended with status {child.returncode}:\n{output}")
    match = re.search(r"submitted as (driver-\S+)", output)
    return match[1] if match else ""

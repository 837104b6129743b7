"""`tidemark query`: list the pipelines of a running process of several, and stop, start and await one.

The list is that of /status, which also names the socket that takes commands (service/daemon/control.py): it is open to the user
of the process, on its host.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from service import clock
from service.daemon import control
from service.errors import SettingsError, SetupError
from service.monitoring import pages, status
from service.monitoring.pages import NoServiceError
from service.printing import aligned
from service.settings import Metrics
from service.units import format_time

Document = Mapping[str, Any]
Say = Callable[[str], object]
_POLL_S = 0.2


def listed(metrics: Metrics) -> dict[str, Document]:
    """Return the documents of the pipelines by name; one alone is listed, too. Raises SetupError when no service answers."""
    return _asked(metrics)[0]


def request(metrics: Metrics, command: str, name: str) -> None:
    """Have a pipeline stop or start; returns when the process has taken the command. Raises SettingsError, SetupError."""
    pipelines, path = _asked(metrics)
    require(name, pipelines)
    if path is None:
        what = f"The process at {pages.address(metrics)} takes no commands"
        raise SetupError(
            what,
            remedy="One of several pipelines has a socket for them; its log says why if it has none. "
            "End a process of one pipeline by SIGTERM",
        )
    try:
        refusal = control.ask(Path(path), command, name)
    except (OSError, ValueError) as error:
        what = f"{path}: the process cannot be asked ({getattr(error, 'strerror', None) or error})"
        raise SetupError(what, remedy="Run the command on the host of the process, as its user or root") from error
    if refusal:
        raise SetupError(f"{path}: {refusal}")


def reached(metrics: Metrics, name: str, state: str, within_s: float, say: Say) -> bool:
    """Wait until a pipeline has a state, and print each state on the way. Whether it has it within the time.

    A pipeline that fails while "running" is awaited is not waited for. Raises SettingsError, SetupError.
    """
    until_s, shown = clock.monotonic_s() + within_s, ""
    while True:
        pipelines = listed(metrics)
        require(name, pipelines)
        now = pipelines[name]
        if now["state"] != shown:
            shown = now["state"]
            say(f"{name}: {shown}{_reason(now)}")
        if shown == state:
            return True
        if (state == "running" and shown in {"failed", "stopped"}) or clock.monotonic_s() > until_s:
            return False
        time.sleep(_POLL_S)


def table(pipelines: Mapping[str, Document]) -> Iterator[str]:
    """Format the pipelines as lines."""
    rows = [("pipeline", "state", "epoch", "batch", "finished", "last error")]
    for name, each in pipelines.items():
        batches, error = each["batches"], each["last_error"]
        last = batches[-1] if batches else None
        rows.append(
            (
                name,
                each["state"],
                "-" if each["epoch"] is None else str(each["epoch"]),
                "-" if last is None else str(last["batch"]),
                "-" if last is None else format_time(last["finished_ms"]),
                "-" if error is None else f"{format_time(error['at_ms'])} {error['code']}",
            )
        )
    yield from aligned(rows)


def require(name: str, pipelines: Mapping[str, Document]) -> None:
    """Raise SettingsError for a name that no pipeline has."""
    if name not in pipelines:
        msg = f"there is no pipeline {name!r}; there are {', '.join(pipelines)}"
        raise SettingsError(msg, remedy="Correct the name")


def _asked(metrics: Metrics) -> tuple[dict[str, Document], str | None]:
    try:
        reply = status.asked_all(metrics)
    except NoServiceError as reason:
        raise SetupError(
            str(reason), remedy="Name the settings file of a pipeline of the process with --config"
        ) from reason
    if "pipelines" in reply:
        return dict(reply["pipelines"]), reply.get("control")
    return {reply["service"]: reply}, None


def _reason(document: Document) -> str:
    error = document["last_error"]
    return f": {error['code']}: {error['text']}" if error is not None and document["state"] == "failed" else ""

"""The socket on which a process of several pipelines takes commands: a Unix socket that only its user and root can open.

    {"command": "stop", "pipeline": "minutes"}    ->    {}, or {"error": "what is wrong"}

One line each way, one command a connection. A command is a request: /status shows what becomes of it. HTTP only reads, because
everybody who may scrape metrics reaches it, and the pipelines' Redis may be away.
"""

import errno
import json
import logging
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

COMMANDS = ("stop", "start")
REQUEST_S = 5.0
MOST_BYTES = 4096
_WAITING = 8
_log = logging.getLogger(__name__)

Request = Callable[[bool], object]
"""Has a pipeline run or stop."""


class Control:
    """Serves in a daemon thread; `path` is the socket."""

    def __init__(self, path: Path, pipelines: Mapping[str, Request]) -> None:
        """Start serving. Raises OSError when the socket cannot be made, or another process serves at the path."""
        self.path = path
        self._pipelines = pipelines
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_left(path)
            self._socket.bind(str(path))
            path.chmod(0o600)
            self._socket.listen(_WAITING)  # until here nobody can connect
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="tidemark-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._socket.close()
        self._thread.join(REQUEST_S)
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(REQUEST_S)
                connection.sendall(json.dumps(self._answer(connection)).encode() + b"\n")

    def _answer(self, connection: socket.socket) -> dict[str, str]:
        line = _line(connection)
        if peer_of(connection) not in {0, os.getuid()}:
            return {"error": "only the user of the process and root may give commands"}
        try:
            request = json.loads(line)
            command, name = str(request["command"]), str(request["pipeline"])
        except (ValueError, LookupError, TypeError):
            return {"error": "no command: send a line of JSON with command and pipeline"}
        if command not in COMMANDS:
            return {"error": f"there is no command {command!r}; there are {', '.join(COMMANDS)}"}
        if name not in self._pipelines:
            return {"error": f"there is no pipeline {name!r}; there are {', '.join(self._pipelines)}"}
        _log.info("An operator asks the pipeline %s to %s", name, command)
        self._pipelines[name](command == "start")
        return {}


def place(port: int) -> Path:
    """Return the path of the socket of the process that serves metrics at `port`."""
    folder = (
        os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0] or tempfile.gettempdir()
    )  # systemd's RuntimeDirectory=
    return Path(folder) / f"tidemark-{os.getuid()}-{port}.sock"


def ask(path: Path, command: str, name: str) -> str:
    """Send a command; return the error that answers it, "" without one. Raises OSError when no process answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(REQUEST_S)
        connection.connect(str(path))
        if peer_of(connection) not in {0, os.getuid()}:
            raise PermissionError(f"{path} belongs to another user")
        connection.sendall(json.dumps({"command": command, "pipeline": name}).encode() + b"\n")
        answer: Any = json.loads(_line(connection) or b"null")
    return str(answer.get("error", "")) if isinstance(answer, dict) else "no answer"


def peer_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)


def _remove_left(path: Path) -> None:
    """Remove the socket of a process that was killed. Raises OSError if a process still serves there.

    That is a process with the same port in another network namespace, such as a container with the same folder.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < MOST_BYTES:
        piece = connection.recv(MOST_BYTES)
        if not piece:
            break
        data += piece
    return data

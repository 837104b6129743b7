"""What a client of the metrics port can hold: so many connections, for so long."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from service.monitoring import server
from service.monitoring.board import Board
from service.monitoring.metrics import Metrics
from service.monitoring.monitor import Monitor
from service.monitoring.server import CONNECTIONS, Server
from service.monitoring.status import Status

HOST = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    running = Server(Board([Monitor(Metrics(), Status("tidemark"))]), HOST, 0)
    yield running.port
    running.close()


def answer(line: socket.socket) -> bytes:
    """The whole answer: head and body may come in packets of their own."""
    line.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
    return b"".join(iter(lambda: line.recv(1000), b""))


def test_one_connection_more_than_there_may_be_is_closed_and_the_others_are_answered(port: int) -> None:
    with ExitStack() as open_lines:
        lines = [open_lines.enter_context(socket.create_connection((HOST, port), 30)) for _ in range(CONNECTIONS)]
        with socket.create_connection((HOST, port), 30) as one_more:
            assert one_more.recv(100) == b""
        first = answer(lines[0])
        assert first.startswith(b"HTTP/1.0 200")
        assert first.endswith(b"}\n")
        assert answer(lines[1]).startswith(b"HTTP/1.0 200"), "the others wait for their turn"


def test_a_client_that_sends_a_byte_now_and_then_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.5)
    began = time.monotonic()
    with socket.create_connection((HOST, port), 0.05) as line:
        while time.monotonic() < began + 30:
            try:
                line.sendall(b"G")
                if line.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("path", ["/quality", "/status", "/metrics", "/none"])
def test_a_browser_runs_nothing_that_is_in_an_answer(port: int, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    with connection.getresponse() as answer:
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    connection.close()


@pytest.mark.parametrize("refused", ["request", "limit"])
def test_a_thread_that_cannot_start_costs_its_connection_and_no_other(
    port: int, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the limit of a cgroup's processes: Python then raises RuntimeError("can't start new thread")."""
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        is_limit = isinstance(thread, threading.Timer)
        if is_limit == (refused == "limit"):
            msg = "can't start new thread"
            raise RuntimeError(msg)
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        for _ in range(CONNECTIONS + 1):
            with socket.create_connection((HOST, port), 30) as line:
                assert line.recv(100) == b""
    with socket.create_connection((HOST, port), 30) as line:
        assert answer(line).startswith(b"HTTP/1.0 200")

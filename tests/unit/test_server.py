"""What a client of the metrics port can hold: so many connections, for so long."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from service.errors import SetupError
from service.monitoring import server
from service.monitoring.board import Board
from service.monitoring.metrics import Metrics
from service.monitoring.monitor import Monitor
from service.monitoring.server import CONNECTIONS, Server
from service.monitoring.status import Status

HOST = "127.0.0.1"


BOARD = Board([Monitor(Metrics(), Status("tidemark"))])


@pytest.fixture
def port() -> Iterator[int]:
    running = Server(BOARD, HOST, 0)
    yield running.port
    running.close()


@pytest.mark.parametrize("address", ["nowhere.invalid", "192.0.2.1", "a..b", "a" * 64])
def test_an_address_that_is_none_of_this_host_is_named(address: str) -> None:
    with pytest.raises(
        SetupError, match=rf"metrics\.port = 9: {address}:9 cannot be listened on \(.+metrics\.address must be"
    ):
        Server(BOARD, address, 9)


def answer(line: socket.socket) -> bytes:
    """The whole answer: head and body may come in packets of their own."""
    line.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
    return b"".join(iter(lambda: line.recv(1000), b""))


@pytest.mark.hostile
@pytest.mark.quick
def test_a_silent_connection_gives_way_to_one_more_and_connections_with_a_request_do_not(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The liveness of a pod must not hang on who else has connected."""
    entered, leave = threading.Semaphore(0), threading.Event()
    document = Monitor.document

    def held(monitor: Monitor) -> Any:
        entered.release()
        assert leave.wait(60)
        return document(monitor)

    monkeypatch.setattr(Monitor, "document", held)
    with ExitStack() as open_lines:
        lines = [open_lines.enter_context(socket.create_connection((HOST, port), 30)) for _ in range(CONNECTIONS)]
        assert answer(open_lines.enter_context(socket.create_connection((HOST, port), 30))).endswith(b"}\n")
        assert lines[0].recv(100) == b"", "it has waited longest"
        for line in lines[1:]:
            line.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            assert entered.acquire(timeout=30)
        one_more = open_lines.enter_context(socket.create_connection((HOST, port), 30))
        one_more.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        assert entered.acquire(timeout=30)
        with socket.create_connection((HOST, port), 30) as refused:
            assert refused.recv(100) == b"", "all are being answered"
        leave.set()
        for line in (*lines[1:], one_more):
            assert line.recv(100).startswith(b"HTTP/1.0 200")


@pytest.mark.hostile
@pytest.mark.quick
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
def test_a_thread_that_cannot_start_costs_one_call(port: int, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the limit of a cgroup's processes: Python then raises RuntimeError("can't start new thread")."""
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        is_limit = isinstance(thread, threading.Timer)
        if is_limit == (refused == "limit"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        for _ in range(CONNECTIONS + 1):
            with socket.create_connection((HOST, port), 30) as line:
                assert line.recv(100) == b""
    for _ in range(CONNECTIONS + 1):
        with socket.create_connection((HOST, port), 30) as line:
            assert answer(line).startswith(b"HTTP/1.0 200")


def get(port: int, *head: str) -> bytes:
    with socket.create_connection((HOST, port), 30) as line:
        line.sendall("\r\n".join(["GET /status HTTP/1.1", *head, "", ""]).encode("latin-1"))
        return b"".join(iter(lambda: line.recv(65_536), b""))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:9400",
        "10.1.2.3",
        "[::1]:9400",
        "[::1]",
        "localhost",
        "LOCALHOST:80",
        "tidemark:9400",
        "tidemark.fleet.svc:9400",
        "tidemark-0.tidemark.fleet.svc.cluster.local",
        "plant.local",
        "Tidemark.Example.com.:9400",
    ],
)
def test_prometheus_finds_the_pages_by_address_and_by_the_names_of_the_settings(host: str) -> None:
    running = Server(BOARD, HOST, 0, ["tidemark.example.com"])
    try:
        assert get(running.port, f"Host: {host}").startswith(b"HTTP/1.0 200")
    finally:
        running.close()


@pytest.mark.hostile
@pytest.mark.quick
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example:9400",
        "evil.example:127",
        "1.2.3.4.5",
        "evil.local.example",
        "evil.example.",
        "127.0.0.1, evil.example",
        "[evil.example]",
        "evil.example:[::1]",
        "a.b:",
        "évil",
        "xn--vil-9la.example",
        "x.svc\xa0",
    ],
)
def test_a_page_of_another_site_that_calls_this_address_its_own_reads_nothing(port: int, host: str) -> None:
    refused = get(port, f"Host: {host}")
    assert refused.startswith(b"HTTP/1.0 421"), refused[:80]
    assert b"epoch" not in refused
    with socket.create_connection((HOST, port), 30) as line:
        line.sendall(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
        assert b"".join(iter(lambda: line.recv(1_000), b"")).endswith(b'{"healthy": true}\n'), "a probe needs no name"


@pytest.mark.hostile
@pytest.mark.quick
def test_a_second_host_in_a_request_does_not_help(port: int) -> None:
    assert get(port, "Host: localhost", "Host: evil.example").startswith(b"HTTP/1.0 421")


@pytest.mark.hostile
@pytest.mark.quick
@pytest.mark.parametrize(
    "head", [["X: " + "x" * 20_000], [f"X{number}: {'x' * 1_000}" for number in range(90)], ["X:"] * 5_000]
)
def test_a_head_that_is_too_large_is_not_read(port: int, head: list[str]) -> None:
    with suppress(ConnectionError):  # what was not read resets the connection
        assert get(port, *head, "Host: localhost").startswith(b"HTTP/1.0 431")
    assert get(port, "Host: localhost").startswith(b"HTTP/1.0 200")


@pytest.mark.hostile
def test_silent_connections_hold_neither_a_probe_nor_a_thread(port: int) -> None:
    """Five thousand of one client, one after the other, each left open on its side."""
    with ExitStack() as open_lines:
        for number in range(5_000):
            open_lines.enter_context(socket.create_connection((HOST, port), 30))
            if number % 250 == 0:
                assert get(port, "Host: localhost").startswith(b"HTTP/1.0 200"), number
        threads = [each for each in threading.enumerate() if "process_request_thread" in each.name]
        assert len(threads) < 4 * CONNECTIONS

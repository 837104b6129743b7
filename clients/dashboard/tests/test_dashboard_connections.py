"""What clients without a token can hold of the dashboard: so many connections, for so long, and so much of the log."""

from __future__ import annotations

import logging
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from served import Server, free_port, options, serving, shared_answers, shared_server, wait

from tidemark_dashboard import connections
from tidemark_dashboard.command import Bounded
from tidemark_dashboard.connections import most
from tidemark_dashboard.options import Options

pytestmark = pytest.mark.hostile
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def has_ended(line: socket.socket) -> bool:
    with suppress(ConnectionError):
        return line.recv(1_000) == b""
    return True


@pytest.mark.quick
def test_the_connection_that_has_waited_longest_gives_way_and_one_with_a_request_does_not(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark_dashboard.command.most", lambda: 20)
    with serving(options) as served, ExitStack() as stack:
        port = port_of(served.url)
        events = stack.enter_context(httpx2.stream("GET", f"{served.url}/events/runbook", timeout=30))
        assert events.status_code == 404
        used = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        used.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        assert used.recv(1_000).startswith(b"HTTP/1.1 404")
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(40)]
        assert all(has_ended(line) for line in silent[:18])
        silent[-1].sendall(HEALTH)
        assert silent[-1].recv(1_000).startswith(b"HTTP/1.1 200")
        assert httpx2.get(f"{served.url}/healthz").status_code == 200


@pytest.mark.quick
@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nX: ",
        HEALTH + b"GET /healthz HTTP/1.1\r\nX: ",
        HEALTH,
    ],
    ids=["silent", "slow head", "slow second head", "kept alive"],
)
def test_a_head_has_its_time_whatever_comes_before_it(
    options: Options, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 1.0)
    with serving(options) as served, socket.create_connection(("127.0.0.1", port_of(served.url)), 0.1) as line:
        line.sendall(start)

        def is_over() -> bool:
            with suppress(TimeoutError):
                line.sendall(b"x" if start.endswith(b": ") else b"")
                return line.recv(10_000) == b""
            return False

        wait(lambda: has_raised(is_over), "the connection ends")


def has_raised(ask: object) -> bool:
    assert callable(ask)
    try:
        return bool(ask())
    except ConnectionError:
        return True


@pytest.mark.quick
def test_who_does_not_read_an_answer_has_its_time(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_S", 1.0)
    with serving(options) as served, socket.create_connection(("127.0.0.1", port_of(served.url)), 30) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        ask = b"GET /static/uplot/uPlot.iife.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with suppress(ConnectionError):
            line.sendall(ask * 200)
        wait(lambda: not served.listener.lines, "the connection ends")


@pytest.mark.quick
def test_who_goes_away_while_signing_in_leaves_no_traceback(
    options: Options, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    with serving(replace(options, token_file=tmp_path / "token")) as served:
        with socket.create_connection(("127.0.0.1", port_of(served.url)), 30) as line:
            line.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nto")
            wait(lambda: served.listener.lines and not served.listener.waiting, "the request is being answered")
        wait(lambda: not served.listener.lines, "the connection ends")
    assert caplog.text == ""


@pytest.mark.quick
def test_a_head_that_is_too_large_is_refused(options: Options) -> None:
    """As much as one read brings is taken: 256 KiB in asyncio."""
    with serving(options) as served:
        for headers in ([b"X: " + b"x" * 4_000_000], [b"X-%d: x" % number for number in range(300_000)]):
            with socket.create_connection(("127.0.0.1", port_of(served.url)), 30) as line:
                answer = b""
                with suppress(ConnectionError):
                    line.sendall(b"\r\n".join([b"GET /healthz HTTP/1.1", b"Host: localhost", *headers, b"", b""]))
                    answer = line.recv(1_000)
                assert answer[:12] in {b"", b"HTTP/1.1 400"}
        assert httpx2.get(f"{served.url}/healthz").status_code == 200


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


@pytest.mark.quick
def test_a_handshake_that_does_not_come_holds_no_place(
    options: Options, tls: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark_dashboard.command.most", lambda: 20)
    secure = replace(options, certificate=tls[0], key=tls[1])
    with serving(secure) as served, ExitStack() as stack:
        address = "127.0.0.1", port_of(served.url)
        silent = [stack.enter_context(socket.create_connection(address, 30)) for _ in range(60)]
        answer = httpx2.get(f"https://127.0.0.1:{address[1]}/healthz", verify=False)
        assert answer.status_code == 200
        assert has_ended(silent[0])
        monkeypatch.setattr(connections, "HEAD_S", 0.5)
        assert has_ended(stack.enter_context(socket.create_connection(address, 30)))


@pytest.mark.quick
def test_the_log_has_a_bounded_number_of_lines() -> None:
    bounded = Bounded()
    records = [logging.makeLogRecord({"msg": "line %d", "args": (number,)}) for number in range(10_000)]
    assert sum(map(bounded.filter, records)) == Bounded.LINES
    bounded._since_s -= 2 * Bounded.SECONDS
    assert bounded.filter(records[0])
    assert records[0].getMessage() == "line 0 (9950 lines before this one were left out)"


@contextmanager
def program(folder: Path, redis: str, files: int) -> Iterator[tuple[int, Path]]:
    """The real program with a token, as a process that may open so many files."""
    (folder / "token").write_text("0123456789abcdef")
    port, log = free_port(), folder / "log"
    command = [sys.executable, "-m", "tidemark_dashboard", "--redis", redis, "--service", "", "--port", str(port)]
    limit = ["prlimit", f"--nofile={files}:{files}"]
    with log.open("wb") as out:
        running = subprocess.Popen([*limit, *command, "--token-file", str(folder / "token")], stdout=out, stderr=out)
    try:
        wait(lambda: answers(port), "the page answers")
        yield port, log
    finally:
        running.terminate()
        running.wait(60)


def answers(port: int) -> bool:
    with suppress(httpx2.HTTPError):
        return httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=10).status_code == 200
    return False


@pytest.mark.parametrize("files", [256, 1_024])
def test_five_thousand_silent_connections_neither_shut_the_page_nor_fill_its_log(
    shared_server: Server, tmp_path: Path, files: int
) -> None:
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8_000, own[1]), own[1]))
    try:
        with program(tmp_path, shared_server.url, files) as (port, log), ExitStack() as stack:
            for number in range(5_000):
                line = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
                if number % 3 == 0:
                    with suppress(ConnectionError):
                        line.sendall(
                            b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " if number % 2 else b"\x16\x03nonsense\r\n\r\n"
                        )
                if number % 250 == 249:
                    assert answers(port), number
            assert log.stat().st_size < 100_000, log.read_bytes()[:2_000]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, own)

"""The proxy passes everything on, in order, and later by as much as it is told."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from load.servers.proxy import Proxy
from load.servers.server_process import HOST


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while piece := self.request.recv(1 << 16):
            self.request.sendall(piece)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with socketserver.ThreadingTCPServer((HOST, 0), _Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Proxy(HOST, server.server_address[1]) as running:
            yield running
        server.shutdown()


def echoed(line: socket.socket, sent: bytes) -> bytes:
    got = b""
    while len(got) < len(sent) and (piece := line.recv(1 << 16)):
        got += piece
    return got


def test_bytes_come_back_whole_and_in_order_whatever_the_delay(proxy: Proxy) -> None:
    sent = bytes(range(256)) * 8_000
    with socket.create_connection((HOST, proxy.port), timeout=10) as line:
        for delay_ms in (0.0, 20.0, 0.0):
            proxy.delay_ms = delay_ms
            writer = threading.Thread(target=line.sendall, args=(sent,))
            writer.start()
            assert echoed(line, sent) == sent
            writer.join()


def test_every_answer_comes_later_and_those_under_way_do_not_wait_for_each_other(proxy: Proxy) -> None:
    proxy.delay_ms = 150.0
    with socket.create_connection((HOST, proxy.port), timeout=10) as line:
        began = time.monotonic()
        line.sendall(b"one")
        assert echoed(line, b"one") == b"one"
        assert time.monotonic() - began >= 0.15
        began = time.monotonic()
        for _ in range(20):
            line.sendall(b"more")
        assert echoed(line, b"more" * 20) == b"more" * 20
        assert 0.15 <= time.monotonic() - began < 20 * 0.15


def test_the_end_of_either_side_is_the_end_of_both(proxy: Proxy) -> None:
    line = socket.create_connection((HOST, proxy.port), timeout=10)
    line.sendall(b"x")
    assert echoed(line, b"x") == b"x"
    line.shutdown(socket.SHUT_WR)
    assert line.recv(1) == b""
    line.close()
    with socket.create_connection((HOST, proxy.port), timeout=10) as again:
        again.sendall(b"y")
        assert echoed(again, b"y") == b"y"

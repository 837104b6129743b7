"""HTTP for /metrics, /healthz, /readyz, /status and /quality.

Whoever reaches the port can hold at most CONNECTIONS connections, each for at most REQUEST_S.
"""

import json
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from service.errors import SetupError
from service.monitoring.metrics import Metrics
from service.monitoring.quality_page import Page
from service.monitoring.status import Status

CONNECTIONS = 32
REQUEST_S = 10.0
"""Limit of one request and its answer in all."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A browser runs nothing that is in an answer, and fetches nothing for it."""


class Server:
    """HTTP for /metrics, /healthz, /readyz, /status and /quality in a daemon thread; `port` is the one it listens on."""

    def __init__(self, metrics: Metrics, status: Status, address: str, port: int, quality: Page | None = None) -> None:
        """Raises SetupError when the address and port cannot be had."""
        try:
            self._http = _Http((address, port), metrics, status, quality or Page(is_on=False))
        except OSError as error:
            what = f"metrics.port = {port}: {address}:{port} cannot be listened on ({error.strerror})"
            raise SetupError(what, remedy="Stop what holds it, or choose another port; 0 takes a free one") from error
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(target=self._http.serve_forever, name="tidemark-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingHTTPServer):
    """A thread for each of at most CONNECTIONS connections; one more is closed unanswered."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], metrics: Metrics, status: Status, quality: Page) -> None:
        self.metrics = metrics
        self.status = status
        self.quality = quality
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A socket's own timeout begins anew with each byte.
        end = threading.Timer(REQUEST_S, _shut, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that hangs up before its answer is there is no fault of ours, and not worth a traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Http

    def do_GET(self) -> None:
        metrics = self.server.metrics
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(HTTPStatus.OK, generate_latest(metrics.registry), CONTENT_TYPE_LATEST)
        elif path == "/healthz":
            self._answer_state("healthy", metrics.unhealthy())
        elif path == "/readyz":
            self._answer_state("ready", metrics.unready())
        elif path == "/status":
            self._answer_json(HTTPStatus.OK, self.server.status.document())
        elif path == "/quality":
            self._answer(*self.server.quality.answer())
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"/metrics, /healthz, /readyz, /status, /quality\n", "text/plain")

    def _answer_state(self, word: str, reason: str) -> None:
        notes = self.server.metrics.notes if word == "ready" else {}
        body = {word: not reason, **({"reason": reason} if reason else {}), **({"notes": notes} if notes else {})}
        self._answer_json(HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, body)

    def _answer_json(self, status: HTTPStatus, body: Mapping[str, Any]) -> None:
        self._answer(status, json.dumps(body).encode() + b"\n", "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Scrapes are not worth a line each."""

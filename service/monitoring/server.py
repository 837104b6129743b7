"""The HTTP server of /metrics, /healthz, /readyz, /status and /quality. It limits the number and the time of connections."""

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
"""Limit of one request and its answer together."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""With this policy a browser runs and fetches nothing that an answer contains."""


class Server:
    """Serves in a daemon thread; `port` is the port it listens on."""

    def __init__(self, metrics: Metrics, status: Status, address: str, port: int, quality: Page | None = None) -> None:
        """Start serving. Raises SetupError when the server cannot listen on the address and port."""
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
    """Serves each of at most CONNECTIONS connections in a thread; closes further connections without an answer."""

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
        # The timeout of a socket restarts with each byte.
        end = threading.Timer(REQUEST_S, _shut, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that closes its connection before the answer; print a traceback of other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # the connection is closed already
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
        """Log no requests."""

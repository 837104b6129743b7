"""The HTTP server of the service's pages (service/monitoring/home_page.py). It limits the number and the time of connections."""

import json
import socket
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from service.errors import SetupError
from service.monitoring import attention, home_page
from service.monitoring.board import LABEL, Board
from service.monitoring.monitor import Monitor
from service.monitoring.pages import NO_PIPELINE, host_port

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Answer = tuple[HTTPStatus, bytes, str]
"""The status, the body and its content type."""

CONNECTIONS = 32
REQUEST_S = 10.0
"""Limit of one request and its answer together."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""With this policy a browser runs and fetches nothing that an answer contains."""


class Server:
    """Serves in a daemon thread; `port` is the port it listens on."""

    def __init__(self, board: Board, address: str, port: int) -> None:
        """Start serving. Raises SetupError when the server cannot listen on the address and port."""
        try:
            self._http = _Http((address, port), _pages(board))
        except OSError as error:
            what = f"metrics.port = {port}: {host_port(address, port)} cannot be listened on ({error.strerror})"
            raise SetupError(what, remedy="Stop what holds it, or choose another port; 0 takes a free one") from error
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(target=self._http.serve_forever, name="tidemark-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingWSGIServer):
    """Serves each of at most CONNECTIONS connections in a thread; closes further connections without an answer."""

    def __init__(self, address: tuple[str, int], pages: "WSGIApplication") -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.set_app(pages)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:  # `::` takes IPv4, too, whatever the system's default is
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can start, so none gives the permit back
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # The timeout of a socket restarts with each byte.
        end = threading.Timer(REQUEST_S, _shut, (request,))
        end.daemon = True
        try:
            end.start()
            super().process_request_thread(request, client_address)
        except RuntimeError:  # no thread can start that would limit the time
            self.shutdown_request(request)
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


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log no requests."""


def _pages(board: Board) -> "WSGIApplication":
    everything: WSGIApplication = make_wsgi_app(board.registry)

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        def start(line: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            return start_response(line, [*headers, ("Content-Security-Policy", POLICY)], *error)

        path, name = environ["PATH_INFO"], parse_qs(environ.get("QUERY_STRING", "")).get(LABEL, [None])[-1]
        try:
            monitor = board.chosen(name)
        except KeyError:
            names = ", ".join(each.name for each in board.monitors)
            code, body, kind = _missing(f"{NO_PIPELINE}. There are: {names}\n")
        else:
            if path == "/metrics" or environ["REQUEST_METHOD"] != "GET":  # the exposition refuses other methods
                exposition = everything if monitor is None else make_wsgi_app(board.registry_of(monitor))
                return exposition(environ, start)
            code, body, kind = _of_all(board, path) if monitor is None else _of_one(board, monitor, path)
        start(f"{code.value} {code.phrase}", [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    return answer


def _of_one(board: Board, monitor: Monitor, path: str) -> Answer:  # noqa: PLR0911 - one for each page
    metrics = monitor.metrics
    if path == "/healthz":
        return _state("healthy", metrics.unhealthy(), {})
    if path == "/readyz":
        return _state("ready", metrics.unready(), metrics.notes)
    if path == "/status":
        return _json(HTTPStatus.OK, monitor.document())
    if path == attention.PATH:
        return _json(HTTPStatus.OK, monitor.conditions.document())
    if path == "/quality":
        return monitor.page.answer()
    if path == "/":
        query = "" if board.is_single else f"?{LABEL}={monitor.name}"
        page = home_page.home(monitor.document(), monitor.conditions.document(), metrics.unready(), query)
        return HTTPStatus.OK, page, home_page.TYPE
    return _no_page()


def _of_all(board: Board, path: str) -> Answer:
    if path == "/healthz":
        return _state("healthy", board.unhealthy(), {})
    if path == "/readyz":
        return _state("ready", board.unready(), board.notes())
    if path == "/status":
        return _json(HTTPStatus.OK, board.document())
    if path == attention.PATH:
        return _json(HTTPStatus.OK, board.conditions())
    if path in {"/", "/quality"}:
        states = [(each.name, each.status.state, _troubles(each)) for each in board.monitors]
        return HTTPStatus.OK, home_page.several(path, states), home_page.TYPE
    return _no_page()


def _troubles(monitor: Monitor) -> str:
    """Return why a pipeline is not ready, and which of its alerts fire; "" for nothing."""
    active = attention.active(monitor.conditions.document())
    firing = dict.fromkeys(str(each["alert"]) for each, alert in active if alert["state"] == "firing")
    return "; ".join(filter(None, [monitor.metrics.unready(), *firing]))


def _no_page() -> Answer:
    return _missing(f"There is no such page. There are: {', '.join(['/', *dict(home_page.PLACES)])}\n")


def _missing(text: str) -> Answer:
    return HTTPStatus.NOT_FOUND, text.encode(), "text/plain"


def _state(word: str, reason: str, notes: Mapping[str, str]) -> Answer:
    body = {word: not reason, **({"reason": reason} if reason else {}), **({"notes": dict(notes)} if notes else {})}
    return _json(HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, body)


def _json(status: HTTPStatus, body: Mapping[str, Any]) -> Answer:
    return status, json.dumps(body).encode() + b"\n", "application/json"

"""The HTTP server of the service's pages (service/monitoring/home_page.py). It limits the number and the time of connections.

A page of another site cannot read an answer: a browser gives a name as Host that only its owner's DNS resolves to this address
("DNS rebinding"), and such a name is refused. IP addresses, names without a dot and names below PRIVATE are in nobody's DNS.
"""

import http.client
import ipaddress
import json
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from service.monitoring import attention, course, home_page
from service.monitoring.board import LABEL, Board
from service.monitoring.monitor import Monitor
from service.monitoring.pages import NO_PIPELINE, not_listening

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Answer = tuple[HTTPStatus, bytes, str]
"""The status, the body and its content type."""

CONNECTIONS = 32
HEAD_BYTES = 16_384
"""Of a request line and its headers together."""
PRIVATE = ("localhost", "local", "internal", "svc", "cluster.local", "home.arpa")
"""Domains that no registrar sells."""
REQUEST_S = 10.0
"""Limit of one request and its answer together."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""With this policy a browser runs and fetches nothing that an answer contains."""
GUARDS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


class Server:
    """Serves in a daemon thread; `port` is the port it listens on."""

    def __init__(self, board: Board, address: str, port: int, hosts: Collection[str] = ()) -> None:
        """Start serving under the names `hosts`, too. Raises SetupError when the server cannot listen on the address and port."""
        try:
            self._http = _Http((address, port), _pages(board), {name.lower() for name in (*hosts, address)})
        except (OSError, UnicodeError) as error:
            raise not_listening(address, port, error) from error
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(target=self._http.serve_forever, name="tidemark-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingWSGIServer):
    """Serves each of at most CONNECTIONS connections in a thread. One more ends the one that has waited longest for its request,
    and is closed itself if all have sent theirs: who connects and is silent holds no place.
    """

    request_queue_size = 128
    """Connections that wait to be accepted. With the default, 5, a burst makes a probe wait a second until TCP connects again."""

    def __init__(self, address: tuple[str, int], pages: "WSGIApplication", hosts: set[str]) -> None:
        self._hosts = hosts
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, None] = {}
        self._answering: set[socket.socket] = set()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.set_app(pages)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:  # `::` takes IPv4, too, whatever the system's default is
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
        self._hosts |= {self.server_name.lower(), socket.gethostname().lower()}  # this host's names

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_full = len(self._waiting) + len(self._answering) >= CONNECTIONS
            oldest = next(iter(self._waiting), None) if is_full else None
            if not is_full or oldest is not None:
                self._waiting[request] = None
            if oldest is not None:
                del self._waiting[oldest]
                _shut(oldest)
        if is_full and oldest is None:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can start, so none gives the place back
            self._leave(request)
            self.shutdown_request(request)

    def answer(self, request: Any) -> bool:
        """Count a connection among those that are answered; False for one that had to give way to another."""
        with self._lock:
            is_open = request in self._waiting
            if is_open:
                del self._waiting[request]
                self._answering.add(request)
            return is_open

    def allows(self, host: str) -> bool:
        """Whether `host`, the value of the header, is an address of this service and no name of another site."""
        name = host.lower()
        if not name.endswith("]"):
            name = name.rpartition(":")[0] or name
        name = name.strip("[]").removesuffix(".")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            is_private = name.isascii() and ("." not in name or name.endswith(tuple(f".{each}" for each in PRIVATE)))
            return is_private or name in self._hosts
        return True

    def _leave(self, request: Any) -> None:
        with self._lock:
            self._waiting.pop(request, None)
            self._answering.discard(request)

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
            self._leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that closes its connection before the answer; print a traceback of other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # the connection is closed already
        connection.shutdown(socket.SHUT_RDWR)


class _Head:
    """The lines of a request's head: HEAD_BYTES in all, where http.client would read a hundred lines of 64 KiB."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, HEAD_BYTES

    def readline(self, size: int) -> bytes:
        line: bytes = self._file.readline(min(size, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("head")  # answered with 431
        return line

    def close(self) -> None:
        self._file.close()


class _Handler(WSGIRequestHandler):
    server: _Http
    rfile: Any

    def setup(self) -> None:
        super().setup()
        self.rfile = _Head(self.rfile)

    def parse_request(self) -> bool:
        """Read the head. False if no answer is to follow: the connection gave way to another, or an error was sent."""
        if not super().parse_request() or not self.server.answer(self.connection):
            return False
        if self.path == "/healthz":  # no probe of a supervisor fails for a name, and the answer is one word
            return True
        foreign = [host for host in self.headers.get_all("Host", []) if not self.server.allows(host)]
        if foreign:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, f"metrics.hosts does not have {foreign[0][:100]!a}")
        return not foreign

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log no requests."""


def _pages(board: Board) -> "WSGIApplication":
    everything: WSGIApplication = make_wsgi_app(board.registry)

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        def start(line: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            return start_response(line, [*headers, *GUARDS], *error)

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


_DOCUMENTS: Mapping[str, Callable[[Monitor], Mapping[str, Any]]] = {
    "/status": lambda monitor: monitor.document(),
    attention.PATH: lambda monitor: monitor.conditions.document(),
    course.PATH: lambda monitor: monitor.course(),
}
"""The pages in JSON."""


def _of_one(board: Board, monitor: Monitor, path: str) -> Answer:
    metrics = monitor.metrics
    if path == "/healthz":
        return _state("healthy", metrics.unhealthy(), {})
    if path == "/readyz":
        return _state("ready", metrics.unready(), metrics.notes)
    if path in _DOCUMENTS:
        return _json(HTTPStatus.OK, _DOCUMENTS[path](monitor))
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
    if path in _DOCUMENTS:
        more = {"control": board.control} if path == "/status" else {}
        return _json(
            HTTPStatus.OK, {"pipelines": {each.name: _DOCUMENTS[path](each) for each in board.monitors}, **more}
        )
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

"""HTTP servers in this process: the receivers of notifications and traces, the schema registry, and the token endpoint."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from load.servers.server_process import HOST, Started, free_port


class Handler(BaseHTTPRequestHandler):
    """Answers GET and POST by `answer`, and writes no log."""

    def answer(self) -> None:
        """Answer the request."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_GET  # noqa: N815 - the server's names

    def body(self) -> bytes:
        """Return the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def accept(self) -> None:
        """Answer with status 200 and no body."""
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_json(self, status: int, document: Any, content_type: str = "application/json") -> None:
        """Answer with a document."""
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write no log."""


class WebServer(Started):
    """Listens on a port of loopback while it is started, with a thread for each request. It may be started again.

    With `tls` it answers by TLS.
    """

    def __init__(self, port: int, handler: type[Handler], tls: ssl.SSLContext | None = None) -> None:
        self._port, self._handler, self._tls = port, handler, tls
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        self._server = ThreadingHTTPServer((HOST, self._port), self._handler)
        self._server.daemon_threads = True
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


@contextmanager
def answering(respond: Callable[[Handler], object]) -> Iterator[str]:
    """Have a function answer all requests to a port of loopback; yield its address, http://host:port."""

    class Asked(Handler):
        def answer(self) -> None:
            respond(self)

    port = free_port()
    with WebServer(port, Asked):
        yield f"http://{HOST}:{port}"

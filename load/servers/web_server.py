"""HTTP servers in this process: the receivers of notifications and traces, and the schema registry."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from load.servers.server_process import HOST, Started


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

    def log_message(self, *_: object) -> None:
        """Write no log."""


class WebServer(Started):
    """Listens on a port of loopback while it is started, with a thread for each request. It may be started again."""

    def __init__(self, port: int, handler: type[Handler]) -> None:
        self._port, self._handler = port, handler
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        self._server = ThreadingHTTPServer((HOST, self._port), self._handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

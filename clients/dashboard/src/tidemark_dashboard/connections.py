"""How many connections the page has, and how long each may take. uvicorn limits neither those that are silent nor the head of a
request (0.54), and asyncio logs a traceback for each connection that finds no file descriptor (3.11).
"""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""From the connection, or the last answer, to the end of the next request's head; a TLS handshake is part of it."""
ANSWER_S = 30.0
"""From there to the end of the answer, except of events, which have no end."""
EVENTS = ("/events/", "/api/v1/events/")
BACKLOG = 100
"""Connections that asyncio accepts in one turn of its loop."""


def most() -> int:
    """Return how many connections there may be: half of the files that the process may open, and at most a thousand."""
    return min(1_000, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 - BACKLOG))


class Listener(socket.socket):
    """Accepts at most `limit` connections. One more ends the one that has waited longest for its request, and is closed itself if
    all have sent theirs.
    """

    def __init__(self, address: str, port: int, limit: int) -> None:
        super().__init__(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self._limit = limit
        self.lines: dict[int, Line] = {}
        self.waiting: dict[int, Line] = {}
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind((address, port))

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection. Raises BlockingIOError if there is none, ConnectionAbortedError for one too many."""
        accepted, address = super().accept()
        line = Line(self, accepted)
        if len(self.lines) > self._limit:
            oldest = next(iter(self.waiting.values()))
            oldest.shut()
            if oldest is line or len(self.lines) > self._limit + BACKLOG:
                line.close()
                raise ConnectionAbortedError("as many connections as there may be")
        return line, address


class Line(socket.socket):
    """A connection of a Listener, until it is closed."""

    def __init__(self, listener: Listener, accepted: socket.socket) -> None:
        super().__init__(fileno=accepted.detach())
        self._listener, self._number = listener, self.fileno()
        self._end: asyncio.TimerHandle | None = None
        listener.lines[self._number] = self
        self.wait()

    def wait(self) -> None:
        """Wait for a request, for HEAD_S."""
        self._listener.waiting[self._number] = self
        self._limit(HEAD_S)

    def answer(self, path: str) -> None:
        """Answer the request for `path`, for ANSWER_S."""
        self._listener.waiting.pop(self._number, None)
        self._limit(None if path.startswith(EVENTS) else ANSWER_S)

    def shut(self) -> None:
        """End the connection; its protocol then closes it."""
        self._listener.waiting.pop(self._number, None)
        self._limit(None)
        try:
            self.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended already
            return

    def close(self) -> None:
        if self._listener.lines.get(self._number) is self:
            del self._listener.lines[self._number]
            self._listener.waiting.pop(self._number, None)
            self._limit(None)
        super().close()

    def _limit(self, seconds: float | None) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.shut)


class Http(H11Protocol):
    """uvicorn's protocol, which has each request and its answer limited in time."""

    listener: Listener

    def handle_events(self) -> None:
        former = self.cycle
        super().handle_events()
        line = self._line()
        if line is not None and self.cycle is not former and not self.cycle.response_complete:
            line.answer(str(self.scope["path"]))

    def on_response_complete(self) -> None:
        line = self._line()
        if line is not None:
            line.wait()
        super().on_response_complete()

    def _line(self) -> Line | None:
        return self.listener.lines.get(self.transport.get_extra_info("socket").fileno())


def protocol(of: Listener) -> type[Http]:
    """Return the protocol of a listener's connections."""

    class Bound(Http):
        listener = of

    return Bound

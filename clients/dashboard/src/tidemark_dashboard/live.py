"""Pages that change: each is rendered once for all browsers that show it, and each browser gets the parts that have changed."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tidemark_client import Progress, TidemarkClientError
from tidemark_dashboard.sources import Sources, Topic

LEAST_S = 1.0
"""Between two renderings of a page."""
REST = 39.0
"""After each rendering all pages rest for so many times its CPU time: together they take a fortieth of a core."""
LONGEST_S = 30.0
"""No rest is longer."""
BEAT_S = 5.0
"""Between two messages to a browser, at most: one that hears nothing for longer has lost the connection."""
MOST = 200
"""Browsers at once."""

_log = logging.getLogger("tidemark_dashboard")
Parts = Mapping[str, str]


@dataclass(frozen=True)
class Rendered:
    """The parts of a page as HTML by the id of their element, and what the page depends on."""

    parts: Parts
    topics: frozenset[Topic]


@dataclass(eq=False)
class Browser:
    """One connection: the parts that it has not been sent yet. A slow one gets the newest of each part only."""

    pending: dict[str, str] = field(default_factory=dict)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, parts: Parts) -> None:
        self.pending.update(parts)
        self.ready.set()


class Live:
    """One page, as an address names it. It is read while a browser shows it."""

    def __init__(
        self,
        sources: Sources,
        render: Callable[[], Awaitable[Rendered]],
        freshness: Callable[[Progress | None], Parts],
        turn: asyncio.Lock,
    ) -> None:
        """`freshness` is given the progress that the page is as of, None for the newest."""
        self._sources, self._render, self._freshness, self._turn = sources, render, freshness, turn
        self._changed = asyncio.Event()
        self._topics: frozenset[Topic] = frozenset()
        self._sent: dict[str, str] = {}
        self._was_old: bool | None = None
        self._as_of: Progress | None = None
        self._known: Progress | None = None
        self._is_read = self._has_failed = False
        self.browsers: set[Browser] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, browser: Browser) -> None:
        """Send the page to a browser from now on, all of its parts first."""
        self.browsers.add(browser)
        browser.put(self._sent)
        if self._task is None:
            self._sources.on_pulse(self._pulse, on=True)
            self._sources.want()
            self._task = asyncio.create_task(self._run())

    def remove(self, browser: Browser) -> None:
        """Send it nothing any more. The last browser ends the reading."""
        self.browsers.discard(browser)
        if not self.browsers and self._task is not None:
            self._task.cancel()
            self._task = None
            self._sources.on_pulse(self._pulse, on=False)
            self._sources.subscribe(self._changed.set, (), self._topics)
            self._topics = frozenset()

    async def _run(self) -> None:
        while self.browsers:  # a client may turn the cancellation into an error of its own
            async with self._turn:
                used_s = time.thread_time()  # a Redis that hangs takes time, and no CPU
                await self._refresh()
                await asyncio.sleep(min(LONGEST_S, REST * (time.thread_time() - used_s)))
            await asyncio.sleep(LEAST_S)
            await self._changed.wait()

    async def _refresh(self) -> None:
        self._changed.clear()
        self._is_read, progress = False, self._sources.recent
        try:
            rendered = await self._render()
        except TidemarkClientError:  # shown by the freshness; what was sent stays on the page
            self._changed.set()
            return
        except Exception:
            if not self._has_failed:
                _log.exception("A page cannot be read. It is tried again as often as a page is read")
            self._has_failed = True
            self._changed.set()
            return
        if not self.browsers:
            return
        self._is_read, self._has_failed = True, False
        self._as_of = self._known = progress
        if rendered.topics != self._topics:
            self._sources.subscribe(self._changed.set, rendered.topics - self._topics, self._topics - rendered.topics)
            self._topics = rendered.topics
        self._send(rendered.parts)

    def _pulse(self) -> None:
        was_old, self._was_old = self._was_old, self._sources.freshness().is_old
        known, self._known = self._known, self._sources.progress
        if self._is_read and not self._changed.is_set():
            self._as_of = known  # the feed has named by now what had changed up to the last pulse: nothing of this page
        self._send(self._freshness(self._as_of))
        if was_old is not None and was_old != self._was_old:
            self._changed.set()  # a source came back: what changed meanwhile may not be announced

    def _send(self, parts: Parts) -> None:
        changed = {name: html for name, html in parts.items() if self._sent.get(name) != html}
        self._sent.update(changed)
        if changed:
            for browser in self.browsers:
                browser.put(changed)


class Hub:
    """All pages that browsers show."""

    def __init__(self) -> None:
        self._pages: dict[str, Live] = {}
        self.turn = asyncio.Lock()
        self.is_closing = False

    @property
    def browsers(self) -> int:
        return sum(len(page.browsers) for page in self._pages.values())

    def answer(
        self, request: Request, address: str, make: Callable[[], Live], write: Callable[[Parts], str]
    ) -> Response:
        """The server-sent events of a page for one browser, until it goes away or signs out. `write` makes events of parts."""
        events, headers = "text/event-stream", {"X-Accel-Buffering": "no"}
        if request.method == "HEAD":  # static/live.js asks whether the page leads to the sign-in
            return Response(media_type=events, headers=headers)
        stream = self._stream(address, make, request.scope.get("is_signed_in", lambda: True), write)
        return StreamingResponse(stream, media_type=events, headers=headers)

    async def _stream(
        self, address: str, make: Callable[[], Live], is_signed_in: Callable[[], bool], write: Callable[[Parts], str]
    ) -> AsyncIterator[bytes]:
        page = self._pages.get(address)
        if page is None:
            page = self._pages[address] = make()
        browser = Browser()
        page.add(browser)
        try:
            yield b"retry: 1000\n\n"
            while not self.is_closing:
                with suppress(TimeoutError):
                    await asyncio.wait_for(browser.ready.wait(), BEAT_S)
                if not is_signed_in():
                    return
                browser.ready.clear()
                parts, browser.pending = browser.pending, {}
                yield write(parts).encode("utf-8", "replace")
        finally:
            page.remove(browser)
            if not page.browsers:
                self._pages.pop(address, None)


def events_of(parts: Parts) -> str:
    """The event of parts of a page, or a beat where there is none."""
    return _event("parts", parts) if parts else _event("beat", {})


def _event(name: str, data: Parts) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"

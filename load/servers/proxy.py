"""A TCP proxy on loopback that can make a server slow: what it answers comes `delay_ms` later, every byte of it.

    with Proxy("127.0.0.1", redis.port) as proxy:
        proxy.delay_ms = 200    # from now on

With `tls` it also ends TLS, for a server that is built without it; PostgreSQL's clients ask for TLS in the connection.

Latency, not bandwidth: answers under way do not wait for each other, so a client that pipelines pays once a round trip. The
server itself stays as fast as it was for others.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Coroutine
from typing import Any, Self

from load.servers.server_process import HOST, free_port

_CHUNK = 1 << 16
_POSTGRES_ASKS = bytes.fromhex("0000000804d2162f")
"""PostgreSQL's SSLRequest; `S` is the answer, and TLS begins."""


class Proxy:
    """Listens on `port` of loopback for `host`:`target_port`; `delay_ms` may be changed at any time."""

    def __init__(
        self, host: str, target_port: int, port: int = 0, *, tls: ssl.SSLContext | None = None, postgres: bool = False
    ) -> None:
        self.port = port or free_port()
        self.delay_ms = 0.0
        self._target = host, target_port
        self._tls, self._postgres = tls, postgres
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._wait(
            asyncio.start_server(self._serve, HOST, self.port, ssl=None if self._postgres else self._tls)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.CancelledError):
            if self._postgres and self._tls is not None:
                if await reader.readexactly(len(_POSTGRES_ASKS)) != _POSTGRES_ASKS:
                    return  # a client that does not insist on TLS
                writer.write(b"S")
                await writer.start_tls(self._tls)
            answers, requests = await asyncio.open_connection(*self._target)
            with contextlib.closing(requests):
                ways = [asyncio.create_task(_pump(reader, requests)), asyncio.create_task(self._delay(answers, writer))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)

    async def _delay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes, each piece `delay_ms` after it came, in order."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def send() -> None:
            while (due_piece := await waiting.get())[1]:
                due, piece = due_piece
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                writer.write(piece)
                await writer.drain()

        sending = asyncio.create_task(send())
        try:
            while piece := await reader.read(_CHUNK):
                waiting.put_nowait((self._loop.time() + self.delay_ms / 1000, piece))
            waiting.put_nowait((0.0, b""))  # the end, after all that is on its way
            await sending
        finally:
            sending.cancel()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_CHUNK):
        writer.write(piece)
        await writer.drain()

"""The one reader of the change feed: it runs while a page is open, and tells the indexes and the pages what has changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from tidemark_client import AsyncClient, ChangesLostError, ContractError, Place, TidemarkClientError
from tidemark_client.feed import most
from tidemark_dashboard.health import Health

BLOCK_S = 1.0
RETRY_S = 1.0
REST_S = 0.05
"""After an answer: a batch has many entries, and is written for longer than one of them is read."""
BEHIND_S = 10.0
"""After so long of full answers the reader gives up the entries in between, and everything is read again."""


class Feed:
    """`on_places` gets the places of each entry; `on_lost` is called when entries were not read, so that anything may differ."""

    def __init__(
        self,
        client: AsyncClient,
        health: Health,
        wanted: asyncio.Event,
        on_places: Callable[[Sequence[Place]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._client, self._health, self._wanted = client, health, wanted
        self._on_places, self._on_lost = on_places, on_lost
        self._last: str | None = None

    async def run(self) -> None:
        """Read until the task is cancelled."""
        behind_since: float | None = None
        while True:
            if not self._wanted.is_set():
                self._last, behind_since = None, None
                await self._wanted.wait()
            try:
                entries, is_full = await self._read()
            except ChangesLostError:
                self._last = None
                continue
            except TidemarkClientError as error:
                if isinstance(error, ContractError):  # Redis answers, without values of a service
                    self._health.answered(str(error))
                else:
                    self._health.failed(str(error))
                await asyncio.sleep(RETRY_S)
                continue
            self._health.answered("" if entries else None)  # an empty feed does not say that there are values
            behind_since = (behind_since or time.monotonic()) if is_full else None
            if behind_since is not None and time.monotonic() - behind_since > BEHIND_S:
                self._last, behind_since = None, None
            # A long backlog leaves the other tasks their turn.
            await asyncio.sleep(0 if is_full else REST_S)

    async def _read(self) -> tuple[int, bool]:
        """Read the next entries; returns how many there were, and whether each shard gave as many as it gives at once."""
        if self._last is None:
            self._last = await self._client.end_of_feed()
            self._on_lost()
        shards = self._last.count(",") + 1
        changes = await self._client.changes(self._last, BLOCK_S)
        for change in changes:
            self._last = change.id
            self._on_places(change.places)
        return len(changes), len(changes) >= shards * most(shards)

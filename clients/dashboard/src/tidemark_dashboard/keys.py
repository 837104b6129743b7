"""The keys of the views that a page shows, with the start of each key's newest window, in memory.

They are read once for each view (ZSCAN) and kept current by the change feed, which names each window that is written.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right

from tidemark_client import AsyncClient, ContractError, KeyTextError, View
from tidemark_client.calendars import zone
from tidemark_client.names import Names
from tidemark_client.steps import Query, Steps
from tidemark_dashboard.fleet import LAST

FORGET_MS = 60_000
"""Of event time between two searches for keys that have expired."""


class Keys:
    """The keys of one view."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._sorted: list[str] = []
        self._is_sorted = True
        self._forgotten = 0
        self._turn = asyncio.Lock()
        self.is_complete = False

    def __len__(self) -> int:
        return len(self._newest)

    async def read(self, client: AsyncClient, view: View) -> None:
        """Read all keys, unless they are read. What the feed names meanwhile is kept."""
        async with self._turn:
            if self.is_complete:
                return
            async for page in client.key_pages(view.name):
                for key, start in page:
                    self.touch(key, start)
            self.is_complete = True

    def touch(self, key: str, start: int) -> bool:
        """Note a window of a key; returns whether the key is new."""
        newest = self._newest.get(key)
        if newest is None or start > newest:
            self._newest[key] = start
        if newest is None:
            self._is_sorted = False
        return newest is None

    def forget(self, before: int) -> None:
        """Remove the keys whose newest window starts before that: it has expired. At most once in FORGET_MS."""
        if before < self._forgotten + FORGET_MS:
            return
        self._forgotten = before
        gone = [key for key, start in self._newest.items() if start < before]
        for key in gone:
            del self._newest[key]
        self._is_sorted = self._is_sorted and not gone

    def page(
        self, prefix: str, size: int, *, after: str = "", before: str = ""
    ) -> tuple[list[tuple[str, int]], int, bool, bool]:
        """A page of keys in their order, how many have the prefix, and whether there are keys before and behind the page."""
        if not self._is_sorted:
            self._sorted, self._is_sorted = sorted(self._newest), True
        keys = self._sorted
        first, end = bisect_left(keys, prefix), bisect_right(keys, prefix + LAST) if prefix else len(keys)
        if before:
            stop = min(end, bisect_left(keys, before))
            start = max(first, stop - size)
        else:
            start = max(first, bisect_right(keys, after)) if after else first
            stop = min(end, start + size)
        page = [(key, self._newest[key]) for key in keys[start:stop]]
        return page, end - first, start > first, stop < end


class KeysOfViews:
    """The keys of each view that was asked for."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._views: dict[str, Keys] = {}

    def touch(self, view: str, key: str, start: int) -> bool:
        """Note a window that the feed names; returns whether its key is new in an index."""
        keys = self._views.get(view)
        return keys.touch(key, start) if keys else False

    def lost(self) -> None:
        """Note that entries of the feed were not read."""
        self._views.clear()

    async def of(self, view: View, expired_before: int) -> Keys:
        """The keys of a view. Raises what the client raises."""
        keys = self._views.setdefault(view.stored, Keys())
        await keys.read(self._client, view)
        keys.forget(expired_before)
        return keys


def newest_start(view: View, key: str) -> Query[int | None]:
    """The start of a key's newest window; None for a key without one."""

    def steps(names: Names) -> Steps[int | None]:
        [score] = yield [("ZSCORE", names.store(key).keys(view.stored), key)]
        return None if score is None else int(float(score))

    return Query(steps)


def of_key(view: View, key: str) -> View:
    """The view as its windows of the key of an address are. Raises KeyTextError for one that no key of the view can be."""
    found = view.of_key(view.key(key))
    if found.calendars is not None and found.calendar is not None:
        try:
            zone(found.calendar.time_zone)
        except ContractError as error:
            msg = f"{key!r} does not fit: the time zone {found.calendar.time_zone!r} is not known here"
            raise KeyTextError(msg) from error
    return found

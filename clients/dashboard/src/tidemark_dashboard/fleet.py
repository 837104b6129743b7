"""The fleet: the status and the reference facts of every device, in memory.

Redis has no list of devices and no counts. The index is read once: the keys of a view by device, then a walk over all devices.
The change feed keeps it current: a device that the feed names is read again. No request reads more devices than it shows.
Devices that the feed does not name are read again in turn, because the expiry of a hash is not announced.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tidemark_client import AsyncClient, Device, TidemarkClientError, queries
from tidemark_client.names import Names
from tidemark_client.steps import Query, Steps
from tidemark_dashboard.health import now_ms

STATUSES = ("online", "quiet", "offline")
SKEWED = "skewed"
AT_ONCE = 500
"""Devices in one round trip."""
REST = 19.0
"""After each round trip of keeping current, a rest of so many times its length: at most a twentieth of a core."""
PATROL_S = 1.0
PATROL = 200
"""Devices that are read again in turn, in each PATROL_S."""
RETRY_S = 1.0
LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Standing:
    """What the index keeps of a device. `facts` are the columns of the reference with their values, `reference` its version."""

    status: str
    skewed: bool
    reference: str
    facts: tuple[tuple[str, str], ...]

    def fact(self, column: str) -> str | None:
        return next((value for name, value in self.facts if name == column), None)


@dataclass(slots=True)
class Counts:
    """Devices by status; `skewed` counts devices of any status whose clocks are ahead."""

    online: int = 0
    quiet: int = 0
    offline: int = 0
    skewed: int = 0

    @property
    def all(self) -> int:
        return self.online + self.quiet + self.offline

    def add(self, standing: Standing, change: int) -> None:
        if standing.status in STATUSES:
            setattr(self, standing.status, getattr(self, standing.status) + change)
        self.skewed += change * standing.skewed


@dataclass(frozen=True, slots=True)
class Filter:
    """Which devices to list. `status` is one of STATUSES, SKEWED, or "" for all; `column` and `value` are of the reference."""

    prefix: str = ""
    status: str = ""
    column: str = ""
    value: str = ""

    def accepts(self, standing: Standing) -> bool:
        """Whether a device whose id has the prefix is listed."""
        if self.status == SKEWED:
            if not standing.skewed:
                return False
        elif self.status and standing.status != self.status:
            return False
        return not self.column or standing.fact(self.column) == self.value


class Fleet:
    """`on_change` is called after each round trip, when devices may have come, changed or gone."""

    def __init__(self, client: AsyncClient, wanted: asyncio.Event, on_change: Callable[[], None]) -> None:
        self._client, self._wanted, self._on_change = client, wanted, on_change
        self._devices: dict[str, Standing] = {}
        self._facts: dict[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = {}
        self._sorted: list[str] = []
        self._is_sorted = True
        # A dict looks for its first entry among all that were removed: with 100,000 devices a third of a core.
        self._stale: OrderedDict[str, None] = OrderedDict()
        self._turn: deque[str] = deque()
        self.total = Counts()
        self.by: dict[str, dict[str, Counts]] = {}
        self.is_complete = False
        self.counted_ms = 0
        self._generation = 0

    def __len__(self) -> int:
        return len(self._devices)

    def __contains__(self, device: str) -> bool:
        return device in self._devices

    @property
    def columns(self) -> list[str]:
        """The reference's columns that devices have."""
        return list(self.by)

    @property
    def waiting(self) -> int:
        """Devices that have changed and are not read again yet."""
        return len(self._stale)

    def touch(self, device: str) -> None:
        """Note that a device has changed."""
        self._stale[device] = None

    def lost(self) -> None:
        """Note that any device may have changed, come or gone."""
        self._generation += 1
        self.is_complete = False

    async def run(self) -> None:
        """Read and keep current, while a page is open, until the task is cancelled."""
        read = -1
        while True:
            await self._wanted.wait()
            try:
                if read != self._generation:
                    generation = self._generation
                    await self._read_all(generation)
                    read = generation
                else:
                    await self._keep_current()
            except TidemarkClientError:
                await asyncio.sleep(RETRY_S)  # the reader of the feed reports it

    async def _read_all(self, generation: int) -> None:
        before = set(self._devices)
        meta = await self._client.meta()
        for view in meta.views.values():
            if view.by == ("device",):
                async for page in self._client.key_pages(view.name, AT_ONCE):
                    before -= await self._read([key for key, _ in page])
                break
        async for devices in self._client.device_pages(AT_ONCE):
            for device in devices:
                self._put(device.id, device)
                before.discard(device.id)
            self._counted()
            await asyncio.sleep(0.005)
        gone = list(before)
        for first in range(0, len(gone), AT_ONCE):
            await self._read(gone[first : first + AT_ONCE])
        self.is_complete = generation == self._generation
        self._counted()

    async def _keep_current(self) -> None:
        began = time.monotonic()
        ids: list[str] = []
        while self._stale and len(ids) < AT_ONCE:
            ids.append(self._stale.popitem(last=False)[0])
        if ids:
            await self._read(ids)
            await asyncio.sleep(max(0.05, REST * (time.monotonic() - began)))
            return
        await self._read(self._next_in_turn())
        end = began + PATROL_S
        while not self._stale and time.monotonic() < end and self._wanted.is_set():
            await asyncio.sleep(0.1)

    def _next_in_turn(self) -> list[str]:
        if not self._turn:
            self._turn.extend(self._devices)
        return [self._turn.popleft() for _ in range(min(PATROL, len(self._turn)))]

    async def _read(self, ids: list[str]) -> set[str]:
        """Read devices; returns their ids. Of devices whose facts are known, only the fields that change often are read."""
        if ids:
            unknown = []
            for each, seen in zip(ids, await self._client.ask_all(map(_standing, ids)), strict=True):
                known = self._devices.get(each)
                if known is None or seen is None or seen[2] != known.reference:
                    unknown.append(each)
                elif seen[:2] != (known.status, known.skewed):
                    self._replace(known, replace(known, status=seen[0], skewed=seen[1]), each)
            if unknown:
                answers = await self._client.ask_all(queries.device(each) for each in unknown)
                for each, device in zip(unknown, answers, strict=True):
                    self._put(each, device)
            self._counted()
        return set(ids)

    def _counted(self) -> None:
        self.counted_ms = now_ms()
        self._on_change()

    def _put(self, device_id: str, device: Device | None) -> None:
        old = self._devices.get(device_id)
        if device is None:
            if old is not None:
                del self._devices[device_id]
                self._is_sorted = False
                self._count(old, -1)
            return
        facts = tuple(device.attributes.items())
        new = Standing(device.status, device.skewed, device.reference, self._facts.setdefault(facts, facts))
        if old is None:
            self._is_sorted = False
        self._replace(old, new, device_id)

    def _replace(self, old: Standing | None, new: Standing, device_id: str) -> None:
        self._devices[device_id] = new
        if old is not None:
            self._count(old, -1)
        self._count(new, 1)

    def _count(self, standing: Standing, change: int) -> None:
        self.total.add(standing, change)
        for column, value in standing.facts:
            values = self.by.setdefault(column, {})
            counts = values.setdefault(value, Counts())
            counts.add(standing, change)
            if not counts.all and not counts.skewed:
                del values[value]

    # What requests ask.

    def ids(self, prefix: str = "") -> tuple[list[str], int, int]:
        """The sorted ids, with the numbers of the first one that has the prefix and of the first one behind those."""
        if not self._is_sorted:
            self._sorted = sorted(self._devices)
            self._is_sorted = True
        ids = self._sorted
        return ids, bisect_left(ids, prefix), bisect_right(ids, prefix + LAST) if prefix else len(ids)

    def count(self, chosen: Filter) -> int:
        """How many devices a filter lists."""
        if chosen.prefix or (chosen.status and chosen.column):
            return sum(1 for _ in self._list(chosen))
        if chosen.column:
            return self.by.get(chosen.column, {}).get(chosen.value, Counts()).all
        return int(getattr(self.total, chosen.status or "all"))

    def page(self, chosen: Filter, size: int, *, after: str = "", before: str = "") -> tuple[list[str], bool, bool]:
        """A page of ids in their order, and whether there are devices before and behind it."""
        if before:
            found = list(_some(self._list(chosen, until=before, backwards=True), size + 1))
            page = found[:size][::-1]
            return page, len(found) > size, any(True for _ in self._list(chosen, since=before))
        found = list(_some(self._list(chosen, since=after, skip=bool(after)), size + 1))
        earlier = bool(after) and any(True for _ in self._list(chosen, until=after, backwards=True, closed=True))
        return found[:size], earlier, len(found) > size

    def _list(
        self,
        chosen: Filter,
        *,
        since: str = "",
        until: str = "",
        skip: bool = False,
        backwards: bool = False,
        closed: bool = False,
    ) -> Iterator[str]:
        ids, first, end = self.ids(chosen.prefix)
        if since:
            first = max(first, (bisect_right if skip else bisect_left)(ids, since))
        if until:
            end = min(end, (bisect_right if closed else bisect_left)(ids, until))
        numbers: Iterable[int] = range(end - 1, first - 1, -1) if backwards else range(first, end)
        for number in numbers:
            if chosen.accepts(self._devices[ids[number]]):
                yield ids[number]


def _standing(device: str) -> Query[tuple[str, bool, str] | None]:
    """The status, whether the clock is ahead, and the version of the reference; None for a device that is unknown."""

    def steps(names: Names) -> Steps[tuple[str, bool, str] | None]:
        [(status, skewed, reference)] = yield [
            ("HMGET", names.store(device).device(device), "status", "skewed", "reference")
        ]
        return None if status is None else (status, skewed == "1", reference)

    return Query(steps)


def _some(ids: Iterator[str], limit: int) -> Iterator[str]:
    for _, each in zip(range(limit), ids, strict=False):
        yield each

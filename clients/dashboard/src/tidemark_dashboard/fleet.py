"""The fleet: the status, the reference facts and the newest values of every device, in memory.

Redis has no list of devices, no counts and no order. The index is read once: the keys of a view by device, then a walk over all
devices. The change feed keeps it current: a device that the feed names is read again. A request reads the devices that it shows.
Devices that the feed does not name are read again in turn, because the expiry of a hash is not announced.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark_client import AsyncClient, Device, TidemarkClientError, queries
from tidemark_client.names import Names
from tidemark_client.steps import Query, Steps
from tidemark_dashboard.health import now_ms

STATUSES = ("online", "quiet", "offline", "never")
SKEWED = "skewed"
AT_ONCE = 500
"""Devices in one round trip."""
REST, REST_BEHIND = 19.0, 1.0
"""After each round trip of keeping current, a rest of so many times its length: at most a twentieth of a core, and half a core
while the index is behind."""
BEHIND = 0.05
"""The index is behind while more than this part of the devices waits, and more than AT_ONCE."""
LEAST_REST_S = 0.05
PATROL_S = 1.0
PATROL = 200
"""Devices that are read again in turn, in each PATROL_S."""
RETRY_S = 1.0
IDLE_S = 0.2
"""Between two looks whether a page shows the fleet."""
MEASURES_S = 30.0
"""Between two looks at the measures of the service, while no device waits."""
LAST = "\U0010ffff"
ID, STATUS, LAST_SEEN = "id", "status", "last_seen"
"""What devices are sorted by, in addition to the columns of the reference (FACT) and the measures (MEASURE)."""
FACT, MEASURE = "ref.", "m."


@dataclass(frozen=True, slots=True)
class Standing:
    """What the index keeps of a device. `facts` are the columns of the reference with their values, `reference` its version.

    `values` are the newest values by the fleet's measures, None where the device has not sent one.
    """

    status: str
    skewed: bool
    reference: str
    facts: tuple[tuple[str, str], ...]
    last_seen: int = 0
    values: tuple[float | None, ...] = ()

    def fact(self, column: str) -> str | None:
        return next((value for name, value in self.facts if name == column), None)


@dataclass(slots=True)
class Counts:
    """Devices by status; `skewed` counts devices of any status whose clocks are ahead."""

    online: int = 0
    quiet: int = 0
    offline: int = 0
    never: int = 0
    skewed: int = 0

    @property
    def all(self) -> int:
        return self.online + self.quiet + self.offline + self.never

    def add(self, standing: Standing, change: int) -> None:
        if standing.status in STATUSES:
            setattr(self, standing.status, getattr(self, standing.status) + change)
        self.skewed += change * standing.skewed


@dataclass(frozen=True, slots=True)
class Filter:
    """Which devices to list. `within` is a part of the id, in any case if it has no capitals. `status` is one of STATUSES,
    SKEWED, or "" for all. `facts` are columns of the reference with the value of each.
    """

    within: str = ""
    status: str = ""
    facts: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.within or self.status or self.facts)

    def has_id(self, device: str) -> bool:
        """Whether an id has the part."""
        return not self.within or self.within in (device if self.within != self.within.lower() else device.lower())

    def has_status(self, standing: Standing) -> bool:
        """Whether a device has the status."""
        if self.status == SKEWED:
            return standing.skewed
        return not self.status or standing.status == self.status


@dataclass(frozen=True, slots=True)
class Order:
    """What devices are sorted by: ID, STATUS, LAST_SEEN, FACT or MEASURE with a name. Devices without the value are the last."""

    by: str = ID
    is_descending: bool = False

    @staticmethod
    def of(text: str) -> Order:
        """The order of an address: a column, with "-" in front for the largest first."""
        return Order(text.removeprefix("-") or ID, text.startswith("-"))

    def __str__(self) -> str:
        return f"-{self.by}" if self.is_descending else self.by


@dataclass(slots=True)
class Survey:
    """The devices that a filter lists, in order of their ids, and what other choices would list.

    `counts` are of the devices that meet all of the filter but its status, `groups` of those that meet all but the value of a
    column.
    """

    ids: list[str]
    counts: Counts
    groups: dict[str, Counts]


class Fleet:
    """`on_change` is called after each round trip in which devices have come, changed or gone.

    While `is_shown` is false nothing is read: no page shows the fleet.
    """

    def __init__(
        self,
        client: AsyncClient,
        wanted: asyncio.Event,
        on_change: Callable[[], None],
        is_shown: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client, self._wanted, self._on_change, self._is_shown = client, wanted, on_change, is_shown
        self._devices: dict[str, Standing] = {}
        self._facts: dict[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = {}
        self._sorted: list[str] = []
        self._is_sorted = True
        # A dict looks for its first entry among all that were removed: with 100,000 devices a third of a core.
        self._stale: OrderedDict[str, int] = OrderedDict()
        self._turn: deque[str] = deque()
        self.total = Counts()
        self.by: dict[str, dict[str, Counts]] = {}
        self.measures: tuple[str, ...] = ()
        self._sent: set[str] = set()
        self._asked_s = self._patrolled_s = 0.0
        self.is_complete = False
        self._has_changed = False
        self._generation = 0

    def __len__(self) -> int:
        return len(self._devices)

    @property
    def columns(self) -> list[str]:
        """The reference's columns that devices have."""
        return [column for column, values in self.by.items() if values]

    @property
    def sent(self) -> list[str]:
        """The measures that devices have sent."""
        return [each for each in self.measures if each in self._sent]

    @property
    def waiting(self) -> int:
        """Devices that have changed and are not read again yet."""
        return len(self._stale)

    @property
    def is_behind(self) -> bool:
        """Whether many devices wait."""
        return self.waiting > max(AT_ONCE, BEHIND * len(self))

    def touch(self, device: str) -> None:
        """Note that a device has changed. Those that are new are read first."""
        self._stale[device] = now_ms()
        if device not in self._devices:
            self._stale.move_to_end(device, last=False)

    def lost(self) -> None:
        """Note that any device may have changed, come or gone."""
        self._generation += 1
        self.is_complete = False

    async def run(self) -> None:
        """Read and keep current, while a page shows the fleet, until the task is cancelled."""
        read = -1
        while True:
            await self._wanted.wait()
            try:
                if not self._is_shown():
                    await asyncio.sleep(IDLE_S)
                elif read != self._generation:
                    generation = self._generation
                    await self._read_all(generation)
                    read = generation
                else:
                    await self._keep_current()
            except TidemarkClientError:
                await asyncio.sleep(RETRY_S)  # the reader of the feed reports it

    async def _read_all(self, generation: int) -> None:
        """Read all devices. Returns early when they have to be read again anyway."""
        self._stale.clear()
        before = set(self._devices)
        meta = await self._client.meta()
        self.measures, self._asked_s = meta.measures, time.monotonic()
        for view in meta.views.values():
            if view.by == ("device",):
                async for page in self._client.key_pages(view.name, AT_ONCE):
                    ids = [key for key, _ in page]
                    await self._read(ids)
                    before.difference_update(ids)
                    if generation != self._generation:
                        return
                break
        async for devices in self._client.device_pages(AT_ONCE):
            for device in devices:
                self._put(device.id, device)
                before.discard(device.id)
            self._counted()
            if generation != self._generation:
                return
            await asyncio.sleep(0.005)
        gone = list(before)
        for first in range(0, len(gone), AT_ONCE):
            await self._read(gone[first : first + AT_ONCE])
        self.is_complete, self._has_changed = generation == self._generation, True
        self._counted()

    async def _keep_current(self) -> None:
        began, rest = time.monotonic(), REST_BEHIND if self.is_behind else REST
        await self._look_at_measures()
        changed = dict(self._stale.popitem(last=False) for _ in range(min(AT_ONCE, len(self._stale))))
        self._has_changed |= bool(changed)  # fewer devices wait
        try:
            await self._read([*changed, *self._next_in_turn()])
        except TidemarkClientError:
            self._stale = OrderedDict({**changed, **self._stale})
            raise
        await asyncio.sleep(max(LEAST_REST_S, rest * (time.monotonic() - began)))

    def _next_in_turn(self) -> list[str]:
        if time.monotonic() < self._patrolled_s + PATROL_S:
            return []
        self._patrolled_s = time.monotonic()
        if not self._turn:
            self._turn.extend(self._devices)
        return [self._turn.popleft() for _ in range(min(PATROL, len(self._turn)))]

    async def _read(self, ids: list[str]) -> None:
        """Read devices. Of devices whose facts are known, only the fields that change often are read."""
        if not ids:
            return
        unknown = [each for each in ids if each not in self._devices]
        listed = [each for each in ids if each in self._devices]
        rows = await self._client.ask(_fields(listed, self.measures))
        for each, (status, skewed, reference, last_seen, *values) in zip(listed, rows, strict=True):
            known = self._devices.get(each)
            if known is None or status is None or reference != known.reference:
                unknown.append(each)
            else:
                newest = tuple(None if value is None else float(value) for value in values)
                standing = Standing(status, skewed == "1", reference, known.facts, int(last_seen), newest)
                self._replace(known, standing, each)
        if unknown:
            answers = await self._client.ask_all(queries.device(each) for each in unknown)
            for each, device in zip(unknown, answers, strict=True):
                self._put(each, device)
        self._counted()

    def _counted(self) -> None:
        if self._has_changed:
            self._has_changed = False
            self._on_change()

    def _put(self, device_id: str, device: Device | None) -> None:
        old = self._devices.get(device_id)
        if device is None:
            if old is not None:
                del self._devices[device_id]
                self._is_sorted, self._has_changed = False, True
                self._count(old, -1)
            return
        facts = tuple(device.attributes.items())
        latest = device.latest
        values = tuple(latest[name].value if name in latest else None for name in self.measures)
        if len(self._facts) > 2 * len(self._devices) + AT_ONCE:  # most are of no device any more
            self._facts = {each.facts: each.facts for each in self._devices.values()}
        kept = self._facts.setdefault(facts, facts)
        new = Standing(device.status, device.skewed, device.reference, kept, device.last_seen, values)
        if old is None:
            self._is_sorted = False
        self._replace(old, new, device_id)

    async def _look_at_measures(self) -> None:
        """Read everything again when the service has other measures: the settings have changed."""
        if time.monotonic() - self._asked_s > MEASURES_S:
            self._asked_s = time.monotonic()
            if (await self._client.meta()).measures != self.measures:
                self.lost()

    def _replace(self, old: Standing | None, new: Standing, device_id: str) -> None:
        self._devices[device_id] = new
        self._has_changed = self._has_changed or new != old
        if len(self._sent) < len(self.measures):
            self._sent.update(name for name, value in zip(self.measures, new.values, strict=False) if value is not None)
        if old is not None:
            if (old.status, old.skewed, old.facts) == (new.status, new.skewed, new.facts):
                return
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

    def note(self, device_id: str, device: Device | None) -> None:
        """Keep what a page has read of a device. An older answer that is still on its way may replace it: it stays stale."""
        self._put(device_id, device)

    def ids(self) -> list[str]:
        """The sorted ids."""
        if not self._is_sorted:
            self._sorted = sorted(self._devices)
            self._is_sorted = True
        return self._sorted

    def survey(self, chosen: Filter, column: str) -> Survey:
        """The devices of a filter, and the counts that stand beside its choices: by status, and by a column's values."""
        ids = self.ids()
        if not chosen:
            return Survey(ids, self.total, self.by.get(column, {}))
        counts, groups, found = Counts(), dict[str, Counts](), list[str]()
        own = next((value for name, value in chosen.facts if name == column), None)
        wanted = [pair for pair in chosen.facts if pair[0] != column]
        for each in ids:
            if not chosen.has_id(each):
                continue
            standing = self._devices[each]
            if any(pair not in standing.facts for pair in wanted):
                continue
            value = standing.fact(column)
            has_status, has_value = chosen.has_status(standing), own is None or value == own
            if has_status and value is not None:
                groups.setdefault(value, Counts()).add(standing, 1)
            if has_value:
                counts.add(standing, 1)
                if has_status:
                    found.append(each)
        return Survey(found, counts, groups)

    def page(self, ids: list[str], order: Order, first: int, size: int) -> list[str]:
        """A page of these sorted ids in an order. Devices that are alike stay in the order of their ids."""
        if order == Order():
            return ids[first : first + size]
        if order.by == ID:
            return ids[::-1][first : first + size]
        value = self._value(order.by)
        present = [(found, each) for each in ids if (found := value(each)) is not None]
        present.sort(key=lambda pair: pair[0], reverse=order.is_descending)
        page = [each for _, each in present[first : first + size]]
        if len(page) < size:
            lacking = [each for each in ids if value(each) is None]
            start = max(0, first - len(present))
            page += lacking[start : start + size - len(page)]
        return page

    def _value(self, by: str) -> Callable[[str], Any]:
        """What a device is sorted by; None where it has no such value."""
        devices = self._devices
        if by == STATUS:
            return lambda each: STATUSES.index(devices[each].status) if devices[each].status in STATUSES else None
        if by == LAST_SEEN:
            # A device that the feed has named since it was read is not the one that was silent longest.
            stale = self._stale
            return lambda each: max(devices[each].last_seen, stale.get(each, 0)) or None
        name = by.partition(".")[2]
        if by.startswith(FACT):
            return lambda each: devices[each].fact(name)
        if by.startswith(MEASURE) and name in self.measures:
            number = self.measures.index(name)
            return lambda each: devices[each].values[number] if number < len(devices[each].values) else None
        return lambda _: None


def _fields(devices: Sequence[str], measures: Sequence[str]) -> Query[list[Any]]:
    """What changes often of devices: status, skewed, reference, last_seen and measures of each, None where it lacks one."""

    def steps(names: Names) -> Steps[list[Any]]:
        fields = "status", "skewed", "reference", "last_seen", *measures
        return (yield [("HMGET", names.store(each).device(each), *fields) for each in devices])

    return Query(steps)

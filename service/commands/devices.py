"""`tidemark devices`: the devices of a service, from Redis: in the order of their ids, in pages, by status, attributes and id.

Redis has no list of devices. All ids are read by SCAN, some thousand keys a call. Hashes are read only for the devices of the
page, and for a filter the fields that it needs, some hundred devices a call. `--skewed` and `--status never` list sets that the
service keeps.
"""

import re
import shlex
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from redis.exceptions import RedisError, ResponseError

from service import clock
from service.errors import SettingsError, SinkError
from service.printing import aligned, counted, printable
from service.publication import meta
from service.redis import client as redis_client
from service.redis import link
from service.redis.keys import shards
from service.redis.link import Budget, Place
from service.settings import Redis, Settings
from service.units import format_time, rough_duration

AT_ONCE = 500
"""Hashes in one round trip."""
SCANNED = 5_000
"""Keys that one call of SCAN looks at: 2 ms of Redis' time."""
_EARLY = ("early", "early.at", "early.ahead", "last_seen")
_ATTRIBUTE = "ref."
NEVER = "never"
"""The status of devices of the reference that have never sent a reading: the service keeps a list of them."""

Watch = Callable[[int, int], object]
"""Called with the number of keys that were looked at, and of keys in Redis."""


@dataclass(frozen=True)
class Filter:
    """Which devices to list: with this status, with these values of reference columns, with ids that begin so."""

    status: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    prefix: bytes = b""

    def require(self, settings: Settings) -> None:
        """Raise SettingsError for a column that device hashes do not have, and for a list that the service does not keep."""
        if self.status == NEVER and not (settings.reference is not None and settings.reference.list_never):
            what = "--status never needs the list of the devices that never sent, and the service keeps none"
            raise SettingsError(
                what, remedy="Set list_never = true in [reference] (docs/data-engineer.md#devices-that-never-came)"
            )
        if not self.columns:
            return
        if settings.reference is None:
            what = "--where needs attributes of devices, and there is no [reference] in the settings"
            raise SettingsError(what, remedy="Add a [reference], or list by --status and --prefix")
        known = settings.reference.columns  # empty: all of the query's
        if unknown := [name for name in self.columns if known and name not in known]:
            what = f"--where {unknown[0]}: [reference] columns has no {unknown[0]!r}; it has {', '.join(known)}"
            raise SettingsError(what, remedy="Name one of these columns, or add it to [reference] columns")

    @property
    def fields(self) -> list[str]:
        """The fields of a hash that it looks at."""
        return [*(["status"] if self.status else []), *(_ATTRIBUTE + name for name in self.columns)]

    def place(self, column: str) -> int:
        """The place of a column in `fields`."""
        return self.fields.index(_ATTRIBUTE + column)

    @property
    def values(self) -> list[bytes]:
        """What `fields` must have."""
        return [each.encode() for each in ([self.status] if self.status else []) + list(self.columns.values())]


@dataclass(frozen=True)
class AsOf:
    """The time of the last published batch, of several shards the oldest, and whether a service holds the lease."""

    updated_ms: int
    is_served: bool

    def __str__(self) -> str:
        ago = rough_duration(max(0, clock.now_ms() - self.updated_ms) // 1000 * 1000)
        batch = f"as of the last batch, {format_time(self.updated_ms)} ({ago} ago)"
        return batch if self.is_served else f"{batch}. No service runs now: statuses are those of that time"


@dataclass(frozen=True)
class Page:
    """`devices` in the order of their ids; `total` is of all ids with the prefix, for the status `never` of those in its list.
    `has_more`: further devices follow these.

    `as_of` is None where Redis has no progress.
    """

    devices: Sequence[Mapping[str, Any]]
    total: int
    has_more: bool
    chosen: Filter = Filter()
    as_of: AsOf | None = None


def page(settings: Settings, chosen: Filter, after: bytes, limit: int | None, watch: Watch) -> Page:
    """Return the first `limit` devices, or all, whose ids are behind `after`. Raises SettingsError, SinkError."""
    chosen.require(settings)
    link.require_answer(settings.redis)
    meta.require_stored(settings.redis)
    with _Store(settings.redis) as store:
        shards_of = store.never(chosen.prefix) if chosen.status == NEVER else store.ids(chosen.prefix, watch)
        ids = sorted(shards_of)
        devices: list[dict[str, Any]] = []
        unseen = set(chosen.columns)
        for first in range(bisect_right(ids, after), len(ids), AT_ONCE):
            some = [(each, shards_of[each]) for each in ids[first : first + AT_ONCE]]
            if chosen.fields:
                rows = list(zip(some, store.read(some, "HMGET", *chosen.fields), strict=True))
                unseen -= {name for name in unseen for _, values in rows if values[chosen.place(name)] is not None}
                some = [each for each, values in rows if values == chosen.values]
            rest = some if limit is None else some[: limit + 1 - len(devices)]
            hashes = zip(rest, store.read(rest, "HGETALL"), strict=True)
            devices += [_device(device, fields) for (device, _), fields in hashes if fields]  # a hash may have expired
            if limit is not None and len(devices) > limit:
                break
        if unseen and ids:
            _require_columns(unseen, store, [(each, shards_of[each]) for each in ids[:AT_ONCE]])
        as_of = store.as_of()
    shown = devices if limit is None else devices[:limit]
    return Page(shown, len(ids), len(devices) > len(shown), chosen, as_of)


def _require_columns(unseen: Collection[str], store: "_Store", sample: Sequence[tuple[bytes, int]]) -> None:
    """Raise SettingsError for a column that no device of the sample has. `unseen` are those that no filtered device has."""
    hashes = store.read(sample, "HGETALL")
    known = {name for fields in hashes for name in _attributes(fields)}
    if unknown := sorted(set(unseen) - known):
        what = f"--where {unknown[0]}: no device has the attribute {unknown[0]!r}"
        remedy = f"They have {', '.join(sorted(known))}" if known else "They have none: see [reference] in the settings"
        raise SettingsError(what, remedy=remedy)


def skewed(settings: Redis) -> list[dict[str, Any]]:
    """The devices with early readings, newest early reading first; times in ms. Raises SinkError."""
    link.require_answer(settings)
    meta.require_stored(settings)
    with _Store(settings) as store:
        marked = [
            (each, shard)
            for shard, keys in enumerate(store.keys)
            for each in store.clients[shard].zrange(keys.skewed, 0, -1)
        ]
        rows = zip(marked, store.read(marked, "HMGET", *_EARLY), strict=True)
        devices = [
            {
                "device": _text(device),
                **{name: int(text) if text else None for name, text in zip(_EARLY, values, strict=True)},
            }
            for (device, _), values in rows
        ]
    return sorted(devices, key=lambda device: device["early.at"] or 0, reverse=True)


class _Store:
    """A client of each shard; of one Redis with several shards the same client. In its context, errors of Redis are SinkError."""

    def __init__(self, settings: Redis) -> None:
        self.keys = shards(settings)
        self._settings = settings
        self._opened = [
            redis_client.client(settings, keys) for keys in (self.keys if settings.cluster else self.keys[:1])
        ]
        self.clients: Sequence[Any] = self._opened if settings.cluster else self._opened * len(self.keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._opened:
            each.close()
        if isinstance(error, ResponseError):  # it answers, and will not: its ACL, or a key of another type
            Budget(0, Place(redis_client.address(self._settings), "the devices")).failed(error)
        if isinstance(error, RedisError):
            what = f"Redis at {redis_client.address(self._settings)} does not answer: {error}"
            raise SinkError(what, remedy="Check that it runs and can be reached from here") from error

    def as_of(self) -> AsOf | None:
        """Return how old the values are; None before the first batch."""
        known = [client.hget(keys.progress, "updated") for client, keys in zip(self.clients, self.keys, strict=True)]
        times = [int(each) for each in known if each is not None]
        return AsOf(min(times), bool(self.clients[0].exists(self.keys[0].lease))) if times else None

    def ids(self, prefix: bytes, watch: Watch) -> dict[bytes, int]:
        """Each id that begins so, with its shard. The node of each client is walked over once for it."""
        beginnings = [keys.device("").encode() for keys in self.keys]
        patterns = [keys.matching("device:").encode() for keys in self.keys]
        if len(patterns) > len(self._opened):  # one Redis has all shards; their prefixes begin and end alike
            patterns = [re.sub(rb":0\}:device:$", rb":*}:device:", patterns[0])]
        own = re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix) + b"*"
        sizes = [int(client.dbsize()) for client in self._opened]
        found: dict[bytes, int] = {}
        for number, (client, pattern) in enumerate(zip(self._opened, patterns, strict=True)):
            cursor, looked_at = -1, sum(sizes[:number])
            while cursor:
                cursor, names = client.scan(max(cursor, 0), pattern + own, SCANNED)
                looked_at = min(looked_at + SCANNED, sum(sizes[: number + 1]))
                watch(looked_at, sum(sizes))
                for name in names:
                    for shard, beginning in enumerate(beginnings):
                        if name.startswith(beginning):
                            found[name[len(beginning) :]] = shard
        return found

    def never(self, prefix: bytes) -> dict[bytes, int]:
        """Each device that is listed as one that has never sent, if its id begins so, with its shard."""
        return {
            member: shard
            for shard, keys in enumerate(self.keys)
            for member, since in self.clients[shard].zscan_iter(keys.never, count=SCANNED)
            if since and member.startswith(prefix)  # 0: it has sent since
        }

    def read(self, devices: Iterable[tuple[bytes, int]], command: str, *fields: str) -> list[Any]:
        """The reply to a command about each device's hash, in one round trip for each shard."""
        ordered = list(devices)
        replies: dict[bytes, Any] = {}
        for client in {self.clients[shard] for _, shard in ordered}:
            own = [each for each in ordered if self.clients[each[1]] is client]
            with client.pipeline(transaction=False) as pipe:
                for device, shard in own:
                    pipe.execute_command(command, self.keys[shard].device("").encode() + device, *fields)
                replies.update(zip((device for device, _ in own), pipe.execute(), strict=True))
        return [replies[device] for device, _ in ordered]


def _device(device: bytes, fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    own = {_text(name): _text(value) for name, value in fields.items() if not name.startswith(_ATTRIBUTE.encode())}
    session = own.get("session")
    return {
        "device": _text(device),
        "status": own.get("status", ""),
        "skewed": own.get("skewed") == "1",
        "last_seen": int(own.get("last_seen") or 0),
        "session": int(session) if session else None,
        "attributes": _attributes(fields),
    }


def _attributes(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    own = {_text(name): _text(value) for name, value in fields.items()}
    return {name[len(_ATTRIBUTE) :]: value for name, value in own.items() if name.startswith(_ATTRIBUTE)}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def table(page: Page, columns: Sequence[str]) -> Iterator[str]:
    """Lines for people: the devices with these reference columns, or with all that they have."""
    names = list(columns) or list(dict.fromkeys(name for each in page.devices for name in each["attributes"]))
    rows = [["device", "status", "last seen", *names]]
    for each in page.devices:
        status = f"{each['status']}, skewed" if each["skewed"] else each["status"]
        seen = format_time(each["last_seen"]) if each["last_seen"] else "never"
        rows.append([each["device"], status, seen, *(each["attributes"].get(name, "-") for name in names)])
    if page.devices:
        yield from aligned([[printable(cell) for cell in row] for row in rows])
    yield f"{len(page.devices):,} of {counted(page.total, 'device')}"
    if page.as_of is not None:
        yield str(page.as_of)
    prefix = page.chosen.prefix
    if not page.total and prefix:
        yield f"No id begins with {printable(_text(prefix))!r}; without --prefix all devices are listed"
    elif not page.total and page.chosen.status == NEVER:
        yield "The service lists no device of the reference that has never sent a reading"
    elif not page.total:
        yield "Redis has no device here: see `tidemark status`, and redis.prefix and redis.url in the settings"
    if page.has_more:
        yield f"more: --after {shlex.quote(page.devices[-1]['device'])}"


def skewed_table(devices: Sequence[Mapping[str, Any]], most: int | None = None) -> Iterator[str]:
    """Lines for people: how many there are, and the first `most` of them."""
    shown = f", the first {most:,} are listed" if most is not None and len(devices) > most else ""
    yield f"{len(devices):,} {'device sends' if len(devices) == 1 else 'devices send'} readings from the future{shown}"
    if devices:
        yield f"{'early':>9}  {'ahead by':>12}  {'last early (ms)':>15}  device"
    for each in devices[:most]:
        # All are None where the hash has expired, or somebody has removed it.
        early, at_ms = ("-" if each[name] is None else each[name] for name in ("early", "early.at"))
        ahead = "-" if each["early.ahead"] is None else f"{each['early.ahead'] / 1000:.1f} s"
        yield f"{early:>9}  {ahead:>12}  {at_ms:>15}  {each['device']}"

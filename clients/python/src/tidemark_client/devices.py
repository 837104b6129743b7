"""All devices, and all keys of a view, page by page. There is no list of all devices: that is a walk over all keys of Redis."""

from __future__ import annotations

from typing import Any, cast

from tidemark_client.errors import ContractError
from tidemark_client.layout import check
from tidemark_client.layout import meta as read_meta
from tidemark_client.names import Names
from tidemark_client.queries import device, together
from tidemark_client.steps import Owners, Query, Scan, Steps
from tidemark_client.values import Device


class DevicePages:
    """A walk over all devices. A cluster's primaries are walked over one after the other, each for the shards that it has.

    A shard that has moved to another node meanwhile is looked for there, so that its devices may come twice.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: list[str] = []
        self._shards = 0
        self._pending: set[int] = set()
        self._here: set[int] = set()
        self._node: Any = None
        self._cursor = 0

    def next(self) -> Query[list[Device] | None]:
        """The next page, None after the last one."""
        return Query(self._next, pauses=True)

    def ids(self) -> Query[list[str] | None]:
        """The ids of the next page, None after the last one."""
        return Query(self._ids, pauses=True)

    def _next(self, names: Names) -> Steps[list[Device] | None]:
        page = yield from self._ids(names)
        if page is None:
            return None
        answers = yield from together(device(each) for each in page).steps(names)
        return [each for each in answers if each is not None]

    def _ids(self, names: Names) -> Steps[list[str] | None]:
        if not self._shards:
            yield from check(names)
            self._shards, self._pending = names.shards, set(range(names.shards))
        if self._shards != names.shards:
            msg = f"prefix {names.prefix!r} had {self._shards} shard(s), and has {names.shards} now: begin again"
            raise ContractError(msg)
        while len(self._found) < self._size and self._pending:
            yield from self._scan(names)
        page, self._found = self._found[: self._size], self._found[self._size :]
        return page or None

    def _scan(self, names: Names) -> Steps[None]:
        if not self._here:
            nodes = yield _owners(names, self._pending)
            self._node = nodes[0]
            self._here = {number for number, node in zip(sorted(self._pending), nodes) if node == self._node}
        cursor, keys = yield Scan(self._node, self._cursor, names.every_device, self._size)
        self._cursor = int(cursor)
        places = [names.device_of(cast("str", key)) for key in keys]
        self._found += [each[1] for each in places if each is not None and each[0] in self._here]
        if self._cursor == 0:
            if self._node is not None:
                # A command to a shard that has moved is redirected: then redis-py has the shard's node.
                yield [("GET", names.shard(number).meta) for number in sorted(self._here)]
            nodes = yield _owners(names, self._here)
            self._pending -= {number for number, node in zip(sorted(self._here), nodes) if node == self._node}
            self._here = set()


def _owners(names: Names, shards: set[int]) -> Owners:
    return Owners(tuple(names.shard(number).meta for number in sorted(shards)))


class NeverPages:
    """A walk over the devices of the reference that have never sent a reading, shard by shard; one may come twice."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._shard, self._cursor = 0, 0

    def next(self) -> Query[list[Device] | None]:
        """The next page, None after the last one."""
        return Query(self._next)

    def _next(self, names: Names) -> Steps[list[Device] | None]:
        if (self._shard, self._cursor) == (0, 0):
            yield from check(names)
        while self._shard < names.shards:
            [(cursor, rows)] = yield [("ZSCAN", names.shard(self._shard).never, self._cursor, "COUNT", self._size)]
            self._cursor = int(cursor)
            if self._cursor == 0:
                self._shard += 1
            answers = yield from together(device(str(member)) for member, _ in rows).steps(names)
            page = [each for each in answers if each is not None and each.status == "never"]
            if page:
                return page
        return None


class KeyPages:
    """A walk over all keys of a view, shard by shard. A key that is there all the while comes at least once."""

    def __init__(self, view: str, size: int) -> None:
        self._view, self._size = view, size
        self._stored = view
        self._shard, self._cursor = 0, 0

    def next(self) -> Query[list[tuple[str, int]] | None]:
        """The next page of keys, each with the start of its newest window; None after the last page."""
        return Query(self._next)

    def _next(self, names: Names) -> Steps[list[tuple[str, int]] | None]:
        if (self._shard, self._cursor) == (0, 0):
            self._stored = (yield from read_meta(names)).view(self._view).stored
        found: list[tuple[str, int]] = []
        while not found and self._shard < names.shards:
            store = names.shard(self._shard)
            [(cursor, rows)] = yield [("ZSCAN", store.keys(self._stored), self._cursor, "COUNT", self._size)]
            self._cursor = int(cursor)
            found = [(str(member), int(float(score))) for member, score in rows]
            if self._cursor == 0:
                self._shard += 1
        return found or None

"""The change feed: one stream for each shard, read as one."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from tidemark_client import layout
from tidemark_client.errors import ArgumentError, ChangesLostError
from tidemark_client.names import Names
from tidemark_client.steps import Command, Query, Steps
from tidemark_client.values import Change

FIRST = "0-0"
"""Before every entry of the change feed."""
ENTRIES = 100
"""Entries in one answer, of all shards together; but each may give one."""
TURN_MS = 50
"""In a cluster, how long a request waits at one shard before the others are looked at. Redis 6.2 may take 100 ms (`hz` 10)."""

_Position = tuple[int, int]


def most(shards: int) -> int:
    """The entries that one answer has at most of each shard's feed."""
    return max(1, ENTRIES // shards)


def end_of_feed() -> Query[str]:
    """The id of the newest entry of the change feed; of several shards the ids of their newest entries, joined by commas."""

    def steps(names: Names) -> Steps[str]:
        newest = yield [_newest(store) for store in names.stores]
        if names.shards > 1 or not any(newest):
            yield from layout.check(names)
        return ",".join(_id(each) for each in newest)

    return Query(steps)


def changes(after: str, block_ms: int = 0) -> Query[list[Change]]:
    """The next entries of the change feed, the oldest first; waits so long for one. After FIRST, all that are still there.

    Raises ChangesLostError where entries were trimmed away before they were read, or where Redis is an older copy of itself.
    """
    positions = [_position(after, each) for each in after.split(",")]

    def steps(names: Names) -> Steps[list[Change]]:
        ids = _ids(names, after, positions)
        first: list[Command] = [("GET", names.shard(0).meta)] if names.shards > 1 else []
        if block_ms and names.in_cluster:
            yield from _wait(names, ids, block_ms)
        elif block_ms:
            feeds = [store.changes for store in names.stores]
            first.append(("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", *feeds, *ids))
        count = most(names.shards)
        # From the last entry on: while Redis has it, none after it was trimmed away.
        reads = [("XRANGE", store.changes, last, "+", "COUNT", count + 1) for store, last in zip(names.stores, ids)]
        replies = yield [*first, *reads]
        if names.shards > 1:
            layout.check_meta(names, replies[0])
        replies = replies[len(first) :]
        found = []
        for number, (store, entries) in enumerate(zip(names.stores, replies)):
            last = _position(after, ids[number])
            has_last = bool(entries) and _position(after, entries[0][0]) == last
            if not has_last and any(last):
                yield from _check_that_none_is_lost(store, ids[number])
            chosen = entries[1:] if has_last else entries[:count]
            found += [(_position(after, entry_id), number, entry_id, fields) for entry_id, fields in chosen]
        if not any(replies):
            yield from layout.check(names)
        answer = []
        for _, number, entry_id, fields in sorted(found, key=lambda each: each[:2]):
            ids[number] = entry_id
            answer.append(_change(names.shard(number), ",".join(ids), fields))
        return answer

    return Query(steps)


def _newest(store: Names) -> Command:
    return ("XREVRANGE", store.changes, "+", "-", "COUNT", 1)


def _wait(names: Names, ids: list[str], block_ms: int) -> Steps[None]:
    """Wait until a feed's newest entry is another one. One XREAD cannot wait for several slots of a cluster.

    It waits for the shard of the newest entry, which is as likely as any to be the next, and looks at all of them in between.
    """
    until = time.monotonic() + block_ms / 1000
    last = [_position(each, each) for each in ids]
    feed, after = names.shard(last.index(max(last))).changes, ids[last.index(max(last))]
    while True:
        newest = [_id(each) for each in (yield [_newest(store) for store in names.stores])]
        left_ms = int(1000 * (until - time.monotonic()))
        if [_position(each, each) for each in newest] != last or left_ms <= 0:
            return
        # Many shards are looked at more rarely: at most 1,000 commands a second.
        turn_ms = min(left_ms, max(TURN_MS, names.shards))
        yield [("XREAD", "COUNT", 1, "BLOCK", turn_ms, "STREAMS", feed, after)]


def _check_that_none_is_lost(store: Names, last: str) -> Steps[None]:
    """To be asked after the entries: what was answered was not trimmed in between."""
    oldest, newest = yield [("XRANGE", store.changes, "-", "+", "COUNT", 1), _newest(store)]
    position = _position(last, last)
    if not oldest or not newest or not _position(last, _id(oldest)) <= position <= _position(last, _id(newest)):
        msg = (
            f"{store.changes}: entries after {last} were trimmed away, or Redis has lost them. Read the keys again and follow "
            "from the end; a longer redis.feed_length of the service keeps more"
        )
        raise ChangesLostError(msg)


def _change(store: Names, change_id: str, fields: dict[str, str]) -> Change:
    places = tuple(store.parse(key) for key in json.loads(fields["keys"]))
    return Change(change_id, fields["kind"], places, int(fields["epoch"]), int(fields["batch"]))


def _id(entries: list[Any]) -> str:
    """The id of a reply's only entry, or FIRST."""
    return str(entries[0][0]) if entries else FIRST


def _ids(names: Names, after: str, positions: list[_Position]) -> list[str]:
    """The id in each shard's feed. Raises ChangesLostError where the ids are of another number of shards."""
    if not any(map(any, positions)):
        return [FIRST] * names.shards
    if len(positions) != names.shards:
        msg = (
            f"{after!r} has the position in {len(positions)} feed(s), prefix {names.prefix!r} has {names.shards} shard(s). "
            "Read the keys again and follow from the end"
        )
        raise ChangesLostError(msg)
    return after.split(",")


def _position(after: str, entry_id: str) -> _Position:
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", entry_id)
    if match is None:
        msg = f"{after!r} is no id of the change feed: give that of an entry, or {FIRST!r} for all that is there"
        raise ArgumentError(msg)
    return int(match[1]), int(match[2] or 0)

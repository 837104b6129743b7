"""Lists devices that were expected and never came: rows of the reference without a reading ever, with the status `never`.

The rows of the reference, less the devices that are known to have sent, are looked up in Redis when a term begins and every
LOOK_S. A device without a hash gets one with the status `never`, and a place in the sorted set `never`. Its first reading
overwrites the hash in the batch that writes it, and marks the place (publish.lua), so no reader sees a device that has sent as
`never`. The next look notes the mark in the checkpoint, and removes the place:

    reference/sent.json     the devices of the reference that have sent, also when their hashes have expired since

A look costs Redis 2 us for each device that has not come, and nothing for the others. It writes under the term's epoch. Nothing
is listed while Redis lacks values that it had, or a new checkpoint reads the topic again: their devices have sent.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from service import clock
from service.aggregation.sessions import has_states
from service.checkpoint.document import Document
from service.micro_batch import MicroBatch
from service.pipeline.side_job import SideJob
from service.pipeline.term import Term
from service.publication.policy import WritePolicy
from service.publication.store import Store
from service.redis.keys import shard_of, shards, text_of
from service.reference.attributes import DEVICE
from service.reference.folder import snapshot_folder
from service.reference.snapshots import Snapshot

LOOK_S = 60.0
_PER_RETAIN = 4
"""Looks in the time after which the hash of a silent device expires."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sent:
    """The devices of the reference that have sent a reading, sorted."""

    devices: tuple[str, ...] = ()


DOCUMENT = Document[Sent](
    "sent.json", Sent, remedy="Remove the file: then only devices that Redis has are known to have sent"
)
"""In the folder of the snapshots."""


class Ending(Exception):  # noqa: N818 - it is no error
    """Raised in a look when the term ends."""


class NeverSent(SideJob):
    """Lists the devices of a term's reference that have never sent, in a thread of its own."""

    def __init__(self, term: Term) -> None:
        every_s = min(LOOK_S, term.settings.sessions.retain_ms / 1000 / _PER_RETAIN)
        super().__init__(term.spark, "tidemark-never", every_s)
        self._term = term
        reference = term.settings.reference
        self._is_on = reference is not None and reference.list_never
        self._listed: str | None = None
        """The version of the snapshot that the last look has listed."""
        self._count = 0

    def start(self) -> None:
        """Start the thread. If the setting is off, take the devices of earlier terms out of the list instead."""
        if self._is_on:
            super().start()
        else:
            self._unlist(self._store(""), ())

    def work(self) -> None:
        """List the devices of the snapshot in use. Raises TidemarkError."""
        snapshot = self._term.snapshot
        if snapshot is None:
            return
        outlets = self._term.outlets if has_states(self._term.settings) else None
        if outlets is not None:
            outlets.look()
        folder = snapshot_folder(self._term.spark, self._term.settings.service.checkpoint)
        known = frozenset((DOCUMENT.read(folder) or Sent()).devices)
        store = self._store(snapshot.version)
        table = self._attributes(snapshot)
        expected = table[DEVICE].to_pylist()
        rows = [row for row, device in enumerate(expected) if device not in known]
        came = self._list(store, table.take(pa.array(rows, pa.int64())), compares=self._listed != snapshot.version)
        if came is None:
            return
        sent = tuple(sorted({device for device in expected if device in known} | came))
        if known != {*sent}:
            DOCUMENT.write(folder, Sent(sent))  # before the marks are removed: a repeat finds either
        absent = {*expected} - {*sent}
        self._unlist(store, absent)
        if outlets is not None:
            with self._term.write_lock:
                outlets.expect(absent)
        self._term.metrics.never_sent(len(absent))
        if self._listed is None or len(absent) > self._count:
            _log.info("%d of %d devices of the reference have never sent a reading", len(absent), len(expected))
        self._listed, self._count = snapshot.version, len(absent)

    def _attributes(self, snapshot: Snapshot) -> pa.Table:
        """Return the devices with the columns that device hashes have."""
        reference = self._term.settings.reference
        columns = reference.columns if reference is not None else ()
        return snapshot.table.select([DEVICE, *columns]) if columns else snapshot.table

    def _list(self, store: Store, table: pa.Table, *, compares: bool) -> set[str] | None:
        """List the devices of a table; return those that have sent. None if Redis has not all values now."""
        devices: list[str] = table[DEVICE].to_pylist()
        since, came = str(clock.now_ms()), set[str]()
        columns = {f"ref.{name}": table[name].to_pylist() for name in table.column_names if name != DEVICE}
        for shard, part in self._parts(devices):
            reply = store.run_in(
                shard,
                "expect",
                **self._named(shard, [devices[row] for row in part]),
                fields=[*columns],
                columns=[[values[row] for row in part] for values in columns.values()],
                reference=store.micro_batch.reference,
                since=since,
                compares=compares,
            )
            if int(reply[0]) < 0:
                return None
            came |= {devices[part[int(place)]] for place in reply[1:]}
        return came

    def _unlist(self, store: Store, absent: Collection[str]) -> None:
        """Take all devices out of the list but those that are `absent`."""
        others = [each for shard in store.numbers for each in _listed(store, shard) if each not in absent]
        for shard, part in self._parts(others):
            store.run_in(shard, "unexpect", **self._named(shard, [others[row] for row in part]))

    def _parts(self, devices: Sequence[str]) -> Iterator[tuple[int, list[int]]]:
        """Yield the places of devices by shard, at most `redis.chunk` in a part, until the term ends."""
        options = self._term.settings.redis
        rows: list[list[int]] = [[] for _ in range(options.shards)]
        for row, device in enumerate(devices):
            rows[shard_of(device, options.shards)].append(row)
        for shard, own in enumerate(rows):
            for first in range(0, len(own), options.chunk):
                if self.is_ending:
                    raise Ending
                yield shard, own[first : first + options.chunk]

    def _named(self, shard: int, devices: Sequence[str]) -> dict[str, Any]:
        keys = shards(self._term.settings.redis)[shard]
        return {"keys": [keys.device(each) for each in devices], "members": [*devices]}

    def _store(self, reference: str) -> Store:
        published = self._term.published
        batch = published[1] if published is not None else 0
        micro_batch = MicroBatch(self._term.epoch, batch, 0, {}, {}, reference)
        return Store(self._term.settings, micro_batch, policy=WritePolicy.idle(published))

    def failed(self, error: Exception) -> None:
        self._term.metrics.fails("never_sent")
        _log.warning("Devices that have never sent are not listed: %s. The service tries again", error)


def _listed(store: Store, shard: int) -> Iterator[str]:
    """Yield the devices that a shard lists, page by page; one may come twice."""
    cursor = ""
    while cursor != "0":
        reply = store.run_in(shard, "expected", cursor=cursor or "0", limit=store.settings.redis.chunk)
        cursor = text_of(reply[0])
        yield from map(text_of, reply[1:])

"""One shard as the observer sees it: what differs from the look before goes to the history.

A shard is a complete store under a prefix of its own, so one class reads a prefix of one shard, too.
"""

import json
import random
from collections.abc import Callable
from typing import Any

from load.faults.history import Entry

CHANGED = 48
"""Keys that are looked at for having changed, each look, of all shards together."""
WATCHED = 96
"""Keys that are looked at again and again; one in twelve gives way to another each look."""
_FEED = 20_000
_CLOSING = "final", "idle", "idle_epoch", "idle_batch"


class Shard:
    """The shard under `prefix`, one of `shards`; `add` takes what is seen, as History.add does.

    `epoch` is -1 and `progress`, the last entry of that name, is None until they were seen. `idle` is up to where silence has
    closed windows, -1 for nothing.
    """

    def __init__(
        self, prefix: str, shards: int, add: Callable[..., None], chance: random.Random, *, keep: bool = False
    ) -> None:
        """With `keep`, the entries of the feed that are there at the first look have been seen by another one."""
        self.epoch = -1
        self.progress: Entry | None = None
        self.idle = -1
        self._prefix = prefix
        self._changed, self._room = max(1, CHANGED // shards), max(1, WATCHED // shards)
        self._add = add
        self._random = chance
        self._feed_at = "" if keep else "0-0"
        self._watched: list[str] = []
        self._values: dict[str, dict[str, str]] = {}
        # What progress says of windows; and by key, what it said before the value was read last.
        self._closing: dict[str, str] = {}
        self._closing_of: dict[str, dict[str, str]] = {}

    def look(self, client: Any) -> None:
        """Read the epoch, progress, the feed since the last look, and some hashes."""
        epoch = client.get(f"{self._prefix}:epoch")
        if epoch is not None and int(epoch) != self.epoch:
            self.epoch = int(epoch)
            self._add("epoch", epoch=self.epoch)
        self._look_at_progress(client)
        changed = self._look_at_feed(client)
        # What is watched leaves now and then, so that a long run sees more than its first minute's keys.
        for _ in range(max(1, self._room // 12)):
            if len(self._watched) >= self._room:
                self._values.pop(self._watched.pop(self._random.randrange(len(self._watched))), None)
        sample = self._random.sample(changed, min(self._changed, len(changed)))
        room = self._room - len(self._watched)
        self._watched += [key for key in sample if key not in self._values][: max(0, room)]
        watched = set(self._watched)
        for key in sample:
            if key not in watched:
                self._values.pop(key, None)
        self._look_at_values(client, sorted(watched | set(sample)))

    def _look_at_progress(self, client: Any) -> None:
        progress = client.hgetall(f"{self._prefix}:progress")
        if not {"epoch", "batch", "watermark", "final", "offsets"} <= progress.keys():
            return
        self._closing = {name: progress[name] for name in _CLOSING if name in progress}
        self.idle = int(progress.get("idle", -1))
        numbers = {name: int(progress[name]) for name in ("epoch", "batch", "watermark", "final")}
        offsets = {
            f"{topic}[{partition}]": offset
            for topic, partitions in json.loads(progress["offsets"]).items()
            for partition, offset in partitions.items()
        }
        before, self.progress = self.progress, {**numbers, "offsets": offsets}
        if before is None or any(before[name] != numbers[name] for name in ("epoch", "batch")):
            self._add("progress", **self.progress)

    def _look_at_feed(self, client: Any) -> list[str]:
        """The keys that changed since the last look; the feed's epochs and batches go to the history as spans."""
        changed: dict[str, None] = {}
        if not self._feed_at:
            newest = client.xrevrange(f"{self._prefix}:changes", count=1)
            self._feed_at = newest[0][0] if newest else "0-0"
        while True:
            entries = client.xrange(f"{self._prefix}:changes", f"({self._feed_at}", "+", count=_FEED)
            if not entries:
                break
            missed = self._has_been_trimmed(client)
            spans: list[list[int]] = []
            for _, entry in entries:
                term = [int(entry["epoch"]), int(entry["batch"])]
                keys = json.loads(entry["keys"])
                if spans and spans[-1][:2] == term:
                    spans[-1][2] += len(keys)
                else:
                    spans.append([*term, len(keys)])
                if entry["kind"] != "progress":
                    changed |= dict.fromkeys(keys)
            self._feed_at = entries[-1][0]
            self._add("feed", spans=spans, **({"missed": True} if missed else {}))
            if len(entries) < _FEED:
                break
        return list(changed)

    def _has_been_trimmed(self, client: Any) -> bool:
        """Whether entries that nobody saw are gone from the feed."""
        first = client.xrange(f"{self._prefix}:changes", "-", "+", count=1)
        return self._feed_at != "0-0" and bool(first) and _place(first[0][0]) > _place(self._feed_at)

    def _look_at_values(self, client: Any, keys: list[str]) -> None:
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.hgetall(key)
        for key, fields in zip(keys, pipe.execute(), strict=True):
            if fields != self._values.get(key):
                if fields or key in self._values:
                    self._add("value", key=key, hash=fields or None, closing=self._closing_of.get(key, {}))
                self._values[key] = fields
            self._closing_of[key] = self._closing


def _place(stream_id: str) -> tuple[int, int]:
    ms, _, number = stream_id.partition("-")
    return int(ms), int(number)

"""A prefix with any number of shards, each filled as schemas/redis.md of Tidemark has a prefix of one."""

import json
import zlib
from typing import Any

MINUTE = 60_000
T0 = 1_700_000_040_000
VIEWS = [
    {"name": "site", "by": ["site"], "measures": ["power"]},
    {"name": "model", "by": ["site", "model"], "measures": ["power"]},
    {"name": "all", "by": [], "measures": ["power"]},
]
LENGTHS = {"window_ms": MINUTE, "slide_ms": MINUTE, "retain_ms": 86_400_000}


class Stores:
    """`redis` writes, to one Redis or to a cluster; `url` and `cluster` are what a client connects with."""

    def __init__(
        self, connection: Any, url: str, shards: int, *, cluster: bool = False, prefix: str = "tidemark"
    ) -> None:
        self.redis, self.shards, self.plain = connection, shards, prefix
        self.options: dict[str, Any] = {"url": url, "prefix": prefix, **({"cluster": True} if cluster else {})}

    def fill(self) -> None:
        for shard in range(self.shards):
            self.meta(shard)
            self.progress(shard)

    def prefix(self, shard: int) -> str:
        return self.plain if self.shards == 1 else f"{{{self.plain}:{shard}}}"

    def shard(self, text: str) -> int:
        return zlib.crc32(text.encode()) % self.shards

    def of(self, text: str) -> str:
        return self.prefix(self.shard(text))

    def names(self, count: int = 1) -> "list[str]":
        """Texts of which each shard has as many, shard by shard."""
        texts = [f"d{number}" for number in range(1_000)]
        return [each for shard in range(self.shards) for each in [t for t in texts if self.shard(t) == shard][:count]]

    def meta(self, shard: int, **changed: Any) -> None:
        sessions = {"gap_ms": 30_000, "max_duration_ms": 3_600_000, "retain_ms": 86_400_000}
        views = [{**each, **LENGTHS} for each in VIEWS]
        text = {"contract": 3, "shards": self.shards, "measures": ["power"], "views": views, "sessions": sessions}
        self.redis.set(f"{self.prefix(shard)}:meta", json.dumps({**text, **changed}))

    def progress(self, shard: int, batch: int = 7, final: int = T0, **fields: Any) -> None:
        times = {"watermark": final, "final": final, "updated": 1_700_000_100_000 + shard}
        offsets = json.dumps({"readings": {"0": 10 + batch, "1": 20 + batch}})
        values = {"epoch": 2, "batch": batch, **times, "offsets": offsets, "reference": "abc", **fields}
        self.redis.delete(f"{self.prefix(shard)}:progress")
        self.redis.hset(f"{self.prefix(shard)}:progress", mapping=values)

    def progress_of_all(self, batch: int = 7, final: int = T0, **fields: Any) -> None:
        for shard in range(self.shards):
            self.progress(shard, batch, final, **fields)

    def window(self, key: str, start: int, *, view: str = "site", count: int = 2, batch: int = 7) -> str:
        """Returns the name of its key in Redis."""
        fields = {
            "start": start,
            "end": start + MINUTE,
            "count": count,
            "first": start,
            "last": start + 5,
            "sum": 3.5 * count,
        }
        fields.update({"mean": 3.5, "min": 1, "max": 6, "stddev": 0, "epoch": 2, "batch": batch, "updated": 5})
        name = f"{self.of(key)}:window:{view}:power:{key}:{start}"
        self.redis.hset(name, mapping=fields)
        self.redis.zadd(f"{self.of(key)}:keys:{view}", {key: start}, gt=True)
        return name

    def device(self, device: str, *, session: "int | str" = "", batch: int = 7) -> str:
        fields = {"status": "online", "last_seen": T0, "session": session, "reference": "abc"}
        name = f"{self.of(device)}:device:{device}"
        self.redis.hset(name, mapping={**fields, "epoch": 2, "batch": batch, "updated": 5})
        return name

    def session(self, device: str, start: int) -> str:
        fields = {
            "start": start,
            "last": start + 9,
            "count": 3,
            "duration": 9,
            "state": "open",
            "reason": "",
            "closed_by": "",
        }
        fields.update({"power.count": 3, "power.mean": 2.5, "power.min": 1, "power.max": 4, "revision": 0})
        name = f"{self.of(device)}:session:{device}:{start}"
        self.redis.hset(name, mapping={**fields, "epoch": 2, "batch": 7, "updated": 5})
        self.redis.zadd(f"{self.of(device)}:sessions:{device}", {str(start): start})
        return name

    def announce(self, kind: str, text: str, name: str = "", batch: int = 7) -> str:
        """An entry of the feed of a key's or a device's shard; returns its id."""
        prefix = self.of(text)
        entry = {"kind": kind, "keys": json.dumps([name or f"{prefix}:{kind}:{text}"]), "epoch": 2, "batch": batch}
        return str(self.redis.xadd(f"{prefix}:changes", entry))

"""Names of the keys in Redis and the text of their values, by the contract in schemas/redis.md.

schemas/redis.json is its machine-checked form. A shard is a complete store under a prefix of its own. This module imports no
Arrow, so that `tidemark status` starts fast: service/redis/key_columns.py has the names over columns.
"""

import re
import zlib
from dataclasses import dataclass
from functools import cache

from service.settings import Redis

_OF_A_KIND = re.compile(rb"window:[^:]+:[^:]+:.*:\d+|session:.*:\d+|(sessions|device|keys):.*", re.DOTALL)
"""The names of keys of which a prefix has many, without the prefix."""


class _Key:
    """A key that a prefix has once: its name is that of the attribute. `kind` is its type in Redis, "" if it never exists."""

    def __init__(self, kind: str = "string") -> None:
        self.kind = kind

    def __set_name__(self, _owner: object, name: str) -> None:
        self._name = name

    def __get__(self, keys: "Keys", _owner: object) -> str:
        return f"{keys.prefix}:{self._name}"


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names under a prefix."""

    prefix: str

    epoch = _Key()
    lease = _Key()
    changes = _Key("stream")
    ends = _Key()
    """The event time by which every window ends."""
    skewed = _Key("zset")
    never = _Key("zset")
    """The devices of the reference that have never sent a reading."""
    meta = _Key()
    progress = _Key("hash")
    republish = _Key()
    rebuild = _Key()
    correction = _Key()
    """The number of the newest run that applies rejects: see service/rejects/fence.py."""
    evicted = _Key()
    """A run of Redis, and its number of evicted keys up to which values were published again."""
    absent = _Key("")
    """A key that never exists. A cluster refuses a call with this key while it moves the shard's keys to another node."""

    @property
    def types(self) -> dict[str, str]:
        """The type of each key of which the prefix has one."""
        known = {name: each.kind for name, each in vars(Keys).items() if isinstance(each, _Key) and each.kind}
        return {f"{self.prefix}:{name}": kind for name, kind in known.items()}

    def matching(self, pattern: str) -> str:
        """A pattern for SCAN that matches keys of this prefix only; the prefix may have any characters."""
        return re.sub(r"([*?\[\]\\])", r"\\\1", self.prefix) + f":{pattern}"

    def has(self, name: bytes) -> bool:
        """Return whether a key has a name of this prefix: a pattern for `a` also matches the keys of the prefix `a:b`."""
        own = f"{self.prefix}:".encode()
        rest = name[len(own) :]
        is_known = _OF_A_KIND.fullmatch(rest) is not None or isinstance(vars(Keys).get(text_of(rest)), _Key)
        return name.startswith(own) and is_known

    def window(self, view: str, measure: str, key: str, start_ms: int) -> str:
        return f"{self.prefix}:window:{view}:{measure}:{key}:{start_ms}"

    def session(self, device: str, start_ms: int) -> str:
        return f"{self.prefix}:session:{device}:{start_ms}"

    def sessions_of(self, device: str) -> str:
        """The sorted set of the starts of a device's sessions."""
        return f"{self.prefix}:sessions:{device}"

    def device(self, device: str) -> str:
        return f"{self.prefix}:device:{device}"


def shards(options: Redis) -> tuple[Keys, ...]:
    """The keys of each shard."""
    return _shards(options.prefix, options.shards)


@cache
def _shards(prefix: str, count: int) -> tuple[Keys, ...]:
    # The braces are a hash tag: a Redis Cluster keeps all keys of a shard on one node.
    return (Keys(prefix),) if count == 1 else tuple(Keys(f"{{{prefix}:{number}}}") for number in range(count))


def text_of(reply: bytes | int) -> str:
    """Return a reply of Redis as text; ids that are not UTF-8 keep their bytes."""
    return reply.decode("utf-8", "surrogateescape") if isinstance(reply, bytes) else str(reply)


def shard_of(text: str | bytes, count: int) -> int:
    """The shard of a window's key or of a device's id."""
    encoded = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return zlib.crc32(encoded) % count

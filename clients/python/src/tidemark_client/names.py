"""Names of keys in Redis, as schemas/redis.md of Tidemark defines them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, NamedTuple, Union

from tidemark_client.errors import ArgumentError, KeyTextError

NO_VALUE = "(none)"
"""Stands in a key for an attribute that the reference does not have."""

KeyOf = Union[str, Sequence[Union[str, None]]]
"""The key of a view: a text for a view of one column, one value for each column for others, () for a view over all devices."""


def utf_8(text: str) -> bytes:
    """The bytes of a text as `from_url` has redis-py send it."""
    return text.encode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class Names:
    """Key names under a prefix. Several shards are stores of one shard each: names are those of a store."""

    prefix: str = "tidemark"
    shards: int = 1
    in_cluster: bool = False
    encode: Callable[[str], bytes] = utf_8

    @property
    def stores(self) -> list[Names]:
        """The names of each shard, in their order."""
        return [self.shard(number) for number in range(self.shards)]

    def shard(self, number: int) -> Names:
        """The names of a shard: of the only one, or those under a hash tag of its own."""
        return self if self.shards == 1 else Names(f"{{{self.prefix}:{number}}}")

    def store(self, text: str) -> Names:
        """The names of the shard that has a view's key, or a device. Raises ArgumentError."""
        if self.shards == 1:
            return self
        try:
            return self.shard(zlib.crc32(self.encode(text)) % self.shards)
        except UnicodeError as error:
            raise ArgumentError(f"{text!r} cannot be sent to Redis: {error}") from error

    def number_of(self, key: object) -> int | None:
        """The number of the shard that has a key, None for a key of none."""
        if self.shards == 1:
            return 0 if str(key).startswith(f"{self.prefix}:") else None
        match = re.match(rf"\{{{re.escape(self.prefix)}:(0|[1-9][0-9]*)\}}:", str(key))
        return int(match[1]) if match and int(match[1]) < self.shards else None

    def device_of(self, key: str) -> tuple[int, str] | None:
        """The shard and the id of a device's key, None for another one."""
        number = self.number_of(key)
        if number is None:
            return None
        start = self.shard(number).device("")
        return (number, key[len(start) :]) if key.startswith(start) else None

    @property
    def meta(self) -> str:
        return f"{self.prefix}:meta"

    @property
    def progress(self) -> str:
        return f"{self.prefix}:progress"

    @property
    def changes(self) -> str:
        return f"{self.prefix}:changes"

    @property
    def skewed(self) -> str:
        return f"{self.prefix}:skewed"

    @property
    def never(self) -> str:
        return f"{self.prefix}:never"

    def keys(self, view: str) -> str:
        return f"{self.prefix}:keys:{view}"

    def window(self, view: str, measure: str, key: str, start: int) -> str:
        return f"{self.prefix}:window:{view}:{measure}:{key}:{start}"

    def session(self, device: str, start: int) -> str:
        return f"{self.prefix}:session:{device}:{start}"

    def sessions(self, device: str) -> str:
        return f"{self.prefix}:sessions:{device}"

    def device(self, device: str) -> str:
        return f"{self.prefix}:device:{device}"

    @property
    def every_device(self) -> str:
        """A pattern for SCAN, of all shards, whatever characters the prefix has."""
        prefix = re.sub(r"([*?\[\]\\])", r"\\\1", self.prefix)
        return f"{prefix}:device:*" if self.shards == 1 else f"{{{prefix}:*}}:device:*"

    def parse(self, name: str) -> Place:
        """The parts of the name of a window, a session, a device or progress."""
        kind, _, rest = name[len(self.prefix) + 1 :].partition(":")
        if kind == "window":
            view, measure, rest = rest.split(":", 2)
            key, _, start = rest.rpartition(":")
            return Place(kind, key=key, view=view, measure=measure, start=int(start))
        if kind == "session":
            device, _, start = rest.rpartition(":")
            return Place(kind, key=device, start=int(start))
        return Place(kind, key=rest)


class Place(NamedTuple):
    """What a key is about. `kind` is "window", "session", "device" or "progress".

    `key` is a view's key, or the device's id; "" for progress. A reader of the feed makes a place of each key, and a tuple
    takes half of the time of a frozen dataclass.
    """

    kind: str
    key: str
    view: str = ""
    measure: str = ""
    start: int | None = None


def key_text(view: str, columns: Sequence[str], key: KeyOf) -> str:
    """The text that stands for a key in names. A text that has as many parts as the view has columns is one already.

    Raises KeyTextError.
    """
    if not columns and key in ((), [], "all"):
        return "all"
    if isinstance(key, str) and columns and (len(columns) == 1 or key.count("|") == len(columns) - 1):
        return key
    values: tuple[object, ...] = tuple(key) if isinstance(key, (list, tuple)) else (key,)
    if not columns or len(values) != len(columns) or not all(each is None or isinstance(each, str) for each in values):
        by = ", ".join(columns) or "nothing: it is over all devices"
        raise KeyTextError(f"view {view!r} is by {by}; {key!r} does not fit. Give one text, or None, for each column")
    texts = [NO_VALUE if each is None else str(each) for each in values]
    return texts[0] if len(texts) == 1 else "|".join(map(_escaped, texts))


def _escaped(value: str) -> str:
    return value.replace("%", "%25").replace("|", "%7C")

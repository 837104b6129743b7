"""Read the change feed."""

import json
from typing import Any

from schemas import contract

FIRST = "0-0"
"""Before every entry."""


def changes(
    client: Any, prefix: str = "tidemark", after: str = FIRST, shards: int = 1
) -> list[tuple[str, dict[str, str]]]:
    """Return what follows an entry, one item a key: the entry's id, and its fields with `key` in place of `keys`.

    The feeds of several shards come one after the other, and each has ids of its own: give one shard's prefix to go on with
    `after` in its feed.
    """
    feeds = [client.xrange(f"{shard}:changes", f"({after}") for shard in contract.prefixes(prefix, shards)]
    return [(number, _of(key, entry)) for feed in feeds for number, entry in feed for key in json.loads(entry["keys"])]


def _of(key: str, entry: dict[str, str]) -> dict[str, str]:
    return {"key": key, **{name: text for name, text in entry.items() if name != "keys"}}

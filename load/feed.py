"""Read the change feed."""

import json
from typing import Any

FIRST = "0-0"
"""Before every entry."""


def changes(client: Any, prefix: str = "tidemark", after: str = FIRST) -> list[tuple[str, dict[str, str]]]:
    """Return what follows an entry, one item a key: the entry's id, and its fields with `key` in place of `keys`."""
    entries = client.xrange(f"{prefix}:changes", f"({after}")
    return [(number, _of(key, entry)) for number, entry in entries for key in json.loads(entry["keys"])]


def _of(key: str, entry: dict[str, str]) -> dict[str, str]:
    return {"key": key, **{name: text for name, text in entry.items() if name != "keys"}}

"""Read the change feed."""

import json
from typing import Any

FIRST = "-"


def changes(client: Any, prefix: str = "tidemark", after: str = FIRST) -> list[tuple[str, dict[str, str]]]:
    """The feed after an entry's id, one item for each key: the entry's id, and {kind, key, batch, epoch} or with `revision`."""
    entries = client.xrange(f"{prefix}:changes", after if after == FIRST else f"({after}")
    return [(number, _of(key, entry)) for number, entry in entries for key in json.loads(entry["keys"])]


def _of(key: str, entry: dict[str, str]) -> dict[str, str]:
    return {"key": key, **{name: text for name, text in entry.items() if name != "keys"}}

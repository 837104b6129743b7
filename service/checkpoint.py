"""What can be told of a checkpoint folder without Spark: how far it has come, and which of its small files are damaged."""

import json
from pathlib import Path
from urllib.parse import urlsplit

NEWEST = 3
"""So many of the newest files are looked at; a query that goes on reads the last two."""


def local(checkpoint: str) -> Path | None:
    """The folder, None when the checkpoint is on another file system."""
    url = urlsplit(checkpoint)
    return Path(url.path) if url.scheme in {"", "file"} else None


def last_batch(folder: Path) -> int | None:
    """The number of the last batch that was begun, None for a new checkpoint."""
    return max(_numbers(folder / "offsets"), default=None)


def damaged(folder: Path) -> list[Path]:
    """Files of the newest batches, and the query's id, that are not what Spark writes: a version, then lines of JSON."""
    found = [path for path in [folder / "metadata"] if path.exists() and not _is_json(path.read_bytes())]
    for log in ("offsets", "commits"):
        for number in sorted(_numbers(folder / log))[-NEWEST:]:
            path = folder / log / str(number)
            version, *lines = path.read_bytes().split(b"\n") or [b""]
            # An offset line is "-" for a source that had none.
            if version != b"v1" or not lines or not all(line == b"-" or _is_json(line) for line in lines):
                found.append(path)
    return found


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdigit()]


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False

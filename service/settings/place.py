"""Places that only one may write: whether two are the same, or one is inside the other."""

import os
from collections.abc import Iterator
from pathlib import Path


def folder(place: str) -> str:
    """Return the path of a folder of this machine, whose name may be a URL; a URL of another file system as it is."""
    if place.startswith("file:"):
        return str(Path(f"/{place.removeprefix('file:').lstrip('/')}").resolve())
    return place if "://" in place else os.path.normpath(place)


def nested(key: str, first: str, second: str, end: str) -> Iterator[str]:
    """Yield a problem if two names are equal, or one is inside the other; `end` separates the parts of a name."""
    first, second = first.rstrip(end), second.rstrip(end)
    if first == second:
        yield f"{key}: both are {first!r}, which only one may write"
    elif f"{second}{end}".startswith(f"{first}{end}") or f"{first}{end}".startswith(f"{second}{end}"):
        yield f"{key}: one of {first!r} and {second!r} is inside the other"

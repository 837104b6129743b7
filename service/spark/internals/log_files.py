"""The format of Spark's logs in a checkpoint: numbered files of a version line and lines of JSON."""

import json
from collections.abc import Callable
from typing import Any

from service.spark.files import Folder

MISSING = "is missing"
NOT_WHOLE = "is not what Spark writes: it is cut short or overwritten"
_VERSIONS = (b"v1", b"v2")


def numbers(folder: Folder, log: str) -> list[int]:
    """Return the batches in a log, ascending."""
    return sorted(int(name) for name in folder.names(log) if name.isdecimal())


def problem(folder: Folder, name: str) -> str:
    """Return why a file of a log is not what Spark has written, "" if it is."""
    try:
        version, *lines = folder.read(name).split(b"\n")
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read: {error}"
    # An offset line is "-" for a source that had none.
    whole = version in _VERSIONS and lines and all(line == b"-" or is_object(line) for line in lines)
    return folder.problem(name) if whole else NOT_WHOLE


def is_object(text: bytes) -> bool:
    """Whether a text is an object of JSON."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def content(folder: Folder, name: str) -> dict[str, Any]:
    """Return the object in the line after the version. Raises OSError, ValueError, IndexError."""
    document: dict[str, Any] = json.loads(folder.read(name).split(b"\n")[1])
    return document


def edit(files: Folder, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the object in the line after the version, and nothing else. Raises OSError, ValueError."""
    version, line, *others = files.read(name).split(b"\n")
    document = json.loads(line)
    change(document)
    changed = json.dumps(document, separators=(",", ":")).encode()
    files.replace(name, b"\n".join([version, changed, *others]))

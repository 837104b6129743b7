"""Files that the driver hands out to the tasks of all queries of the application."""

import hashlib
import tempfile
import threading
from pathlib import Path

from pyspark import SparkContext, SparkFiles

_lock = threading.Lock()
_handed_out: set[tuple[str, str]] = set()
"""The application and the name of each file."""


def hand_out(context: SparkContext, kind: str, content: bytes) -> str:
    """Give a file with this content to the tasks; return its name, `<kind>-<hash>`, for SparkFiles.get.

    Spark has one namespace for all queries, keeps a file as long as the application runs, and refuses another path for a name
    that it has (4.1.1). So a name has the hash of its content, and the same content is handed out once, whichever query asks.
    """
    name = f"{kind}-{hashlib.blake2b(content, digest_size=8).hexdigest()}"
    key = str(context.applicationId), name
    with _lock:
        if key not in _handed_out:
            path = new_folder() / name
            path.write_bytes(content)
            context.addFile(str(path))
            _handed_out.add(key)
    return name


def new_folder() -> Path:
    """Return a folder for files that the driver hands out; Spark removes it when the application ends.

    Executors that come later fetch these files, too: they must be as safe from a clean-up of temporary files as Spark's own.
    """
    return Path(tempfile.mkdtemp(prefix="tidemark-", dir=SparkFiles.getRootDirectory()))

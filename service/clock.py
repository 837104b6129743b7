"""The clock of service/ and state/: no other module reads the time.

With `TIDEMARK_CLOCK=FILE` and `TIDEMARK_TEST=1` the wall clock shows the number in FILE, in ms. A test replaces the file to
set the clock. `monotonic_s` is not affected.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path


def file_of(environment: Mapping[str, str]) -> Path | None:
    """The file that is the clock, None for the machine's own."""
    name = environment.get("TIDEMARK_CLOCK")
    return Path(name) if name and environment.get("TIDEMARK_TEST") == "1" else None


_file = file_of(os.environ)


def now_ms() -> int:
    """Wall-clock time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000 if _file is None else int(_file.read_text(encoding="ascii"))


def monotonic_s() -> float:
    """Seconds on a clock that never goes back; only differences mean anything."""
    return time.monotonic()

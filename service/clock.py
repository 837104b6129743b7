"""The one clock: nothing else in service/ or state/ asks what time it is.

`TIDEMARK_CLOCK=FILE`, honoured only with `TIDEMARK_TEST=1`: the wall clock stands, and shows what FILE says, in ms. Whoever
sets it replaces the file. What is measured with `monotonic_s` goes on.
"""

import os
import time
from pathlib import Path

_file = (
    Path(os.environ["TIDEMARK_CLOCK"])
    if os.environ.get("TIDEMARK_TEST") == "1" and "TIDEMARK_CLOCK" in os.environ
    else None
)


def now_ms() -> int:
    """Wall-clock time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000 if _file is None else int(_file.read_text(encoding="ascii"))


def monotonic_s() -> float:
    """Seconds on a clock that never goes back; only differences mean anything."""
    return time.monotonic()

"""The clock of service/ and state/: no other module reads the time.

With `TIDEMARK_CLOCK=FILE` and `TIDEMARK_TEST=1` the wall clock shows the number in FILE, in ms. A test replaces the file to
set the clock. `monotonic_s` is not affected.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def file_of(environment: Mapping[str, str]) -> Path | None:
    """The file that is the clock, None for the machine's own."""
    name = environment.get("TIDEMARK_CLOCK")
    return Path(name) if name and environment.get("TIDEMARK_TEST") == "1" else None


_file = file_of(os.environ)


def now_ms() -> int:
    """Wall-clock time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000 if _file is None else int(_file.read_text(encoding="ascii"))


class Steady:
    """Wall-clock time that follows the clock forward and never goes back: from a clock that is set back it goes on by seconds.

    Any thread may call it.
    """

    def __init__(self, wall_ms: Callable[[], int], elapsed_s: Callable[[], float]) -> None:
        """`wall_ms` is the wall clock, `elapsed_s` one that is never set."""
        self._wall_ms, self._elapsed_s = wall_ms, elapsed_s
        self._apart_ms = wall_ms() - round(elapsed_s() * 1000)
        self._lock = threading.Lock()

    def __call__(self) -> int:
        """Return the time in ms since the epoch."""
        with self._lock:
            elapsed_ms = round(self._elapsed_s() * 1000)
            self._apart_ms = max(self._apart_ms, self._wall_ms() - elapsed_ms)
            return elapsed_ms + self._apart_ms


_steady = Steady(now_ms, time.monotonic) if _file is None else now_ms


def steady_ms() -> int:
    """Return the wall-clock time in ms since the epoch, which does not go back when the clock is set back."""
    return _steady()


def shown_ms(at_ms: int) -> int:
    """Return a wall-clock time of this machine as this clock has it: with a file, the file's present time."""
    return at_ms if _file is None else now_ms()


def monotonic_s() -> float:
    """Seconds on a clock that never goes back; only differences mean anything."""
    return time.monotonic()

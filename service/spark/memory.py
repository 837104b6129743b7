"""Give memory that this process has freed back to the system.

Arrow's pool (mimalloc) and the C library keep what is freed, for the next allocation: a process that has advanced a bucket of
500,000 devices held 340 MB and used 175 (pyarrow 25.0.1, glibc 2.36). To give it back takes up to 60 ms, and nothing while a
process does not grow.

Python's references keep memory of the JVM, too: `collect_soon` is for those.
"""

import ctypes
import gc
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa

GROWTH_BYTES = 96 << 20
"""Resident bytes that a process may have more than it had when it last gave memory back."""

_STATM = Path("/proc/self/statm")
_OLDEST = 2  # generation of Python's collector
_settled = 0
_is_quick = False


def settle() -> None:
    """Give freed memory back if the process has grown by GROWTH_BYTES. Does nothing where /proc does not say its size."""
    global _settled  # noqa: PLW0603 - of this process
    size = resident_bytes()
    if size > _settled + GROWTH_BYTES:
        pa.default_memory_pool().release_unused()
        _trim()(0)
        _settled = resident_bytes()


def resident_bytes() -> int:
    """Return the resident memory of this process, 0 where it is not known."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def collect_soon() -> None:
    """Have Python collect what a batch has left within seconds. Call it when the process has imported what it needs.

    An object of the JVM is part of a cycle in Python as soon as a method of it was called (py4j 0.10.9.9: JavaObject and
    JavaMember). The JVM keeps it, with a batch's plan, its metrics and its shuffle files, until Python collects the cycle. A
    cycle that lives through two young collections waits for a complete one, which CPython (3.11) puts off until there are a
    quarter more old objects than after the last one. This process has a million old objects: two batches a minute stayed, with
    six shuffle files each. The objects of this moment are left out of all later collections, so complete ones are frequent, and
    take a few milliseconds. Later calls do nothing.
    """
    global _is_quick  # noqa: PLW0603 - of this process
    if not _is_quick:
        _is_quick = True
        gc.collect()
        gc.freeze()
        gc.collect()  # counts what lives long from here


def settle_after_collection(phase: str, info: dict[str, int]) -> None:
    """For `gc.callbacks`: settle after each complete collection. Spark's workers collect after each task."""
    if phase == "stop" and info["generation"] == _OLDEST:
        settle()


@cache
def _trim() -> Callable[[int], object]:
    """Return the C library's malloc_trim, or a function that does nothing."""
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)

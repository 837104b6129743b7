"""Standard error of the JVM that Python starts: a thread copies it to this process's, without lines that say nothing.

Java prints at each start of Spark that it uses an incubator module, before it reads any configuration of a log (Java 17, Spark
4.1.4: JavaModuleOptions adds jdk.incubator.vector to every JVM).
"""

import os
import re
import select
import threading
import time
from contextlib import suppress

NOISE = re.compile(rb"^WARNING: Using incubator modules|^NOTE: Picked up JDK_JAVA_OPTIONS")
DRAIN_S = 1.0
"""How long a process that ends waits until the thread has copied what the JVM has written."""
_read_ends: list[int] = []


def pipe() -> int:
    """Return the file that the JVM takes as standard error. The caller closes it when the JVM has started."""
    read_end, write_end = os.pipe()
    _read_ends.append(read_end)
    threading.Thread(target=_copy, args=(read_end,), name="tidemark-jvm-errors", daemon=True).start()
    return write_end


def drain() -> None:
    """Wait until what the JVM has written so far is copied, for at most DRAIN_S."""
    end_s = time.monotonic() + DRAIN_S
    with suppress(OSError, ValueError):
        while select.select(_read_ends, [], [], 0)[0] and time.monotonic() < end_s:
            time.sleep(0.01)


def _copy(read_end: int) -> None:
    with os.fdopen(read_end, "rb", closefd=False) as lines:
        for line in lines:
            if not NOISE.match(line):
                with suppress(OSError):  # nobody reads our standard error any more; the JVM must not be stopped by that
                    os.write(2, line)
    _read_ends.remove(read_end)

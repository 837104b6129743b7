"""The probe: finds the unreadable records of a batch, by reading them in a process with limited memory.

The process is service/daemon/probing.py; it prints each offset that it has passed. An offset is unreadable when
- its record (key, value, headers) is larger than LARGEST;
- librdkafka cannot decompress its record batch within DECOMPRESSED: then every offset of the record batch is unreadable;
- a process that begins at the offset dies before it has passed the offset.

librdkafka limits only zstd. For gzip, lz4 and snappy it allocates the size that the record batch names, and aborts at the limit
of memory (2.16.0), which is the third case. A process fetches one record batch at a time. A process that dies after its first
offset is restarted at the offset where it died, so that a death counts for one offset only.
"""

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from service.checkpoint import skips
from service.checkpoint.skips import Span
from service.errors import SourceError
from service.kafka.source import READ_AHEAD
from service.micro_batch import Offsets, ranges
from service.settings import Kafka

LARGEST = 16 << 20
"""Bytes of a record: far more than is admitted (`admission.max_bytes`), and far less than a JVM of 2 GB can hold."""
DECOMPRESSED = 256 << 20
"""Bytes of a record batch."""
MEMORY = 1 << 30
"""Bytes of address space that a process may have."""
DIED = 77
"""Exit status of a process that ends for lack of memory; the status of a process that aborts is negative."""
DEATHS = 64
"""The most deaths of one probe; the next start probes the remaining offsets."""

Run = Callable[[Sequence[Span]], Iterable[tuple[int, bool]]]
"""Probes spans, one after the other. Yields each offset that it has passed, ascending, and whether it can be read; the last
offset of a span in any case. Stops when the process dies."""


def unreadable(kafka: Kafka, begin: Offsets, end: Offsets, skipped: Sequence[Span]) -> tuple[Span, ...]:
    """Return the unreadable offsets from `begin` to `end` and READ_AHEAD behind it, without those in `skipped`.

    Raises SourceError.
    """
    spans = (Span(topic, partition, first, last + READ_AHEAD) for topic, partition, first, last in ranges(begin, end))
    return skips.merged(probed(skips.without(spans, skipped), lambda left: _run(kafka, left)))


def probed(spans: Iterable[Span], run: Run) -> Iterator[Span]:
    """Yield each unreadable offset of the spans, until DEATHS processes have died."""
    todo, deaths = list(spans), 0

    def passed(offset: int) -> None:
        todo[0] = replace(todo[0], begin=offset + 1)
        if todo[0].offsets <= 0:
            del todo[0]

    while todo and deaths < DEATHS:
        first = todo[0]
        for offset, is_readable in run(tuple(todo)):
            if not is_readable:
                yield replace(todo[0], begin=offset, end=offset + 1)
            passed(offset)
        if todo and todo[0] == first:
            yield replace(first, end=first.begin + 1)
            passed(first.begin)
            deaths += 1


def _run(kafka: Kafka, spans: Sequence[Span]) -> Iterator[tuple[int, bool]]:
    command = [sys.executable, "-P", "-m", "service.daemon.probing"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - ourselves
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
        try:
            with process.stdin:  # the settings hold passwords: no argument, and no JSON, which would mask them
                process.stdin.write(pickle.dumps((kafka, [(s.topic, s.partition, s.begin, s.end) for s in spans])))
            for line in process.stdout:
                offset, is_readable = line.split()
                yield int(offset), is_readable == b"1"
        finally:
            process.kill()
    if process.returncode > 0 and process.returncode != DIED:
        what = f"The probe of {' '.join(map(str, spans))} ended with status {process.returncode}"
        raise SourceError(what, remedy="The process has printed its error above")

"""Which records of a batch cannot be read: they are read in a process of its own, whose memory has a limit.

The process is service/daemon/probing.py; it tells each offset that it has passed. An offset is unreadable when
- the record there (key, value, headers) is larger than LARGEST;
- librdkafka cannot decompress the record batch there within DECOMPRESSED: then every offset of that record batch is;
- a process that begins there dies before it has passed it.

librdkafka bounds zstd alone. For gzip, lz4 and snappy it allocates what the record batch asks for, and aborts at the limit of
memory (2.16.0): that is the third case. One record batch is fetched at a time, and a process that dies later than at its first
offset is begun again from there, so that a death is that of one offset.
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
from service.micro_batch import Offsets
from service.settings import Kafka

LARGEST = 16 << 20
"""Bytes of a record. Far above what is admitted (`admission.max_bytes`), and far below what a JVM of 2 GB can hold."""
DECOMPRESSED = 256 << 20
"""Bytes of a record batch."""
MEMORY = 1 << 30
"""Bytes of address space that a process may have."""
DIED = 77
"""Exit status of a process that lacks memory and could still end in order; one that aborts has a negative status."""
DEATHS = 64
"""After so many the offsets that were found are named; the next start finds the others."""

Run = Callable[[Sequence[Span]], Iterable[tuple[int, bool]]]
"""Probes spans, one after the other. Yields an offset, and whether it can be read, for each that it has passed, ascending; the
last one of a span in any case. Stops when it dies."""


def unreadable(kafka: Kafka, begin: Offsets, end: Offsets, skipped: Sequence[Span]) -> tuple[Span, ...]:
    """The unreadable offsets from `begin` to `end` and READ_AHEAD behind it, without those that are skipped.

    Raises SourceError.
    """
    ranges = (
        Span(topic, partition, begin.get(topic, {}).get(partition, 0), offset + READ_AHEAD)
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )
    return skips.merged(found(skips.without(ranges, skipped), lambda spans: _run(kafka, spans)))


def found(spans: Iterable[Span], run: Run) -> Iterator[Span]:
    """Each unreadable offset of the spans, as far as DEATHS of processes tell."""
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
    command = [sys.executable, "-m", "service.daemon.probing"]
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
        raise SourceError(what, remedy="Its own error stands above")

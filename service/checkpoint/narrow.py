"""Skips, written into Spark's offset log before a query starts: see service/checkpoint/skips.py.

    offsets/N       of a batch that is begun and not committed: ends at the first skip of each partition, or so far before it that
                    nothing of it is read ahead: only the records in between are read one at a time
    offsets/N-1     where batch N begins (sources/0/0 for the first batch): behind a skip that it would begin with

The log of commits stays as it is, and so does the state: a batch over a skip was never read to its end, so nothing of it is in
Redis. Both files are replaced whole, with the checksums that Hadoop keeps beside them. A process that ends between the two is
no harm: the next start does the same again, and no batch runs before.
"""

import json

from service.checkpoint import event_time, logs, skips
from service.kafka.source import READ_AHEAD
from service.micro_batch import MicroBatch, Offsets
from service.settings import Kafka
from service.spark.files import Files


def apply(files: Files, kafka: Kafka) -> int:
    """Let the next batch begin behind a skip and end before the next one; returns how many offsets were skipped by that.

    The checkpoint is whole. Raises CheckpointError, SourceError.
    """
    spans, position = skips.read(files), logs.position(files)
    if not spans or position is None:
        return 0
    begin = skips.jumped(position.offsets, spans)
    batch = position.batch
    if logs.last_batch(files) == batch:
        end = logs.ends(files, batch)
        shorter = skips.narrowed(begin, end, spans, READ_AHEAD)
        if shorter != end:
            # What the batch leaves unread now has to hold the watermark, however small the batch has become.
            event_time.Log(files).leaves(kafka, MicroBatch(0, batch, 0, begin, shorter))
            _rewrite(files, f"offsets/{batch}", shorter)
    if begin != position.offsets:
        _rewrite(files, f"offsets/{batch - 1}" if batch > 0 else logs.FIRST, begin)
    return _count(begin) - _count(position.offsets)


def _rewrite(files: Files, name: str, offsets: Offsets) -> None:
    """Replace the offsets of each source, and nothing else: the lines before them, and those of a source without any."""
    text = json.dumps({t: {str(p): o for p, o in each.items()} for t, each in offsets.items()}, separators=(",", ":"))
    lines = files.read(name).decode().split("\n")
    head = 1 if name == logs.FIRST else 2
    files.replace(name, "\n".join(lines[:head] + [line if line == "-" else text for line in lines[head:]]).encode())


def _count(offsets: Offsets) -> int:
    return sum(offset for partitions in offsets.values() for offset in partitions.values())

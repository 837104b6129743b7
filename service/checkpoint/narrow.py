"""Write skips into Spark's offset log before a query starts: see service/checkpoint/skips.py.

    offsets/N       the end of batch N, begun and not committed: moved to the first skip of each partition, or so far before it
                    that the consumer does not read ahead into the skip; the records in between are then read one at a time
    offsets/N-1     the begin of batch N (sources/0/0 for the first batch): moved behind a skip that begins there

The commit log and the state stay unchanged: a batch with a skip was never read to its end, so none of its values is in Redis.
Both files are replaced atomically, with Hadoop's checksum files. After a crash between the two writes, the next start repeats
both before a batch runs.
"""

from service.checkpoint import event_time, skips
from service.kafka.source import READ_AHEAD
from service.micro_batch import MicroBatch, total
from service.settings import Kafka
from service.spark.files import Files
from service.spark.internals import offset_log


def apply(files: Files, kafka: Kafka) -> int:
    """Move the next batch's begin behind a skip, and its end before the next skip. Return the number of skipped offsets.

    The checkpoint's logs must be undamaged. Raises CheckpointError, SourceError.
    """
    spans, position = skips.read(files), offset_log.position(files)
    if not spans or position is None:
        return 0
    begin = skips.jumped(position.offsets, spans)
    batch = position.batch
    if offset_log.last(files) == batch:
        end = offset_log.ends(files, batch)
        shorter = skips.narrowed(begin, end, spans, READ_AHEAD)
        if shorter != end:
            # The records that the shorter batch leaves unread must hold the watermark.
            event_time.Log(files).leaves(kafka, MicroBatch(0, batch, 0, begin, shorter))
            offset_log.replace(files, batch, shorter)
    if begin != position.offsets:
        offset_log.replace(files, batch - 1, begin)
    return total(begin) - total(position.offsets)

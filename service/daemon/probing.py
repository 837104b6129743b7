"""The process of the probe: reads spans of partitions and prints `<offset> 1` for each offset that it has passed, or
`<offset> 0` for an unreadable offset. Its memory is limited, and it may die at any record: see service/daemon/probe.py.

Standard input is the pickled (settings of Kafka, [(topic, partition, begin, end)]). Exit status 5 when Kafka does not answer.
"""

import os
import pickle
import resource
import sys

from confluent_kafka import Consumer, KafkaError, TopicPartition

from service import clock
from service.daemon.probe import DECOMPRESSED, DIED, LARGEST, MEMORY
from service.kafka import clients
from service.rejects.fetch import Record

_SILENCE_S = 30.0
_OPTIONS: clients.Options = {
    "receive.message.max.bytes": DECOMPRESSED,  # librdkafka's limit of what it decompresses, too
    "fetch.max.bytes": DECOMPRESSED >> 1,
    # A broker returns at least one record batch, however large, and with this option at most one. The client fetches the next
    # record batch after all records of this one.
    "fetch.message.max.bytes": 1,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 1024,
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 0,
    "fetch.error.backoff.ms": 0,
}


def main() -> int:
    """Probe what standard input names; returns the exit status."""
    kafka, spans = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    consumer = clients.consumer(kafka, options=_OPTIONS)
    for span in spans:
        if not _probe(consumer, *span):
            return 5
    return 0


def _probe(consumer: Consumer, topic: str, partition: int, begin: int, end: int) -> bool:
    """Read a span; whether Kafka returned all of it."""
    at = begin
    consumer.assign([TopicPartition(topic, partition, at)])
    until_s = clock.monotonic_s() + _SILENCE_S
    while at < end:
        message = consumer.poll(0.5)
        if message is None:
            if clock.monotonic_s() > until_s:
                print(f"{topic}[{partition}]@{at}: no record for {_SILENCE_S:.0f} s", file=sys.stderr)  # noqa: T201
                return False
            continue
        until_s = clock.monotonic_s() + _SILENCE_S
        error = message.error()
        offset = max(at, int(message.offset() or 0))
        if error is None:
            _say(min(offset, end - 1), offset >= end or Record.of(message).size <= LARGEST)
        elif error.code() == KafkaError._PARTITION_EOF:
            break
        elif error.code() == KafkaError._BAD_COMPRESSION and offset < end:
            # A fetch from the middle of a record batch returns all of it, so its offsets fail one by one.
            _say(offset, False)
            consumer.assign([TopicPartition(topic, partition, offset + 1)])
        elif error.code() != KafkaError._BAD_COMPRESSION:
            print(f"{topic}[{partition}]@{at}: {error.str()}", file=sys.stderr)  # noqa: T201
            return False
        at = offset + 1
    if at < end:
        _say(end - 1, True)
    return True


def _say(offset: int, is_readable: bool) -> None:
    os.write(1, b"%d %d\n" % (offset, is_readable))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (MemoryError, SystemError):  # confluent-kafka 2.16 raises SystemError when it cannot copy a record
        os._exit(DIED)

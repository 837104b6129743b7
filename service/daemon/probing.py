"""The process that probes: reads spans of partitions and prints `<offset> 1` for each offset that it has passed, or `<offset> 0`
for one that cannot be read. Its memory is limited, and it may die at any record: service/daemon/probe.py says what that means.

Standard input is the pickled (settings of Kafka, [(topic, partition, begin, end)]). Exit status 5 when Kafka does not answer.
"""

import os
import pickle
import resource
import sys

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from service import clock
from service.daemon.probe import DECOMPRESSED, DIED, LARGEST, MEMORY
from service.kafka import clients
from service.rejects.fetch import Record

_SILENCE_S = 30.0
_OPTIONS: clients.Options = {
    "receive.message.max.bytes": DECOMPRESSED,  # librdkafka's limit of what it decompresses, too
    "fetch.max.bytes": DECOMPRESSED >> 1,
    # A broker answers with one record batch at least, however large: with this, with one at most. The next one is fetched when
    # all of its records are passed.
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
    """Whether Kafka gave all of the span."""
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
            _say(min(offset, end - 1), offset >= end or _is_small(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            break
        elif error.code() == KafkaError._BAD_COMPRESSION and offset < end:
            # A fetch in the middle of a record batch gives all of it: its offsets fail one by one.
            _say(offset, False)
            consumer.assign([TopicPartition(topic, partition, offset + 1)])
        elif error.code() != KafkaError._BAD_COMPRESSION:
            print(f"{topic}[{partition}]@{at}: {error.str()}", file=sys.stderr)  # noqa: T201
            return False
        at = offset + 1
    if at < end:
        _say(end - 1, True)
    return True


def _is_small(message: Message) -> bool:
    return Record.of(message).size <= LARGEST


def _say(offset: int, is_readable: bool) -> None:
    os.write(1, b"%d %d\n" % (offset, is_readable))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (
        MemoryError,
        SystemError,
    ):  # the client says the latter when it could not copy a record (confluent-kafka 2.16)
        os._exit(DIED)

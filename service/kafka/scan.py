"""Reading a part of some topics from beginning to end, for commands: no group is joined and nothing is committed."""

import contextlib
import operator
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from service.errors import SourceError
from service.kafka import clients
from service.kafka.clients import TIMEOUT_S
from service.kafka.offsets import place_of
from service.settings import Kafka

_SILENCE_S = 30.0
_HEADERS = operator.methodcaller("headers")
"""For a name that is not UTF-8 the client returns a result and leaves an exception set. A plain call, once Python 3.11 has
specialised it, does not look for one, and it is raised by whatever comes next; this call always looks (SystemError)."""


def messages(
    kafka: Kafka,
    names: Sequence[str],
    *,
    since_ms: int | None = None,
    begin: Mapping[tuple[str, int], int] | None = None,
) -> Generator[Message, None, None]:
    """All records of the topics, partitions interleaved, up to the ends they have now; of a topic that is not there none.

    `since_ms` leaves out those before the first record of a partition with that time. With `begin`, (topic, partition)
    -> offset, only those partitions are read, from there on. Raises SourceError.
    """
    consumer = clients.consumer(kafka)
    try:
        ends = _assign(consumer, names, since_ms, begin)
        silent = 0.0
        while ends:
            # One at a time: a thousand of them may be a gigabyte.
            message = consumer.poll(0.2)
            if message is None:
                silent += 0.2
                if silent > _SILENCE_S:
                    what = (
                        f"Kafka at {kafka.bootstrap}: no record for {_SILENCE_S:.0f} s, still to come: {sorted(ends)}"
                    )
                    raise SourceError(what, remedy="Check the brokers, and try again")
                continue
            silent = 0.0
            error, place = message.error(), place_of(message)
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            offset, end = int(message.offset() or 0), ends.get(place)
            if end is None:
                continue
            # Where the last offsets hold no record (transactions, compaction) only the end of the partition comes.
            if error is not None or offset >= end - 1:
                del ends[place]
            if error is None and offset < end:
                yield message
    except KafkaException as error:
        raise clients.unreachable(kafka, error) from error
    finally:
        consumer.close()


def _assign(
    consumer: Consumer,
    names: Sequence[str],
    since_ms: int | None,
    begin: Mapping[tuple[str, int], int] | None,
) -> dict[tuple[str, int], int]:
    """Begin to read; returns the end of each partition that has something to read."""
    known = consumer.list_topics(timeout=TIMEOUT_S).topics
    places = [(name, number) for name in names if name in known for number in known[name].partitions]
    ends, plan = {}, []
    for topic, partition in places:
        if begin is not None and (topic, partition) not in begin:
            continue
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)
        start = low if begin is None else max(low, begin[topic, partition])
        if since_ms is not None:
            [at] = consumer.offsets_for_times([TopicPartition(topic, partition, since_ms)], timeout=TIMEOUT_S)
            start = max(low, at.offset) if at.offset >= 0 else high
        if start < high:
            ends[topic, partition] = high
            plan.append(TopicPartition(topic, partition, start))
    consumer.assign(plan)
    return ends


def one(kafka: Kafka, topic: str, partition: int, offset: int) -> Message | None:
    """The record at an offset, None when it is not there (any more). Raises SourceError."""
    with contextlib.closing(messages(kafka, [topic], begin={(topic, partition): offset})) as found:
        first = next(found, None)
    return first if first is not None and first.offset() == offset else None


def headers(message: Message) -> list[tuple[str, bytes | None]]:
    """The record's headers, in order. A header's name is cut at a zero byte; none are returned where one is not UTF-8.

    Both are the client's limits (confluent-kafka 2.16.0).
    """
    try:
        found: Any = _HEADERS(message)
    except (SystemError, UnicodeDecodeError):
        return []
    return list(found or ())

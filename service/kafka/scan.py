"""Read a range of some topics, for commands, without a group and without commits."""

import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from service.errors import SourceError
from service.kafka import clients
from service.kafka.clients import TIMEOUT_S
from service.kafka.offsets import at_time, edges_of, place_of
from service.settings import Kafka

Watch = Callable[[int, int], object]
"""Gets how many offsets are read, and how many there are to read."""
_WATCHED = 500
"""Records between two calls of a `Watch`."""
_SILENCE_S = 30.0
_HEADERS = operator.methodcaller("headers")
"""For a name that is not UTF-8 the client returns a result and leaves an exception set (confluent-kafka 2.16.0). A plain call,
once Python 3.11 has specialised it, ignores that, and a later statement raises it; this call raises SystemError at once."""


def messages(
    kafka: Kafka,
    names: Sequence[str],
    *,
    since_ms: int | None = None,
    begin: Mapping[tuple[str, int], int] | None = None,
    watch: Watch | None = None,
    uncommitted: bool = False,
) -> Generator[Message, None, None]:
    """Yield the records of the topics up to their present ends, partitions interleaved; topics that do not exist are ignored.

    With `since_ms`, each partition begins at its first record of that time or later. With `begin`, (topic, partition) -> offset,
    only those partitions are read, from those offsets. Raises SourceError.
    """
    with clients.reading(kafka, small=False, uncommitted=uncommitted) as consumer:
        ends, total = _assign(consumer, names, since_ms, begin)
        read = 0
        silent = 0.0
        while ends:
            # One at a time: a thousand records may be a gigabyte.
            message = consumer.poll(0.2)
            if message is None:
                silent += 0.2
                if silent > _SILENCE_S:
                    what = f"Kafka at {kafka.bootstrap}: no record for {_SILENCE_S:.0f} s, unfinished partitions: {sorted(ends)}"
                    raise SourceError(what, remedy="Check the brokers, and try again")
                continue
            silent, read = 0.0, read + 1
            if watch is not None and read % _WATCHED == 0:
                watch(min(read, total), total)
            error, place = message.error(), place_of(message)
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            offset, end = int(message.offset() or 0), ends.get(place)
            if end is None:
                continue
            # If the last offsets have no record (transactions, compaction), only the end of the partition is reported.
            if error is not None or offset >= end - 1:
                del ends[place]
            if error is None and offset < end:
                yield message


def _assign(
    consumer: Consumer, names: Sequence[str], since_ms: int | None, begin: Mapping[tuple[str, int], int] | None
) -> tuple[dict[tuple[str, int], int], int]:
    """Assign the partitions to the consumer; return the end of each that has records to read, and the number of offsets."""
    existing = consumer.list_topics(timeout=TIMEOUT_S).topics
    places = [(name, number) for name in names if name in existing for number in existing[name].partitions]
    if begin is not None:
        places = [place for place in places if place in begin]
    # -1 and -2 would be the end and the begin of the partition. No record is older than 0.
    first = at_time(consumer, places, max(0, since_ms)) if since_ms is not None else {}
    ends, plan = {}, []
    for place, (low, high) in edges_of(consumer, places).items():
        start = low if begin is None else max(low, begin[place])
        if since_ms is not None:
            start = max(low, first[place]) if first[place] >= 0 else high
        if start < high:
            ends[place] = high
            plan.append(TopicPartition(*place, start))
    consumer.assign(plan)
    return ends, sum(ends[place.topic, place.partition] - place.offset for place in plan)


def headers(message: Message) -> list[tuple[str, bytes | None]]:
    """Return the record's headers, in order.

    The client cuts a header's name at a zero byte. The result is empty if a name is not UTF-8 (confluent-kafka 2.16.0).
    """
    try:
        pairs: Any = _HEADERS(message)
    except (SystemError, UnicodeDecodeError):
        return []
    return list(pairs or ())

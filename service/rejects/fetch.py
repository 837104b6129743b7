"""Read rejected records from the input topics again, by their coordinates, to copy them into the rejects topics.

The pass carries a reject's coordinates without its bytes, so that its memory does not depend on what devices send. This module
holds what the client has read ahead, which is bounded in bytes, and once more what it takes of that at a time.
"""

import os
from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from service import clock
from service.errors import SourceError
from service.kafka import clients, scan
from service.kafka.clients import Kept
from service.kafka.offsets import place_of
from service.settings import Kafka

JUMP = 2_500
"""The largest gap of records between two rejects that is read through. Over a larger gap the consumer seeks, which takes about
as long as reading this many."""
AT_ONCE = 1_000
"""Records of the client's read-ahead that are taken in one call. A poll for each takes half as long again: 1.5 us, not 1.0."""
_SILENCE_S = 30.0
_EXPECTED = {KafkaError._BAD_COMPRESSION, KafkaError._PARTITION_EOF}
_OPTIONS: clients.Options = {
    "queued.max.messages.kbytes": 16 << 10,
    "fetch.message.max.bytes": 1 << 20,
    "fetch.max.bytes": 16 << 20,
    # Also librdkafka's limit for decompression with zstd: a larger record batch is skipped.
    "receive.message.max.bytes": 256 << 20,
    # After the last record of a partition, the next request waits behind a long poll; the default is half a second.
    "fetch.wait.max.ms": 10,
    # The pause of a partition whose queue is full; the default is a second.
    "fetch.queue.backoff.ms": 5,
}

Headers = list[tuple[str, bytes | None]]
Row = Mapping[str, Any]
_Place = tuple[str, int]


class Record(NamedTuple):
    """A record's own bytes."""

    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers

    @staticmethod
    def of(message: Message) -> "Record":
        key: Any = message.key()
        value: Any = message.value()
        return Record(key, value, scan.headers(message))


def records(kafka: Kafka, rejects: Iterable[Row]) -> Generator[tuple[Row, Record | None]]:
    """Yield each row of row_schemas.REJECT_TYPE with its record, None if Kafka no longer has it or cannot decompress it.

    Rows of a partition come in its order. The process has one consumer for this: use it from one thread. Raises SourceError.
    """
    consumer = _consumer(kafka)
    try:
        for stretches in _rounds(rejects):
            yield from _read(kafka, consumer, stretches)
        consumer.unassign()
    except BaseException as error:
        _consumers.pop(identity(kafka), None)
        consumer.close()
        if isinstance(error, KafkaException):
            raise clients.unreachable(kafka, error) from error
        raise


def records_once(kafka: Kafka, rejects: Iterable[Row]) -> Generator[tuple[Row, Record | None]]:
    """`records` for commands and threads beside the query: with a consumer of their own, closed at the end. Raises SourceError.

    The rows of partitions that do not exist any more come first, with None.
    """
    consumer = clients.consumer(kafka, uncommitted=True, options=_OPTIONS)
    try:
        existing = consumer.list_topics(timeout=clients.TIMEOUT_S).topics
        there = {(topic, partition) for topic, each in existing.items() for partition in each.partitions}
        rows = [(row, (row["topic"], row["partition"]) in there) for row in rejects]
        yield from ((row, None) for row, is_there in rows if not is_there)
        for stretches in _rounds(row for row, is_there in rows if is_there):
            yield from _read(kafka, consumer, stretches)
    except KafkaException as error:
        raise clients.unreachable(kafka, error, consumer) from error
    finally:
        consumer.close()


def _rounds(rejects: Iterable[Row]) -> Iterator[dict[_Place, list[Row]]]:
    """Split the rows of each partition into stretches without large gaps. Stretches of one round are read side by side."""
    by_place: dict[_Place, list[list[Row]]] = defaultdict(list)
    for row in sorted(rejects, key=lambda row: int(row["offset"])):
        stretches = by_place[row["topic"], row["partition"]]
        if not stretches or row["offset"] - stretches[-1][-1]["offset"] > JUMP:
            stretches.append([])
        stretches[-1].append(row)
    number = 0
    while round_of := {place: each[number] for place, each in by_place.items() if number < len(each)}:
        yield round_of
        number += 1


def _read(
    kafka: Kafka, consumer: Consumer, stretches: Mapping[_Place, Sequence[Row]]
) -> Iterator[tuple[Row, Record | None]]:
    left = {place: deque(rows) for place, rows in stretches.items()}
    sought = {place: int(rows[0]["offset"]) for place, rows in stretches.items()}
    consumer.assign([TopicPartition(*place, rows[0]["offset"]) for place, rows in stretches.items()])
    until_s = clock.monotonic_s() + _SILENCE_S
    while left:
        first = consumer.poll(0.1)
        if first is None:
            if clock.monotonic_s() > until_s:
                what = f"Kafka at {kafka.bootstrap}: no record for {_SILENCE_S:.0f} s, rejects of {sorted(left)} are not read"
                raise SourceError(what, remedy="Check the brokers; the batch is replayed")
            continue
        until_s = clock.monotonic_s() + _SILENCE_S
        passed = set[_Place]()
        for message in (first, *consumer.consume(AT_ONCE, 0)):
            error, place = message.error(), place_of(message)
            if error is not None and error.code() not in _EXPECTED:
                raise KafkaException(error)
            rows = left.get(place)
            if rows is None or place in passed:
                continue
            if error is not None and error.code() == KafkaError._BAD_COMPRESSION:
                # The error is of a record batch. It has the next row if the client has sought that row's offset.
                if rows[0]["offset"] == sought[place]:
                    yield rows.popleft(), None
                if rows:
                    sought[place] = int(rows[0]["offset"])
                    consumer.seek(TopicPartition(*place, sought[place]))
                    passed.add(place)
                    continue
            # From an offset without a record the consumer goes to the oldest record: a later one or, in a partition that has
            # become shorter, an earlier one.
            offset = int(message.offset() or 0)
            ended = error is not None or offset < stretches[place][0]["offset"]
            while rows and (ended or rows[0]["offset"] <= offset):
                row = rows.popleft()
                yield row, None if ended or row["offset"] != offset else Record.of(message)
            if not rows:
                del left[place]
                consumer.pause([TopicPartition(*place)])
    # A pause outlives its assignment (librdkafka 2.16).
    consumer.resume([TopicPartition(*place) for place in stretches])


_consumers: dict[tuple[object, ...], Kept[Consumer]] = {}


def identity(kafka: Kafka) -> tuple[object, ...]:
    """Return the key of a client that a process keeps between batches."""
    return os.getpid(), kafka.model_dump_json()


def _consumer(kafka: Kafka) -> Consumer:
    """Return this process's consumer. It reads uncommitted records, too: the pass has read only committed ones."""
    make = partial(clients.consumer, kafka, uncommitted=True, options=_OPTIONS)
    return _consumers.setdefault(identity(kafka), Kept(kafka, make, Consumer.close)).get()

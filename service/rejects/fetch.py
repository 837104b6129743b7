"""Rejected records, read from the input topics once more, by their coordinates, on their way into the rejects topics.

The pass carries a reject's coordinates and no bytes, so that its memory does not depend on what devices send. Here one record
is held at a time, and what the client reads ahead, which is bounded in bytes.
"""

import os
from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from service import clock
from service.errors import SourceError
from service.kafka import clients, scan
from service.kafka.offsets import place_of
from service.settings import Kafka

JUMP = 1_000
"""So many records between two rejects are read and left out; beyond more of them the consumer is put to another offset, which
costs it about as long."""
_SILENCE_S = 30.0
_OPTIONS: clients.Options = {
    "queued.max.messages.kbytes": 16 << 10,
    "fetch.message.max.bytes": 1 << 20,
    "fetch.max.bytes": 16 << 20,
    # librdkafka's limit of what it decompresses with zstd, too: a record batch of more is passed over.
    "receive.message.max.bytes": 256 << 20,
    # After the last record of a partition, the next request waits behind one that waits for more: half a second by default.
    "fetch.wait.max.ms": 10,
    # What has read ahead enough looks again after this long: a second by default.
    "fetch.queue.backoff.ms": 5,
}

Headers = list[tuple[str, bytes | None]]
Row = Mapping[str, Any]
_Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """A record's own bytes."""

    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size(self) -> int:
        """Bytes of all three."""
        headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers

    @staticmethod
    def of(message: Message) -> "Record":
        key: Any = message.key()
        value: Any = message.value()
        return Record(key, value, scan.headers(message))


def records(kafka: Kafka, rejects: Iterable[Row]) -> Generator[tuple[Row, Record | None]]:
    """Each row of row_schemas.REJECT_TYPE with its record, None for what Kafka no longer has or nobody can decompress.

    They come in the order of the partitions.

    The consumer is this process's own: one thread at a time. Raises SourceError.
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


def _rounds(rejects: Iterable[Row]) -> Iterator[dict[_Place, list[Row]]]:
    """Stretches of a partition each, ascending; those of one round are read side by side."""
    by_place: dict[_Place, list[list[Row]]] = defaultdict(list)
    for row in sorted(rejects, key=lambda row: int(row["offset"])):
        stretches = by_place[row["topic"], row["partition"]]
        if not stretches or row["offset"] - stretches[-1][-1]["offset"] > JUMP:
            stretches.append([])
        stretches[-1].append(row)
    number = 0
    while found := {place: each[number] for place, each in by_place.items() if number < len(each)}:
        yield found
        number += 1


def _read(
    kafka: Kafka, consumer: Consumer, stretches: Mapping[_Place, Sequence[Row]]
) -> Iterator[tuple[Row, Record | None]]:
    left = {place: deque(rows) for place, rows in stretches.items()}
    asked = {place: int(rows[0]["offset"]) for place, rows in stretches.items()}
    consumer.assign([TopicPartition(*place, rows[0]["offset"]) for place, rows in stretches.items()])
    until_s = clock.monotonic_s() + _SILENCE_S
    while left:
        message = consumer.poll(0.1)
        if message is None:
            if clock.monotonic_s() > until_s:
                what = f"Kafka at {kafka.bootstrap}: no record for {_SILENCE_S:.0f} s, rejects of {sorted(left)} are to come"
                raise SourceError(what, remedy="Check the brokers; the batch is replayed")
            continue
        until_s = clock.monotonic_s() + _SILENCE_S
        error, offset, place = message.error(), int(message.offset() or 0), place_of(message)
        rows = left.get(place)
        if error is not None and error.code() == KafkaError._BAD_COMPRESSION:
            # Of a record batch: the next row is in it when it is where the client was sent to, else it is behind it.
            if rows and rows[0]["offset"] == asked[place]:
                yield rows.popleft(), None
            if rows:
                asked[place] = int(rows[0]["offset"])
                consumer.seek(TopicPartition(*place, asked[place]))
                continue
        elif error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if rows is None:
            continue
        # Where there is nothing at an offset, the consumer goes to the oldest record there is: a later one, or, of a partition
        # that has become shorter, an earlier one.
        ended = error is not None or offset < stretches[place][0]["offset"]
        while rows and (ended or rows[0]["offset"] <= offset):
            row = rows.popleft()
            yield row, None if ended or row["offset"] != offset else Record.of(message)
        if not rows:
            del left[place]
            consumer.pause([TopicPartition(*place)])
    # A pause outlives its assignment (librdkafka 2.16).
    consumer.resume([TopicPartition(*place) for place in stretches])


_consumers: dict[tuple[object, ...], Consumer] = {}


def identity(kafka: Kafka) -> tuple[object, ...]:
    """Of a client that a process keeps between batches."""
    return os.getpid(), kafka.model_dump_json()


def _consumer(kafka: Kafka) -> Consumer:
    """This process's, kept between batches. The pass has decided what is committed: here that is not asked again."""
    mine = identity(kafka)
    if mine not in _consumers:
        _consumers[mine] = clients.consumer(kafka, uncommitted=True, options=_OPTIONS)
    return _consumers[mine]

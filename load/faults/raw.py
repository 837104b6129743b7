"""Records that no device of the generator sends, sent beside it."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
from confluent_kafka import Producer

from load.faults.run import Run
from load.fleet.encode import SCHEMAS
from load.testbed import PARTITIONS, TOPIC
from service.errors import SetupError

FLUSH_S = 120.0
LARGEST = 20 << 20
"""Bytes of the largest record that may be sent: more than the broker takes by default."""

_FIRST = json.loads((SCHEMAS / "1.avsc").read_text(encoding="utf-8"))
# In Avro, bytes are written like a string, and may be no UTF-8.
_FIELDS = [{**field, "type": "bytes"} if field["name"] == "device_id" else field for field in _FIRST["fields"]]
_SCHEMA = fastavro.parse_schema({**_FIRST, "fields": _FIELDS})

Message = Mapping[str, Any]
"""What `Producer.produce` takes, without the topic."""


def reading(device: bytes, ms: int, value: float | None = 20.0) -> bytes:
    """A temperature by schema 1, framed, whose other measures are null."""
    out = io.BytesIO()
    out.write(b"\0\0\0\0\1")
    fastavro.schemaless_writer(out, _SCHEMA, {"device_id": device, "event_time": ms, "temperature": value})
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Reading:
    """A device's reading at `event_ms`; without a partition its device chooses it, as for the fleet's."""

    device: str
    event_ms: int
    temperature: float = 20.0
    partition: int = -1

    @property
    def message(self) -> Message:
        key = self.device.encode()
        return {"value": reading(key, self.event_ms, self.temperature), "key": key, "partition": self.partition}


def send_readings(run: Run, readings: Sequence[Reading]) -> int:
    """Send readings, which the run expects as it does those of the fleet. Return how many they are."""
    send(run.testbed.broker.bootstrap, (each.message for each in readings))
    run.note("by_hand", readings=len(readings))
    run.sent += len(readings)
    return len(readings)


def send(bootstrap: str, messages: Iterator[Message], topic: str = TOPIC) -> None:
    """Send messages to all partitions of a topic in turn. Raises SetupError if Kafka does not acknowledge all of them."""
    options = {"bootstrap.servers": bootstrap, "message.max.bytes": LARGEST, "linger.ms": 5}
    producer = Producer(
        {**options, "log_level": 0, "queue.buffering.max.kbytes": 65_536, "partitioner": "murmur2_random"}
    )
    for number, message in enumerate(messages):
        while True:
            try:
                producer.produce(topic, **{"partition": number % PARTITIONS, **message})
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if waiting := producer.flush(FLUSH_S):
        raise SetupError(f"{bootstrap} has not acknowledged {waiting} records of {topic} after {FLUSH_S:.0f} s")


def send_zeros(bootstrap: str, topic: str, size: int, partition: int = 0) -> int:
    """Send a record of so many zeros, some KB with zstd, which takes all of its size to read; return its offset."""
    options = {"bootstrap.servers": bootstrap, "log_level": 0, "compression.type": "zstd"}
    producer = Producer({**options, "message.max.bytes": 10**9, "queue.buffering.max.kbytes": 1_000_000})
    offsets: list[int] = []
    producer.produce(topic, bytes(size), partition=partition, on_delivery=lambda _, m: offsets.append(m.offset() or 0))
    producer.flush(60)
    return offsets[0]

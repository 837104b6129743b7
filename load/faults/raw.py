"""Records that no device of the generator sends: encoded by hand, and sent beside it."""

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Producer

from load.faults.run import Run
from load.testbed import PARTITIONS, TOPIC

LARGEST = 20 << 20
"""Bytes of the largest record that may be sent: more than the broker takes by default."""

Message = Mapping[str, Any]
"""What `Producer.produce` takes, without the topic."""


def reading(device: bytes, ms: int, value: bytes = struct.pack("<d", 20.0)) -> bytes:
    """A temperature by schema 1, framed, whose other measures are null; `value` is a double's bytes."""
    out = bytearray(b"\0\0\0\0\1")
    out += _zigzag(len(device)) + device + _zigzag(ms)
    return bytes(out) + b"\x02" + value + b"\0\0\0"


def send(run: Run, messages: Iterator[Message]) -> None:
    """Send messages to all partitions in turn; a violation where Kafka has not acknowledged all of them."""
    options = {"bootstrap.servers": run.testbed.broker.bootstrap, "message.max.bytes": LARGEST, "linger.ms": 5}
    producer = Producer({**options, "log_level": 0, "queue.buffering.max.kbytes": 65_536})
    for number, message in enumerate(messages):
        while True:
            try:
                producer.produce(TOPIC, partition=number % PARTITIONS, **message)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(120):
        run.violation("observed", "not all records were sent")


def _zigzag(number: int) -> bytes:
    """A positive integer as Avro writes it."""
    out, rest = bytearray(), number << 1
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)

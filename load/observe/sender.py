"""The sender: a small fleet's readings, at a steady rate, some of which are wrong while a cause asks for that."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from load.faults.raw import reading
from load.servers.server_process import Repeated, Started
from load.testbed import PARTITIONS, TOPIC
from service.clock import now_ms

RATE = 40
_TICK_S = 0.25
_FLUSH_S = 60.0
_UNKNOWN_SCHEMA = b"\0\0\0\x03\xe7"
"""The begin of a record whose schema id, 999, no registry has."""


@dataclass(slots=True)
class Wrong:
    """Shares of the records that are wrong, each from 0 to 1, and what is wrong with the others."""

    undecodable: float = 0.0
    unknown_schema: float = 0.0
    invented: float = 0.0
    """Readings of devices that have never sent before."""
    clock_ms: int = 0
    """By how much the clock of the first device is ahead."""
    shift: float = 0.0
    """Added to every temperature."""
    unmeasured: bool = False
    """Whether no reading has a temperature."""


class Sender(Started):
    """Sends RATE records a second to all partitions in turn, as Avro with schema id 1, with the time of their event."""

    def __init__(self, bootstrap: str, devices: Sequence[str]) -> None:
        self.wrong = Wrong()
        self.is_paused = False
        self.ends: dict[int, int] = {}
        """The end offsets of the partitions, as far as Kafka has acknowledged records."""
        self._bootstrap, self._devices = bootstrap, devices
        self._invented = itertools.count()
        self._producer: Producer | None = None
        self._sent = 0
        self._sending = Repeated(_TICK_S, self._tick)

    def start(self) -> None:
        options = {"bootstrap.servers": self._bootstrap, "log_level": 0, "linger.ms": 5}
        self._producer = Producer({**options, "queue.buffering.max.messages": 200_000})
        self._sending.start()

    def close(self) -> None:
        self._sending.close()

    def send(self, device: str, event_ms: int, partition: int) -> None:
        """Send one reading, which is in its partition after `flush`."""
        self._produce(reading(device.encode(), event_ms), event_ms, partition)

    def invent(self, count: int) -> None:
        """Send a reading of each of so many devices that have never sent before."""
        for number in range(count):
            self.send(self._invent(), now_ms(), number % PARTITIONS)
        self.flush()

    def flush(self) -> None:
        """Wait until Kafka has acknowledged everything."""
        assert self._producer is not None, "the sender has not been started"  # noqa: S101
        self._producer.flush(_FLUSH_S)

    def _tick(self) -> None:
        for _ in range(0 if self.is_paused else int(RATE * _TICK_S)):
            at_ms = now_ms()
            self._produce(self._record(self._sent, at_ms), at_ms, self._sent % PARTITIONS)
            self._sent += 1

    def _record(self, number: int, at_ms: int) -> bytes:
        """The golden ratio spreads the wrong records evenly."""
        wrong, dice = self.wrong, number * 0.618033988749895 % 1.0
        if dice < wrong.undecodable:
            return b"\xff no Avro"
        if dice < wrong.undecodable + wrong.unknown_schema:
            return _UNKNOWN_SCHEMA
        if dice > 1 - wrong.invented:
            return reading(self._invent().encode(), at_ms)
        which = number // PARTITIONS % len(self._devices)
        ahead_ms = wrong.clock_ms if which == 0 else 0
        value = None if wrong.unmeasured else 20.0 + number % 7 + wrong.shift
        return reading(self._devices[which].encode(), at_ms + ahead_ms, value)

    def _invent(self) -> str:
        return f"invented-{next(self._invented):06d}"

    def _produce(self, value: bytes, at_ms: int, partition: int) -> None:
        assert self._producer is not None, "the sender has not been started"  # noqa: S101
        self._producer.produce(TOPIC, value, partition=partition, timestamp=at_ms, on_delivery=self._acknowledged)
        self._producer.poll(0)

    def _acknowledged(self, error: object, message: Any) -> None:
        if error is None:
            self.ends[message.partition()] = message.offset() + 1

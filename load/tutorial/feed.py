"""Readings for the tutorial: pumps in nested Avro, meters in JSON, until the end of the feed."""

import io
import json
import math
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import fastavro
from confluent_kafka import Producer

from load.servers.server_process import Repeated
from service.errors import SetupError

PUMPS, METERS = "pumps", "meters"
EVERY_S = 0.5
"""Between two readings of one device."""
ENOUGH = 15
"""Readings of a device before a sample is taken."""
PLANTS = ("north", "south", "harbour")
MODELS = ("P100", "P250")
SERIALS = [f"P-{number:03d}" for number in range(1, 25)]
_METERS = [f"meter-{number}" for number in range(1, 9)]
_OPTIONAL = {"type": ["null", "double"], "default": None}
SCHEMA = {
    "type": "record",
    "name": "PumpReading",
    "namespace": "com.example.water",
    "fields": [
        {
            "name": "pump",
            "type": {
                "type": "record",
                "name": "Pump",
                "fields": [{"name": "serial", "type": "string"}, {"name": "firmware", "type": "string"}],
            },
        },
        {"name": "measured_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "values",
            "type": {
                "type": "record",
                "name": "Values",
                "fields": [{"name": "pressure_bar", "type": "double"}, {"name": "flow_l_s", **_OPTIONAL}],
            },
        },
    ],
}


class Feed(Repeated):
    """A thread that sends readings of all pumps and meters; `number` is the schema's id."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(EVERY_S, self._send)
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 5})
        self._number, self._turn = number, 0
        self._enough = threading.Event()

    def start(self) -> None:
        """Begin to send, and return when a sample of the topics shows how often a device sends."""
        super().start()
        while not self._enough.wait(1):
            if not self._thread.is_alive():
                raise SetupError(
                    "The feed of the tutorial has ended before a sample could be taken: see its traceback."
                )

    def close(self) -> None:
        super().close()
        self._producer.flush(10)

    def _send(self) -> None:
        now_s = time.time()
        for topic, key, value in [*_pumps(self._number, now_s, self._turn), *_meters(now_s, self._turn)]:
            self._producer.produce(topic, value, key=key)
        self._producer.poll(0)
        self._turn += 1
        if self._turn == ENOUGH:
            self._producer.flush(10)
            self._enough.set()


def _pumps(number: int, now_s: float, turn: int) -> Iterator[tuple[str, bytes, bytes]]:
    schema: Any = fastavro.parse_schema(SCHEMA)
    for place, serial in enumerate(SERIALS):
        out = io.BytesIO()
        out.write(b"\0" + number.to_bytes(4))
        values = {
            "pressure_bar": round(4 + math.sin(turn / 40 + place), 3),
            "flow_l_s": None if place % 7 == 0 else 12.5 + place,
        }
        reading = {
            "pump": {"serial": serial, "firmware": "2.4.1"},
            "measured_at": round(now_s * 1000),
            "values": values,
        }
        fastavro.schemaless_writer(out, schema, reading)
        yield PUMPS, serial.encode(), out.getvalue()


def _meters(now_s: float, turn: int) -> Iterator[tuple[str, bytes, bytes]]:
    at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")
    for place, meter in enumerate(_METERS):
        reading = {"meter": meter, "ts": at, "power": {"watts": 900 + place * 10 + turn % 5, "volts": 230.5}}
        yield METERS, meter.encode(), json.dumps(reading).encode()

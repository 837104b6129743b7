"""Single readings, sent by hand: what no fleet would send, at the moment that a row needs it."""

import io
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import fastavro
from confluent_kafka import Producer

from load.faults.run import Run
from load.fleet.encode import SCHEMAS
from load.testbed import TOPIC

_SCHEMA_ID = 1


@dataclass(frozen=True, slots=True)
class Reading:
    """A device's reading at `event_ms`; without a partition its device chooses it, as for the fleet's."""

    device: str
    event_ms: int
    temperature: float = 20.0
    partition: int = -1


def send(run: Run, readings: Iterable[Reading]) -> int:
    """Returns how many it was, once the broker has acknowledged them."""
    schema = fastavro.parse_schema(json.loads((SCHEMAS / f"{_SCHEMA_ID}.avsc").read_text(encoding="utf-8")))
    options = {"bootstrap.servers": run.testbed.broker.bootstrap, "acks": "all", "partitioner": "murmur2_random"}
    producer = Producer({**options, "log_level": 2})
    sent = 0
    for reading in readings:
        body = io.BytesIO(b"\0" + struct.pack(">I", _SCHEMA_ID))
        body.seek(0, io.SEEK_END)
        record = {"device_id": reading.device, "event_time": reading.event_ms, "temperature": reading.temperature}
        fastavro.schemaless_writer(body, schema, record)
        producer.produce(TOPIC, body.getvalue(), reading.device.encode(), reading.partition)
        producer.poll(0)
        sent += 1
    if producer.flush(30):
        run.violation("observed", "the broker has not acknowledged all readings that were sent by hand")
    run.note("by_hand", readings=sent)
    run.sent += sent
    return sent

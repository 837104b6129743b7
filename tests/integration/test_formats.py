"""One service with an input of each format that needs no Avro: JSON Schema, Protobuf, and compressed arrays of JSON."""

import gzip
import json
import struct
import time
from pathlib import Path

import pytest

from load.faults.bombs import array_bombs, message_bombs
from load.servers.kafka import Broker
from load.servers.redis import Redis
from load.servers.schema_registry import Registry
from service import settings
from service.admission.arrays import NO_INDEX
from service.rejects import reject_log
from tests.integration.daemon import STARTS_S, DaemonWorld, until
from tests.stream.messages import ENV, FILE, READING_CLASS, framed, text

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

SCHEMA = {"type": "object", "properties": {"device_id": {"type": "string"}, "temperature": {"type": "number"}}}
READINGS = 20


class Formats(DaemonWorld):
    """Three topics: `<topic>-documents`, `<topic>-messages`, `<topic>-gateways`."""

    def __init__(self, broker: Broker, redis: Redis, folder: Path, topic: str, registry: Registry) -> None:
        super().__init__(broker, redis, folder, topic)
        forms = {"documents": "json-schema", "messages": "protobuf", "gateways": "json"}
        inputs = "\n".join(
            f'[[inputs]]\nname = "{name}"\ntopics = ["{topic}-{name}"]\nformat = "{form}"\n'
            f'measures = {{temperature = "temperature"}}\n{"array = true" if name == "gateways" else ""}'
            for name, form in forms.items()
        )
        lines = self.config.read_text().splitlines()
        begin = next(n for n, line in enumerate(lines) if line.strip() == "[input]")
        kept = [line for line in lines[:begin] + lines[begin + 3 :] if not line.strip().startswith("topics")]
        self.config.write_text("\n".join([*kept, inputs, f'[registry]\nurl = "{registry.url}"\n']))
        for name in forms:
            broker.create_topic(f"{topic}-{name}", 1)

    def put(self, name: str, values: list[bytes]) -> None:
        for value in values:
            self.producer.produce(f"{self.topic}-{name}", value)
        assert self.producer.flush(30) == 0

    def rejects(self, name: str) -> list[tuple[str, int]]:
        """Reason and index of the rejects of a topic."""
        kafka = settings.load(self.config).kafka.model_copy(update={"topics": (f"{self.topic}-{name}",)})
        return [(each.reason, each.place.index) for each in reject_log.read(kafka)]


def document(number: int) -> bytes:
    reading = {"device_id": f"d{number}", "event_time": time.time_ns() // 1_000_000, "temperature": 1.5}
    return json.dumps(reading).encode()


def message(number: int) -> bytes:
    made = READING_CLASS(device_id=f"m{number}")
    made.event_time.FromMilliseconds(time.time_ns() // 1_000_000)
    made.temperature.value = 2.5
    return bytes(made.SerializeToString())


def test_documents_messages_and_arrays_are_values_of_one_service_and_bad_ones_are_rejects(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str
) -> None:
    topic = f"formats-{prefix}"
    with Registry() as registry:
        of_documents = registry.register(f"{topic}-documents-value", SCHEMA, kind="JSON")
        registry.register("env", text(ENV), kind="PROTOBUF")
        references = [{"name": "env.proto", "subject": "env", "version": 1}]
        of_messages = registry.register(f"{topic}-messages-value", text(FILE), references, kind="PROTOBUF")
        world = Formats(broker_server, redis_server, tmp_path, topic, registry)

        def send(of_documents: int, of_messages: int) -> None:
            head = b"\0" + struct.pack(">I", of_documents)
            world.put("documents", [head + document(n) for n in range(READINGS)])
            world.put("messages", [framed(message(n), of_messages) for n in range(READINGS)])
            array = [document(100 + n) for n in range(READINGS)]
            world.put("gateways", [gzip.compress(b"[" + b",".join([*array, b'{"device_id":5.5}']) + b"]")])

        with world.start("service") as service:
            send(of_documents, of_messages)
            until(lambda: service.is_ready() and world.counted() == 3 * READINGS, STARTS_S, "the first readings")
            world.put("documents", [document(0), b"\0" + struct.pack(">I", of_messages) + document(0)])
            world.put("messages", [framed(b"\xff" * 9, of_messages), framed(message(0), of_documents)])
            world.put("gateways", [gzip.compress(b"[]"), gzip.compress(b"[{}]")[:-4]])
            until(lambda: service.metric("rejects_total") == 6, 60, "the rejects")
            assert world.rejects("documents") == [("undecodable", NO_INDEX), ("unknown_schema", NO_INDEX)]
            assert world.rejects("messages") == [("undecodable", NO_INDEX), ("unknown_schema", NO_INDEX)]
            assert world.rejects("gateways") == [("undecodable", READINGS), ("undecodable", NO_INDEX)]
            newer = registry.register(f"{topic}-documents-value", {**SCHEMA, "title": "newer"}, kind="JSON")
            FILE.options.java_package = "newer"
            try:
                second = registry.register(f"{topic}-messages-value", text(FILE), references, kind="PROTOBUF")
            finally:
                FILE.ClearField("options")
            send(newer, second)
            until(lambda: world.counted() == 6 * READINGS, 60, "the readings of new schemas")
            assert service.metric("rejects_total") == 7
            decided = service.metric("readings_admitted_total") + service.metric("rejects_total")
            decided += service.metric("records_filtered_total")
            assert decided - 2 * READINGS == service.metric("records_total")
            pid = service.process.pid
            messages, arrays = message_bombs(), array_bombs()
            world.put("messages", [framed(each, of_messages) for each in messages])
            world.put("gateways", arrays)
            bombs = len(messages) + len(arrays)
            until(lambda: service.metric("rejects_total") == 7 + bombs, 60, "the bombs")
            many = [document(n % 1_000) for n in range(100_000)]
            world.put("gateways", [gzip.compress(b"[" + b",".join([*many[1:], b"5"]) + b"]")])
            until(lambda: world.counted() == 6 * READINGS + 99_999, 120, "an array of 100,000 readings")
            assert service.metric("rejects_total") == 8 + bombs
            assert world.rejects("gateways")[-1] == ("undecodable", 99_999)
            assert (service.metric("query_restarts_total"), service.process.pid) == (0, pid)
            assert service.stop() == 0

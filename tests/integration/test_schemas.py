"""A schema id that is first seen while the service runs: looked up, used, or refused; and a registry that goes away."""

import io
import itertools
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from load.servers.kafka import Broker
from load.servers.redis import Redis
from load.servers.schema_registry import Registry
from service import settings
from service.rejects import reject_log
from service.rejects.reject_log import Reject
from tests.integration.daemon import STARTS_S, DaemonWorld, Service, until

pytestmark = pytest.mark.integration

FIELDS: list[dict[str, Any]] = [
    {"name": "device_id", "type": "string"},
    {"name": "event_time", "type": "long"},
    {"name": "temperature", "type": ["null", "double"], "default": None},
]
MORE = {"name": "firmware", "type": "string", "default": ""}
FIRST = {"type": "record", "name": "Reading", "fields": FIELDS}
SECOND = {**FIRST, "fields": [FIELDS[0], MORE, *FIELDS[1:]]}
THIRD = {**FIRST, "fields": [*FIELDS, MORE]}


class Avro(DaemonWorld):
    """A world of Avro, with schemas from a registry or a folder."""

    def __init__(self, broker: Broker, redis: Redis, folder: Path, topic: str, schemas: str) -> None:
        super().__init__(broker, redis, folder, topic)
        text = self.config.read_text().replace('format = "json"', 'reader_schema = 1\nschema_retry = "2 s"')
        self.config.write_text(text + schemas)

    def write(self, number: int, schema: Any, count: int = 20) -> None:
        """`count` readings by a writer of that schema."""
        for each in range(count):
            out = io.BytesIO()
            reading = {"device_id": f"d{each}", "event_time": time.time_ns() // 1_000_000, "temperature": 1.0}
            fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {**reading, "firmware": "x"})
            self.producer.produce(self.topic, b"\0" + struct.pack(">I", number) + out.getvalue(), partition=each % 2)
        assert self.producer.flush(30) == 0

    def write_until_used(self, number: int, schema: Any) -> int:
        """Write single readings until one of them is published; returns how many were rejected before it."""
        published, rejected = self.counted(), len(self.rejects())
        for sent in itertools.count(1):
            self.write(number, schema, count=1)
            decided = published + rejected + sent
            until(
                lambda decided=decided: self.counted() + len(self.rejects()) == decided, 60, "a decision on a reading"
            )
            if self.counted() > published:
                return sent - 1
        raise AssertionError

    def rejects(self) -> list[Reject]:
        return list(reject_log.read(settings.load(self.config).kafka))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry(user="reader", password="secret") as running:  # noqa: S106
        yield running


def counted(world: Avro, service: Service, count: int) -> bool:
    return service.is_ready() and world.counted() == count


def test_a_schema_first_seen_while_running_is_used_without_a_restart_or_a_lost_record(
    broker_server: Broker, redis_server: Redis, registry: Registry, tmp_path: Path, prefix: str
) -> None:
    topic = f"schemas-{prefix}"
    broker_server.create_topic(topic, partitions=2)
    section = f'[registry]\nurl = "http://127.0.0.1:1,{registry.url}"\nuser = "reader"\npassword_file = "secret"\n'
    world = Avro(broker_server, redis_server, tmp_path, topic, section)
    (tmp_path / "secret").write_text("secret\n")
    assert registry.register(f"{topic}-value", FIRST) == 1
    world.write(1, FIRST)
    with world.start("first") as service:
        until(lambda: counted(world, service, 20), STARTS_S, "the first readings")
        process = service.process.pid

        assert registry.register(f"{topic}-value", SECOND) == 2
        world.write(2, SECOND)
        until(lambda: counted(world, service, 40), 60, "the readings of a new schema")
        assert service.metric("schema_lookups_total") == 1
        assert service.metric("query_restarts_total") == 0, "it is no failure"
        assert world.rejects() == []

        assert registry.register("elsewhere", THIRD) == 3
        world.write(3, THIRD)  # valid, and no version of our subject
        world.write(1, FIRST)
        until(lambda: counted(world, service, 60), 60, "what is known goes on")
        assert [(each.reason, each.detail) for each in world.rejects()] == [
            ("unknown_schema", "schema id 0x00000003")
        ] * 20
        assert service.metric("query_restarts_total") == 0, "nor is one that there is not"
        registry.stop()
        world.write(2, SECOND)
        until(lambda: counted(world, service, 80), 60, "a registry that is away is not needed")
        world.write(7, SECOND)
        until(lambda: len(world.rejects()) == 40, 60, "ids that cannot be looked up are rejected")
        assert registry.register(f"{topic}-value", THIRD) == 3
        registry.start()
        rejected = 40 + world.write_until_used(3, THIRD)  # a registry that did not answer is left alone for ten seconds
        world.write(3, THIRD)
        until(lambda: counted(world, service, 101), 60, "the readings of the third schema")
        assert len(world.rejects()) == rejected, "what was rejected stays so"
        assert service.process.pid == process
        assert service.process.poll() is None
        assert service.stop() == 0
        assert " ERROR MicroBatchExecution" not in service.log.read_text(), "the restarts were planned"

    # Another process, without the registry: what was learned is beside the checkpoint.
    registry.stop()
    with world.start("second") as service:
        for number, schema in ((1, FIRST), (2, SECOND), (3, THIRD)):
            world.write(number, schema)
        until(lambda: counted(world, service, 161), STARTS_S, "all three without a registry")
        # And what is read from Kafka again leaves out what was rejected.
        world.redis.flushall()
        until(lambda: counted(world, service, 161), 120, "the same again")
        assert service.stop() == 0


@pytest.mark.thorough
def test_a_file_that_is_put_into_the_folder_is_used_and_noise_restarts_nothing(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str
) -> None:
    topic = f"schemas-{prefix}"
    broker_server.create_topic(topic, partitions=2)
    world = Avro(broker_server, redis_server, tmp_path, topic, "")
    folder = tmp_path / "schemas" / "avro"
    folder.mkdir(parents=True)
    (folder / "1.avsc").write_text(json.dumps(FIRST))
    world.write(1, FIRST)
    with world.start("first") as service:
        until(lambda: counted(world, service, 20), STARTS_S, "the first readings")
        for number in range(1_000, 1_400):
            world.write(number, FIRST, count=1)
        (folder / "9.avsc").write_text("{")
        world.write(9, FIRST)
        world.write(1, FIRST)
        until(lambda: counted(world, service, 40), 60, "what is known goes on")
        until(lambda: len(world.rejects()) == 420, 60, "noise is rejected")
        assert service.metric("query_restarts_total") == 0
        assert service.metric("schema_lookups_total") <= 400, "noise is not looked up for ever"
        (folder / "9.avsc").write_text(json.dumps(SECOND))
        world.write_until_used(9, SECOND)
        world.write(9, SECOND)
        until(lambda: counted(world, service, 61), 60, "the file is mended")
        assert service.stop() == 0

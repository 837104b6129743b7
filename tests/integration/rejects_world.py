"""An input topic with records that were all rejected, and what a user sees of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service import clock, settings
from service.cli import main
from service.kafka import scan
from service.micro_batch import MicroBatch
from service.rejects import delivery
from service.rejects.fetch import Record
from service.rejects.reject_log import ORIGIN, Coordinates
from tests.stream.records import BASE_MS, avro, write_schemas

NOW_MS = clock.now_ms()
"""Event time of readings that admission would admit now: the delay of these worlds is one hour."""


def reading(device: str, temperature: float | None = 20.0, event_ms: int = NOW_MS) -> bytes:
    return avro(device_id=device, event_time=event_ms, temperature=temperature)


class World:
    """An input topic with its rejects; `form` are more lines of the section [input], Avro's by default."""

    def __init__(
        self, broker: Broker, redis: Redis, folder: Path, prefix: str, capsys: Any, form: str | None = None
    ) -> None:
        self.topic = f"rejects-{prefix}"
        self.redis, self.prefix, self.capsys = redis.client(), prefix, capsys
        self.config = folder / "tidemark.toml"
        self.config.write_text(
            f"""
            [service]
            checkpoint = "checkpoint"
            [kafka]
            bootstrap = "{broker.bootstrap}"
            topics = ["{self.topic}"]
            [input]
            {form or f'schemas = "{write_schemas(folder / "schemas")}"'}
            measures = {{temperature = "temperature"}}
            [admission]
            max_bytes = 200
            max_delay = "1 h"
            ranges = {{temperature = [-40, 80]}}
            [[views]]
            name = "all"
            window = "1 m"
            [redis]
            url = "{redis.url}"
            prefix = "{prefix}"
            """
        )
        self.settings = settings.load(self.config)
        broker.create_topic(self.topic, 2)
        broker.create_topic(f"{self.topic}.rejects", 2)
        self.sender = delivery.RejectProducer(self.settings.kafka)
        self.offsets = {0: 0, 1: 0}
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def reject(
        self,
        value: bytes | None,
        reason: str,
        detail: str = "",
        partition: int = 0,
        times: int = 1,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> str:
        """A record in the input topic and its reject; returns its place."""
        offset = self.offsets[partition]
        self.offsets[partition] += 1
        own = [("trace", b"t1"), *headers]
        self.producer.produce(self.topic, value, b"the-key", partition=partition, headers=list(own))
        assert self.producer.flush(30) == 0
        fields = {"reason": reason, "detail": detail, "topic": self.topic, "partition": partition, "offset": offset}
        row = {**fields, "broker_ms": BASE_MS + 1000 * offset}
        for _ in range(times):
            self.sender.send(row, Record(b"the-key", value, own), MicroBatch(3, 7, 0, {}, {}))
        self.sender.flush(MicroBatch(3, 7, 0, {}, {}))
        return f"{self.topic}[{partition}]@{offset}"

    def tidemark(self, *arguments: str) -> str:
        assert main(["rejects", arguments[0], "--config", str(self.config), *arguments[1:]]) == 0
        return str(self.capsys.readouterr().out)

    def sent(self) -> list[tuple[str, bytes | None]]:
        """What was sent again: the place that it says it comes from, and its bytes."""
        sent = []
        for message in scan.messages(self.settings.kafka, [self.topic]):
            origin = [text for name, text in scan.headers(message) if name == ORIGIN and text is not None]
            if origin and origin[-1].count(b"/") == 3:
                [place] = Coordinates.parse(origin[-1].decode().rpartition("/")[0])
                assert (message.partition(), message.key()) == (place.partition, b"the-key")
                assert ("trace", b"t1") in scan.headers(message)
                sent.append((str(place), message.value()))
        return sent

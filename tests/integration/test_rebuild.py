"""`tidemark rebuild` beside a service that runs: it goes on from the new checkpoint, and back, and no value is lost or falls."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from load.judge.compare import compare
from load.servers.child_process import Child, spawn
from load.servers.kafka import Broker
from load.servers.redis import Redis
from service.checkpoint import rebuilt
from tests.integration.daemon import STARTS_S, DaemonWorld, until

pytestmark = pytest.mark.integration

CLOSING = """
[admission]
max_delay = "10 s"
"""
OUTLET = """
[[outlets]]
name = "finals"
kind = "kafka"
topic = "{topic}-finals"
format = "json"
"""


class Rebuilt(DaemonWorld):
    """A service whose counts are watched."""

    falls: list[str]

    @property
    def used(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def beside(self) -> Path:
        return self.folder / "checkpoint.rebuild"

    def rebuild(self, name: str, *options: str, **environment: str) -> Child:
        command = [sys.executable, "-m", "service.cli", "rebuild", "--config", str(self.config), *options]
        return spawn(command, cwd=Path.cwd(), log=self.folder / f"{name}.log", environ={**os.environ, **environment})

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def says(self, child: Child, name: str, text: str, within_s: float = STARTS_S) -> None:
        def has_said() -> bool:
            assert text in self.log(name) or child.poll() is None, self.log(name)
            return text in self.log(name)

        until(has_said, within_s, f"{name} to say {text!r}")

    @contextmanager
    def load(self) -> Iterator[None]:
        """Send readings, and look at every count, until the end of the block."""
        ending, self.falls = threading.Event(), []
        seen: dict[str, int] = {}

        def send() -> None:
            while not ending.wait(0.2):
                self.send(100)

        def look() -> None:
            while not ending.wait(0.05):
                keys: list[Any] = self.redis.keys(f"{self.topic}:window:*")
                for key in keys:
                    count = int(str(self.redis.hget(key, "count") or -1))
                    if count < seen.get(key, 0):
                        self.falls.append(f"{key}: {count} after {seen[key]}")
                    seen[key] = count

        threads = [threading.Thread(target=each, daemon=True) for each in (send, look)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ending.set()
            for thread in threads:
                thread.join(30)
        assert self.falls == []


@pytest.fixture
def world(broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str) -> Rebuilt:
    topic = f"rebuild-{prefix}"
    broker_server.create_topic(topic, partitions=2)
    return Rebuilt(broker_server, redis_server, tmp_path, topic)


def test_a_service_goes_on_from_a_checkpoint_that_was_made_beside_it_and_back(world: Rebuilt) -> None:
    text = world.config.read_text() + CLOSING
    world.config.write_text(text + OUTLET.format(topic=world.topic))
    world.send(5_000)
    with world.start("first") as first:
        until(first.is_ready, STARTS_S, "the first batch")
        with world.load():
            child = world.rebuild("rebuild", "--switch", "--rate", "50000")
            world.says(child, "rebuild", "stop the service now")
            epoch = int(world.progress()["epoch"])
            assert first.stop() == 0, first.log.read_text()
            with world.start("second") as second:
                assert child.wait(120) == 0, world.log("rebuild")
                until(second.is_ready, STARTS_S, "the first batch from the new checkpoint")
                final = int(world.progress()["final"])
                until(lambda: int(world.progress()["final"]) > final, STARTS_S, "finals from the new checkpoint")
                assert second.stop() == 0, second.log.read_text()
    verdict = compare(world.config)
    assert verdict.ok, verdict.examples
    assert verdict.compared["outlet finals"]
    world.config.write_text(text)  # an outlet would get again what the former checkpoint closes again
    assert (world.used / rebuilt.NAME).exists()
    assert int(world.progress()["epoch"]) > epoch
    assert world.rebuild("undo", "--undo").wait(60) == 0, world.log("undo")
    assert world.rebuild("forget", "--forget").wait(60) == 0, world.log("forget")
    assert not world.beside.exists()
    assert list(world.redis.scan_iter(f"{world.topic}.rebuild:*")) == []
    with world.start("third") as third:
        until(third.is_ready, STARTS_S, "the third service, from the former checkpoint")
        until(lambda: world.counted() == world.sent, 120, "all readings in windows")
        assert third.stop() == 0
    verdict = compare(world.config)
    assert verdict.ok, verdict.examples

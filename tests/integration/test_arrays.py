"""Records that are arrays, on real parts: values, rejects with their index, corrections, losses, replays; the oracle is asked."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service import clock
from service.cli import main
from service.commands import replay
from service.rejects import marks, reject_log
from service.rejects.reject_log import Coordinates, Reject
from tests.integration.world import World
from tests.stream.records import BASE_MS, Record

pytestmark = [pytest.mark.integration, pytest.mark.spark]

INPUT = {"format": "json", "array": True, "measures": {"temperature": "temperature"}}
VIEWS = [{"name": "device", "by": ["device"], "window": "1 m"}, {"name": "total", "window": "none"}]
NOW_MS = clock.now_ms()
BROKEN = gzip.compress(b"[{}]")[:-9]


def reading(device: str, seconds: int, temperature: Any = 20.0, base_ms: int = BASE_MS) -> bytes:
    fields = {"device_id": device, "event_time": base_ms + seconds * 1000, "temperature": temperature}
    return json.dumps(fields).encode()


def record(*readings: bytes, at: int = 0, base_ms: int = BASE_MS) -> Record:
    """A compressed array."""
    return Record(gzip.compress(b"[" + b",".join(readings) + b"]"), base_ms + at * 1000)


class Gateways(World):
    def rejects(self) -> dict[tuple[int, int, int], Reject]:
        return {
            (each.place.partition, each.place.offset, each.place.index): each
            for each in reject_log.read(self.settings.kafka)
        }


@pytest.fixture
def world(
    spark: SparkSession,
    broker_server: Broker,
    redis_server: Redis,
    tmp_path: Path,
    prefix: str,
    request: pytest.FixtureRequest,
) -> Iterator[Gateways]:
    admission = getattr(request, "param", {"max_delay": "20 s", "max_ahead": "5 s"})
    made = Gateways(spark, broker_server, redis_server, tmp_path, prefix, input=INPUT, views=VIEWS, admission=admission)
    yield made
    made.redis.close()


@pytest.mark.parametrize(
    "world", [{"max_delay": "1 h", "max_ahead": "1 h", "distinct": ["device", "event_time"]}], indirect=True
)
def test_a_rejected_reading_is_replayed_alone_once_and_a_copy_names_the_reading(
    world: Gateways, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = reading("a", 0, 20.0, NOW_MS), reading("a", 1, "hot", NOW_MS)
    world.term(
        record(good, bad, good, base_ms=NOW_MS),
        record(reading("b", 0, 1.0, NOW_MS), good, base_ms=NOW_MS),
    )
    rejects = world.rejects()
    assert {place: each.reason for place, each in rejects.items()} == {
        (0, 0, 1): "undecodable",
        (0, 0, 2): "duplicate",
        (1, 0, 1): "duplicate",
    }
    assert rejects[0, 0, 2].detail == rejects[1, 0, 1].detail == f"the same reading as {world.topic}[0]@0#0"
    world.assert_right()
    place = f"{world.topic}[0]@0#1"
    assert main(["rejects", "list", "--config", str(world.config), "--json", "--reason", "undecodable"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["offset"], listed["index"], listed["bytes"]) == (0, 1, len(bad))
    assert main(["rejects", "show", "--config", str(world.config), place]) == 0
    assert 'temperature = "hot": expected a number' in capsys.readouterr().out
    mend = replay.Mend({"temperature": 21.5})
    for sent in (1, 0):
        chosen = [rejects[0, 0, 1]]
        counts = replay.replay(world.settings, chosen, mend, print, force=True)
        assert counts["sent"] == sent
    world.sent[0] += 1
    world.term(record(reading("b", 1, 1.0, NOW_MS), base_ms=NOW_MS))
    assert world.redis.hget(world.key("window:total:temperature:all:0"), "count") == "4"
    assert marks.read(world.settings.kafka)[Coordinates.parse(place)].state == "replayed"
    world.assert_right()

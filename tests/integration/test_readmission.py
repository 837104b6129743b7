"""`tidemark rejects replay` decides with the service's own admission what it sends again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service.units import format_time
from tests.integration.rejects_world import NOW_MS, World, reading
from tests.stream.records import avro, write_schemas

pytestmark = pytest.mark.integration

UNKNOWN = b"\0\0\0\0\2" + avro(device_id="d2", event_time=NOW_MS)[5:]
HOUR_MS = 3_600_000
JSON = 'format = "json"\n            event_time_unit = "iso"'


@pytest.fixture
def made(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str, capsys: Any, shared_spark: Any
) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(form: str | None = None) -> World:
        worlds.append(World(broker_server, redis_server, tmp_path, prefix, capsys, form))
        return worlds[-1]

    yield make
    for each in worlds:
        each.redis.close()


def json_reading(**fields: Any) -> bytes:
    return json.dumps({"device_id": "d1", "event_time": format_time(NOW_MS), "temperature": 20.0, **fields}).encode()


@pytest.mark.thorough
def test_what_is_sure_to_be_rejected_again_is_neither_sent_nor_marked(made: Callable[..., World]) -> None:
    world = made(JSON)
    refused = {
        world.reject(json_reading(temperature="hot"), "undecodable"): 'temperature = "hot": expected a number',
        world.reject(b'{"device_id":"d1"', "undecodable"): "is not JSON: Expecting ',' delimiter (byte 17 of 17)",
        world.reject(json_reading(event_time=None), "no_time"): "event_time is null: expected an ISO 8601 date",
        world.reject(json_reading(device_id=" "), "no_device"): 'device_id = " ": expected a device id',
        world.reject(json_reading(temperature=900), "out_of_range"): "allowed -40.0 to 80.0 (admission.ranges.temp",
        world.reject(json_reading(event_time="2099-01-01T00:00:00Z"), "early"): "limit 10 s (admission.max_ahead)",
        world.reject(json_reading(event_time=format_time(NOW_MS - 2 * HOUR_MS)), "late"): "`tidemark correct`",
        world.reject(json_reading(event_time=format_time(NOW_MS - 2 * HOUR_MS)), "no_device"): "send it with --force",
        world.reject(json_reading(note="x" * 200), "oversized", partition=1): "limit 200 bytes (admission.max_bytes)",
    }
    good = world.reject(json_reading(), "too_many_devices", partition=1)
    for arguments in (["--dry-run"], []):
        output = world.tidemark("replay", "--since", "0", *arguments)
        for place, text in refused.items():
            [line] = [line for line in output.splitlines() if line.startswith(f"{place}: ")]
            assert "would be rejected again as " in line
            assert text in line
        assert f"1 {'would be sent' if arguments else 'sent'}, {len(refused)} not" in output
        assert "2 would be rejected again as undecodable" in output
    assert world.sent() == [(good, json_reading())]
    assert "1 rejects" in world.tidemark("list", "--state", "replayed")
    assert f"{len(refused)} sent, 1 not" in world.tidemark("replay", "--since", "0", "--force")
    assert len(world.sent()) == len(refused) + 1
    assert f"{len(refused) + 1} rejects" in world.tidemark("list", "--state", "replayed")


def test_a_reading_behind_the_watermark_is_not_sent_again(made: Callable[..., World]) -> None:
    world = made()
    place = world.reject(reading("d1"), "too_many_devices")
    world.redis.hset(f"{world.prefix}:progress", "watermark", NOW_MS + 1)
    output = world.tidemark("replay", place)
    assert f"would be rejected again as behind: event_time = {format_time(NOW_MS)}: 1 ms behind the watermark" in output
    world.redis.hset(f"{world.prefix}:progress", "watermark", NOW_MS)
    assert "1 sent, 0 not" in world.tidemark("replay", place)


@pytest.mark.thorough
def test_what_is_sent_again_is_sent_once_whoever_asks_how_often(made: Callable[..., World]) -> None:
    world = made()
    late = world.reject(reading("d1", event_ms=NOW_MS - 2 * HOUR_MS), "late")
    wrong = world.reject(reading("d2", 1e9), "out_of_range", "temperature = 1.0E9", partition=1)
    unknown = world.reject(UNKNOWN, "unknown_schema")
    nothing = world.reject(None, "undecodable")
    output = world.tidemark("replay", "--since", "0", "--reason", "unknown_schema", "--reason", "late")
    assert "0 sent, 2 not" in output
    assert "would be rejected again as unknown_schema: schema 2 is not known; known: 1" in output
    assert "tidemark correct" in output
    assert world.sent() == []

    # The id is resolvable now; a value is mended; another gets bytes of its own.
    write_schemas(world.config.parent / "schemas")
    (world.config.parent / "schemas" / "2.avsc").write_text(
        (world.config.parent / "schemas" / "1.avsc").read_text(encoding="utf-8")
    )
    assert "1 would be sent" in world.tidemark("replay", unknown, "--dry-run")
    assert world.sent() == []
    assert "1 sent, 0 not" in world.tidemark("replay", unknown)
    assert "1 sent, 0 not" in world.tidemark("replay", wrong, "--set", "temperature=21.5")
    new = world.config.parent / "value"
    new.write_bytes(reading("d9"))
    assert "1 sent, 0 not" in world.tidemark("replay", nothing, "--value", str(new))
    sent = [(unknown, UNKNOWN), (nothing, reading("d9")), (wrong, reading("d2", 21.5))]
    assert sorted(world.sent()) == sorted(sent)
    for already in (3, 4):
        output = world.tidemark("replay", "--since", "0", "--set", "temperature=3", "--set", f"event_time={NOW_MS}")
        assert f"{already} replayed already" in output
        assert sorted(world.sent()) == sorted([*sent, (late, reading("d1", 3.0))])
    assert "4 rejects" in world.tidemark("list", "--state", "replayed")
    assert "replayed, since 20" in world.tidemark("show", unknown)

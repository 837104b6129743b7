"""`tidemark try`: what a sample would become, by the stream's own steps, with nothing written anywhere."""

import json
import sqlite3
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from load.servers.kafka import LOG_APPEND_TIME, Broker
from load.servers.redis import Redis
from load.servers.server_process import free_port
from service.cli import main
from service.redis.keys import Keys
from tests.integration.daemon import STARTS_S, DaemonWorld, Service, until
from tests.topics import send

pytestmark = pytest.mark.integration
QUERY = "select * from devices"


def tried(config: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Mapping[str, Any]:
    """The document of `tidemark try --json`."""
    capsys.readouterr()
    assert main(["try", "--config", str(config), "--json", *more]) == 0
    document: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    return document


def fill(world: DaemonWorld) -> None:
    """200 readings of five devices, and seven records that are rejected for five reasons."""
    now_ms = time.time_ns() // 1_000_000
    values = [
        {"device_id": f"d{n % 5}", "event_time": now_ms - 40_000 + n * 200, "temperature": n % 11} for n in range(200)
    ]
    wrong: list[Any] = [
        {"device_id": "d1", "event_time": now_ms, "temperature": "hot"},
        {"device_id": "d1", "event_time": now_ms - 3_600_000, "temperature": 1},
        {"device_id": "d1", "event_time": now_ms + 3_600_000, "temperature": 1},
        {"device_id": "d1\n", "event_time": now_ms, "temperature": 1},
        {"device_id": "d1", "temperature": 1},
        [1],
    ]
    world.broker.create_topic(world.topic, 1, LOG_APPEND_TIME)
    send(world.broker, world.topic, [*(json.dumps(value).encode() for value in [*values, *wrong]), b"x" * 100_000])


@pytest.fixture
def world(broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str) -> DaemonWorld:
    """A service's settings, and its topic with records."""
    made = DaemonWorld(broker_server, redis_server, tmp_path, prefix)
    fill(made)
    return made


def topics(broker: Broker) -> set[str]:
    """The topics, without the broker's own."""
    return {name for name in broker.admin.list_topics(timeout=10).topics if not name.startswith("__")}


@pytest.mark.thorough
@pytest.mark.silent("1.8")
def test_the_values_are_those_that_the_service_then_writes(
    world: DaemonWorld,
    redis_server: Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shared_spark: SparkSession,
) -> None:
    # `wet` is a typing error.
    measures = '{temperature = "temperature", wet = "humdity"}'
    world.config.write_text(world.config.read_text().replace('{temperature = "temperature"}', measures))
    document = tried(world.config, capsys)
    assert (document["records"], document["admitted"], document["devices"]) == (207, 200, 5)
    # Of the seven others three are not decoded: text for a number, an array, and one that is too large.
    assert {each["setting"]: each["records"] for each in document["fields"]} == {
        "input.device_id": 204,
        "input.event_time": 203,
        "input.measures.temperature": 204,
        "input.measures.wet": 0,
    }
    with Service(world.config, free_port(), tmp_path / "log") as service:
        until(lambda: service.is_ready() and service.metric("readings_admitted_total") >= 200, STARTS_S, "the readings")
        counts = [
            service.metric(name, input="input", measure=measure)
            for measure in ("temperature", "wet")
            for name in ("measure_readings_total", "measure_missing_readings_total")
        ]
        assert counts == [200, 0, 0, 200]
        until(
            lambda: "admitted readings has humdity: input.measures.wet has no value" in service.log.read_text(),
            30,
            "a warning",
        )
        client = redis_server.client(decode_responses=True)
        for kind in ("windows", "sessions"):
            for value in document[kind]:
                stored: Mapping[str, str] = client.hgetall(value["key"])
                fields = {name: text for name, text in value.items() if name not in {"key", "final"}}
                assert {name: stored.get(name) for name in fields} == fields, value["key"]
        assert client.hget(Keys(world.topic).progress, "watermark") == str(document["watermark"])
        windows = {each["key"] for each in document["windows"]}
        assert set(client.scan_iter(f"{world.topic}:window:*")) == windows
        assert service.stop() == 0


def test_rejects_are_explained_and_nothing_is_written(
    world: DaemonWorld,
    redis_server: Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shared_spark: SparkSession,
) -> None:
    # Nothing answers at this address: the command does not need Redis.
    world.config.write_text(world.config.read_text().replace(redis_server.url, "redis://127.0.0.1:1"))
    files, names = sorted(tmp_path.rglob("*")), topics(world.broker)
    document = tried(world.config, capsys)
    reasons = {each["reason"]: each["detail"] for each in document["rejects"]}
    assert set(reasons) == {"undecodable", "late", "early", "bad_device", "no_time", "oversized"}
    details = [each["detail"] for each in document["rejects"]]
    assert any('temperature = "hot": expected a number' in each for each in details)
    assert "60 min ahead of the broker's time" in reasons["early"]
    assert "97.66 KiB (100000 bytes), limit 64 KiB" in reasons["oversized"]
    assert main(["try", "--config", str(world.config), "-n", "50"]) == 0
    shown = capsys.readouterr().out
    assert f"50 records of {world.topic}: 43 admitted, of 5 devices" in shown
    assert "no record has" not in shown
    assert "Nothing was written, to Kafka, Redis or the checkpoint." in shown
    assert any(line.startswith(f"    {world.topic}:window:device:temperature:d") for line in shown.splitlines())
    assert "│" not in shown.partition("windows; the watermark")[2], "keys are lines of their own"
    assert sorted(tmp_path.rglob("*")) == files
    assert topics(world.broker) == names


def test_windows_of_a_reference_s_column_are_grouped_by_it(
    world: DaemonWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], shared_spark: SparkSession
) -> None:
    with sqlite3.connect(tmp_path / "fleet.db") as database:
        database.execute("create table devices (device_id text, plant text)")
        database.executemany("insert into devices values (?, ?)", [(f"d{n}", f"plant{n % 2}") for n in range(5)])
    database.close()
    reference = f'url = "jdbc:sqlite:{tmp_path}/fleet.db"\nquery = "{QUERY}"'
    view = '[[views]]\nname = "plant"\nby = ["plant"]\nwindow = "1 h"'
    world.config.write_text(f"{world.config.read_text()}\n[reference]\n{reference}\n{view}\n")
    keys = {each["key"].split(":")[4] for each in tried(world.config, capsys)["windows"] if ":plant:" in each["key"]}
    assert keys == {"plant0", "plant1"}


def test_records_that_the_input_s_filter_leaves_out_are_counted_apart(
    world: DaemonWorld, capsys: pytest.CaptureFixture[str], shared_spark: SparkSession
) -> None:
    text = world.config.read_text()
    world.config.write_text(text.replace("[sessions]", "where = \"device != 'd1'\"\n[sessions]"))
    document = tried(world.config, capsys)
    assert (document["admitted"], document["devices"]) == (160, 4)
    assert document["filtered"] == 207 - 160 - len(document["rejects"])
    assert main(["try", "--config", str(world.config)]) == 0
    assert f"{document['filtered']} do not meet input.where" in capsys.readouterr().out


def uplink(number: int, at_ms: int) -> bytes:
    """An uplink of The Things Stack: tests/public_shapes.yaml has its source."""
    received = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "456789Z")
    payload = {"soil_moisture": 5 + number % 40 + 0.5, "battery_v": 3.6}
    message = {"f_port": 2, "f_cnt": number // 30, "decoded_payload": payload, "received_at": received}
    ids = {"device_id": f"soil-{number % 6}", "application_ids": {"application_id": "farm"}}
    return json.dumps({"end_device_ids": ids, "received_at": received, "uplink_message": message}).encode()


@pytest.mark.thorough
def test_init_and_try_admit_all_records_of_a_public_shape(
    broker_server: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], shared_spark: SparkSession
) -> None:
    topic, config = "trial-uplinks", tmp_path / "tidemark.toml"
    broker_server.create_topic(topic, 2, LOG_APPEND_TIME)
    now_ms = time.time_ns() // 1_000_000
    send(broker_server, topic, [uplink(number, now_ms - 3_000 * (17 - number)) for number in range(18)], 2)
    where = ["--bootstrap", broker_server.bootstrap, "--topic", topic, "--config", str(config), "--yes"]
    assert main(["init", *where]) == 0, capsys.readouterr().out
    document = tried(config, capsys)
    assert (document["records"], document["rejects"]) == (18, [])
    assert document["windows"]


def test_a_topic_without_records_is_named(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = DaemonWorld(broker_server, redis_server, tmp_path, "trial-none")
    assert main(["try", "--config", str(world.config)]) == 5
    assert "trial-none does not exist" in capsys.readouterr().err
    broker_server.create_topic(world.topic, 1, LOG_APPEND_TIME)
    assert main(["try", "--config", str(world.config)]) == 5
    assert "trial-none: there is no record to try" in capsys.readouterr().err

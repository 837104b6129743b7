"""`tidemark check` against real parts: every line of a good set-up, and what each broken one says."""

import json
import os
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from load.servers.kafka import CREATE_TIME, LOG_APPEND_TIME, Broker
from load.servers.redis import Redis
from service.checkpoint.manifest import DOCUMENT, Manifest
from service.commands import check, check_spark
from service.commands.check import Line, checks
from service.daemon import process
from service.daemon.process import Plan
from service.errors import SinkRefusedError
from service.publication.meta import CONTRACT
from service.redis.keys import shards
from service.settings import Settings, parse
from service.spark.files import Local
from tests.served import served
from tests.topics import send

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parent.parent.parent
DEVICES = [("pump-1", "pump", "leeds", "2025-03-01"), ("meter-1", "meter", "york", "2025-03-02")]


class World:
    """Settings of a set-up in which all is well, to be broken in one place."""

    def __init__(self, broker: Broker, redis: Redis, folder: Path, name: str) -> None:
        self.broker = broker
        self.redis = redis.client()
        self.topic = f"check-{name}"
        self.database = folder / "devices.db"
        connection = sqlite3.connect(self.database)
        with connection:
            connection.execute("create table devices (device_id text, type text, site text, installed text)")
            connection.executemany("insert into devices values (?, ?, ?, ?)", DEVICES)
        connection.close()
        self.document: dict[str, Any] = {
            "service": {"checkpoint": str(folder / "checkpoint")},
            "kafka": {"bootstrap": broker.bootstrap, "topics": [self.topic]},
            "input": {
                "schemas": str(ROOT / "schemas" / "avro"),
                "event_time_unit": "logical",
                "measures": {"temperature": "temperature"},
            },
            "reference": {
                "url": f"jdbc:sqlite:{self.database}",
                "query": "select device_id, type, site, installed from devices",
                "expectations": str(ROOT / "schemas" / "reference.expectations.json"),
            },
            "views": [{"name": "sites", "by": ["site"], "window": "1 m"}],
            "redis": {"url": redis.url, "prefix": self.topic, "retry_for": "1 s"},
            "metrics": {"port": 0},
        }

    def settings(self) -> Settings:
        return parse(self.document)

    def lines(self) -> list[Line]:
        return checks(self.settings())


def of(lines: list[Line], status: str) -> dict[str, str]:
    return {line.name: f"{line.detail} {line.remedy}" for line in lines if line.status == status}


@pytest.fixture
def world(broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str) -> World:
    made = World(broker_server, redis_server, tmp_path, prefix)
    broker_server.create_topic(made.topic, partitions=3)
    return made


@pytest.fixture(autouse=True)
def _shared(spark: SparkSession) -> None:
    """The check takes the session that is there, and leaves it."""


def test_without_a_reference_the_plan_is_good_wherever_the_checkpoint_is(world: World) -> None:
    del world.document["reference"]
    world.document["views"] = [{"name": "all", "window": "1 m"}]
    world.document["service"]["checkpoint"] = "s3a://bucket/checkpoint"
    [line, *_] = check_spark.plan(world.settings())
    assert (line.name, line.status) == ("plan", "ok")


@pytest.mark.thorough
def test_a_good_set_up_has_no_failure_and_nothing_is_left_behind(world: World, tmp_path: Path) -> None:
    topics = set(world.broker.admin.list_topics(timeout=10).topics) - {"__consumer_offsets"}
    lines = world.lines()
    assert not of(lines, "fail")
    # The tests' broker is alone; it keeps records for ever.
    assert set(of(lines, "warn")) == {f"topic {world.topic}", "decompression"}
    assert "one copy" in of(lines, "warn")[f"topic {world.topic}"]
    passed = of(lines, "ok")
    assert "Java 17" in passed["java"]
    details = [line.detail for line in lines if line.name == f"topic {world.topic}"]
    assert "3 partitions" in details
    assert "records are not deleted because of their age" in details
    assert "may create it, with 3 partitions" in passed[f"topic {world.topic}.rejects"]
    assert "temperature is double" in passed["input.measures.temperature"]
    assert "2 devices, columns type, site, installed" in passed["reference"]
    assert "by site, 1 m" in passed["view sites"]
    assert "answers Spark" in passed["kafka in Spark"]
    assert "accepts" in passed["plan"]
    # A broker makes a topic of its own when it is first asked for a group's offsets.
    assert set(world.broker.admin.list_topics(timeout=10).topics) - {"__consumer_offsets"} == topics
    assert world.redis.keys(f"{world.topic}:*") == []
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.thorough
def test_what_is_wrong_is_named_all_at_once_with_a_remedy(world: World, tmp_path: Path) -> None:
    world.document["kafka"]["topics"] = ["nowhere"]
    world.document["input"] |= {"measures": {"name": "device_id", "depth": "depth.below"}, "event_time_unit": "iso"}
    world.document["views"].append({"name": "owners", "by": ["owner"], "window": "1 m"})
    world.document["redis"]["url"] = "redis://127.0.0.1:1"
    connection = sqlite3.connect(world.database)
    with connection:
        connection.execute("insert into devices values ('pump-1', 'PUMP', null, '2025')")
    connection.close()
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "7").write_text("v1\n{")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        world.document["metrics"]["port"] = taken.getsockname()[1]
        lines = world.lines()
    failures = of(lines, "fail")
    assert "metrics.port" in failures["metrics"]
    assert "nowhere does not exist" in failures["topic nowhere"]
    assert "127.0.0.1:1" in failures["redis"]
    assert "offsets/7 is not what Spark writes" in failures["checkpoint"]
    assert "depth.below" in failures["schemas"]
    assert "device_id: a key must be unique" in failures["reference"]
    assert {line.exit_status for line in lines if line.status == "fail"} == {3, 4, 5, 6, 8, 10}
    assert all(line.remedy for line in lines if line.status == "fail")


def test_a_prefix_with_the_values_of_other_topics_is_named(world: World) -> None:
    world.redis.hset(f"{world.topic}:progress", "offsets", '{"others": {"0": 9}}')
    failures = of(world.lines(), "fail")
    assert list(failures) == ["redis"]
    assert f"its values are of others, kafka.topics has {world.topic}" in failures["redis"]
    world.redis.delete(f"{world.topic}:progress")


def test_a_view_that_changed_under_its_name_is_named(world: World) -> None:
    world.document["views"] = [{"name": "all", "window": "10 m"}]
    view = {"name": "all", "by": [], "window_ms": 60_000, "slide_ms": 60_000}
    world.redis.set(f"{world.topic}:meta", json.dumps({"contract": CONTRACT, "shards": 1, "views": [view]}))
    failures = of(world.lines(), "fail")
    assert list(failures) == ["redis"]
    assert "views.all is 10 m by nothing, its published windows are 1 m by nothing" in failures["redis"]
    world.redis.delete(f"{world.topic}:meta")


def test_a_field_of_the_wrong_type_is_named(world: World) -> None:
    world.document["reference"] = None
    world.document["views"] = [{"name": "all", "window": "1 m"}]
    world.document["input"] |= {"measures": {"t": "temperature"}, "columns": {"line": "humidity"}}
    world.document["input"] |= {"event_time": "power", "event_time_unit": "iso"}
    failures = of(world.lines(), "fail")
    assert "'humidity' is double" in failures["input.columns.line"]
    assert "'power' is double" in failures["input.event_time"]


def test_a_view_by_a_column_that_the_reference_lacks_is_named(world: World) -> None:
    world.document["views"].append({"name": "owners", "by": ["owner"], "window": "1 m"})
    failures = of(world.lines(), "fail")
    assert "no column 'owner'" in failures["view owners"]


def test_keys_of_another_program_under_the_prefix_are_named_by_check_and_run(world: World) -> None:
    world.redis.set(f"{world.topic}:progress", "of another program")
    world.redis.lpush(f"{world.topic}:epoch", "1")
    named = f"{world.topic}:epoch is a list, Tidemark's is a string; {world.topic}:progress is a string, Tidemark's is a hash"
    try:
        text = of(world.lines(), "fail")["redis"]
        assert named in text
        assert "Remove these keys or choose another prefix" in text
        settings = world.settings()
        with pytest.raises(SinkRefusedError) as refusal:
            process.run(Plan(settings))
        assert named in refusal.value.what
    finally:
        world.redis.delete(f"{world.topic}:progress", f"{world.topic}:epoch")


def test_what_works_but_is_risky_is_a_warning(world: World, redis_server: Redis) -> None:
    world.document["reference"] = None
    world.document["views"] = [{"name": "all", "window": "1 m"}]
    world.broker.create_topic("check-create-time", partitions=1, config=CREATE_TIME)
    world.document["kafka"]["topics"] = ["check-create-time"]
    world.document["admission"] = {"max_bytes": "2 MiB"}
    world.redis.set(f"{world.topic}:lease", "host-2", px=60_000)
    world.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        lines = world.lines()
        warnings = of(lines, "warn")
    finally:
        world.redis.config_set("maxmemory-policy", "noeviction")
    assert any("message.timestamp.type is CreateTime" in line.detail for line in lines)
    assert "allkeys-lru" in warnings["redis memory"]
    assert "host-2 holds the lease" in warnings["redis lease"]
    assert "2097152" in warnings["admission.max_bytes"]


def test_a_running_service_with_these_settings_is_recognised(world: World) -> None:
    world.redis.set(f"{world.topic}:lease", "host-2:7:1:x", px=60_000)
    world.redis.set(f"{world.topic}:epoch", 3)
    with served(world.document["service"].get("name", "tidemark")) as running:
        running.status.term(3)
        options = parse(world.document | {"metrics": {"port": running.port}})
        found: list[Line] = []
        check._shard(options, shards(options.redis)[0], found.append)
        assert [(line.status, line.name) for line in found] == [("ok", "redis lease")]
        assert found[0].detail == "this service runs, with epoch 3: host-2:7:1:x holds the lease"
        world.redis.set(f"{world.topic}:epoch", 4)
        check._shard(options, shards(options.redis)[0], found.append)
        assert found[1].status == "warn", "another epoch: another service"
        world.redis.delete(f"{world.topic}:lease", f"{world.topic}:epoch")


@pytest.mark.thorough
def test_a_kafka_that_does_not_answer_is_named(world: World) -> None:
    world.document |= {"reference": None, "views": [{"name": "all", "window": "1 m"}]}
    world.document["kafka"]["bootstrap"] = "127.0.0.1:1"
    settings = world.settings()
    DOCUMENT.write(Local(Path(settings.service.checkpoint)), Manifest.of(settings, {}, 8))
    failures = of(world.lines(), "fail")
    assert list(failures) == ["kafka"], "not once more for the ids of the topics in the manifest"
    assert "127.0.0.1:1 does not answer" in failures["kafka"]


def test_retention_is_judged_against_what_is_unread(world: World, tmp_path: Path) -> None:
    config = {**LOG_APPEND_TIME, "retention.ms": "7200000", "retention.bytes": "1000000"}
    world.broker.create_topic("check-retention", partitions=1, config=config)
    world.document |= {"reference": None, "views": [{"name": "all", "window": "1 m"}]}
    world.document["kafka"]["topics"] = ["check-retention"]
    details = [line.detail for line in world.lines() if line.name == "topic check-retention"]
    assert any("kept for 2 h; the service may be down for 2 h before unread ones" in detail for detail in details)
    assert any("retention.ms is 2 h, Redis keeps values for 7 d" in detail for detail in details)
    assert any("retention.bytes is 1000000" in detail for detail in details)

    send(world.broker, "check-retention", [b"{}"] * 5)
    folder = tmp_path / "checkpoint"
    for log, text in (("offsets", 'v1\n{}\n{"check-retention":{"0":2}}'), ("commits", "v1\n{}")):
        (folder / log).mkdir(parents=True)
        (folder / log / "0").write_text(text)
    for deleted in world.broker.admin.delete_records([TopicPartition("check-retention", 0, 4)]).values():
        deleted.result(30)
    assert "deleted already" in of(world.lines(), "fail")["topic check-retention"]


def test_without_jars_spark_is_not_tried(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TIDEMARK_JARS", str(tmp_path))
    lines = world.lines()
    assert "no jars" in of(lines, "fail")["jars"]
    assert "not tried" in of(lines, "warn")["reference"]
    assert json.dumps([line.name for line in lines]).count("plan") == 0

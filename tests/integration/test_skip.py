"""Records that no process can read: the service names them, a command skips exactly them, and the service goes on."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from confluent_kafka import Producer

from load.servers.kafka import LOG_APPEND_TIME, Broker
from load.servers.redis import Redis
from service.checkpoint import skips
from service.cli import main
from service.commands import offline
from service.daemon import starts
from service.daemon.lease import Lease
from service.errors import FencedError, SparkLostError, UnreadableRecordError
from service.spark.files import Local
from tests.integration.daemon import STARTS_S, DaemonWorld, until

pytestmark = pytest.mark.integration

ZEROS = 300 << 20
"""Bytes of a record; some KB with zstd."""


@pytest.fixture
def world(broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str) -> DaemonWorld:
    topic = f"skip-{prefix}"
    broker_server.create_topic(topic, 2, LOG_APPEND_TIME)
    return DaemonWorld(broker_server, redis_server, tmp_path, topic)


def send_zeros(world: DaemonWorld, partition: int, many: int, size: int = ZEROS) -> list[skips.Span]:
    """Records that nobody can read, and where they are."""
    spans: list[skips.Span] = []
    options = {"bootstrap.servers": world.broker.bootstrap, "log_level": 0, "compression.type": "zstd"}
    producer = Producer({**options, "message.max.bytes": 1_000_000_000, "queue.buffering.max.kbytes": 1_000_000})
    for _ in range(many):
        producer.produce(
            world.topic,
            bytes(size),
            partition=partition,
            on_delivery=lambda error, message: spans.append(
                skips.Span(world.topic, partition, message.offset(), message.offset() + 1)
            ),
        )
        assert producer.flush(60) == 0
    return spans


def listed(world: DaemonWorld, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Where the rejects with the reason `unreadable` are."""
    capsys.readouterr()
    assert main(["rejects", "list", "--config", str(world.config), "--reason", "unreadable", "--json"]) == 0
    rejects = map(json.loads, capsys.readouterr().out.splitlines())
    return sorted(f"{each['topic']}[{each['partition']}]@{each['offset']}" for each in rejects)


@pytest.mark.hostile
@pytest.mark.timeout(1200)
def test_records_that_nobody_can_read_are_named_and_skipped_and_nothing_else(
    world: DaemonWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """Good readings stand before, between and behind four records of zeros, in two partitions."""
    world.send(40)
    with world.start("first") as service:
        until(lambda: world.counted() == world.sent, STARTS_S, "the first readings are counted")
        assert service.stop() == 0
    unreadable = []
    world.send(10)
    unreadable += send_zeros(world, 0, 1)
    world.send(10)
    unreadable += send_zeros(world, 1, 2)
    unreadable += send_zeros(world, 0, 1)
    world.send(10)
    names = [str(each) for each in skips.merged(unreadable)]

    statuses: list[int] = []
    while not statuses or statuses[-1] != UnreadableRecordError.status:
        assert len(statuses) <= starts.LIMIT
        with world.start(f"start-{len(statuses)}") as service:
            statuses.append(service.process.wait(STARTS_S))
    message = service.log.read_text().splitlines()[-1]
    for name in names:
        assert name in message

    asked = ["skip", "--config", str(world.config), *names]
    before = {path.name: path.read_bytes() for path in (world.folder / "checkpoint").glob("*.json")}
    capsys.readouterr()
    assert main([*asked, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("would be skipped") == len(names)
    assert {path.name: path.read_bytes() for path in (world.folder / "checkpoint").glob("*.json")} == before
    assert listed(world, capsys) == []
    for outcome in ("skipped", "skipped already"):
        capsys.readouterr()
        assert main(asked) == 0
        assert capsys.readouterr().out.count(f"{outcome}\n") == len(names)
    assert skips.read(Local(world.folder / "checkpoint")) == skips.merged(unreadable)

    with world.start("last") as service:
        until(lambda: world.counted() == world.sent, STARTS_S, "all readings are counted")
        assert service.metric("rejects_total", reason="unreadable") == 4
        assert service.metric("redis_data_lost_total") == 0
        world.send(10)
        until(lambda: world.counted() == world.sent, 60, "the service goes on")
        until(lambda: sum(world.group().values()) == world.sent + 4, 10, "the group is behind all records")
        assert service.stop() == 0
    assert listed(world, capsys) == sorted(str(each) for each in unreadable)


@pytest.mark.hostile
@pytest.mark.timeout(1200)
def test_large_records_are_read_one_at_a_time(world: DaemonWorld, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them can be read, but not as many as the client decompresses in one poll: nothing is to be skipped."""
    many, size = 150, 15 << 20
    world.send(10)
    send_zeros(world, 0, many, size)
    world.send(10)
    with world.start("killed") as service:
        assert service.process.wait(STARTS_S) == SparkLostError.status
    folder = Local(world.folder / "checkpoint")
    recorded = starts.read(folder)
    assert (recorded.batch, recorded.running) == (0, True)
    folder.replace(starts.DOCUMENT.name, json.dumps({**asdict(recorded), "ends": starts.LIMIT - 1}).encode())
    with world.start("careful") as service:
        until(lambda: world.counted() == world.sent, STARTS_S, "all readings are counted")
        until(lambda: service.metric("rejects_total", reason="oversized") == many, 60, "the others are rejected")
        world.send(10)
        until(lambda: world.counted() == world.sent, STARTS_S, "the service goes on")
        assert service.stop() == 0
    assert "batch 0 is committed. The query starts again" in service.log.read_text()
    assert not starts.read(folder).running
    assert listed(world, capsys) == []


def begun(world: DaemonWorld, committed: int, planned: int) -> Path:
    """A checkpoint by hand: batch 0 is committed and ends at one offset of both partitions, batch 1 is begun."""
    folder = world.folder / "checkpoint"
    for name in ("offsets", "commits", "event_time"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"x"}')
    for batch, end in enumerate((committed, planned)):
        line = json.dumps({world.topic: {"0": end, "1": end}})
        (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{line}")
    (folder / "commits" / "0").write_text("v1\n{}")
    (folder / "event_time" / "0").write_text('{"watermark_ms": 0, "newest_ms": 0}')
    return folder


def test_only_unread_offsets_can_be_skipped(world: DaemonWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world.send(40)
    folder = begun(world, 5, 10)

    def skip(*places: str) -> tuple[int, str]:
        capsys.readouterr()
        status = main(["skip", "--config", str(world.config), *(f"{world.topic}:{place}" for place in places)])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    for places, why in (
        (("0:4-6",), "offsets below 5 are read and counted"),
        (("0:7", "1:19-20"), "the partition ends at 20"),
        (("2:7",), "there is no such partition"),
    ):
        status, output = skip(*places)
        assert (status, why in output) == (2, True), output
    world.redis.hset(f"{world.topic}:progress", mapping={"epoch": 1, "batch": 1})
    status, output = skip("0:7")
    assert (status, "Batch 1 is published" in output) == (2, True), output
    world.redis.hset(f"{world.topic}:progress", "batch", 0)
    assert not (folder / skips.DOCUMENT.name).exists()
    assert listed(world, capsys) == []

    assert skip("0:7", "1:19") == (0, f"{world.topic}[0]@7: 1 offset skipped\n{world.topic}[1]@19: 1 offset skipped\n")
    status, output = skip("0:6-8", "0:7")
    assert output.splitlines()[-1] == f"{world.topic}[0]@7: skipped already"
    assert listed(world, capsys) == [f"{world.topic}{place}" for place in ("[0]@6", "[0]@7", "[0]@8", "[1]@19")]
    assert (folder / "offsets" / "1").read_text().endswith('{"0": 10, "1": 10}}'), "the log is the service's to write"


def test_the_command_waits_for_a_service_that_runs_and_gives_up(
    world: DaemonWorld, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(40)
    folder = begun(world, 5, 10)
    monkeypatch.setattr(offline, "WAIT_S", 1.0)
    lease = Lease(world.settings(), "another:1:2:3")
    assert lease.acquire() == 1
    try:
        assert main(["skip", "--config", str(world.config), f"{world.topic}:0:7"]) == FencedError.status
    finally:
        lease.release()
    assert "holds the lease" in capsys.readouterr().err
    assert not (folder / skips.DOCUMENT.name).exists()
    assert listed(world, capsys) == []

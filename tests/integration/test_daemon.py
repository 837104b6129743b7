"""The daemon as a process, with a real broker and Redis: how it starts, stands by, serves, stops and is refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from load.servers.kafka import Broker
from load.servers.redis import Redis
from service.daemon import process
from service.daemon.process import Plan
from service.errors import CheckpointError, SetupError, SourceRefusedError
from tests.integration.daemon import STARTS_S, DaemonWorld, until

pytestmark = pytest.mark.integration


@pytest.fixture
def world(broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str) -> DaemonWorld:
    topic = f"daemon-{prefix}"
    broker_server.create_topic(topic, partitions=2)
    return DaemonWorld(broker_server, redis_server, tmp_path, topic)


@pytest.mark.thorough
def test_it_serves_stands_by_stops_and_goes_on_where_it_stopped(world: DaemonWorld) -> None:
    world.send(1_000)
    with world.start("first") as first:
        until(first.is_ready, STARTS_S, "the first batch")
        assert first.get("/healthz")[0] == 200
        until(lambda: world.counted() == 1_000, 60, "all readings in windows")
        until(lambda: first.metric("records_total") == 1_000, 60, "metrics")
        until(lambda: world.group() == {0: 500, 1: 500}, 60, "the group's offsets")
        until(lambda: "tidemark_lag_records{" in first.get("/metrics")[1], 60, "lags")
        until(lambda: first.metric("lag_records") == 0, 60, "no lag")

        # A second one with the same prefix waits for the lease, without Spark, and lets itself be stopped: by the pid
        # that supervisors know, which is the JVM's.
        with world.start("second", submit=True) as second:
            until(lambda: "holds the lease" in second.get("/readyz")[1], 60, "the second one stands by")
            assert second.get("/readyz")[0] == 503
            assert second.status()["state"] == "waiting"
            assert len(second.tree()) == 2, "the JVM and our Python, no workers"
            assert second.stop() == 0, second.log.read_text()
        epoch = int(world.progress()["epoch"])

        # Stopped with a batch under way, or about to be: nothing is lost, and nothing is counted twice.
        world.send(20_000)
        assert first.stop() == 0, first.log.read_text()
    assert world.redis.get(f"{world.topic}:lease") is None
    log = first.log.read_text()
    assert "Traceback" not in log
    assert f"Reading JSON records of the topic {world.topic} from Kafka at " in log
    assert "The first batch of this process, 0, is published: 1000 rows, 1000 readings admitted, 0 rejected" in log
    assert "The service has stopped" in log
    assert [line for line in log.splitlines() if "FunctionResolution" in line or "great_expectations" in line] == []
    batch = int(world.progress()["batch"])

    # Under spark-submit it is the JVM's pid that supervisors know: its SIGTERM stops the service as well.
    with world.start("third", submit=True) as third:
        until(third.is_ready, STARTS_S, "the first batch after the restart")
        until(lambda: world.counted() == world.sent, 120, "all readings in windows")
        assert int(world.progress()["batch"]) > batch
        assert int(world.progress()["epoch"]) == epoch + 1
        assert "java" in psutil.Process(third.process.pid).name()
        names = [str(each.laddr) for process in third.tree() for each in process.net_connections("unix")]
        assert any(name.endswith(".sock") for name in names), "the JVM and its Python workers talk over Unix sockets"
        assert third.stop() == 0, third.log.read_text()
    assert world.redis.get(f"{world.topic}:lease") is None
    assert sum(world.group().values()) == world.sent


@pytest.mark.thorough
def test_the_lag_is_known_and_grows_while_redis_is_away(broker_server: Broker, tmp_path: Path, prefix: str) -> None:
    """Else TidemarkLagUnknown blames Kafka for an outage of Redis."""
    broker_server.create_topic(f"daemon-{prefix}", partitions=2)
    with Redis(tmp_path / "redis", appendonly=True) as redis:
        world = DaemonWorld(broker_server, redis, tmp_path, f"daemon-{prefix}")
        world.send(100)
        with world.start("service") as service:
            until(service.is_ready, STARTS_S, "the first batch")
            until(lambda: "tidemark_lag_records{" in service.get("/metrics")[1], 60, "lags")
            until(lambda: service.metric("lag_records") == 0, 60, "no lag")
            redis.kill()
            world.send(500)
            until(lambda: service.status()["state"] == "restarting", 60, "the query has failed")
            failed_ms = service.status()["last_error"]["at_ms"]
            until(
                lambda: service.metric("lag_timestamp_seconds") > failed_ms / 1000 + 5, 60, "Kafka is asked after that"
            )
            assert service.metric("lag_records") == 500
            assert service.metric("query_running") == 0
            redis.start()
            until(lambda: service.metric("lag_records") == 0, 120, "the query goes on")
            assert service.stop() == 0, service.log.read_text()


@pytest.mark.thorough
def test_a_standby_under_spark_submit_outlives_a_hang_up(world: DaemonWorld) -> None:
    """Its JVM has no Spark yet, and the default of SIGHUP ends a JVM with 129."""
    world.redis.set(f"{world.topic}:lease", "elsewhere:1:2:3:token", px=600_000)
    with world.start("standby", submit=True) as standby:
        until(lambda: "holds the lease" in standby.get("/readyz")[1], 60, "it stands by")
        for each in standby.tree():
            os.kill(each.pid, signal.SIGHUP)
        assert standby.stop() == 0, standby.log.read_text()


def test_a_hang_up_while_the_settings_are_read_ends_no_service(world: DaemonWorld, broker_server: Broker) -> None:
    code = f"""
import os, signal, sys
from service import settings
from service.cli import main
load = settings.load
def hang_up(path):
    os.kill(os.getpid(), signal.SIGHUP)
    return load(path)
settings.load = hang_up
sys.exit(main(["run", "--config", {str(world.config)!r}]))
"""
    environment = {**os.environ, "TIDEMARK_METRICS__PORT": str(broker_server.port)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == SetupError.status, done.stderr
    assert "cannot be listened on" in done.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_a_topic_that_does_not_exist_ends_it_by_name(world: DaemonWorld) -> None:
    world.config.write_text(world.config.read_text().replace(f'topics = ["{world.topic}"]', 'topics = ["nowhere"]'))
    with pytest.raises(SourceRefusedError, match=r"^kafka\.topics: nowhere does not exist"):
        process.run(Plan(world.settings()))
    assert world.redis.get(f"{world.topic}:lease") is None


@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_a_damaged_checkpoint_ends_it_by_name_and_the_lease_is_free(world: DaemonWorld) -> None:
    offsets = world.folder / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1\n{")
    world.send(10)
    with pytest.raises(CheckpointError, match="offsets/0"):
        process.run(Plan(world.settings()))
    assert world.redis.get(f"{world.topic}:lease") is None

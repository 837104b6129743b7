"""The daemon as a process, with a real broker and Redis: how it starts, stands by, serves, stops and fails."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil
import pyspark
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from prometheus_client.parser import text_string_to_metric_families

from load.part import free_port
from load.parts import Broker, Redis
from service import session

pytestmark = pytest.mark.integration

STARTS_S = 240.0
STOPS_S = 30.0
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def until(condition: Callable[[], Any], within_s: float, what: str) -> Any:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + within_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.1)
    return answer


class Service:
    """One process of the service."""

    def __init__(self, config: Path, port: int, log: Path, *, submit: bool = False) -> None:
        self.port = port
        self.log = log
        arguments = ["--config", str(config)]
        environment = {**os.environ, "TIDEMARK_METRICS__PORT": str(port)}
        if submit:
            session.use_this_python(environment)
            environment |= {"SPARK_CONF_DIR": str(session.DEPLOY), "SPARK_LOCAL_IP": "127.0.0.1"}
            path = session.class_path()
            command = [str(SUBMIT), "--master", "local[2]", "--properties-file", str(session.DEFAULTS)]
            command += ["--driver-class-path", path, str(session.DEPLOY / "daemon.py"), *arguments]
        else:
            command = [sys.executable, "-m", "service.cli", "run", "--master", "local[2]", *arguments]
        with log.open("w") as err:
            self.process = subprocess.Popen(command, stderr=err, stdout=err, env=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is not None:
            return
        for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
            process.kill()
        self.process.wait()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; status 0 when nobody answers."""
        assert self.process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        status, body = self.get("/metrics")
        samples = [s for f in text_string_to_metric_families(body) for s in f.samples] if status == 200 else []
        return sum(sample.value for sample in samples if sample.name == f"tidemark_{name}")

    def is_ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def stop(self, pid: int | None = None) -> int:
        """SIGTERM, to the process or to the given one; returns the exit status."""
        os.kill(pid or self.process.pid, signal.SIGTERM)
        return self.process.wait(STOPS_S)


class World:
    """A topic, a prefix and a checkpoint of their own."""

    def __init__(self, broker: Broker, redis: Redis, folder: Path, topic: str) -> None:
        self.broker = broker
        self.redis = redis.client()
        self.topic = topic
        self.folder = folder
        self.config = folder / "tidemark.toml"
        self.config.write_text(
            f"""
            [service]
            checkpoint = "{folder}/checkpoint"
            lease = "3 s"
            [kafka]
            bootstrap = "{broker.bootstrap}"
            topics = ["{topic}"]
            group = "{topic}"
            [input]
            format = "json"
            measures = {{temperature = "temperature"}}
            [sessions]
            buckets = 2
            [[views]]
            name = "device"
            by = ["device"]
            window = "10 s"
            [redis]
            url = "{redis.url}"
            prefix = "{topic}"
            retry_for = "1 s"
            """
        )
        self.sent = 0

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "log_level": 0, "linger.ms": 5})
        now_ms = time.time_ns() // 1_000_000
        for number in range(count):
            producer.poll(0)
            reading = {"device_id": f"d{number % 20}", "event_time": now_ms, "temperature": number % 7}
            producer.produce(self.topic, json.dumps(reading).encode(), partition=number % 2)
        assert producer.flush(30) == 0
        self.sent += count

    def start(self, name: str, *, submit: bool = False) -> Service:
        return Service(self.config, free_port(), self.folder / f"{name}.log", submit=submit)

    def counted(self) -> int:
        """Readings in all windows of the one view: everything that was published, once."""
        keys = self.redis.keys(f"{self.topic}:window:*")
        return sum(int(str(self.redis.hget(key, "count"))) for key in keys)

    def progress(self) -> dict[str, str]:
        return dict(self.redis.hgetall(f"{self.topic}:progress"))

    def group(self) -> dict[int, int]:
        """What Kafka's own tools show of the consumer group."""
        admin = self.broker.admin
        futures = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.topic)])
        rows = futures[self.topic].result(10).topic_partitions
        return {row.partition: row.offset for row in rows}


@pytest.fixture
def world(broker_part: Broker, redis_part: Redis, tmp_path: Path, prefix: str) -> World:
    topic = f"daemon-{prefix}"
    broker_part.create_topic(topic, partitions=2)
    return World(broker_part, redis_part, tmp_path, topic)


def test_it_serves_stands_by_stops_and_goes_on_where_it_stopped(world: World) -> None:
    world.send(1_000)
    with world.start("first") as first:
        until(first.is_ready, STARTS_S, "the first batch")
        assert first.get("/healthz")[0] == 200
        until(lambda: world.counted() == 1_000, 60, "all readings in windows")
        until(lambda: first.metric("records_total") == 1_000, 10, "metrics")
        until(lambda: world.group() == {0: 500, 1: 500}, 30, "the group's offsets")
        until(lambda: "tidemark_lag_records{" in first.get("/metrics")[1], 10, "lags")
        until(lambda: first.metric("lag_records") == 0, 10, "no lag")

        # A second one with the same prefix waits for the lease, without Spark, and lets itself be stopped.
        with world.start("second") as second:
            until(lambda: "holds the lease" in second.get("/readyz")[1], 60, "the second one stands by")
            assert second.get("/readyz")[0] == 503
            assert not psutil.Process(second.process.pid).children()
            assert second.stop() == 0
        epoch = int(world.progress()["epoch"])

        # Stopped with a batch under way, or about to be: nothing is lost, and nothing is counted twice.
        world.send(20_000)
        assert first.stop() == 0, first.log.read_text()
    assert world.redis.get(f"{world.topic}:lease") is None
    assert "Traceback" not in first.log.read_text()
    batch = int(world.progress()["batch"])

    # Under spark-submit it is the JVM's pid that supervisors know: its SIGTERM stops the service as well.
    with world.start("third", submit=True) as third:
        until(third.is_ready, STARTS_S, "the first batch after the restart")
        until(lambda: world.counted() == world.sent, 120, "all readings in windows")
        assert int(world.progress()["batch"]) > batch
        assert int(world.progress()["epoch"]) == epoch + 1
        assert "java" in psutil.Process(third.process.pid).name()
        assert third.stop() == 0, third.log.read_text()
    assert world.redis.get(f"{world.topic}:lease") is None
    assert sum(world.group().values()) == world.sent


def test_a_batch_that_hangs_is_abandoned_in_time_and_replayed(broker_part: Broker, tmp_path: Path, prefix: str) -> None:
    topic = f"daemon-{prefix}"
    broker_part.create_topic(topic, partitions=2)
    with Redis(tmp_path) as redis:
        world = World(broker_part, redis, tmp_path, topic)
        world.config.write_text(world.config.read_text().replace('retry_for = "1 s"', 'retry_for = "10 m"'))
        world.send(100)
        with world.start("hangs") as service:
            until(lambda: service.is_ready() and world.counted() == 100, STARTS_S, "the first batch")
            redis.pause()
            world.send(100)
            until(lambda: service.metric("batch_running_seconds") > 3, 60, "a batch that hangs")
            assert service.stop() == 0, service.log.read_text()
            assert "is abandoned" in service.log.read_text()
            redis.resume()
        with world.start("replays") as service:
            until(lambda: service.is_ready() and world.counted() == 200, STARTS_S, "the batch again")
            assert service.stop() == 0, service.log.read_text()


def test_a_topic_that_does_not_exist_ends_it_by_name(world: World) -> None:
    world.config.write_text(world.config.read_text().replace(f'topics = ["{world.topic}"]', 'topics = ["nowhere"]'))
    with world.start("topic") as service:
        assert service.process.wait(STARTS_S) == 5
    assert (
        service.log.read_text()
        .splitlines()[-1]
        .startswith("tidemark: SOURCE_REFUSED: kafka.topics: nowhere does not exist")
    )


def test_a_metrics_port_in_use_ends_it_by_name(world: World, broker_part: Broker) -> None:
    with Service(world.config, broker_part.port, world.folder / "port.log") as service:
        assert service.process.wait(60) == 10
    assert f"tidemark: SETUP: metrics.port = {broker_part.port}" in service.log.read_text()


def test_a_damaged_checkpoint_ends_it_by_name_and_the_lease_is_free(world: World) -> None:
    offsets = world.folder / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1\n{")
    world.send(10)
    with world.start("damaged") as service:
        assert service.process.wait(STARTS_S) == 8, service.log.read_text()
    assert "tidemark: CHECKPOINT: " in service.log.read_text()
    assert "Traceback" not in service.log.read_text()
    assert world.redis.get(f"{world.topic}:lease") is None

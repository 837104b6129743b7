"""The daemon as a process, for tests: a world of its own for each, and what is seen from outside."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil
import pyspark
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from prometheus_client.parser import text_string_to_metric_families

from load.servers import server_process
from load.servers.child_process import spawn
from load.servers.kafka import Broker
from load.servers.redis import Redis
from load.servers.server_process import PATIENCE, free_port, is_alive
from load.servers.web import answer
from service import settings
from service.settings import Settings
from service.spark import session
from service.spark.jars import class_path
from service.spark.places import DEPLOY

STARTS_S = 240.0
STOPS_S = 30.0 * PATIENCE
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def until(condition: Callable[[], Any], within_s: float, what: str) -> Any:
    """Ask until the answer is true, and return it."""
    return server_process.until(condition, within_s * PATIENCE, what, every_s=0.1)


class Service:
    """One process of the service, which ends with the tests' process."""

    def __init__(
        self,
        config: Path,
        port: int,
        log: Path,
        *others: Path,
        submit: bool = False,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """With `others`, a process of several pipelines."""
        self.port = port
        self.log = log
        arguments = [str(config), *map(str, others)] if others else ["--config", str(config)]
        environment = {**os.environ, "TIDEMARK_METRICS__PORT": str(port), **(more or {})}
        if submit:
            session.use_this_python(environment)
            environment |= {
                "LOG4J_CONFIGURATION_FILE": str(DEPLOY / "log4j2.properties"),
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            path = class_path()
            command = [str(SUBMIT), "--master", "local[2]", "--properties-file", str(session.DEFAULTS)]
            command += ["--driver-class-path", path, str(DEPLOY / "daemon.py"), *arguments]
        else:
            command = [sys.executable, "-m", "service.cli", "run", "--master", "local[2]", *arguments]
        self.process = spawn(command, cwd=Path.cwd(), log=log, environ=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is not None:
            return
        for process in reversed(self.tree()):
            process.kill()
        self.process.wait()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; status 0 when nobody answers."""
        assert self.process.poll() is None, self.log.read_text()
        return answer(f"http://127.0.0.1:{self.port}{path}", 10)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over the labels that are not given."""
        status, body = self.get("/metrics")
        samples = [s for f in text_string_to_metric_families(body) for s in f.samples] if status == 200 else []
        return sum(s.value for s in samples if s.name == f"tidemark_{name}" and labels.items() <= s.labels.items())

    def status(self) -> Any:
        """What /status says; {} while nobody answers."""
        status, body = self.get("/status")
        return json.loads(body) if status == 200 else {}

    def tree(self) -> list[psutil.Process]:
        """The process and all below it, without those that have ended and wait to be reaped."""
        process = psutil.Process(self.process.pid)
        return [each for each in [process, *process.children(recursive=True)] if is_alive(each)]

    def is_ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def wait(self) -> int:
        """The exit status of a service that ends by itself."""
        return self.process.wait(60 * PATIENCE)

    def stop(self, pid: int | None = None) -> int:
        """SIGTERM, to the process or to the given one; returns the exit status."""
        os.kill(pid or self.process.pid, signal.SIGTERM)
        return self.process.wait(STOPS_S)


class DaemonWorld:
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
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, "linger.ms": 5})
        self.sent = 0

    def settings(self) -> Settings:
        """For a service in this process, on a metrics port of its own."""
        loaded = settings.load(self.config)
        return loaded.model_copy(update={"metrics": loaded.metrics.model_copy(update={"port": free_port()})})

    def send(self, count: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        for number in range(count):
            self.producer.poll(0)
            reading = {"device_id": f"d{number % 20}", "event_time": now_ms, "temperature": number % 7}
            self.producer.produce(self.topic, json.dumps(reading).encode(), partition=number % 2)
        assert self.producer.flush(30) == 0
        self.sent += count

    def start(self, name: str, *, submit: bool = False, more: Mapping[str, str] | None = None) -> Service:
        return Service(self.config, free_port(), self.folder / f"{name}.log", submit=submit, more=more)

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

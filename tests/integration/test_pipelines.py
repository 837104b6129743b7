"""Several pipelines in one process: each with what is its own, and what happens to one touches no other."""

import json
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from load.servers.kafka import Broker
from load.servers.redis import Redis
from load.servers.server_process import free_port
from service.cli import main
from tests.integration.daemon import STARTS_S, DaemonWorld, Service, until

pytestmark = pytest.mark.integration


class Pair:
    """Two worlds whose pipelines run in one process; the second one has a Redis of its own."""

    def __init__(self, broker: Broker, redis: Redis, folder: Path, prefix: str) -> None:
        self.own = Redis(folder)
        self.folder = folder
        self.worlds = []
        for name, server in (("one", redis), ("two", self.own)):
            (folder / name).mkdir()
            broker.create_topic(f"{name}-{prefix}", partitions=2)
            world = DaemonWorld(broker, server, folder / name, f"{name}-{prefix}")
            world.config = world.config.rename(folder / f"{name}.toml")
            self.worlds.append(world)
        self.one, self.two = self.worlds

    def start(self, name: str = "process", *, submit: bool = False) -> Service:
        return Service(self.one.config, free_port(), self.folder / f"{name}.log", self.two.config, submit=submit)

    def status(self, service: Service, name: str) -> dict[str, Any]:
        code, body = service.get(f"/status?pipeline={name}")
        return dict(json.loads(body)) if code == 200 else {}

    def state(self, service: Service, name: str) -> str:
        return str(self.status(service, name).get("state"))

    def send(self, count: int) -> None:
        for world in self.worlds:
            world.send(count)

    def go_on(self, world: DaemonWorld) -> None:
        """Assert that the pipeline of a world publishes records that are sent now."""
        world.send(100)
        until(lambda: world.counted() == world.sent, 60, "batches")


def ask(service: Service, config: Path, *words: str) -> int:
    """Run `tidemark query`; returns the exit status."""
    settings = config.with_name("ask.toml")
    settings.write_text(config.read_text() + f"\n[metrics]\nport = {service.port}\n")
    return main(["query", *words, "--config", str(settings)])


@pytest.fixture
def pair(broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str) -> Pair:
    return Pair(broker_server, redis_server, tmp_path, prefix)


def test_two_pipelines_run_in_one_process_and_what_one_lacks_does_not_stop_the_other(pair: Pair) -> None:
    one, two = pair.one, pair.two
    with pair.own, pair.start() as service:
        pair.send(300)
        until(service.is_ready, STARTS_S, "the first batch of both")
        until(lambda: [each.counted() for each in pair.worlds] == [300, 300], 60, "all readings in windows")
        assert len([process for process in service.tree() if process.name() == "java"]) == 1
        assert {each.progress()["epoch"] for each in pair.worlds} == {"1"}
        until(
            lambda: [each.group() for each in pair.worlds] == [{0: 150, 1: 150}] * 2, 60, "the offsets of both groups"
        )
        assert service.metric("records_total", pipeline="one") == 300
        assert service.metric("records_total", pipeline="two") == 300
        assert {*service.status()["pipelines"]} == {"one", "two"}

        is_stopped_and_started_by_commands(pair, service)

        # Redis hangs, and is gone.
        pair.own.pause()
        two.send(100)
        until(lambda: service.metric("batch_running_seconds", pipeline="two") > 1, 60, "a batch that hangs")
        pair.go_on(one)
        pair.own.resume()
        until(lambda: two.counted() == two.sent, 60, "the batch that hung")
        pair.own.kill()
        two.send(100)
        until(lambda: pair.state(service, "two") == "restarting", 60, "it waits for Redis")
        pair.go_on(one)
        assert "two: SINK: " in service.get("/readyz")[1]
        assert service.get("/readyz?pipeline=one")[0] == 200
        assert service.get("/healthz")[0] == 200
        pair.own.start()  # without its data
        until(lambda: two.counted() == two.sent, 120, "everything again, from Kafka")
        until(service.is_ready, 60, "both are ready")
        pair.go_on(one)

        assert service.stop() == 0, service.log.read_text()
        log = service.log.read_text()
        assert "[two] SINK: " in log
        assert "[one] SINK: " not in log
        assert "Traceback" not in log
        assert [each.redis.get(f"{each.topic}:lease") for each in pair.worlds] == [None, None]
        batch = int(one.progress()["batch"])

        with pair.start("again", submit=True) as again:
            for world in pair.worlds:
                pair.go_on(world)
            assert int(one.progress()["batch"]) > batch
            assert again.stop() == 0, again.log.read_text()


def is_stopped_and_started_by_commands(pair: Pair, service: Service) -> None:
    """The second one, which goes on where it was, with the views of its file; the first one goes on meanwhile."""
    one, two = pair.one, pair.two
    query = partial(ask, service, pair.one.config)
    assert query("stop", "two") == 0
    assert two.redis.get(f"{two.topic}:lease") is None
    assert service.get("/readyz")[0] == 200
    epoch, batch = map(int, (two.progress()["epoch"], two.progress()["batch"]))
    two.send(100)
    pair.go_on(one)
    assert two.counted() == two.sent - 100
    two.config.write_text(two.config.read_text().replace('window = "10 s"', 'window = "10 s"\nretain = "3 d"'))
    assert query("start", "two") == 0
    until(lambda: two.counted() == two.sent, 60, "it goes on")
    assert int(two.progress()["epoch"]) == epoch + 1
    assert int(two.progress()["batch"]) > batch
    assert query("await", "two") == 0
    until(lambda: retained_ms(pair, service) == [3 * 86_400_000], 60, "the view of the file")


def retained_ms(pair: Pair, service: Service) -> list[int]:
    return [view["retain_ms"] for view in pair.status(service, "two")["views"]["list"]]


@pytest.mark.thorough
def test_a_pipeline_that_fails_begins_again_and_the_process_ends_when_all_have_failed(pair: Pair) -> None:
    one, two = pair.one, pair.two
    two.config.write_text(two.config.read_text().replace(f'topics = ["{two.topic}"]', f'topics = ["late-{two.topic}"]'))
    with pair.own, pair.start() as service:
        one.send(300)
        until(lambda: pair.state(service, "two") == "failed", STARTS_S, "its topic does not exist")
        until(lambda: one.counted() == one.sent, STARTS_S, "the other one")
        assert pair.status(service, "two")["last_error"]["code"] == "SOURCE_REFUSED"
        failed = partial(service.metric, "pipeline_state", pipeline="two", state="failed")
        until(lambda: failed() == 1, STARTS_S, "its next attempt fails, too")
        one.broker.create_topic(f"late-{two.topic}", partitions=2)
        two.topic = f"late-{two.topic}"
        two.send(100)
        prefix = two.topic.removeprefix("late-")
        until(lambda: two.redis.hget(f"{prefix}:progress", "batch") is not None, 120, "it has begun again")
        pair.go_on(one)
        (jvm,) = (process for process in service.tree() if process.name() == "java")
        jvm.kill()
        assert service.wait() == 9, service.log.read_text()
        assert "QUERY_SPARK_LOST" in service.log.read_text().splitlines()[-1]


MINUTES = """
[admission]
max_delay = "2 s"
max_ahead = "1 s"
[[outlets]]
name = "minutes"
kind = "kafka"
topic = "{topic}"
format = "json"
"""
HOURS = """
[admission]
max_delay = "2 m"
"""


@pytest.mark.thorough
def test_a_pipeline_reads_what_another_one_writes_to_its_outlet(pair: Pair) -> None:
    one, two = pair.one, pair.two
    topic = f"finals-{one.topic}"
    text = one.config.read_text().replace('window = "10 s"', 'window = "5 s"')
    one.config.write_text(text + MINUTES.format(topic=topic))
    text = two.config.read_text().replace(f'topics = ["{two.topic}"]', f'topics = ["{topic}"]')
    text = text.replace(
        'measures = {temperature = "temperature"}',
        'device_id = "key"\nevent_time = "start"\nmeasures = {readings = "count", temperature = "mean"}',
    )
    two.config.write_text(text.replace('window = "10 s"', 'window = "20 s"') + HOURS)

    def totals(world: DaemonWorld, measure: str, statistic: str) -> Counter[int]:
        """By 20 s, what windows that begin in them have together of a measure."""
        found: Counter[int] = Counter()
        for key in world.redis.keys(f"{world.topic}:window:device:{measure}:*"):
            start, count, mean = world.redis.hmget(key, "start", "count", "mean")
            value = int(str(count)) * (float(str(mean)) if statistic == "sum" else 1)
            found[int(str(start)) // 20_000] += round(value)
        return found

    with pair.own, pair.start() as service:
        begin = int(time.time()) // 20
        deadline = begin + 3

        def is_complete() -> bool:
            one.send(40)
            has_closed = any(each > deadline for each in totals(two, "readings", "sum"))
            return has_closed and service.is_ready()

        until(is_complete, STARTS_S, "windows of windows")
        of_readings, of_windows = totals(one, "temperature", "count"), totals(two, "readings", "sum")
        complete = [each for each in of_windows if each < max(of_windows)]
        assert complete
        assert {each: of_windows[each] for each in complete} == {each: of_readings[each] for each in complete}
        assert service.stop() == 0, service.log.read_text()

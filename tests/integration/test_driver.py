"""The driver in trouble: what may pass restarts the query in it, what cannot ends it by name."""

import json
from pathlib import Path

import psutil
import pytest

from load.servers.kafka import Broker
from load.servers.redis import Redis
from load.testbed import last_words
from service.cli import main
from tests.integration.daemon import STARTS_S, DaemonWorld, Service, until

pytestmark = [pytest.mark.integration, pytest.mark.thorough]


def test_drivers_of_one_checkpoint_that_freeze_hang_lose_redis_or_spark_or_reach_a_limit(
    broker_server: Broker,
    tmp_path: Path,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One after the other, because a start is what costs most here."""
    topic = f"driver-{prefix}"
    broker_server.create_topic(topic, partitions=2)
    redis = Redis(tmp_path, appendonly=True, settings={"appendfsync": "always"})
    world = DaemonWorld(broker_server, redis, tmp_path, topic)
    with redis:
        world.send(100)
        with world.start("first") as first:
            until(lambda: first.is_ready() and world.counted() == 100, STARTS_S, "the first batch")
            with world.start("second", more={"TIDEMARK_REDIS__RETRY_FOR": "10 m"}) as second:
                is_followed_when_it_freezes_and_ends_as_fenced(world, first, second)
                is_stopped_although_its_batch_hangs(world, redis, second)
        redis.kill()

        points = ["half_publish:1:raise", "after_commit:1:raise"]  # all of them: tests/faults
        more = {"TIDEMARK_TEST": "1", "TIDEMARK_FAILPOINT": ",".join(points)}
        with world.start("driver", more=more) as service:
            until(lambda: "SINK: " in service.get("/readyz")[1], 60, "it waits for Redis")
            assert service.status()["state"] == "waiting"
            redis.start()
            abandoned = "the abandoned batch, in spite of all"
            until(lambda: service.is_ready() and world.counted() == world.sent, STARTS_S, abandoned)
            injected = {"code": "QUERY_INJECTED"}
            until(lambda: service.metric("query_restarts_total", **injected) == len(points), 60, "every point to fail")
            epoch = world.progress()["epoch"]

            redis.kill()
            world.send(100)
            until(lambda: service.status()["last_error"]["code"] == "SINK", 60, "a batch that cannot be published")
            until(lambda: "SINK: " in service.get("/readyz")[1], 60, "the reason on /readyz")
            redis.start()
            until(lambda: service.is_ready() and world.counted() == world.sent, 60, "the batch again")
            assert world.progress()["epoch"] == epoch, "nobody else wanted the lease, and no data was lost"
            monkeypatch.setenv("TIDEMARK_METRICS__PORT", str(service.port))
            assert main(["status", "--config", str(world.config), "--json"]) == 0
            status = json.loads(capsys.readouterr().out)
            assert status["restarts"] > len(points)
            assert status["batches"][-1]["end"] == {topic: {"0": world.sent // 2, "1": world.sent // 2}}

            (jvm,) = (process for process in service.tree() if process.name() == "java")
            jvm.kill()
            assert service.wait() == 9, service.log.read_text()
            assert last_words(service.log).startswith("tidemark: QUERY_SPARK_LOST: Spark has ended"), (
                service.log.read_text()
            )

        world.send(100)
        with world.start("third") as third:
            ends_before_it_has_all_open_files_that_it_may_have(world, third)


def is_followed_when_it_freezes_and_ends_as_fenced(world: DaemonWorld, first: Service, second: Service) -> None:
    frozen = first.tree()
    until(lambda: "holds the lease" in second.get("/readyz")[1], 60, "the second one stands by")
    for process in frozen:
        process.suspend()
    world.send(100)
    until(lambda: second.is_ready() and world.counted() == world.sent, STARTS_S, "the second one has taken over")
    epoch = world.progress()["epoch"]
    for process in frozen:
        process.resume()
    assert first.wait() == 7, first.log.read_text()
    assert last_words(first.log).startswith("tidemark: FENCED: ")
    assert psutil.wait_procs(frozen, 20)[1] == [], "nothing of it is left"
    world.send(100)
    until(lambda: world.counted() == world.sent, 60, "the second one goes on")
    assert world.progress()["epoch"] == epoch


def is_stopped_although_its_batch_hangs(world: DaemonWorld, redis: Redis, service: Service) -> None:
    redis.pause()
    world.send(100)
    until(lambda: service.metric("batch_running_seconds") > 3, 60, "a batch that hangs")
    assert service.stop() == 0, service.log.read_text()
    assert "is abandoned" in service.log.read_text()


def ends_before_it_has_all_open_files_that_it_may_have(world: DaemonWorld, service: Service) -> None:
    files = {"process": "driver_jvm"}
    until(lambda: service.is_ready() and service.metric("process_open_files", **files) > 0, STARTS_S, "its files")
    (jvm,) = (process for process in service.tree() if process.name() == "java")
    _, hard = jvm.rlimit(psutil.RLIMIT_NOFILE)
    jvm.rlimit(psutil.RLIMIT_NOFILE, (jvm.num_fds() * 20 // 19, hard))
    world.send(100)
    assert service.wait() == 9, service.log.read_text()
    words = last_words(service.log)
    assert words.startswith("tidemark: QUERY_EXHAUSTED: A process of driver_jvm has 9"), service.log.read_text()
    assert "LimitNOFILE" in words

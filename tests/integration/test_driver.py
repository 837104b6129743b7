"""The driver in trouble: what may pass restarts the query in it, what cannot ends it by name."""

import json
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from load.parts import Broker, Redis
from load.stage import last_words
from service.cli import main
from tests.integration.daemon import STARTS_S, World, until

pytestmark = pytest.mark.integration


def test_the_driver_stays_while_redis_and_its_own_batches_fail_but_not_without_spark(
    broker_part: Broker,
    tmp_path: Path,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = f"driver-{prefix}"
    broker_part.create_topic(topic, partitions=2)
    points = ["before_fetch:1", "after_decode:1", "half_publish:1", "after_publish_before_commit:1", "after_commit:1"]
    more = {"TIDEMARK_TEST": "1", "TIDEMARK_FAILPOINT": ",".join(f"{point}:raise" for point in points)}
    redis = Redis(tmp_path, appendonly=True, settings={"appendfsync": "always"})
    world = World(broker_part, redis, tmp_path, topic)
    with world.start("driver", more=more) as service, ExitStack() as cleanup:
        cleanup.callback(redis.close)
        until(lambda: "SINK: " in service.get("/readyz")[1], 60, "it waits for Redis")
        assert service.status()["state"] == "waiting"
        redis.start()
        world.send(100)
        until(lambda: service.is_ready() and world.counted() == 100, STARTS_S, "the first batches, in spite of all")
        until(lambda: service.metric("query_restarts_total") == len(points), 60, "every point has failed a query")
        assert service.status()["last_error"]["code"] == "QUERY_INJECTED"

        redis.kill()
        world.send(100)
        until(lambda: service.status()["last_error"]["code"] == "SINK", 60, "a batch that cannot be published")
        until(lambda: "SINK: " in service.get("/readyz")[1], 60, "it says so")
        redis.start()
        until(lambda: service.is_ready() and world.counted() == 200, 60, "the batch again")
        assert world.progress()["epoch"] == "1", "nobody else wanted the lease, and no data was lost"
        monkeypatch.setenv("TIDEMARK_METRICS__PORT", str(service.port))
        assert main(["status", "--config", str(world.config), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["restarts"] > len(points)
        assert found["batches"][-1]["end"] == {topic: {"0": 100, "1": 100}}

        (jvm,) = (process for process in service.tree() if process.name() == "java")
        jvm.kill()
        assert service.process.wait(60) == 9, service.log.read_text()
        assert last_words(service.log).startswith("tidemark: QUERY_SPARK_LOST: Spark has ended"), (
            service.log.read_text()
        )


def test_a_frozen_service_is_followed_and_ends_as_fenced_when_it_wakes(
    broker_part: Broker, redis_part: Redis, tmp_path: Path, prefix: str
) -> None:
    topic = f"driver-{prefix}"
    broker_part.create_topic(topic, partitions=2)
    world = World(broker_part, redis_part, tmp_path, topic)
    world.send(500)
    with world.start("first") as first:
        until(lambda: first.is_ready() and world.counted() == 500, STARTS_S, "the first batch")
        frozen = first.tree()
        with world.start("second") as second:
            until(lambda: "holds the lease" in second.get("/readyz")[1], 60, "the second one stands by")
            for process in frozen:
                process.suspend()
            world.send(500)
            until(lambda: second.is_ready() and world.counted() == 1_000, STARTS_S, "the second one has taken over")
            epoch = world.progress()["epoch"]
            for process in frozen:
                process.resume()
            assert first.process.wait(60) == 7, first.log.read_text()
            assert last_words(first.log).startswith("tidemark: FENCED: ")
            assert psutil.wait_procs(frozen, 20)[1] == [], "nothing of it is left"
            world.send(500)
            until(lambda: world.counted() == world.sent, 60, "the second one goes on")
            assert world.progress()["epoch"] == epoch
            assert second.stop() == 0, second.log.read_text()

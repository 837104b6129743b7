"""Traces of a real service: a collector gets the phases of a batch, its calls of Redis and its copies of rejects."""

from pathlib import Path

import pytest

from load.servers.kafka import LOG_APPEND_TIME, Broker
from load.servers.redis import Redis
from tests.integration.daemon import STARTS_S, DaemonWorld, until
from tests.otlp import Collector
from tests.topics import send

pytestmark = pytest.mark.integration

PHASES = {"cut", "run", "publish", "finish"}
REJECT = b"device-in-a-reject"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "driver_rows",
    [pytest.param(100_000, id="from-the-driver"), pytest.param(0, id="from-the-executors")],
)
def test_a_batch_is_a_trace_with_its_phases_calls_and_copies(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str, driver_rows: int
) -> None:
    topic = f"traces-{prefix}"
    broker_server.create_topic(topic, 2, LOG_APPEND_TIME)
    world = DaemonWorld(broker_server, redis_server, tmp_path, topic)
    with Collector() as collector:
        text = world.config.read_text().replace('retry_for = "1 s"', f'retry_for = "1 s"\ndriver_rows = {driver_rows}')
        world.config.write_text(f'{text}\n[otel]\nendpoint = "{collector.endpoint}"\n')
        world.send(40)
        send(broker_server, topic, [b'{"device_id": "' + REJECT + b'"}'] * 6, 2)
        with world.start("traced") as service:
            until(lambda: world.counted() == world.sent, STARTS_S, "the readings are counted")
            until(lambda: collector.named("rejects flush"), 30, "the copies of the rejects are traced")
            until(lambda: collector.named("batch"), 30, "a batch is traced")
            assert service.stop() == 0
        [batch] = [span for span in collector.named("batch") if span.attributes["tidemark.batch"] == 0]
        children = {span.name: span for span in collector.children(batch)}
        assert PHASES | {"redis values", "redis progress", "rejects copy", "rejects flush"} <= children.keys()
        copied = [span for span in collector.named("rejects copy") if span.trace == batch.trace]
        assert sum(int(span.attributes["tidemark.records"]) for span in copied) == 6
        assert all(batch.begin_ns <= span.begin_ns <= span.end_ns <= batch.end_ns for span in collector.children(batch))
        assert {name for span in collector.spans for name in span.attributes} <= {
            f"tidemark.{name}" for name in ("batch", "epoch", "shard", "records")
        }
        assert not any(device in body for body in collector.bodies for device in (REJECT, b"device:d"))

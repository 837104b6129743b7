"""Records that are not admitted do not keep windows open in the running service."""

import json
import threading
from pathlib import Path

import pytest

from load.servers.kafka import Broker
from load.servers.redis import Redis
from tests.integration.daemon import STARTS_S, DaemonWorld, until

pytestmark = [pytest.mark.integration, pytest.mark.end_to_end, pytest.mark.thorough]


@pytest.mark.silent("1.1")
def test_heartbeats_and_rejects_keep_no_window_open(
    broker_server: Broker, redis_server: Redis, tmp_path: Path, prefix: str
) -> None:
    topic = f"silent-{prefix}"
    broker_server.create_topic(topic, partitions=2)
    world = DaemonWorld(broker_server, redis_server, tmp_path, topic)
    text = world.config.read_text().replace(
        'format = "json"', 'format = "json"\n            columns = {kind = "kind"}\n            where = "kind is null"'
    )
    world.config.write_text(f'{text}\n[admission]\nmax_delay = "1 s"\nmax_ahead = "1 s"\nidle_after = "5 s"\n')
    over = threading.Event()

    def chatter() -> None:
        for number in range(100_000):
            if over.wait(0.1):
                return
            value = {"kind": "heartbeat"} if number % 2 else {"device_id": "broken"}
            world.producer.produce(topic, json.dumps(value).encode(), partition=number // 2 % 2)
            world.producer.poll(0)

    thread = threading.Thread(target=chatter, daemon=True)
    with world.start("service") as service:
        until(service.is_ready, STARTS_S, "the service is ready")
        thread.start()
        world.send(20)
        until(lambda: world.counted() == 20, 60, "the readings in windows")
        try:
            ends = [int(str(world.redis.hget(key, "end"))) for key in world.redis.keys(f"{topic}:window:*")]
            until(lambda: int(world.progress().get("idle", 0)) >= max(ends), 60, "the windows closed by silence")
            first, line_ms = service.metric("records_total"), int(world.progress()["idle"])
            until(lambda: int(world.progress()["idle"]) > line_ms, 60, "the clock to go on")
            until(lambda: service.metric("records_total") > first, 60, "records that are not admitted")
            assert service.metric("final_window_age_seconds", view="device") < 60
            assert world.counted() == 20
        finally:
            over.set()
            thread.join()
            world.producer.flush(30)

"""The scene `outages`: Redis, Kafka and the process go away, one after the other."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from load.faults.by_hand import between
from load.observe.scene import Cause, Scene


class Outages(Scene):
    """Settings: short retries and a short lease, so that restarts take seconds. Redis keeps its data when it is killed."""

    job = "tidemark-outages"

    def options(self) -> Mapping[str, Any]:
        return {"redis": {"appendonly": "yes"}}

    def sections(self) -> Mapping[str, Mapping[str, Any]]:
        return {"service": {"trigger": "1 s", "lease": "3 s"}, "redis": {"retry_for": "1 s", "timeout": "2 s"}}

    def groups(self) -> Sequence[Sequence[Cause]]:
        redis = self.testbed.redis
        return (
            (
                Cause(
                    ("TidemarkNotReady", "TidemarkQueryRestarts"),
                    "Redis is away",
                    partial(between, redis.kill, redis.start),
                ),
            ),
            (Cause(("TidemarkLagUnknown", "TidemarkNotRunning"), "Kafka is away", self.kafka_away),),
            (Cause(("TidemarkAbsent",), "the process is killed", self.process_gone),),
        )

    @contextmanager
    def kafka_away(self) -> Iterator[None]:
        self.sender.is_paused = True
        self.sender.flush()
        self.testbed.broker.kill()
        yield
        self.testbed.broker.start()
        self.sender.is_paused = False

    @contextmanager
    def process_gone(self) -> Iterator[None]:
        self.testbed.kill_service()
        yield
        self.restart()

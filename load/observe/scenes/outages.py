"""The scene `outages`: Redis, Kafka and the process go away, one after the other."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from load.observe.scene import STARTS_S, Cause, Scene

KILLS = 4
_EPOCH = "tidemark_epoch"


class Outages(Scene):
    """Settings: short retries and a short lease, so that restarts take seconds. Redis keeps its data when it is killed."""

    job = "outages"

    def options(self) -> Mapping[str, Any]:
        return {"redis": {"appendonly": "yes"}}

    def sections(self) -> Mapping[str, Mapping[str, Any]]:
        return {"service": {"trigger": "1 s", "lease": "3 s"}, "redis": {"retry_for": "1 s", "timeout": "2 s"}}

    def groups(self) -> Sequence[Sequence[Cause]]:
        return (
            (Cause(("TidemarkNotReady", "TidemarkQueryRestarts"), "Redis is away", self.redis_away),),
            (Cause(("TidemarkLagUnknown", "TidemarkNotRunning"), "Kafka is away", self.kafka_away),),
            (Cause(("TidemarkAbsent",), "the process is killed", self.process_gone),),
            (Cause(("TidemarkDriverRestarts",), f"the process is killed {KILLS} times", self.process_killed_often),),
        )

    @contextmanager
    def redis_away(self) -> Iterator[None]:
        self.testbed.redis.kill()
        yield
        self.testbed.redis.start()

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

    @contextmanager
    def process_killed_often(self) -> Iterator[None]:
        """Each process lives until it has an epoch that Prometheus can see."""
        for _ in range(KILLS):
            before = self.testbed.metrics().get(_EPOCH, 0.0)
            self.testbed.kill_service()
            self.testbed.start_service()
            self.until(partial(self._has_epoch_above, before), STARTS_S, "the next epoch")
        yield
        self.testbed.wait_ready(STARTS_S)

    def _has_epoch_above(self, epoch: float) -> bool:
        return self.testbed.metrics().get(_EPOCH, 0.0) > epoch

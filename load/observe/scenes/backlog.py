"""The scene `backlog`: many records wait in one partition, records are deleted, and Redis loses everything."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from load.observe.scene import Cause, Scene
from load.servers.kafka import CREATE_TIME
from load.testbed import PARTITIONS, TOPIC

MAX_PER_BATCH = 200
BACKLOG = 110 * MAX_PER_BATCH
"""A minute's work is the limit of TidemarkBehind, which must be exceeded for its `for`."""
BACKLOG_S = 60
"""Age of the oldest record when it is sent: less than max_delay + max_ahead, the distance of the watermark."""
MAX_HOLD = "2 m"
"""TidemarkWatermarkHeld fires at a quarter of it. The backlog holds the watermark back by up to 76 s, for 32 s by more than that
quarter."""
RETENTION_MS = 110_000
BEHIND_S = 250
BEHIND = 50
LOST = 20
KEPT = 1_000
"""Records of a partition: 100 s, which is more than the watermark is behind."""
_LATE, _DELETED = PARTITIONS - 1, 0


class Backlog(Scene):
    """Settings: small batches until the backlog has been alerted, and records that keep the time of their first writing, as a
    mirror's do.
    """

    job = "tidemark-backlog"

    def options(self) -> Mapping[str, Any]:
        return {"topic_config": CREATE_TIME}

    def sections(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "service": {"trigger": "1 s"},
            "kafka": {"max_per_batch": MAX_PER_BATCH, "on_data_loss": "continue"},
            "admission": {"max_delay": "8 s", "max_ahead": "1 m", "max_hold": MAX_HOLD, "idle_after": "5 s"},
        }

    def groups(self) -> Sequence[Sequence[Cause]]:
        return (
            (
                Cause(
                    (
                        "TidemarkRetention",
                        "TidemarkRecordsLost",
                        "TidemarkWatermarkHeld",
                        "TidemarkFinalsOld",
                        "TidemarkBehind",
                    ),
                    f"{BACKLOG} records wait in one partition; others were deleted before they were read",
                    self.backlog,
                ),
            ),
            (
                Cause(
                    ("TidemarkReadingsBehind",), f"a partition gives readings {BEHIND_S} s old", self.readings_behind
                ),
                Cause(
                    ("TidemarkRedisLostData", "TidemarkValuesLost"),
                    "Redis is emptied, and Kafka lacks a part of the readings",
                    self.redis_emptied,
                ),
            ),
        )

    @contextmanager
    def backlog(self) -> Iterator[None]:
        """The service stops, records come, some are deleted, the topic keeps them for a short time, the service starts."""
        self.testbed.stop_service()
        read = self._published()[_DELETED]
        self.testbed.broker.configure_topic(TOPIC, {"retention.ms": str(RETENTION_MS)})
        now_ms = time.time_ns() // 1_000_000
        for number in range(BACKLOG):
            event_ms = now_ms - BACKLOG_S * 1_000 * (BACKLOG - number) // BACKLOG
            self.sender.send(f"mirror-{number % 50:02d}", event_ms, _LATE)
        self.sender.flush()
        lost_to = read + LOST
        self.until(lambda: self.sender.ends[_DELETED] > lost_to, 60, "records to delete")
        self.testbed.broker.delete_records(TOPIC, {_DELETED: lost_to})
        self.restart()
        self.testbed.broker.configure_topic(TOPIC, {"retention.ms": "-1"})
        yield
        # What is still ahead would be lost behind the restart, and the alert would fire again.
        self.until(lambda: self._published()[_DELETED] >= lost_to, 300, "what is lost to be passed")
        self.restart({"TIDEMARK_KAFKA__MAX_PER_BATCH": str(BACKLOG)})

    @contextmanager
    def readings_behind(self) -> Iterator[None]:
        event_ms = time.time_ns() // 1_000_000 - BEHIND_S * 1_000
        for number in range(BEHIND):
            self.sender.send(f"mirror-{number:02d}", event_ms, _LATE)
        self.sender.flush()
        yield

    @contextmanager
    def redis_emptied(self) -> Iterator[None]:
        """Kafka keeps the end of each partition: the first of its windows that are final lack readings."""
        published = self._published
        self.until(lambda: min(published().values()) > KEPT + 300, 300, "readings of final windows")
        self.testbed.broker.delete_records(TOPIC, {partition: end - KEPT for partition, end in published().items()})
        with self.testbed.redis_client() as client:
            client.flushall()
        yield

    def _published(self) -> dict[int, int]:
        offsets = self.testbed.progress()["offsets"][TOPIC]
        return {int(partition): end for partition, end in offsets.items()}

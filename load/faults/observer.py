"""The observer: reads what an application, and an operator, would, and writes it to the history without judging it.

Two threads, because a broker that is away must not keep anybody from watching Redis:

    readers   every 250 ms: the epoch, the progress key, the change feed since the last look, and some hashes: of the keys
              that the feed names and of keys looked at before
    gauges    every second the lag, from the topic's ends and progress; every 2 s /metrics and the service's memory

A value is written to the history when it differs from what it was at the last look.
"""

import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psutil
import redis
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from load.faults.history import History, now_ms
from load.testbed import TOPIC, Testbed

LOOK_S = 0.25
GAUGE_S = 1.0
CHANGED = 48
"""Keys that are looked at for having changed, each look."""
WATCHED = 96
"""Keys that are looked at again and again; one in twelve gives way to another each look."""
_PREFIX = "tidemark"
_FEED = 20_000
_CLOSING = "final", "idle", "idle_epoch", "idle_batch"
_WANTED = (
    "tidemark_batch",
    "tidemark_sessions_closed",
    "tidemark_watermark_held",
    "tidemark_epoch",
    "tidemark_event_spread_seconds",
    "tidemark_event_to_redis_seconds",
    "tidemark_failures_total",
    "tidemark_lag_records",
    "tidemark_lost",
    "tidemark_query",
    "tidemark_readings",
    "tidemark_records_total",
    "tidemark_redis",
    "tidemark_rejects_total",
    "tidemark_republished",
    "tidemark_retention",
    "tidemark_state",
    "tidemark_window",
)


class Observer:
    """Watches `testbed` from `start` to `stop`. `pids` gives the processes whose memory counts, `metrics` who writes now.

    `progress`, `lag` and `epoch` are what was seen last, for rows that wait for something. `closed` has when it was seen first
    (ms) up to which event times windows are closed by the watermark and by silence (-1: not).
    """

    def __init__(
        self,
        testbed: Testbed,
        history: History,
        seed: int,
        *,
        pids: Callable[[], Iterable[int]],
        metrics: Callable[[], Mapping[str, float]],
    ) -> None:
        self.progress: tuple[int, int] = (-1, -1)
        self.lag: int | None = None
        self.epoch = -1
        self._history = history
        self._random = random.Random(seed)
        self._pids = pids
        self._metrics = metrics
        self._offsets: dict[str, int] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(each, every_s), name=f"observer-{each.__name__}", daemon=True)
            for each, every_s in ((self._read, LOOK_S), (self._gauge, GAUGE_S))
        ]
        self._redis = testbed.redis.client(
            socket_timeout=1.0, socket_connect_timeout=1.0, encoding_errors="surrogateescape"
        )
        self._is_up: bool | None = None
        self._feed_at = "0-0"
        self._watched: list[str] = []
        self._values: dict[str, dict[str, str]] = {}
        # What progress says of windows; and by key, what it said before the value was read last.
        self._closing: dict[str, str] = {}
        self._closing_of: dict[str, dict[str, str]] = {}
        self.closed: list[tuple[int, int, int]] = []
        # Asks for offsets only: it never joins its group.
        self._consumer = Consumer(
            {"bootstrap.servers": testbed.broker.bootstrap, "group.id": "tidemark-observer", "log_level": 0}
        )
        self._scrape_due = 0.0

    def start(self) -> None:
        """Begin to look."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Look once more at Redis, then no more."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(30)
        self._read()
        self._redis.close()
        self._consumer.close()

    def _run(self, look: Callable[[], None], every_s: float) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            try:
                look()
            except Exception as problem:
                # An observer that has died in silence would find everything in order.
                self._history.add("violation", rule="observed", text=f"{look.__name__} ended: {problem!r}")
                raise
            due = max(due + every_s, time.monotonic())  # what was missed is not made up for

    # Readers.

    def _read(self) -> None:
        try:
            self._look()
        except (redis.RedisError, OSError) as problem:
            self._seen_up(False, f"{type(problem).__name__}: {problem}")
        else:
            self._seen_up(True, "")

    def _seen_up(self, is_up: bool, why: str) -> None:
        if is_up != self._is_up:
            self._is_up = is_up
            self._history.add("redis", up=is_up, why=why)

    def _look(self) -> None:
        epoch: Any = self._redis.get(f"{_PREFIX}:epoch")
        if epoch is not None and int(epoch) != self.epoch:
            self.epoch = int(epoch)
            self._history.add("epoch", epoch=self.epoch)
        self._look_at_progress()
        changed = self._look_at_feed()
        # What is watched leaves now and then, so that a long run sees more than its first minute's keys.
        for _ in range(max(1, WATCHED // 12)):
            if len(self._watched) >= WATCHED:
                self._values.pop(self._watched.pop(self._random.randrange(len(self._watched))), None)
        sample = self._random.sample(changed, min(CHANGED, len(changed)))
        room = WATCHED - len(self._watched)
        self._watched += [key for key in sample if key not in self._values][: max(0, room)]
        watched = set(self._watched)
        for key in sample:
            if key not in watched:
                self._values.pop(key, None)
        self._look_at_values(sorted(watched | set(sample)))

    def _look_at_progress(self) -> None:
        progress: Any = self._redis.hgetall(f"{_PREFIX}:progress")
        if not {"epoch", "batch", "watermark", "final", "offsets"} <= progress.keys():
            return
        self._closing = {name: progress[name] for name in _CLOSING if name in progress}
        closed = int(progress["final"]), int(progress.get("idle", -1))
        if not self.closed or self.closed[-1][1:] != closed:
            self.closed.append((now_ms(), *closed))
        now = int(progress["epoch"]), int(progress["batch"])
        if now != self.progress:
            self.progress = now
            self._offsets = json.loads(progress["offsets"]).get(TOPIC, {})
            watermark, final = int(progress["watermark"]), int(progress["final"])
            facts = {"watermark": watermark, "final": final, "offsets": self._offsets}
            self._history.add("progress", epoch=now[0], batch=now[1], **facts)

    def _look_at_feed(self) -> list[str]:
        """The keys that changed since the last look; the feed's epochs and batches go to the history as spans."""
        changed: dict[str, None] = {}
        while True:
            entries: Any = self._redis.xrange(f"{_PREFIX}:changes", f"({self._feed_at}", "+", count=_FEED)
            if not entries:
                break
            missed = self._has_been_trimmed()
            spans: list[list[int]] = []
            for _, entry in entries:
                term = [int(entry["epoch"]), int(entry["batch"])]
                keys = json.loads(entry["keys"])
                if spans and spans[-1][:2] == term:
                    spans[-1][2] += len(keys)
                else:
                    spans.append([*term, len(keys)])
                if entry["kind"] != "progress":
                    changed |= dict.fromkeys(keys)
            self._feed_at = entries[-1][0]
            self._history.add("feed", spans=spans, **({"missed": True} if missed else {}))
            if len(entries) < _FEED:
                break
        return list(changed)

    def _has_been_trimmed(self) -> bool:
        """Whether entries that nobody saw are gone from the feed."""
        first: Any = self._redis.xrange(f"{_PREFIX}:changes", "-", "+", count=1)
        return self._feed_at != "0-0" and bool(first) and _place(first[0][0]) > _place(self._feed_at)

    def _look_at_values(self, keys: list[str]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for key in keys:
            pipe.hgetall(key)
        for key, fields in zip(keys, pipe.execute(), strict=True):
            if fields != self._values.get(key):
                if fields or key in self._values:
                    self._history.add("value", key=key, hash=fields or None, closing=self._closing_of.get(key, {}))
                self._values[key] = fields
            self._closing_of[key] = self._closing

    # Gauges.

    def _gauge(self) -> None:
        with contextlib.suppress(KafkaException):
            ends, done = self.ends(), self._offsets
            self.lag = sum(end - done.get(str(partition), 0) for partition, end in ends.items())
            self._history.add("lag", records=self.lag, ends=ends)
        if time.monotonic() >= self._scrape_due:
            self._scrape_due = time.monotonic() + 2.0
            self._scrape()

    def ends(self) -> dict[int, int]:
        """The topic's end offsets by partition; raises KafkaException when the broker does not say."""
        ends = {}
        for each in self._consumer.list_topics(TOPIC, timeout=1.0).topics[TOPIC].partitions:
            offsets = self._consumer.get_watermark_offsets(TopicPartition(TOPIC, each), timeout=1.0)
            if offsets is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            ends[each] = offsets[1]
        return ends

    def _scrape(self) -> None:
        samples = {name: value for name, value in self._metrics().items() if name.startswith(_WANTED)}
        if samples:
            self._history.add("metrics", samples=samples)
        resident = 0
        processes = 0
        for pid in self._pids():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                for each in [process, *process.children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        resident += each.memory_info().rss
                        processes += 1
        if processes:
            self._history.add("memory", mb=round(resident / 1e6, 1), processes=processes, busy=os.getloadavg()[0])


def _place(stream_id: str) -> tuple[int, int]:
    ms, _, number = stream_id.partition("-")
    return int(ms), int(number)

"""The observer: reads what an application, and an operator, would, and writes it to the history without judging it.

Two threads, because a broker that is away must not keep anybody from watching Redis:

    readers   every 250 ms, of each shard: the epoch, the progress key, the change feed since the last look, and some
              hashes: of the keys that the feed names and of keys looked at before (shard.py)
    gauges    every second the lag, from the topics' ends and progress; every 2 s /metrics and the service's memory

A value is written to the history when it differs from what it was at the last look.
"""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import psutil
import redis
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from load.faults.history import Entry, History
from load.faults.shard import Shard
from load.testbed import TOPIC, Testbed
from schemas import contract
from service.clock import now_ms

LOOK_S = 0.25
GAUGE_S = 1.0
_WANTED = (
    "tidemark_batch",
    "tidemark_schedule",
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
    (ms) up to which event times windows are closed by the watermark and by silence (-1: not). With several shards, each is what
    holds for all of them.
    """

    def __init__(
        self,
        testbed: Testbed,
        history: History,
        seed: int,
        *,
        pids: Callable[[], Iterable[int]],
        metrics: Callable[[], Mapping[str, float]],
        keep: bool = False,
    ) -> None:
        self.progress: tuple[int, int] = (-1, -1)
        self.lag: int | None = None
        self.epoch = -1
        self._history = history
        self._pids = pids
        self._metrics = metrics
        self._offsets: Mapping[str, int] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(each, every_s), name=f"observer-{each.__name__}", daemon=True)
            for each, every_s in ((self._read, LOOK_S), (self._gauge, GAUGE_S))
        ]
        self._testbed = testbed
        self._client: Any = None
        self._is_up: bool | None = None
        settings, chance = testbed.settings["redis"], random.Random(seed)
        prefixes = contract.prefixes(settings.get("prefix", "tidemark"), settings.get("shards", 1))
        adds: list[Callable[..., None]] = [partial(history.add, shard=number) for number in range(len(prefixes))]
        adds = adds if len(adds) > 1 else [history.add]
        self._shards = [
            Shard(each, len(adds), add, chance, keep=keep) for each, add in zip(prefixes, adds, strict=True)
        ]
        self.closed: list[tuple[int, int, int]] = []
        # Asks for offsets only: it never joins its group.
        self._consumer = Consumer(
            {"bootstrap.servers": testbed.broker.bootstrap, "group.id": "tidemark-observer", "log_level": 0}
        )
        self._scrape_due = 0.0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Look once more at Redis, then no more."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(30)
        self._read()
        if self._client is not None:
            self._client.close()
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
        """Look at each shard, also when another one cannot be read."""
        problems = []
        for shard in self._shards:
            try:
                shard.look(self._connected())
            except (redis.RedisError, RedisClusterException, OSError) as problem:
                problems.append(f"{type(problem).__name__}: {problem}")
        self._seen_up(not problems, problems[0] if problems else "")
        self._sum_up()

    def _connected(self) -> Any:
        if self._client is None:  # the client of a cluster connects when it is made
            options: dict[str, Any] = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
            if self._testbed.settings["redis"].get("cluster"):
                # By default redis-py 8.1 tries 11 times: for 11 s with a node that hangs.
                options["retry"] = Retry(NoBackoff(), 1)
            self._client = self._testbed.redis_client(**options, encoding_errors="surrogateescape")
        return self._client

    def _seen_up(self, is_up: bool, why: str) -> None:
        if is_up != self._is_up:
            self._is_up = is_up
            self._history.add("redis", up=is_up, why=why)

    def _sum_up(self) -> None:
        """Note the state of all shards: a batch is published when each shard has it, which is an entry of its own for several."""
        self.epoch = min(shard.epoch for shard in self._shards)
        every = [shard.progress for shard in self._shards if shard.progress is not None]
        if len(every) < len(self._shards):
            return
        closed = min(each["final"] for each in every), min(shard.idle for shard in self._shards)
        if not self.closed or self.closed[-1][1:] != closed:
            self.closed.append((now_ms(), *closed))
        now = min((each["epoch"], each["batch"]) for each in every)
        if now != self.progress:
            self.progress = now
            least = _least(every)
            self._offsets = least["offsets"]
            if len(every) > 1:
                self._history.add("progress", **least)

    # Gauges.

    def _gauge(self) -> None:
        with contextlib.suppress(KafkaException):
            topics, done = self._testbed.topics, self._offsets
            ends = {f"{topic}[{each}]": end for topic in topics for each, end in self.ends(topic).items()}
            self.lag = sum(end - done.get(partition, 0) for partition, end in ends.items())
            self._history.add("lag", records=self.lag, ends=ends)
        if time.monotonic() >= self._scrape_due:
            self._scrape_due = time.monotonic() + 2.0
            self._scrape()

    def ends(self, topic: str = TOPIC) -> dict[int, int]:
        """A topic's end offsets by partition; raises KafkaException when the broker does not say."""
        ends = {}
        for each in self._consumer.list_topics(topic, timeout=1.0).topics[topic].partitions:
            offsets = self._consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=1.0)
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


def _least(every: list[Entry]) -> Entry:
    """Progress as far as all shards have it."""
    epoch, batch = min((each["epoch"], each["batch"]) for each in every)
    partitions = {partition for each in every for partition in each["offsets"]}
    offsets = {partition: min(each["offsets"].get(partition, 0) for each in every) for partition in sorted(partitions)}
    times = {name: min(each[name] for each in every) for name in ("watermark", "final")}
    return {"epoch": epoch, "batch": batch, **times, "offsets": offsets}

"""The real parts of a walk, and the service and its commands on them. No other module of the walk names the service's modules.

One broker, one Redis and one Spark session serve all walks. Each walk has a topic of its own, each checkpoint of a walk a prefix
and a folder for the outlet of its own.
"""

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.dataset as ds
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from load.judge import published
from load.servers.kafka import CREATE_TIME, Broker
from load.servers.redis import Redis
from load.testbed import to_toml
from load.walks.real.plain import GAP_MS, MAX_AHEAD_MS, MINUTE_MS, TOTAL, VIEWS, Place, Rules
from schemas import contract
from service import settings
from service.checkpoint import resume
from service.cli import main
from service.outlets import publication, recomputed
from service.outlets import publication as outlet_publication
from service.outlets.outbox import Outbox
from service.outlets.publication import Outlets
from service.pipeline import batch
from service.pipeline.batch import Publication
from service.pipeline.term import Term, TermMetrics
from service.recompute import backfill, correct
from service.recompute.republish import Republisher
from service.reference import snapshots
from service.reference.current_snapshot import CurrentSnapshot
from service.rejects import marks, reject_log
from service.spark import session
from service.spark.files import opened
from service.spark.internals import commit_log, offset_log

PARTITIONS = 2
STATISTICS = ("count", "sum", "min", "max")
WAIT_S = 60.0
_POLL_S = 0.02

_numbers = itertools.count(1)


class CommandError(Exception):
    """A command has ended with another status than 0: its output."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record of the topic as a consumer sees it."""

    place: Place
    broker_ms: int
    value: Mapping[str, Any]
    headers: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Marked:
    """What the marks say of a reject: its state, the place of its copy, and whether views without windows have counted it."""

    state: str
    copy: Place | None
    is_counted: bool


@dataclass(frozen=True, slots=True)
class Parts:
    """What all walks share."""

    spark: SparkSession
    broker: Broker
    redis: Redis
    folder: Path


@contextmanager
def started(folder: Path) -> Iterator[Parts]:
    """Start a broker, a Redis and a local Spark session, which the commands get, too."""
    with Broker(folder / "broker") as broker, Redis(folder / "redis") as redis:
        spark = session.build(master="local[2]", app_name="walks")
        spark.sparkContext.setLogLevel("OFF")
        try:
            with shared(spark):
                yield Parts(spark, broker, redis, folder)
        finally:
            spark.stop()


@contextmanager
def shared(spark: SparkSession) -> Iterator[None]:
    """Give this session to commands that build one, and have them leave it running. Outlets look for corrections at once."""
    with (
        patch.object(session, "build", lambda *_args, **_options: spark),
        patch.object(spark, "stop", lambda: None),
        patch.object(outlet_publication, "LOOK_S", 0.0),
    ):
        yield


class Service:
    """The service of one walk. `rules` and `sites` hold from the next start on."""

    def __init__(self, parts: Parts, *, shards: int, rules: Rules, sites: Mapping[str, str]) -> None:
        self.parts, self.shards = parts, shards
        self.name = f"walk{next(_numbers)}"
        self.topic = self.name
        self.folder = parts.folder / self.name
        self.folder.mkdir()
        self.client: Any = parts.redis.client()
        self.producer = Producer({"bootstrap.servers": parts.broker.bootstrap, "log_level": 0, "linger.ms": 0})
        self.consumer = Consumer({"bootstrap.servers": parts.broker.bootstrap, "group.id": self.name, "log_level": 0})
        self.read_to = [0] * PARTITIONS
        for topic in (self.topic, f"{self.topic}.rejects"):
            parts.broker.create_topic(topic, PARTITIONS, CREATE_TIME)
        self._term: Term | None = None
        self._query: StreamingQuery | None = None
        self._publication: Publication | None = None
        self._checkpoints = 0
        self.new_checkpoint(rules, sites)

    def new_checkpoint(self, rules: Rules, sites: Mapping[str, str]) -> None:
        """Set a new checkpoint, with a new prefix and a new folder for the outlet."""
        self.stop()
        self._checkpoints += 1
        self.prefix = f"{self.name}_{self._checkpoints}"
        self.checkpoint = self.folder / f"checkpoint-{self._checkpoints}"
        self.files = self.folder / f"files-{self._checkpoints}"
        self.epoch, self._batch = 0, -1
        self._snapshot: CurrentSnapshot | None = None
        self.configure(rules)
        self.refer(sites)

    def configure(self, rules: Rules) -> None:
        """Write the settings, which hold from the next start on."""
        self.stop()
        document = {
            "service": {"checkpoint": str(self.checkpoint), "name": self.prefix},
            "kafka": {"bootstrap": self.parts.broker.bootstrap, "topics": [self.topic], "starting": "earliest"},
            "input": {"format": "json", "measures": {"temperature": "temperature"}},
            "admission": {
                "max_delay": f"{rules.max_delay_ms} ms",
                "max_ahead": f"{MAX_AHEAD_MS} ms",
                "ranges": {"temperature": [rules.low, rules.high]},
                "unknown_device": "reject" if rules.rejects_unknown else "keep",
            },
            "reference": {"url": "jdbc:sqlite:unused", "query": "unused", "columns": ["site"]},
            "views": [
                *(
                    {
                        "name": view.name,
                        "by": [view.by] if view.by else [],
                        "window": f"{view.window_ms} ms",
                        "slide": f"{view.step_ms} ms",
                        "statistics": list(STATISTICS),
                        "retain": "1 d",
                    }
                    for view in VIEWS
                ),
                {"name": TOTAL, "by": ["device"], "window": "none", "statistics": list(STATISTICS)},
            ],
            "outlets": [
                {"name": "windows", "kind": "parquet", "path": str(self.files / "windows")},
                {"name": "sessions", "kind": "parquet", "path": str(self.files / "sessions"), "sessions": True},
            ],
            "sessions": {
                "gap": f"{GAP_MS} ms",
                "max_duration": f"{16 * 10 * MINUTE_MS} ms",
                "retain": "1 d",
                "buckets": 2,
            },
            "redis": {
                "url": self.parts.redis.url,
                "prefix": self.prefix,
                "retry_for": "1 s",
                "shards": self.shards,
            },
        }
        self.config = self.folder / "tidemark.toml"
        self.config.write_text(to_toml(document), encoding="utf-8")
        self.settings = settings.load(self.config)

    def refer(self, sites: Mapping[str, str]) -> None:
        """Set the reference, which holds from the next start on."""
        self.stop()
        folder = self.checkpoint / "reference"
        table = pa.table({"device": pa.array(sites.keys(), pa.string()), "site": pa.array(sites.values(), pa.string())})
        snapshots.store(folder, table)
        if self._snapshot is None:
            self._snapshot = CurrentSnapshot(folder, ("site",))
        self._snapshot.swap()

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Those of the shards."""
        return contract.prefixes(self.prefix, self.shards)

    def send(self, value: Mapping[str, Any], partition: int, broker_ms: int) -> None:
        """Send a record, with the broker's time for it."""
        self.producer.produce(self.topic, json.dumps(value).encode(), partition=partition, timestamp=broker_ms)

    def new_records(self) -> list[Sent]:
        """Return the records of the topic that this function has not returned before."""
        if self.producer.flush(30):
            raise TimeoutError("records were not delivered")
        found = []
        for partition in range(PARTITIONS):
            place = TopicPartition(self.topic, partition, self.read_to[partition])
            end = self.consumer.get_watermark_offsets(place, timeout=30)[1]
            if end == self.read_to[partition]:
                continue
            self.consumer.assign([place])
            while self.read_to[partition] < end:
                message = self.consumer.poll(30)
                if message is None or message.error():
                    raise TimeoutError(f"{place} was not read: {message and message.error()}")
                headers: Any = message.headers() or ()
                offset = int(message.offset() or 0)
                sent = json.loads(message.value() or b"")
                found.append(Sent((partition, offset), message.timestamp()[1], sent, dict(headers)))
                self.read_to[partition] = offset + 1
        return found

    def take(self) -> list[Mapping[int, int]]:
        """Let the query read and publish all records; start the service if it does not run.

        Returns where each new batch has ended, by partition: a running query divides what is sent as it comes.
        """
        if self._query is None:
            self._start()
        assert self._query is not None and self._publication is not None  # noqa: S101, PT018
        try:
            self._query.processAllAvailable()
        except Exception:
            if self._publication.failure is None:
                raise
            raise self._publication.failure from None
        self._republish()
        logs, before = opened(self.parts.spark, str(self.checkpoint)), self._batch
        self._batch = commit_log.last(logs) or 0
        return [offset_log.ends(logs, batch)[self.topic] for batch in range(before + 1, self._batch + 1)]

    def _start(self) -> None:
        self.epoch += 1
        for prefix in self.prefixes:
            self.client.set(f"{prefix}:epoch", self.epoch)
        term = Term(self.parts.spark, self.settings, self.epoch, current_snapshot=self._snapshot, metrics=TermMetrics())
        self._republisher = Republisher(term)
        self._republisher.begin()
        position = resume.position(self.parts.spark, self.settings)
        committed = -1 if position is None else position.batch - 1
        term.outlets = publication.of_term(self.parts.spark, self.settings, self.epoch, committed, term.metrics)
        if term.outlets is not None:
            term.outlets.start()
        self._term = term
        self._query, self._publication = batch.start_query(term, on_batch=lambda _: None)

    def _republish(self) -> None:
        self._republisher.end_rebuild()
        if marks := self._republisher.asked():
            self._republisher.everything(marks)

    def stop(self) -> None:
        """Stop the query in order."""
        if self._query is not None:
            self._query.stop()
            self._query = None
            assert self._term is not None  # noqa: S101
            if self._term.outlets is not None:
                self._term.outlets.close()
            self._term = None

    def lose(self, pattern: str = "*", shard: int | None = None) -> None:
        """Stop the service, and remove keys of a shard, or of all."""
        self.stop()
        for prefix in self.prefixes if shard is None else self.prefixes[shard : shard + 1]:
            for key in self.client.scan_iter(f"{prefix}:{pattern}"):
                self.client.delete(key)

    def waits_for_outlet(self) -> bool:
        """Whether corrected values are on their way to the outlet, which the next batches give to it."""
        return bool(recomputed.names(Outbox(opened(self.parts.spark, str(self.checkpoint)))))

    def wait_for_outlet(self) -> None:
        """Wait until the outlet has all that the service has given to it."""
        outlets: Outlets | None = self._term.outlets if self._term is not None else None
        deadline = time.monotonic() + WAIT_S
        while outlets is not None and any(each.progress().pending for each in outlets.deliveries):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the outlet lacks entries for {WAIT_S:.0f} s")
            time.sleep(_POLL_S)

    def correct(self, *, again: bool = False) -> int:
        """`tidemark correct` of all late readings. Returns the number of readings that it says it has corrected."""
        report = correct.correct(self.settings, 0, None, lambda _: None, again=again, spark=self.parts.spark)
        return report.corrected or 0

    def backfill(self, from_ms: int, to_ms: int) -> None:
        """`tidemark backfill` of a span."""
        backfill.backfill(self.settings, (from_ms, to_ms), [], lambda _: None, spark=self.parts.spark)

    def replay(self, places: Sequence[Place], *options: str) -> str:
        """`tidemark rejects replay` of some rejects. Returns what it prints. Raises CommandError."""
        at = [f"{self.topic}[{partition}]@{offset}" for partition, offset in places]
        with redirect_stdout(StringIO()) as output:
            status = main(["rejects", "replay", "--config", str(self.config), *at, *options])
        if status:
            raise CommandError(output.getvalue())
        return output.getvalue()

    def marks(self) -> dict[Place, Marked]:
        """The marks of all rejects."""
        found = {}
        for place, mark in marks.read(self.settings.kafka).items():
            copy = mark.details.get("as")
            is_counted = bool(mark.details.get("counted"))
            found[place.partition, place.offset] = Marked(mark.state, tuple(copy) if copy else None, is_counted)
        return found

    def rejects(self) -> set[tuple[Place, str]]:
        """The place and reason of each reject that was ever written."""
        return {
            ((each.place.partition, each.place.offset), each.reason) for each in reject_log.read(self.settings.kafka)
        }

    def progress(self) -> dict[str, str]:
        """Progress of the first shard."""
        found: dict[str, str] = self.client.hgetall(f"{self.prefixes[0]}:progress")
        return found

    def hashes(self) -> dict[str, dict[str, str]]:
        """All windows and sessions in Redis, by key without the prefix."""
        found = published.hashes(self.client, self.prefix, ("window", "session"), shards=self.shards)
        return {key.removeprefix(f"{self.prefix}:"): fields for key, fields in found}

    def problems(self) -> Sequence[str]:
        """What the contract of Redis does not allow."""
        return contract.check(self.client, self.prefix, self.shards)

    def rows(self, outlet: str) -> list[dict[str, Any]]:
        """The newest row of each key that an outlet has, "windows" or "sessions", by the order of docs/outlets.md."""
        folder, key = (
            self.files / outlet,
            ("view", "measure", "key", "start") if outlet == "windows" else ("device", "start"),
        )
        if not any(folder.rglob("*.parquet")):
            return []
        rows = ds.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()
        rows.sort(key=lambda row: (row["count"], row["revision"], row["epoch"], row["batch"]))
        return list({tuple(row[name] for name in key): row for row in rows}.values())

    def close(self) -> None:
        """Stop the service, and close the clients."""
        self.stop()
        self.consumer.close()
        self.client.close()

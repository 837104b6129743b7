"""A writer of its own for a test, on the shared Spark session, broker and Redis: its topic, settings, checkpoint and prefix."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from load.judge import published
from load.judge.compare import Verdict, compare
from load.servers.kafka import CREATE_TIME, Broker
from load.servers.redis import Redis
from load.testbed import to_toml
from schemas import contract
from service import settings
from service.checkpoint import resume
from service.outlets import publication
from service.outlets.publication import Outlets
from service.pipeline.batch import start_query
from service.pipeline.outcome import Outcome
from service.pipeline.term import Term, TermMetrics
from service.publication.covered import Covered
from service.recompute.republish import Republisher
from service.reference import snapshots
from service.reference.current_snapshot import CurrentSnapshot
from service.rejects.reject_log import Coordinates
from tests.stream.records import BASE_MS, Record, make_document

OWN = {"epoch", "batch", "updated"}
"""Fields of a value that say who wrote it and when."""

VIEWS = [
    {"name": "device", "by": ["device"], "window": "1 m"},
    {"name": "all", "window": "2 m", "slide": "1 m", "retain": "2 h"},
]


class Parts(NamedTuple):
    """What a world takes: the shared Spark session, broker and Redis, and the folder and the prefix of its test."""

    spark: SparkSession
    broker: Broker
    redis: Redis
    folder: Path
    prefix: str


class World(TermMetrics):
    """Sections given replace those of the settings key by key. The service's own pass runs; nothing of it is replaced."""

    def __init__(
        self, spark: SparkSession, broker: Broker, redis: Redis, folder: Path, prefix: str, /, **sections: Any
    ) -> None:
        self.spark, self.broker, self.part, self.prefix = spark, broker, redis, prefix
        self.topic = f"world-{prefix}"
        self.redis: Any = redis.client()
        common: dict[str, Any] = {
            "service": {"checkpoint": str(folder / "checkpoint"), "name": prefix},
            "kafka": {"bootstrap": broker.bootstrap, "topics": [self.topic], "starting": "earliest"},
            "views": VIEWS,
            "sessions": {"gap": "30 s", "max_duration": "16 m", "buckets": 4},
            "redis": {"url": redis.url, "prefix": prefix, "retry_for": "1 s"},
        }
        for name, section in sections.items():
            common[name] = {**common.get(name, {}), **section} if isinstance(section, dict) else section
        self.config = folder / "tidemark.toml"
        self.config.write_text(to_toml(make_document(folder, **common)), encoding="utf-8")
        self.settings = settings.load(self.config)
        self.epoch = 0
        self.lost = 0
        self.republications: list[tuple[Outcome, tuple[int, int]]] = []
        self.sent = [0, 0]
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        broker.create_topic(self.topic, 2, CREATE_TIME)
        broker.create_topic(f"{self.topic}.rejects", 2, CREATE_TIME)
        self.folder = folder
        self.current_snapshot: CurrentSnapshot | None = None

    def refer(self, **sites: str) -> None:
        """The sites of devices in the reference, from the next term on. The settings need a section `reference`."""
        folder = self.folder / "checkpoint" / "reference"
        snapshots.store(folder, pa.table({"device": list(sites), "site": list(sites.values())}))
        if self.current_snapshot is None:
            self.current_snapshot = CurrentSnapshot(folder, ("site",))
        self.current_snapshot.swap()

    def limit(self, max_per_batch: int) -> None:
        """So many records a batch at most."""
        kafka = self.settings.kafka.model_copy(update={"max_per_batch": max_per_batch})
        self.settings = self.settings.model_copy(update={"kafka": kafka})

    def key(self, name: str) -> str:
        return f"{self.prefix}:{name}"

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Those of the shards."""
        return contract.prefixes(self.prefix, self.settings.redis.shards)

    def send(self, records: Iterable[Record]) -> list[Coordinates]:
        """Send to the partitions in turn; returns each record's place."""
        places = []
        for number, record in enumerate(records):
            partition = number % 2
            self.producer.produce(self.topic, record.value, partition=partition, timestamp=record.at)
            places.append(Coordinates(self.topic, partition, self.sent[partition]))
            self.sent[partition] += 1
        assert self.producer.flush(30) == 0
        return places

    def redis_loses_data(self) -> None:
        self.lost += 1

    def republishes(self, outcome: Outcome, unrecoverable: tuple[int, int]) -> None:
        self.republications.append((outcome, unrecoverable))

    def republisher(self) -> Republisher:
        return Republisher(
            Term(self.spark, self.settings, self.epoch, current_snapshot=self.current_snapshot, metrics=self)
        )

    def term(self, *records: Record) -> list[Coordinates]:
        """A term of a writer: what was lost is published again, then these and whatever waits in the topic."""
        self.epoch += 1
        for prefix in self.prefixes:
            self.redis.set(f"{prefix}:epoch", self.epoch)
        republisher = self.republisher()
        republisher.begin()
        term = republisher.term
        places = self.publish(term.published, *records, covered=term.covered, settled_ms=term.settled_ms)
        republisher.end_rebuild()
        if marks := republisher.asked():
            republisher.everything(marks)
        return places

    def begin_again(self, folder: Path, **sections: Any) -> None:
        """The next term has a new checkpoint in the folder, and sections of settings that replace those of before."""
        service = self.settings.service.model_copy(update={"checkpoint": str(folder)})
        self.settings = self.settings.model_copy(update={"service": service, **sections})

    def open_outlets(self) -> Outlets | None:
        """The outlets of the settings, started."""
        position = resume.position(self.spark, self.settings)
        committed = -1 if position is None else position.batch - 1
        opened = publication.of_term(self.spark, self.settings, self.epoch, committed, self)
        if opened is not None:
            opened.start()
        return opened

    def publish(
        self,
        after: tuple[int, int] | None,
        *records: Record,
        on_batch: Callable[[], object] = lambda: None,
        covered: Mapping[int, Covered] = MappingProxyType({}),
        settled_ms: int | None = None,
    ) -> list[Coordinates]:
        """Send these and run the query until nothing is left to read. Raises what made a batch fail."""
        places = self.send(records)
        known = {"published": after, "covered": covered, "settled_ms": settled_ms}
        term = Term(self.spark, self.settings, self.epoch, current_snapshot=self.current_snapshot, **known)
        term.outlets = self.open_outlets()
        query, publication = start_query(term, on_batch=lambda _: on_batch())
        try:
            query.processAllAvailable()
        except Exception:
            if publication.failure is None:
                raise
            raise publication.failure from None
        finally:
            query.stop()
            if term.outlets is not None:
                term.outlets.close()
        assert publication.failure is None
        return places

    def hashes(self) -> dict[str, dict[str, str]]:
        """Every hash that readers see."""
        found = published.hashes(self.redis, self.prefix, shards=len(self.prefixes))
        return {key.removeprefix(f"{self.prefix}:"): fields for key, fields in found}

    def values(self) -> dict[str, Any]:
        """Every value that readers see and that can be published again, without OWN, and the indexes."""
        values: dict[str, Any] = {
            name: {field: text for field, text in value.items() if field not in OWN}
            for name, value in self.hashes().items()
            if value.get("state") != "merged"
        }
        for number, prefix in enumerate(self.prefixes):
            for key in self.redis.scan_iter(f"{prefix}:keys:*"):
                name = key.removeprefix(f"{prefix}:") + (f" of shard {number}" if number else "")
                values[name] = self.redis.zrange(key, 0, -1, withscores=True)
        assert contract.check(self.redis, self.prefix, len(self.prefixes)) == []
        return values

    def backup(self, shard: int = 0) -> dict[str, bytes]:
        with self.part.client(decode_responses=False) as client:
            return {key: client.dump(key) for key in client.scan_iter(f"{self.prefixes[shard]}:*")}

    def restore(self, backup: dict[str, bytes]) -> None:
        with self.part.client(decode_responses=False) as client:
            for key, value in backup.items():
                client.restore(
                    key,
                    3_600_000
                    if b":window:" in key or b":session" in key or b":keys:" in key or b":device:" in key
                    else 0,
                    value,
                )

    def lose(self, pattern: str = "*", shard: int = 0) -> None:
        for key in self.redis.scan_iter(f"{self.prefixes[shard]}:{pattern}"):
            self.redis.delete(key)

    def window(self, device: str, seconds: int = 0) -> dict[str, str]:
        """The one-minute window of a device that has the second."""
        start_ms = BASE_MS + seconds // 60 * 60_000
        return published.read(self.redis, self.prefix, f"window:device:temperature:{device}:{start_ms}")

    def session(self, device: str, seconds: int) -> dict[str, str]:
        """The session of a device that begins at the second."""
        return dict(self.redis.hgetall(self.key(f"session:{device}:{BASE_MS + seconds * 1000}")))

    def assert_right(self) -> Verdict:
        """Compare every value with the oracle, at least one of each kind; return its verdict."""
        assert contract.check(self.redis, self.prefix) == []
        verdict = compare(self.config, may_be_refused=True)
        assert verdict.ok, "\n".join(verdict.examples)
        assert min(verdict.compared[what] for what in ("windows", "sessions", "devices")) > 0
        return verdict

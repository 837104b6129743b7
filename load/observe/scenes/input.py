"""The scene `input`: what producers, the registry, the databases of reference and outlet do wrong, and a Redis that is slow."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from load.faults.by_hand import between
from load.fleet.encode import SCHEMAS
from load.observe.scene import VIEWS, Cause, Scene
from load.servers.postgres import Postgres
from load.servers.proxy import Proxy
from load.servers.schema_registry import Registry
from load.servers.server_process import HOST, free_port
from load.testbed import TOPIC

MAX_DEVICES = 4_000
MAX_VALUES = 100
AHEAD_S = 50
"""Less than max_ahead: such a reading is admitted."""
SLOW_MS = 2_500
TABLE_S = 180.0
"""A batch calls Redis a few times."""


class Input(Scene):
    """Settings: `max_ahead` is large, so that one admitted reading stops event time for a while."""

    job = "tidemark-input"

    def __init__(self, folder: Path) -> None:
        self.registry = Registry()
        self.registry.register(f"{TOPIC}-value", json.loads((SCHEMAS / "1.avsc").read_text(encoding="utf-8")))
        super().__init__(folder)
        self.proxy_port = free_port()
        self.postgres = Postgres(folder / "postgres")
        outlet = {"name": "history", "kind": "jdbc", "url": self.postgres.jdbc_url, "table": "windows"}
        login = {"user": self.postgres.user, "password": self.postgres.password}
        self.testbed.settings["outlets"] = [outlet | login | {"retry_for": "1 s", "max_pending": "512 KiB"}]
        self.testbed.settings["redis"]["url"] = f"redis://{HOST}:{self.proxy_port}/0"

    def options(self) -> Mapping[str, Any]:
        return {"views": (*VIEWS, {"name": "field", "by": ["field"], "window": "10 s", "retain": "1 h"})}

    def sections(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "service": {"trigger": "1 s"},
            "registry": {"url": self.registry.url, "timeout": "1 s"},
            "input": {
                "reader_schema": 1,
                "schema_retry": "5 s",
                "columns": {"field": {"path": "device_id", "max_values": MAX_VALUES}},
            },
            "admission": {"max_delay": "8 s", "max_ahead": "1 m", "max_devices": MAX_DEVICES, "skewed_for": "15 s"},
            "reference": {"refresh": "4 s", "max_age": "4 m"},
        }

    def parts(self) -> Sequence[AbstractContextManager[object]]:
        self.proxy = Proxy(HOST, self.testbed.redis.port, self.proxy_port)
        return (self.registry, self.proxy, self.postgres)

    def groups(self) -> Sequence[Sequence[Cause]]:
        return (
            (
                Cause(("TidemarkRejects",), "three records in ten are no Avro", partial(self.sending, undecodable=0.3)),
                Cause(
                    ("TidemarkInventedDevices", "TidemarkTooManyValues"),
                    "four records in ten are of unknown devices, and a view groups by a field with their ids",
                    partial(self.sending, invented=0.4),
                ),
                Cause(("TidemarkRedisAhead",), "Redis calls windows of the next hour final", self.redis_ahead),
                Cause(
                    ("TidemarkMeasureAbsent",), "no reading has a temperature", partial(self.sending, unmeasured=True)
                ),
                Cause(("TidemarkRedisEvicts",), "the policy of Redis is allkeys-lru", self.evicting),
                Cause(
                    ("TidemarkLimitNear",),
                    "the JVM may have a quarter more open files than it has",
                    self.few_open_files,
                ),
                Cause(("TidemarkOutletRefuses",), "the outlet's table refuses windows of a view", self.outlet_refuses),
                Cause(
                    ("TidemarkSkewedDevices",),
                    "a device's clock is ten minutes ahead",
                    partial(self.sending, clock_ms=600_000),
                ),
                Cause(("TidemarkSchemas",), "the registry is away, and a schema is new", self.registry_away),
                Cause(
                    ("TidemarkReferenceKept", "TidemarkReferenceOld", "TidemarkFailures"),
                    "the reference's database is gone",
                    self.reference_away,
                ),
            ),
            (
                Cause(
                    ("TidemarkWatermarkStands", "TidemarkPartitionsApart"),
                    f"one partition has a reading {AHEAD_S} s ahead",
                    self.reading_ahead,
                ),
                Cause(("TidemarkTooManyDevices",), f"more than {MAX_DEVICES} devices send", self.too_many_devices),
            ),
            (
                Cause(
                    ("TidemarkOutletAway", "TidemarkOutletFull"),
                    "the outlet's database is gone",
                    partial(between, self.postgres.stop, self.postgres.start),
                ),
            ),
            (Cause(("TidemarkSlow",), f"Redis answers {SLOW_MS} ms late", self.slow_redis),),
        )

    @contextmanager
    def few_open_files(self) -> Iterator[None]:
        jvm = psutil.Process(self.testbed.service_pid)
        limits = jvm.rlimit(psutil.RLIMIT_NOFILE)
        jvm.rlimit(psutil.RLIMIT_NOFILE, (jvm.num_fds() * 5 // 4, limits[1]))
        yield
        jvm.rlimit(psutil.RLIMIT_NOFILE, limits)

    @contextmanager
    def evicting(self) -> Iterator[None]:
        with self.testbed.redis.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
            yield
            client.config_set("maxmemory-policy", "noeviction")

    @contextmanager
    def redis_ahead(self) -> Iterator[None]:
        with self.testbed.redis.client() as client:
            client.hset("tidemark:progress", "final", str(time.time_ns() // 1_000_000 + 3_600_000))
            yield
            client.hset("tidemark:progress", "final", "0")

    @contextmanager
    def registry_away(self) -> Iterator[None]:
        self.registry.stop()
        with self.sending(unknown_schema=0.02):
            yield
        self.registry.start()

    @contextmanager
    def outlet_refuses(self) -> Iterator[None]:
        exists = "select to_regclass('windows') is not null"
        self.until(
            lambda: self.postgres.execute(exists)[0][0], TABLE_S, "the table, which the first final windows create"
        )
        self.postgres.execute("alter table windows add constraint no_sites check (view <> 'site') not valid")
        yield
        self.postgres.execute("alter table windows drop constraint no_sites")
        for file in (self.testbed.folder / "checkpoint" / "outlets").glob("refused-*"):
            file.unlink()

    @contextmanager
    def reference_away(self) -> Iterator[None]:
        database = self.testbed.folder / "reference.db"
        kept = database.rename(database.with_suffix(".kept"))
        yield
        kept.replace(database)

    @contextmanager
    def reading_ahead(self) -> Iterator[None]:
        self.sender.send("fast-clock", time.time_ns() // 1_000_000 + AHEAD_S * 1_000, 0)
        yield

    @contextmanager
    def too_many_devices(self) -> Iterator[None]:
        """The limit holds for the batches after the one that exceeds it."""
        self.sender.invent(MAX_DEVICES)
        with self.sending(invented=0.1):
            yield

    @contextmanager
    def slow_redis(self) -> Iterator[None]:
        self.proxy.delay_ms = SLOW_MS
        yield
        self.proxy.delay_ms = 0

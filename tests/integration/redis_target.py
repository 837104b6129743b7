"""A prefix in a Redis as a reader sees it, and ways to publish to it."""

from typing import Any

import pyarrow as pa

from load.judge import feed, published
from load.servers.redis import Redis
from schemas import contract
from service.micro_batch import MicroBatch
from service.pipeline.batch_publisher import Sink
from service.pipeline.outcome import Outcome
from service.publication.policy import WritePolicy
from service.settings import Settings
from tests.outputs import T0, micro_batch, settings


def window_name(key: str = "d1", start: int = T0, view: str = "device_1m") -> str:
    return f"window:{view}:temperature:{key}:{start}"


WINDOW = window_name()


class Target:
    """A prefix of its own, under epoch 1 at first."""

    def __init__(self, part: Redis, prefix: str, **options: Any) -> None:
        self.prefix = prefix
        self.settings: Settings = settings(part.url, prefix, **options)
        self.client: Any = part.client()
        self.is_broken_on_purpose = False
        self.begin_term(1)

    def begin_term(self, epoch: int) -> None:
        self.client.set(self.key("epoch"), epoch)

    def key(self, name: str) -> str:
        return f"{self.prefix}:{name}"

    def names(self, kind: str) -> set[str]:
        """The names of all keys of a kind, without it."""
        start = self.key(f"{kind}:")
        return {key.removeprefix(start) for key in self.client.scan_iter(f"{start}*")}

    def read(self, name: str = WINDOW) -> dict[str, str]:
        return published.read(self.client, self.prefix, name)

    def fields(self, *names: str, of: str = WINDOW) -> tuple[str | None, ...]:
        """Some fields of a value; None for one that it lacks."""
        return tuple(map(self.read(of).get, names))

    def scores(self, name: str) -> dict[str, float]:
        """The members of a sorted set."""
        return dict(self.client.zrange(self.key(name), 0, -1, withscores=True))

    def left_ms(self, name: str) -> int:
        """How long a key stays; -1: for ever."""
        return int(self.client.pttl(self.key(name)))

    def feed(self, after: str = feed.FIRST) -> list[tuple[str, dict[str, str]]]:
        return feed.changes(self.client, self.prefix, after)

    def announced(self) -> list[str]:
        """The kinds of the feed's entries."""
        return [entry["kind"] for _, entry in self.feed()]

    def violations(self) -> list[str]:
        return contract.check(self.client, self.prefix)

    def sink(self, batch: int | MicroBatch, policy: WritePolicy | None = None, **of: Any) -> Sink:
        made = batch if isinstance(batch, MicroBatch) else micro_batch(batch, **of)
        return Sink(self.settings, made, policy=policy or WritePolicy.stream())

    def write(self, batch: int, *rows: pa.RecordBatch, policy: WritePolicy | None = None, **of: Any) -> Outcome:
        return self.sink(batch, policy, **of).write(rows)

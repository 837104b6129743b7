"""The shards of Redis, as the writer of a micro-batch calls publish.lua in them."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from service import clock, threads, tracing
from service.errors import FencedError
from service.micro_batch import MicroBatch
from service.publication.meta import meta
from service.publication.policy import STREAM, WritePolicy
from service.publication.rows import SCRIPT, Stamp, script_keys
from service.redis import client as redis_client
from service.redis.keys import shards, text_of
from service.redis.link import Budget, Link, Place, Reply, WritesLostError, link
from service.settings import Settings
from state.settled import leads_at

T = TypeVar("T")
_AT_ONCE = 8  # shards that a process writes to at a time
_GRAVEST = FencedError, WritesLostError, Exception


@cache
def _threads(_process: int, _prefix: str) -> ThreadPoolExecutor:
    # For each process: a forked worker has none of its parent's threads. For each prefix: calls of a Redis that hangs must not
    # use up the threads of another query.
    return ThreadPoolExecutor(_AT_ONCE, "tidemark-shard", threads.belong_to, (threads.pipeline(),))


@dataclass(frozen=True, slots=True)
class Store:
    """Calls publish.lua as the writer of a micro-batch. It holds no connection and can be pickled.

    Each process that writes keeps its own connections between batches; Redis's password file must exist there. `policy` is why
    it writes, and what it may do. `only` are the shards to write, None for all.
    """

    settings: Settings
    micro_batch: MicroBatch
    policy: WritePolicy = field(default=STREAM, kw_only=True)
    only: frozenset[int] | None = field(default=None, kw_only=True)

    @property
    def numbers(self) -> list[int]:
        """The shards that are written."""
        every = range(self.settings.redis.shards)
        return [number for number in every if self.only is None or number in self.only]

    def scan(self, step: str, kind: str, **arguments: Any) -> int:
        """Run a step of publish.lua page by page over all keys of a kind. Returns how many keys it removed.

        Raises SinkError when another run of Redis answers meanwhile: its pages have other keys.
        """
        return sum(self.over_shards(lambda shard: self._scan(shard, step, kind, arguments)).values())

    def _scan(self, shard: int, step: str, kind: str, arguments: Mapping[str, Any]) -> int:
        pattern = shards(self.settings.redis)[shard].matching(f"{kind}:*")
        limit, cursor, removed = self.settings.redis.chunk, "", 0
        link, budget = self.link(shard), self.budget(shard, step)
        server = link.server(budget)
        while cursor != "0":
            call = self.stamp().call(step, cursor=cursor or "0", pattern=pattern, limit=limit, **arguments)
            reply = link.run([call], budget, server)[0]
            cursor, removed = str(int(reply[0])), removed + int(reply[1])
        return removed

    def drop(self, view: str, measures: Sequence[str], *, whole: bool) -> None:
        """Remove the values of a view without windows, of some measures; with `whole`, its list of keys, too."""
        self.over_shards(lambda shard: self._drop(shard, view, measures, whole=whole))

    def _drop(self, shard: int, view: str, measures: Sequence[str], *, whole: bool) -> None:
        limit, begin, keys = self.settings.redis.chunk, 0, -1
        while keys:
            arguments: dict[str, Any] = {"view": view, "measures": [*measures], "from": begin, "limit": limit}
            keys = int(self.run_in(shard, "drop", whole=whole, **arguments)[0])
            begin += 0 if whole else keys

    def run(self, step: str, servers: Mapping[int, str] = MappingProxyType({}), **arguments: Any) -> dict[int, Reply]:
        """One call of publish.lua for each shard; returns their replies.

        With `servers`, as `progress`. Raises SinkError, WritesLostError, FencedError.
        """
        return self.over_shards(lambda shard: self.run_in(shard, step, servers.get(shard, ""), **arguments))

    def run_in(self, shard: int, step: str, server: str = "", **arguments: Any) -> Reply:
        """One call of publish.lua for one shard."""
        call = self.stamp().call(step, **arguments)
        with tracing.span(f"redis {step}", shard=shard):
            return self.link(shard).run([call], self.budget(shard, step), server)[0]

    def count_skewed(self) -> int:
        """How many devices are marked skewed."""
        floor = max(0, self.micro_batch.watermark_ms - self.settings.sessions.retain_ms)
        return sum(int(reply[0]) for reply in self.run("skewed", floor=str(floor)).values())

    def skewed(self) -> dict[str, int]:
        """Return the devices that are marked skewed, by the time (ms) of their last early reading. After `count_skewed`."""
        listed = [text_of(each) for reply in self.run("skewed", floor="0", lists=True).values() for each in reply[1:]]
        return {device: int(float(at_ms)) for device, at_ms in zip(listed[::2], listed[1::2], strict=True)}

    def servers(self) -> dict[int, str]:
        """An id of the Redis that answers now, for each shard. Pass it to `progress` at the end of the batch."""
        return self.over_shards(lambda shard: self.link(shard).server(self.budget(shard, "beginning")))

    def closed_until(self) -> tuple[int, bool]:
        """Return the event time (ms) up to which Redis has closed values, -1 for none, and whether its open values are as new as
        those of the state."""
        replies = self.run("read_progress").values()
        until_ms = max(int(text or -1) for *_, final, idle, _ in replies for text in (final, idle))
        return until_ms, all(epoch and not waiting for epoch, *_, waiting in replies)

    def progress(self, servers: Mapping[int, str] = MappingProxyType({}), waiting: int = 0) -> int:
        """Step 4. Returns the event time (ms) up to which Redis calls windows final: beyond the watermark if Redis is ahead.

        `waiting` is the number of open values that are older in Redis than in the state (state/waiting.py).
        Raises FencedError when progress holds a later batch of this epoch, SinkError when one of `servers` no longer answers:
        another run of Redis may lack values that were acknowledged, so the batch must be written again.
        """
        return max(self.over_shards(lambda shard: self._progress(shard, servers.get(shard, ""), waiting)).values())

    def _progress(self, shard: int, server: str, waiting: int) -> int:
        micro_batch = self.micro_batch
        budget = self.budget(shard, "progress")
        call = self.stamp().call(
            "progress",
            watermark=str(micro_batch.watermark_ms),
            offsets=json.dumps(
                {t: {str(p): o for p, o in sorted(ps.items())} for t, ps in sorted(micro_batch.end.items())}
            ),
            reference=micro_batch.reference,
            meta=meta(self.settings),
            **({"waiting": str(waiting)} if waiting else {}),
            **({"leads": self._leads()} if self.settings.leads else {}),
        )
        with tracing.span("redis progress", shard=shard):
            accepted, epoch, batch, final = self.link(shard).run([call], budget, server)[0]
        if not accepted:
            msg = f"{budget.place}: refused, batch {int(batch)} of epoch {int(epoch)} is there already"
            raise FencedError(msg, remedy="Another writer uses this epoch: this process must end")
        return int(final)

    def _leads(self) -> dict[str, int]:
        """Return the leads of views at the watermark of the batch."""
        settings, watermark_ms, newest_ms = self.settings, self.micro_batch.watermark_ms, self.micro_batch.newest_ms
        if newest_ms is None:
            return settings.leads
        return leads_at(settings.leads, watermark_ms, newest_ms - settings.admission.watermark_delay_ms)

    def over_shards(self, action: Callable[[int], T]) -> dict[int, T]:
        """The results of an action for each shard, some at a time. When all have ended, raises the gravest of their errors."""
        numbers = self.numbers
        if len(numbers) == 1:
            return {numbers[0]: action(numbers[0])}
        action = tracing.bound(action)
        pool = _threads(os.getpid(), self.settings.redis.prefix)
        futures = {number: pool.submit(action, number) for number in numbers}
        errors = [error for future in futures.values() if (error := future.exception()) is not None]
        for family in _GRAVEST:
            for error in errors:
                if isinstance(error, family):
                    raise error
        return {number: future.result() for number, future in futures.items()}

    def link(self, shard: int) -> Link:
        """This process's connection to a shard."""
        keys = shards(self.settings.redis)[shard]
        return link(self.settings.redis, keys, SCRIPT, script_keys(keys))

    def budget(self, shard: int, action: str) -> Budget:
        """For the retries of an action, which errors name."""
        options, number = self.settings.redis, self.policy.number
        of = f"batch {self.micro_batch.batch}, epoch {self.micro_batch.epoch}"
        if number is not None:
            of = f"correction {number}" if number else "a correction"
        return Budget(
            options.retry_for_ms, Place(redis_client.address(options, shards(options)[shard]), f"{action} of {of}")
        )

    def stamp(self) -> Stamp:
        """The arguments of every call that is made now."""
        of, policy, redis = self.micro_batch, self.policy, self.settings.redis
        after = policy.after if policy.number is None else (of.epoch, of.batch)
        feed = redis.feed_length, redis.feed_retain_ms
        return Stamp(str(of.epoch), str(of.batch), str(clock.now_ms()), *feed, after, policy.settled_ms)

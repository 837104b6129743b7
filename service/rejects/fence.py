"""The fence of commands that apply rejects (corrections and replays): only the run that began last may continue.

Each run writes a number to every shard when it begins, and an older run finds another number in its next step. If two begin at
once, each may find the other's number in one shard: then both end. The fence needs no renewal and no wait: a killed run blocks
no other run.

The number has the time, and a random part: a counter would begin again in a Redis that lost its data, and an older run could find
its own number there. It is larger than that of the run before, because what runs leave for the outlets is taken in the order of
their numbers.
"""

import secrets
from contextlib import ExitStack
from functools import partial

from service import clock
from service.errors import FencedError
from service.redis.keys import shards
from service.redis.link import reader
from service.settings import Redis

_REMEDY = (
    "Only one may run at a time. The other run finishes what this one has begun; run the command again for the rest"
)
RANDOM_BITS = 20
_AHEAD_MS = 24 * 3_600_000
"""A time further ahead is part of a number of an older version, which was random."""
_APART_MS = 10_000
"""Between two runs: the revisions of what a run writes are times behind its beginning, and before the next run's."""


class Fence:
    """The fence of one run; `number` is the run's own, and `began_ms` the time in it, later than in that of any run before."""

    def __init__(self, options: Redis) -> None:
        """Fence every run that began earlier. Raises SinkError."""
        self._stack = ExitStack()
        self._shards = [
            (keys.correction, *self._stack.enter_context(reader(options, keys, "the fence of corrections and replays")))
            for keys in shards(options)
        ]
        before = [int(budget.attempt(partial(client.get, key)) or 0) for key, client, budget in self._shards]
        now_ms = clock.now_ms()
        known = [ms for ms in (number >> RANDOM_BITS for number in before) if ms < now_ms + _AHEAD_MS]
        self.began_ms = max([now_ms, *(ms + _APART_MS for ms in known)])
        self.number = self.began_ms << RANDOM_BITS | secrets.randbits(RANDOM_BITS)
        for key, client, budget in self._shards:
            budget.attempt(partial(client.set, key, self.number))

    def check(self) -> None:
        """Raise FencedError if another run has begun since."""
        for key, client, budget in self._shards:
            stored = budget.attempt(partial(client.get, key))
            if stored is None or int(stored) != self.number:
                newest = "gone" if stored is None else int(stored)
                what = f"another correction or replay has begun: the number is {newest}, not {self.number}"
                raise FencedError(f"{budget.place}: {what}", remedy=_REMEDY)

    def close(self) -> None:
        self._stack.close()

"""The fence of commands that apply rejects: only the run that began last may go on.

A random number in Redis that every run replaces with its own when it begins. There is nothing to renew and nothing to wait for:
a run that was killed bars nobody, and one that was forgotten finds another number before, or in, its next step. A counter would
begin again in a Redis that lost its data, and an old run could find its own number there.
"""

import secrets

from service.errors import FencedError
from service.redis import client as redis_client
from service.redis.keys import Keys
from service.redis.link import Budget, Place
from service.settings import Redis

_REMEDY = "Only one may run at a time. What this one has begun the other finishes; run it again for the rest"


class Fence:
    """One run's; `number` is its own."""

    def __init__(self, options: Redis) -> None:
        """Begin: every run that began earlier is fenced. Raises SinkError."""
        self.key = Keys(options.prefix).correction
        self._place = Place(redis_client.address(options), "the fence of corrections and replays")
        self._budget = Budget(options.retry_for_ms, self._place)
        self._client = redis_client.client(options)
        self.number = secrets.randbits(62)
        self._budget.attempt(lambda: self._client.set(self.key, self.number))

    def check(self) -> None:
        """Raise FencedError when another run has begun since."""
        now = self._budget.attempt(lambda: self._client.get(self.key))
        if now is None or int(now) != self.number:
            newest = "gone" if now is None else int(now)
            what = f"{self._place}: another correction or replay has begun: the number is {newest}, ours {self.number}"
            raise FencedError(what, remedy=_REMEDY)

    def close(self) -> None:
        self._client.close()

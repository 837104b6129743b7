"""The fence of commands that apply rejects (corrections and replays): only the run that began last may continue.

Each run writes a random number to Redis when it begins, and an older run finds another number in its next step. The fence needs
no renewal and no wait: a killed run blocks no other run. A counter would begin again in a Redis that lost its data, and an
older run could find its own number there.
"""

import secrets

from service.errors import FencedError
from service.redis import client as redis_client
from service.redis.keys import Keys
from service.redis.link import Budget, Place
from service.settings import Redis

_REMEDY = (
    "Only one may run at a time. The other run finishes what this one has begun; run the command again for the rest"
)


class Fence:
    """The fence of one run; `number` is the run's own."""

    def __init__(self, options: Redis) -> None:
        """Fence every run that began earlier. Raises SinkError."""
        self.key = Keys(options.prefix).correction
        self._place = Place(redis_client.address(options), "the fence of corrections and replays")
        self._budget = Budget(options.retry_for_ms, self._place)
        self._client = redis_client.client(options)
        self.number = secrets.randbits(62)
        self._budget.attempt(lambda: self._client.set(self.key, self.number))

    def check(self) -> None:
        """Raise FencedError if another run has begun since."""
        stored = self._budget.attempt(lambda: self._client.get(self.key))
        if stored is None or int(stored) != self.number:
            newest = "gone" if stored is None else int(stored)
            what = f"{self._place}: another correction or replay has begun: the number is {newest}, not {self.number}"
            raise FencedError(what, remedy=_REMEDY)

    def close(self) -> None:
        self._client.close()

"""Evictions: Redis removes keys when it is full, unless its maxmemory-policy is noeviction, and no command fails.

A key that was evicted is lost data. When no further one was evicted for some seconds, the mark `<prefix>:republish` is set, and
service/recompute/republish.py publishes the values again. The key `<prefix>:evicted` has the run of Redis, and its number of
evicted keys at the last repair: evictions while no service ran are found, too. The number is that of all prefixes in this Redis.

If Redis evicts what is published again, it has no room for all values. Each repair then waits twice as long as the one before.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from service import clock
from service.monitoring.resource_metrics import StoreMetrics
from service.recompute.republish import ASKED, mark
from service.redis.keys import Keys

NEVER = "noeviction"
SHORTEST_S, LONGEST_S = 10.0, 3_600.0
"""Between the beginnings of two repairs."""
_REMEDY = "Set maxmemory-policy noeviction, and raise maxmemory or lower the views' retain"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Evictions:
    """Evictions of a shard. Call `look` every few seconds; it calls `on_loss` when it finds new evictions."""

    client: Any
    keys: Keys
    address: str
    shard: str
    metrics: StoreMetrics
    on_loss: Callable[[], object]
    _policy: str = NEVER
    _run: str = ""
    _total: int = 0
    _is_named: bool = False
    _grown_s: float = -math.inf
    _asked_s: float = -math.inf
    _pause_s: float = SHORTEST_S

    def look(self, information: Mapping[str, Any]) -> None:
        """Compare Redis's answer to INFO with the last one. Raises redis.RedisError."""
        policy, run = str(information.get("maxmemory_policy", NEVER)), str(information.get("run_id"))
        total, now_s = int(information.get("evicted_keys", 0)), clock.monotonic_s()
        self.metrics.redis_evicts.labels(self.shard).set(policy != NEVER)
        if policy not in {self._policy, NEVER}:
            text = "Redis at %s has maxmemory-policy %s: when it is full, it drops values and no write fails. %s"
            _log.warning(text, self.address, policy, _REMEDY)
        self._policy = policy
        repaired = self._repaired(run, total)
        former = self._total if run == self._run else repaired
        self._run, self._total = run, total
        if total > former:
            self._grown_s = now_s
            self._count(total - former)
        elif total > repaired and now_s - self._asked_s >= self._pause_s:
            self._repair(now_s)
        if now_s - self._grown_s >= LONGEST_S:
            self._pause_s = SHORTEST_S

    def _repaired(self, run: str, total: int) -> int:
        """Return the number of evicted keys up to which values were published again."""
        noted_run, _, number = (self.client.get(self.keys.evicted) or "").partition(" ")
        if noted_run == run:
            return int(number)
        # Another run of Redis counts from 0. One that evicts nothing may have done so for other programs in the past.
        return 0 if self._policy != NEVER else total

    def _count(self, number: int) -> None:
        self.metrics.redis_evicted.labels(self.shard).inc(number)
        self.on_loss()
        if not self._is_named:
            text = (
                "Redis at %s has evicted %d keys: values are lost. They are published again when it evicts no more. %s"
            )
            _log.warning(text, self.address, number, _REMEDY)
        self._is_named = True

    def _repair(self, now_s: float) -> None:
        """Set the mark, unless one is set: then values may be read already that were evicted meanwhile."""
        if self.client.set(self.keys.republish, mark(ASKED), nx=True):
            self.client.set(self.keys.evicted, f"{self._run} {self._total}")
            self._asked_s, self._pause_s = now_s, min(2 * self._pause_s, LONGEST_S)
            self._is_named = False

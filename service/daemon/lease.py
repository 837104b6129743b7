"""The lease: at most one writer is live, and every term has an epoch of its own.

The lease (`<prefix>:lease`, expires) decides which writer may start. The epoch (`<prefix>:epoch`, does not expire, only grows) is
the fencing token: publish.lua refuses every other epoch, so a writer that was frozen or cut off cannot write, even while it
takes the lease for its own. One script changes both in Redis.

With several shards, the lease is in the first one. Its holder then puts the epoch into the others, and begins its term when all
have it: each shard refuses the former writer for itself.
"""

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from service import clock
from service.daemon import owner
from service.errors import FencedError, TidemarkError
from service.redis import client as redis_client
from service.redis.keys import Keys, shards
from service.redis.link import Budget, EpochLostError, Place, WritesLostError
from service.settings import Settings
from service.threads import Thread

_log = logging.getLogger(__name__)

# KEYS lease, epoch, progress; ARGV token, ttl in ms, least epoch, a token whose holder is gone.
# Returns {1, epoch} or {0, holder, ms left}. The epoch in progress counts, too, because the key of the epoch may be lost.
# A key that does not expire is free: tools that move keys to another Redis drop times to live, and no holder sets it so.
_ACQUIRE = """
local holder, left_ms = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
if holder and left_ms >= 0 and holder ~= ARGV[1] and holder ~= ARGV[4] then return {0, holder, left_ms} end
local epoch = math.max(
  tonumber(redis.call('GET', KEYS[2]) or 0), tonumber(redis.call('HGET', KEYS[3], 'epoch') or 0), tonumber(ARGV[3])) + 1
redis.call('SET', KEYS[2], string.format('%d', epoch))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, epoch}
"""

# KEYS lease, epoch, progress; ARGV token, ttl in ms or '' for a shard without the lease, epoch, epoch and batch that progress
# has reached or ''. Returns 'kept', or why not. An expired lease is taken again if the epoch is the same, because then no
# other writer has acquired it.
_RENEW = """
local holder, epoch = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
if epoch ~= ARGV[3] then return 'the epoch is ' .. (epoch or 'gone') end
if holder and holder ~= ARGV[1] then return holder .. ' holds it' end
if ARGV[4] ~= '' then
  local reached = redis.call('HMGET', KEYS[3], 'epoch', 'batch')
  local reached_epoch, reached_batch = tonumber(reached[1] or nil), tonumber(reached[2] or nil)
  if not (reached_epoch and reached_batch) then return 'progress is gone' end
  if reached_epoch < tonumber(ARGV[4]) or (reached_epoch == tonumber(ARGV[4]) and reached_batch < tonumber(ARGV[5])) then
    return 'progress is at batch ' .. reached_batch .. ' of epoch ' .. reached_epoch
  end
end
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return 'kept'
"""

# KEYS epoch, progress of another shard; ARGV epoch. Returns the epoch that was there, and replaces a smaller one.
_FOLLOW = """
local stored = math.max(
  tonumber(redis.call('GET', KEYS[1]) or 0), tonumber(redis.call('HGET', KEYS[2], 'epoch') or 0))
if stored < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return stored
"""

# KEYS lease; ARGV token. Returns 1 when the token held the lease.
_RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The current holder of the lease, and when the lease expires if it is not renewed."""

    holder: str
    remaining_ms: int


class Lease:
    """The lease of one writer.

        lease = Lease(settings, owner.here())
        epoch = lease.acquire(on_wait, stop)    # None when `stop` was set first
        ...                                     # end when lease.lost is set; lease.reason says why
        lease.release()

    The renewal thread sets `lost` when another writer holds the lease, the epoch is another one or gone, or progress is gone
    or behind `reached`, the (epoch, batch) that the writer sets. It does not set `lost` while Redis is away: no writer can
    publish then, and afterwards the epoch decides.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        self._options = settings.redis
        self._ttl_ms = settings.service.lease_ms
        self._shards = shards(settings.redis)
        # A restarted writer of the same name must wait for its former process, unless that process is known to be gone.
        self.token = f"{name}:{secrets.token_hex(4)}"
        self.epoch = 0
        self.reached: tuple[int, int] | None = None
        self.lost = threading.Event()
        self.reason = ""
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._clients: dict[Keys, Any] = {}

    def acquire(
        self,
        waiting: Callable[[Waiting], object] = lambda _: None,
        stop: threading.Event | None = None,
        at_least: int = 0,
    ) -> int | None:
        """Wait for the lease, begin a term and return its epoch; None when `stop` was set first.

        The epoch is larger than any before and than `at_least`, the last epoch that this process had, for a Redis that has come
        back empty. `waiting` is called each time another writer holds the lease. A lease whose holder is provably gone
        (service/daemon/owner.py) is free. May be called again after `lost`.
        Raises SinkError when Redis does not answer within a third of the lease, or redis.retry_for_ms if that is less.
        """
        self._stop_renewing()
        stop = stop or threading.Event()
        first, *others = self._shards
        gone = ""
        while not stop.is_set():
            ask = partial(self._eval, first, _ACQUIRE, _keys(first), self.token, self._ttl_ms, at_least, gone)
            reply = self._budget(first).attempt(ask)
            if reply[0]:
                self.epoch = int(reply[1])
                at_least = max((self._follow(keys) for keys in others), default=0)
                if at_least >= self.epoch:
                    continue  # the first shard has lost an epoch that a former writer may still use
                self.reached = None
                self._start_renewing()
                return self.epoch
            holder = reply[1].decode()
            if holder != gone and owner.is_gone(holder.rpartition(":")[0]):
                gone = holder
                continue
            remaining_ms = int(reply[2])
            waiting(Waiting(holder, remaining_ms))
            # At most a third of the ttl, because the lease may be released before it expires.
            stop.wait(max(min(remaining_ms, self._ttl_ms / 3), 1) / 1000)
        return None

    def renew(self) -> bool:
        """Renew once, as the renewal thread does every third of the ttl; False when the lease is lost.

        Raises redis.RedisError or OSError when Redis does not answer.
        """
        reached, first, failure = self.reached or ("", ""), self._shards[0], None
        deadline_s = clock.monotonic_s() + self._ttl_ms / 3000
        for keys in self._shards:
            if clock.monotonic_s() > deadline_s:
                break  # more calls could make the next renewal too late; each call checks its own shard
            ttl_ms = self._ttl_ms if keys is first else ""
            try:
                reply = self._eval(keys, _RENEW, _keys(keys), self.token, ttl_ms, self.epoch, *reached)
            except (RedisError, OSError) as error:
                failure = failure or error  # the other shards are still renewed
                continue
            if reply != b"kept":
                self.reason = reply.decode()
                self.lost.set()
                break
        if failure is not None and not self.lost.is_set():
            raise failure
        return not self.lost.is_set()

    def confirm(self) -> bool:
        """Renew once, with retries; raises SinkError when Redis does not answer."""
        return self._budget(self._shards[0]).attempt(self.renew)

    def loss(self) -> TidemarkError:
        """The error of a lost lease: `reason` tells a loss of data in Redis from a newer writer."""
        what = f"Redis has lost data: {self.reason}, it was"
        remedy = "Acquire the lease again, then replay the batch"
        epoch = self.reason.removeprefix("the epoch is ")
        if epoch != self.reason and (epoch == "gone" or (epoch.isdecimal() and int(epoch) < self.epoch)):
            return EpochLostError(f"{what} {self.epoch}", remedy=remedy)
        if self.reason.startswith("progress is "):
            return WritesLostError(f"{what} at {self.reached}", remedy=remedy)
        what = f"The lease of epoch {self.epoch} is lost: {self.reason}"
        return FencedError(what, remedy="Another writer has taken over: this one must end")

    def release(self) -> bool:
        """End the term, so that the next writer need not wait; False when the lease was lost or Redis is away."""
        self._stop_renewing()
        try:
            first = self._shards[0]
            return bool(self._eval(first, _RELEASE, [first.lease], self.token))
        except (RedisError, OSError):
            return False
        finally:
            for shard in self._shards:
                self._drop(shard)

    def _follow(self, keys: Keys) -> int:
        """Put the epoch into another shard if it is larger than what was there, which is returned."""
        ask = partial(self._eval, keys, _FOLLOW, [keys.epoch, keys.progress], self.epoch)
        return int(self._budget(keys).attempt(ask))

    def _budget(self, keys: Keys) -> Budget:
        # Short, because the callers retry, and check between two calls whether to stop.
        place = Place(redis_client.address(self._options, keys), "the lease")
        return Budget(min(self._options.retry_for_ms, self._ttl_ms // 3), place)

    def _eval(self, shard: Keys, script: str, keys: list[str], *arguments: str | int) -> Any:
        client = self._clients.get(shard)
        if client is None:
            # The lease must not expire during one call.
            timeout_ms = min(self._options.timeout_ms, self._ttl_ms // (1 if shard is self._shards[0] else 3))
            options = self._options.model_copy(update={"timeout_ms": timeout_ms})
            client = self._clients[shard] = redis_client.client(options, shard)
        try:
            return client.eval(script, len(keys), *keys, *arguments)
        except (RedisError, OSError):
            self._drop(shard)
            raise

    def _drop(self, shard: Keys) -> None:
        client = self._clients.pop(shard, None)
        if client is not None:
            client.close()

    def _start_renewing(self) -> None:
        self.lost.clear()
        self.reason = ""
        self._done = threading.Event()
        self._thread = Thread(target=self._keep_renewing, args=(self._done,), name="lease", daemon=True)
        self._thread.start()

    def _stop_renewing(self) -> None:
        self._done.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _keep_renewing(self, done: threading.Event) -> None:
        while not done.wait(self._ttl_ms / 3000):
            try:
                if not self.renew():
                    return
            except Exception as error:  # Redis is away, which does not lose the lease
                # Another thread may have closed the client: redis-py (8.1) then raises an AttributeError.
                _log.debug("The lease is not renewed: %s. The next attempt follows", error)


def _keys(shard: Keys) -> list[str]:
    return [shard.lease, shard.epoch, shard.progress]

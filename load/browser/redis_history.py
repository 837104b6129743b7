"""What Redis has held of some keys during the last seconds: a page under load may show any of it, and nothing else."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import redis

from load.servers.server_process import PATIENCE, Repeated

EVERY_S = 0.04
KEPT_S = 10.0 * PATIENCE
"""A page may be as old as that: a batch of a second, a rendering of a second, and a busy machine."""

Hash = Mapping[str, str]


class RedisHistory(Repeated):
    """Reads the hashes of `keys` again and again in a thread of its own, and keeps each version for KEPT_S."""

    def __init__(self, client: Any, keys: Iterable[str]) -> None:
        super().__init__(EVERY_S, self._look)
        self._client, self._keys = client, list(keys)
        self._versions: dict[str, deque[tuple[float, Hash]]] = defaultdict(deque)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Read once, and again and again from then on."""
        self._read()
        super().start()

    def add(self, keys: Iterable[str]) -> None:
        """Read these keys, too, from now on."""
        with self._lock:
            self._keys += [key for key in dict.fromkeys(keys) if key not in self._keys]
        self._read()

    def versions(self, key: str) -> list[Hash]:
        """Return the versions of a key, the newest last; an empty one where there was no such key."""
        with self._lock:
            return [held for _, held in self._versions[key]]

    def _look(self) -> None:
        with suppress(redis.TimeoutError):  # a step pauses Redis: nothing changes there meanwhile
            self._read()

    def _read(self) -> None:
        with self._lock:
            keys = list(self._keys)
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.hgetall(key)
        answers = pipe.execute()
        now = time.monotonic()
        with self._lock:
            for key, held in zip(keys, answers, strict=True):
                kept = self._versions[key]
                if not kept or kept[-1][1] != held:
                    kept.append((now, held))
                while len(kept) > 1 and kept[1][0] < now - KEPT_S:
                    kept.popleft()

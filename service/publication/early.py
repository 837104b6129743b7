"""Early readings by device, on their way to Redis: a device that has many of them has a clock that is ahead.

They are counted where rejects pass anyway, and kept in the device's hash: `early`, `early.at` (the broker's time of the last
one), `early.ahead` (ms), and `skewed` from `admission.skewed_after` of them on. That is a diagnosis, not a result: it survives
restarts, and begins anew in a Redis that has lost it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.redis.keys import Keys
from service.settings import Settings


@dataclass(slots=True)
class _Device:
    count: int
    first_ms: int
    last_ms: int
    ahead_ms: int


@dataclass(slots=True)
class Early:
    """A batch's early readings; those of one device must be taken by one of these."""

    _devices: dict[str, _Device] = field(default_factory=dict)

    def take(self, reject: Mapping[str, Any]) -> None:
        """A row of row_schemas.REJECT_TYPE, whatever its reason."""
        device, at_ms, ahead_ms = reject.get("device"), reject["broker_ms"], reject.get("ahead_ms")
        if device is None or ahead_ms is None:
            return
        known = self._devices.get(device)
        if known is None:
            self._devices[device] = _Device(1, at_ms, at_ms, ahead_ms)
            return
        known.count += 1
        known.first_ms = min(known.first_ms, at_ms)
        if at_ms >= known.last_ms:
            known.last_ms, known.ahead_ms = at_ms, ahead_ms

    def calls(self, keys: Keys, settings: Settings) -> Iterator[dict[str, Any]]:
        """Arguments of publish.lua's step `early`."""
        names, size = list(self._devices), settings.redis.chunk
        for start in range(0, len(names), size):
            part = names[start : start + size]
            found = [self._devices[name] for name in part]
            yield {
                "keys": [keys.device(name) for name in part],
                "members": part,
                "counts": [each.count for each in found],
                "first": [each.first_ms for each in found],
                "last": [each.last_ms for each in found],
                "ahead": [each.ahead_ms for each in found],
                "ttl": settings.sessions.retain_ms,
                "threshold": settings.admission.skewed_after,
                "within": settings.admission.skewed_for_ms,
            }

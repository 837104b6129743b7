"""Count early readings by device, and those that are ahead: a device with many of them has a clock that is ahead.

The sink counts them while it copies rejects. The device hash has `early`, `early.at` (the broker's time of the last early
reading, or the batch's if that is earlier), `early.ahead` (ms), and `skewed` from `admission.skewed_after` early readings on.
The counts survive restarts of the service. They are a diagnosis, not a result: after Redis has lost them, they begin at 0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.redis.keys import shard_of, shards
from service.settings import Settings


@dataclass(slots=True)
class _Device:
    count: int
    first_ms: int
    last_ms: int
    ahead_ms: int


@dataclass(slots=True)
class Early:
    """The early readings of a part of a batch. All early readings of a device must be in the same part."""

    _devices: dict[str, _Device] = field(default_factory=dict)

    def take(self, reject: Mapping[str, Any], planned_ms: int = 0) -> None:
        """Count a row of row_schemas.REJECT_TYPE if it is a reading from the future, in a batch that was planned at that time."""
        name, at_ms, reason = reject.get("device"), reject["broker_ms"], reject["reason"]
        if name is None or reason not in {"early", "ahead"}:
            return
        ahead_ms = reject["event_ms"] - at_ms if reason == "early" else at_ms - planned_ms
        if planned_ms:
            at_ms = min(at_ms, planned_ms)  # a mark by a time in the future would stay until then
        device = self._devices.setdefault(name, _Device(0, at_ms, at_ms, ahead_ms))
        device.count += 1
        device.first_ms = min(device.first_ms, at_ms)
        if at_ms >= device.last_ms:
            device.last_ms, device.ahead_ms = at_ms, ahead_ms

    def calls(self, shard: int, settings: Settings) -> Iterator[dict[str, Any]]:
        """Arguments of publish.lua's step `early`, for each chunk of a shard's devices."""
        keys, count, size = shards(settings.redis)[shard], settings.redis.shards, settings.redis.chunk
        names = [name for name in self._devices if shard_of(name, count) == shard]
        for start in range(0, len(names), size):
            part = names[start : start + size]
            devices = [self._devices[name] for name in part]
            yield {
                "keys": [keys.device(name) for name in part],
                "members": part,
                "counts": [device.count for device in devices],
                "first": [device.first_ms for device in devices],
                "last": [device.last_ms for device in devices],
                "ahead": [device.ahead_ms for device in devices],
                "ttl": settings.sessions.retain_ms,
                "threshold": settings.admission.skewed_after,
                "within": settings.admission.skewed_for_ms,
            }

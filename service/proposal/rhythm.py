"""How often a device sends, and how long it pauses: the gaps between the event times of its readings."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from service.proposal.columns import Seen

_ENOUGH = 20
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_ROUND = (
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 20, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 20, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    _DAY,
)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Gaps within devices in ms: the median and the 99th percentile of `gaps` of them; 0 without gaps.

    `is_enough` is false if most devices have one reading in the sample: then longer gaps are missing in it.
    """

    median_ms: int
    long_ms: int
    gaps: int
    is_enough: bool


def rhythm(devices: Sequence[object], event_ms: Sequence[int | None], sample: Sequence[Seen]) -> Rhythm:
    """Return the rhythm of a sample's readings.

    Each partition contributes its newest records. The gaps of a device with readings in several partitions are taken from the
    time that all these partitions cover.
    """
    first: dict[tuple[str, int], int] = {}
    readings: dict[object, list[tuple[int, tuple[str, int], int]]] = defaultdict(list)
    for device, at_ms, seen in zip(devices, event_ms, sample, strict=True):
        first[seen.partition] = min(first.get(seen.partition, seen.broker_ms), seen.broker_ms)
        if device is not None and at_ms is not None:
            readings[device].append((at_ms, seen.partition, seen.broker_ms))
    gaps: list[int] = []
    several = 0
    for each in readings.values():
        since_ms = max(first[place] for _, place, _ in each) if len({place for _, place, _ in each}) > 1 else 0
        times = sorted({at_ms for at_ms, _, broker_ms in each if broker_ms >= since_ms})
        gaps += [later - earlier for earlier, later in pairwise(times)]
        several += len(times) > 1
    if not gaps:
        return Rhythm(0, 0, 0, is_enough=False)
    gaps.sort()
    is_enough = len(gaps) >= _ENOUGH and several >= len(readings) / 2
    return Rhythm(gaps[len(gaps) // 2], gaps[int(0.99 * (len(gaps) - 1))], len(gaps), is_enough)


def round_up(ms: float) -> int:
    """Return the first duration that people use and that is not shorter: 1, 2, 5, 10, 15, 20, 30 s or min, ..., at most a day."""
    return next((each for each in _ROUND if each >= ms), _DAY)

"""Back-pressure: how many records the next batch may have, from the time that the last batches took.

A line through the last RECENT measured batches, of seconds over records, gives a batch's fixed cost and the cost of a record. One
batch that was slow by itself does not move it. The limit is the number of records with which a batch takes
`service.target_batch`. Where the fixed cost is more than half of the target, it is the number with which a batch takes twice the
fixed cost: smaller ones would lower the throughput for little time. The same is computed over bytes, for records as large as the
largest of the last batches, and the smaller limit counts.

Measured is a batch that reached its limit, or that took longer than the target. Other batches have read all that there was: they
leave the limit as it is. It at most doubles from one batch to the next, and never exceeds `kafka.max_per_batch`.

A process begins with FIRST. Its first COLD batches compile the JVM's code, import Python's modules and read the state. Each is
faster than the one before, so a line through them misleads. The first batch is not kept, and the limit is at least that of
`_of_cold`.
docs/decisions/0031-batches-by-time.md has the figures.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations

from service.settings import Settings

FIRST = 100_000
"""Records in the first batch of a process."""
LEAST = 1_000
"""Records that a batch may always have."""
COLD = 8
"""The batches at the start of a process that are taken for cold."""
COLD_LEAST = 10_000
"""Records that a batch may have after a cold one of up to _COLD_SLOWNESS targets, whatever it had."""
_COLD_SLOWNESS = 4.0
"""How many times as slow as the second batch the first one may be."""
_COLD_TARGET = 1.5
"""Targets that a batch may take by the rate of the cold one before it."""
GROWTH = 2
"""The largest ratio of two successive limits, above COLD_LEAST."""
RECENT = 8
"""Measured batches that count."""
_WEIGHT = 0.9
"""The weight of a batch, over that of the one after it."""
_ALIKE, _OTHER = 0.7, 2.0
"""A batch with as much to do, give or take 30 %, in less than half of the time was of another time of the machine."""
_SLOW_BY_ITSELF = 1.5
"""Times what the line says that a batch takes, if it was slow by itself."""
_SPREAD = 0.1
"""The relative deviation of sizes below which they say nothing of the fixed cost."""
_LEAST_SLOPE = 0.25
"""The share of a mean batch that its records cost at least: at most the rest of it is taken for fixed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a batch took: `bytes` are those of the records' keys and values."""

    records: int
    bytes: int
    seconds: float

    @property
    def record_bytes(self) -> float:
        """The mean size of a record."""
        return self.bytes / self.records

    def is_refuted_by(self, later: "Measured") -> bool:
        """Whether a later batch took more than twice as long with no more to do."""
        is_alike = self.records >= _ALIKE * later.records and self.bytes >= _ALIKE * later.bytes
        return is_alike and later.seconds > _OTHER * self.seconds


@dataclass(slots=True)
class BatchLimit:
    """The limit of the next batch. It lives as long as the process, over restarts of the query."""

    ceiling: int
    target_s: float
    """0 for no back-pressure: the limit is the ceiling."""
    records: int = field(init=False)
    _batches: int = field(default=0, init=False)
    """Batches with records of this process."""
    _recent: deque[Measured] = field(default_factory=lambda: deque(maxlen=RECENT), init=False)

    def __post_init__(self) -> None:
        self.records = min(FIRST, self.ceiling) if self.target_s else self.ceiling

    @classmethod
    def of(cls, settings: Settings) -> "BatchLimit":
        """Return the limit of a process that starts. A trigger longer than the target is the target: a batch may fill it."""
        service = settings.service
        target_ms = max(service.target_batch_ms, service.trigger_ms) if service.target_batch_ms else 0
        return cls(settings.kafka.max_per_batch, target_ms / 1000)

    def measure(self, batch: Measured, *, is_full: bool) -> None:
        """Set the limit of the next batch after `batch`; `is_full` says that it reached its limit."""
        if not self.target_s or not batch.records:
            return
        self._batches += 1
        if not (is_full or batch.seconds > self.target_s):
            return
        wanted = self._of_cold(batch)
        if self._batches > 1:
            wanted = max(wanted, self._of_recent(batch))
        wanted = min(wanted, GROWTH * batch.records)
        if self._batches <= COLD and self.target_s < batch.seconds <= _COLD_SLOWNESS * self.target_s:
            wanted = max(wanted, COLD_LEAST)
        self.records = min(self.ceiling, max(LEAST, int(wanted)))

    def _of_recent(self, batch: Measured) -> float:
        """Keep `batch`, and return the limit by the batches that are kept."""
        kept = [each for each in self._recent if not each.is_refuted_by(batch)]
        self._recent = deque([*kept, batch], RECENT)
        wanted = amount(self.target_s, [(each.records, each.seconds) for each in self._recent])
        largest = max(each.record_bytes for each in self._recent)
        if largest:
            of_bytes = amount(self.target_s, [(each.bytes, each.seconds) for each in self._recent])
            wanted = min(wanted, of_bytes / largest)
        return wanted

    def _of_cold(self, batch: Measured) -> float:
        """Return the limit by the rate of `batch` alone, 0 for a process that is warm.

        The first batch may have been _COLD_SLOWNESS times as slow as the next one will be, and the next one is not larger if
        the first one took longer than the target.
        """
        if self._batches > COLD:
            return 0.0
        ratio = self.target_s / batch.seconds
        first = min(1.0, _COLD_SLOWNESS * ratio) if self._batches == 1 else 0.0
        largest = max((each.record_bytes for each in self._recent), default=0.0)
        share = batch.record_bytes / largest if largest > batch.record_bytes else 1.0
        return max(first, _COLD_TARGET * ratio) * batch.records * share


def amount(target_s: float, batches: Sequence[tuple[float, float]]) -> float:
    """Return how much a batch may have to take the target, or twice its fixed cost, from (amount, seconds), the newest last.

    The slope of the line is the median of those between two batches, weighted by their distance, and the fixed cost the median
    of what it leaves: a batch that was slow by itself moves them little. Where all amounts are alike, the fixed cost is 0.
    After a batch that took far longer than the line says it is at most what that one had.
    """
    weighted = [(_WEIGHT**age, *batch) for age, batch in enumerate(reversed(batches))]
    total = sum(weight for weight, _, _ in weighted)
    mean = sum(weight * size for weight, size, _ in weighted) / total
    of_one_s = sum(weight * seconds for weight, _, seconds in weighted) / total / mean
    if sum(weight * (size - mean) ** 2 for weight, size, _ in weighted) <= total * (_SPREAD * mean) ** 2:
        return target_s / of_one_s
    slope_s = _median(
        [
            (weight * of_other * abs(other - size), (other_s - seconds) / (other - size))
            for (weight, size, seconds), (of_other, other, other_s) in combinations(weighted, 2)
            if other != size
        ]
    )
    slope_s = min(max(slope_s, _LEAST_SLOPE * of_one_s), of_one_s)
    fixed_s = max(0.0, _median([(weight, seconds - slope_s * size) for weight, size, seconds in weighted]))
    wanted = max(target_s - fixed_s, fixed_s) / slope_s
    _, newest, newest_s = weighted[0]
    return min(wanted, newest) if newest_s > _SLOW_BY_ITSELF * (fixed_s + slope_s * newest) else wanted


def _median(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the median of (weight, value)."""
    ascending = sorted(weighted, key=lambda each: each[1])
    weights = accumulate(weight for weight, _ in ascending)
    half = sum(weight for weight, _ in ascending) / 2
    return next(value for (_, value), below in zip(ascending, weights, strict=True) if below >= half)

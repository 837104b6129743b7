"""The nemesis's dice: all that is random in a row comes from its seed, so a seed names a schedule."""

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class Nemesis:
    """Random choices of one run; the same seed and the same questions give the same answers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pauses(self, count: int, mean_s: float) -> Iterator[float]:
        """`count` times to wait before the next fault: exponential, as of events that know nothing of each other.

        None is longer than three times the mean: a run has an end.
        """
        for _ in range(count):
            yield min(self._random.expovariate(1 / mean_s), 3 * mean_s)

    def between(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def pick(self, choices: Sequence[T]) -> T:
        return self._random.choice(choices)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return self._random.sample(items, len(items))

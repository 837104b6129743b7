"""How a soak tells a leak from noise and from a restart."""

import random
from typing import Any

from load.faults.slopes import fit, slopes


def life(batches: range, level: float, per_batch: float, noise: float, seed: int) -> list[tuple[float, float]]:
    chance = random.Random(seed)
    return [(batch, level + per_batch * batch + chance.uniform(-noise, noise)) for batch in batches]


def test_a_leak_is_found_below_noise_and_across_restarts() -> None:
    lives = [life(range(0, 400, 4), 300, 0.05, 20, 1), life(range(400, 800, 4), 100, 0.05, 20, 2)]
    found = fit(lives)
    assert found is not None
    assert abs(found.per_1000_batches - 50) < 3 * found.error
    assert not found.is_zero


def test_noise_and_the_levels_of_new_processes_are_no_leak() -> None:
    found = fit([life(range(0, 400, 4), 300, 0, 20, 3), life(range(400, 800, 4), 900, 0, 20, 4)])
    assert found is not None
    assert found.is_zero


def test_the_growth_of_the_first_minutes_is_left_out() -> None:
    warming = [(float(batch), 100.0 + min(batch, 15) * 10) for batch in range(100)]
    found = fit([warming])
    assert found is not None
    assert found.per_1000_batches == 0


def test_lives_that_are_too_short_say_nothing() -> None:
    assert fit([[(float(batch), 1.0) for batch in range(9)]]) is None
    entry: dict[str, Any] = {"what": "sample", "epoch": 1, "batch": 3, "values": {"open_files": float("nan")}}
    assert slopes([entry] * 20) == {}

"""Random walks through the service behind decoding: twenty of them, or the first five, always the same.

`make walks SEED=7 WALKS=20` makes them again, and shrinks one that fails. Without WALKS it makes 200.
"""

from pathlib import Path

import pytest

from load.servers.redis import Redis
from load.walks.__main__ import walk

pytestmark = pytest.mark.integration

SEED = 7


@pytest.mark.parametrize("walks", [5, pytest.param(20, marks=pytest.mark.thorough)])
def test_a_random_walk_ends_as_plain_lists_say(tmp_path: Path, walks: int) -> None:
    with Redis(tmp_path) as redis:  # walks empty it
        counted = walk(redis, SEED, walks, shrinks=False)
    assert counted["walks"] >= walks

"""`make peers` on real parts, with few records: every engine computes the oracle's values."""

from argparse import Namespace
from pathlib import Path

import pytest

from load.peers.__main__ import TIDEMARK, is_right, run
from load.peers.engines import PEERS

pytestmark = [pytest.mark.end_to_end, pytest.mark.thorough]


def test_tidemark_and_its_peers_have_the_values_of_the_oracle(tmp_path: Path) -> None:
    report = run(Namespace(readings=20_000, devices=200, seed=7, only=None), tmp_path)
    assert is_right(report), report
    assert list(report["engines"]) == [TIDEMARK, *PEERS]

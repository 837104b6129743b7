"""The error of a lost lease: a loss of data in Redis begins a new term, a newer writer ends this one."""

from pathlib import Path

import pytest

from service.daemon.lease import Lease
from service.errors import FencedError, TidemarkError
from service.redis.link import EpochLostError, WritesLostError
from tests.stream.records import make_settings


@pytest.mark.parametrize(
    ("reason", "family"),
    [
        ("the epoch is gone", EpochLostError),
        ("the epoch is 6", EpochLostError),
        ("the epoch is 8", FencedError),
        ("progress is gone", WritesLostError),
        ("progress is at batch 3 of epoch 7", WritesLostError),
        ("host-2:1:2:3 holds it", FencedError),
    ],
)
def test_the_reason_of_a_lost_lease_names_its_error(tmp_path: Path, reason: str, family: type[TidemarkError]) -> None:
    lease = Lease(make_settings(tmp_path), "host-1")
    lease.epoch, lease.reached, lease.reason = 7, (7, 4), reason
    error = lease.loss()
    assert type(error) is family
    assert reason in error.what

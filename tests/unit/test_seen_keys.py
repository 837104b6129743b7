"""The keys that were seen, in the checkpoint: restarts, repeated batches, other workers, and files that are damaged."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from service.aggregation import seen_keys
from service.aggregation.seen_keys import MAX_DELTAS, Place, SeenKeys
from service.errors import CheckpointError
from state import duplicates


def table(seconds: Iterable[int], offset: int = 0) -> pa.Table:
    second = np.array(list(seconds), np.int64)
    offsets = np.arange(offset, offset + len(second))
    nothing = np.zeros_like(second)
    columns = [nothing, second, second, nothing, nothing.astype(np.int32), offsets]
    return pa.table(columns, schema=duplicates.SCHEMA)


class Keys:
    """A bucket in a checkpoint. `forget` is another worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def batch(
        self, number: int, seconds: Iterable[int], *, epoch: int = 1, floor: int = 0, dies: bool = False
    ) -> list[bool]:
        """Which keys of the batch are duplicates."""
        seen_keys.clear(self.folder, 1, number)
        seen = SeenKeys(self.folder, Place(number, epoch), floor)
        found, _ = seen.firsts(0, table(seconds, 1000 * number))
        if not dies:
            seen.write()
        return [bool(each) for each in found]

    def forget(self) -> None:
        seen_keys._CACHE.clear()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("distinct/0/*"))


@pytest.fixture
def bucket(tmp_path: Path) -> Keys:
    seen_keys._CACHE.clear()
    return Keys(tmp_path)


def test_a_key_is_a_duplicate_in_every_later_batch_of_any_worker(bucket: Keys) -> None:
    assert bucket.batch(0, [1, 2, 1]) == [False, False, True]
    assert bucket.batch(1, [2, 3]) == [True, False]
    bucket.forget()
    assert bucket.batch(2, [1, 2, 3, 4], epoch=2) == [True, True, True, False]


def test_a_batch_that_is_repeated_decides_the_same_whatever_its_first_attempt_wrote(bucket: Keys) -> None:
    bucket.batch(0, [1])
    assert bucket.batch(1, [1, 2, 7]) == [True, False, False]
    assert bucket.batch(1, [1, 2]) == [True, False], "with other settings the third reading was rejected"
    assert bucket.batch(2, [7, 2]) == [False, True]
    bucket.forget()
    assert bucket.batch(2, [7, 2], epoch=2) == [False, True]
    assert bucket.batch(3, [9], dies=True) == [False]
    assert bucket.batch(3, [9]) == [False]


def test_a_worker_that_kept_another_attempt_reads_again(bucket: Keys) -> None:
    bucket.batch(0, [1])
    bucket.batch(1, [5])
    stale = dict(seen_keys._CACHE)
    bucket.forget()
    bucket.batch(1, [6])
    seen_keys._CACHE.update(stale)
    assert bucket.batch(2, [5, 6, 1]) == [False, True, True]


def test_old_files_are_removed_and_the_rest_is_enough(bucket: Keys) -> None:
    batches = 5 * MAX_DELTAS
    for number in range(batches):
        assert bucket.batch(number, [number, max(0, number - 3)], floor=number - 50)[0] is False
    assert len(bucket.names()) < 3 * MAX_DELTAS + 6
    bucket.forget()
    assert bucket.batch(batches, [batches - 40, batches - 60], floor=batches - 50) == [True, False]


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:30] + b"x" + data[31:], lambda _: b""])
def test_a_damaged_file_is_named(bucket: Keys, change) -> None:
    bucket.batch(0, [1])
    bucket.batch(1, [2])
    (path,) = bucket.folder.glob("distinct/0/0-1.delta")
    path.write_bytes(change(path.read_bytes()))
    bucket.forget()
    with pytest.raises(CheckpointError, match=r"distinct/0/[01]-1.delta (is damaged|does not follow)"):
        bucket.batch(2, [3])


def test_what_an_attempt_wrote_goes_although_its_bucket_has_no_reading_any_more(bucket: Keys) -> None:
    bucket.batch(0, [1])
    bucket.batch(1, [5])
    seen_keys.clear(bucket.folder, 1, 1)
    assert bucket.batch(2, [5, 1]) == [False, True]

"""Sketches of sets of devices: the same bytes in any order and with any cuts, exact while small, close while large."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.judge.statistics import tolerance
from state import blobs, distinct
from tests.examples import examples

MANY = distinct.hashes(pa.array([f"device-{number:06d}" for number in range(100_000)]))


def sketch(devices):
    """The sketch of a set of hashes, each in a part of its own."""
    column = distinct.fold(np.array(sorted(devices), np.int64))
    return distinct.reduce(column, np.zeros(1, np.int64))


devices = st.sets(st.integers(0, 30), min_size=1, max_size=20)


@examples(100)
@given(st.lists(devices, min_size=1, max_size=8), st.randoms())
def test_merging_in_any_order_and_with_any_cuts_gives_the_same_bytes(parts, rng):
    (whole,) = sketch(set().union(*parts))
    rest = [sketch(part) for part in parts]
    while len(rest) > 1:
        rng.shuffle(rest)
        rest.append(blobs.pair(distinct.reduce, rest.pop(), rest.pop()))
    assert rest[0].tolist() == [whole]
    together = np.concatenate([sketch(part) for part in parts])
    assert distinct.reduce(together, np.zeros(1, np.int64)).tolist() == [whole]
    assert distinct.number(rest[0]).tolist() == [len(set().union(*parts))]


@pytest.mark.parametrize("count", [1, 2, 2_046, 2_047, 2_048, 2_049, 5_000, 100_000])
def test_the_number_is_exact_below_the_limit_and_close_above_it(count):
    (number,) = distinct.number(sketch(MANY[:count].tolist())).tolist()
    assert abs(number - count) <= tolerance("distinct", count)
    assert number == count or count >= distinct.MOST


def test_large_parts_that_overlap_merge_to_the_sketch_of_all_and_stay_bounded():
    rng = np.random.default_rng(7)
    parts = [rng.choice(MANY, 4_000, replace=False) for _ in range(20)]
    column = np.concatenate([sketch(part.tolist()) for part in parts])
    merged = distinct.reduce(column, np.zeros(1, np.int64))
    assert merged.tolist() == sketch(set(np.concatenate(parts).tolist())).tolist()
    assert len(merged[0]) == 8 * distinct.MOST
    pairs = blobs.pair(distinct.reduce, merged, column[:1])
    assert pairs.tolist() == merged.tolist()


def test_the_hash_of_a_device_is_the_one_that_states_have():
    assert distinct.hashes(pa.array(["a", "pump-7", "\u00e4|%"])).tolist() == [
        1702698405120146464,
        3704040315129199836,
        1884659865047380834,
    ]


def test_an_empty_list_is_no_device():
    column = np.empty(2, np.object_)
    column[:] = [b"", sketch([5])[0]]
    assert distinct.number(column).tolist() == [0, 1]
    assert distinct.reduce(column, np.array([0])).tolist() == [column[1]]
    assert len(blobs.pair(distinct.reduce, column[:0], column[:0])) == 0

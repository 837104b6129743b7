"""Sketches of values: the same bytes in any order and with any cuts, and quantiles within the error that the contract states."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.judge.statistics import PLAIN, tolerance
from state import blobs, quantiles
from tests.examples import examples

LARGEST = 1e140
SHARES = {"median": 50, "p95": 95, "p99": 99}

magnitudes = st.floats(-300, 140).map(lambda power: 10.0**power)
hostile = st.one_of(
    st.floats(-LARGEST, LARGEST),
    magnitudes,
    magnitudes.map(lambda value: -value),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 5e-324, -5e-324, 1e-300, LARGEST, -LARGEST]),
    st.floats(19.0, 25.0),
)
"""Values that admission lets through."""


def folded(groups):
    """The sketch of each group of values, as one task folds them."""
    counts = np.array([len(group) for group in groups])
    values = np.array([value for group in groups for value in group], np.float64)
    return quantiles.fold(values, np.cumsum(counts) - counts, counts)


def merged(sketches, rng):
    """The sketch of all of them, merged in a random order, some in pairs and some many at once."""
    rest = list(sketches)
    while len(rest) > 1:
        rng.shuffle(rest)
        many = rng.randint(2, len(rest))
        some, rest = rest[:many], rest[many:]
        column = np.empty(many, np.object_)
        column[:] = some
        if many == 2:
            (one,) = blobs.pair(quantiles.reduce, column[:1], column[1:])
        else:
            (one,) = quantiles.reduce(column, np.zeros(1, np.int64))
        rest.append(one)
    column = np.empty(1, np.object_)
    column[:] = rest
    return column


def error(level):
    """The largest share of itself by which a value at the end of a bin differs from that of the bin."""
    if level == 0:
        return 0.0
    ratio = 1 + 2.0 ** (level - 52) if level <= 52 else 2.0**2 ** (level - 52)
    return (ratio - 1) / (ratio + 1) + 1e-15


@examples(200)
@given(st.lists(st.lists(hostile, min_size=1, max_size=60), min_size=1, max_size=8), st.randoms())
def test_merging_in_any_order_and_with_any_cuts_gives_the_same_bytes(groups, rng):
    (whole,) = folded([[value for group in groups for value in group]])
    assert merged(folded(groups), rng).tolist() == [whole]


@examples(200)
@given(st.lists(hostile, min_size=1, max_size=200))
def test_a_quantile_is_within_the_error_of_its_level(values):
    sketch = quantiles.unpack(folded([values]))
    readings = [(0, value, "d") for value in values]
    for name, share in SHARES.items():
        right = PLAIN[name](readings)
        assert math.isclose(sketch.quantile(share).item(), right, rel_tol=error(sketch.level.item()), abs_tol=1e-307), (
            name
        )
    assert sketch.level.item() == (0 if len({value + 0.0 for value in values}) <= quantiles.EXACT else quantiles.COARSE)


@pytest.mark.parametrize(
    ("values", "level"),
    [
        (lambda rng: rng.normal(20, 3, 100_000), 46),
        (lambda rng: rng.normal(0, 1, 100_000), 46),
        (lambda rng: -rng.pareto(1.1, 100_000), 46),
        (lambda rng: rng.lognormal(0, 5, 100_000), 46),
        (lambda rng: np.repeat(rng.normal(20, 3, 20), 5_000), 0),
        (lambda rng: np.full(100_000, 1e-300), 0),
        (lambda rng: 10.0 ** rng.uniform(-300, 140, 100_000), 51),
        (lambda rng: rng.choice([-1.0, 1.0], 100_000) * 10.0 ** rng.uniform(-300, 140, 100_000), 52),
        (lambda rng: np.where(rng.random(100_000) < 0.5, 0.0, 10.0 ** rng.uniform(-300, -290, 100_000)), 46),
    ],
)
def test_a_hundred_thousand_values_keep_the_bound_of_their_level_and_a_bounded_size(values, level):
    rng = np.random.default_rng(5)
    values = values(rng)
    parts = np.array_split(values, 17)
    column = folded(parts)
    whole = quantiles.reduce(column, np.zeros(1, np.int64))
    assert whole.tolist() == folded([values]).tolist()
    assert len(whole[0]) <= 8 * (1 + 2 * quantiles.MOST)
    sketch = quantiles.unpack(whole)
    assert sketch.level.item() == level
    ordered = np.sort(values)
    for name, share in SHARES.items():
        right = ordered[-(-len(ordered) * share // 100) - 1]
        assert math.isclose(sketch.quantile(share).item(), right, rel_tol=error(level), abs_tol=1e-307)
        if level == quantiles.COARSE:
            assert math.isclose(sketch.quantile(share).item(), right, rel_tol=quantiles.ERROR)
            assert tolerance(name, 1.0) > quantiles.ERROR


def test_an_empty_list_is_a_sketch_without_values():
    column = np.empty(2, np.object_)
    column[:] = [b"", folded([[2.0, 4.0]])[0]]
    assert quantiles.reduce(column, np.array([0])).tolist() == [column[1]]
    found = quantiles.unpack(column).quantile(50)
    assert math.isnan(found[0])
    assert found[1] == 2.0
    assert blobs.pair(quantiles.reduce, column[:1], column[:1]).tolist() == [b""]
    assert len(blobs.pair(quantiles.reduce, column[:0], column[:0])) == 0

"""Mergeable statistics against the same computed in fractions, for any way of cutting the values into panes."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.settings import LARGEST
from state.moments import NAMES, split
from tests.states import finish

EPSILON = 2.0**-53


def merged(values, sizes, order=None):
    """(sum, mean, stddev) of values cut into panes of `sizes`, their parts added up one by one in `order`."""
    counts = np.array(sizes, np.int64)
    parts = split(np.array(values, np.float64), np.cumsum(counts) - counts, counts)
    sums = []
    for name in NAMES:
        column = getattr(parts, name)
        assert column.dtype == np.float64
        assert column.shape == counts.shape
        total = 0.0
        for index in order if order is not None else range(len(sizes)):
            total += float(column[index])
        sums.append(np.array([total]))
    total, mean, deviation = finish(np.array([len(values)]), *sums)
    return float(total[0]), float(mean[0]), float(deviation[0])


def exact(values):
    """(sum, mean, variance) as fractions, and the sum of all magnitudes, to which rounding is relative."""
    fractions = [Fraction(value) for value in values]
    total = sum(fractions, Fraction(0))
    mean = total / len(fractions)
    variance = sum(((value - mean) ** 2 for value in fractions), Fraction(0)) / len(fractions)
    return total, mean, variance, sum(map(abs, fractions), Fraction(0))


def assert_right(values, sizes, order=None):
    total, mean, deviation = merged(values, sizes, order)
    right_total, right_mean, right_variance, magnitude = exact(values)
    n, panes = len(values), len(sizes)
    # A rounding or two for each addition, of panes and inside them.
    slack = 4 * (n + panes) * EPSILON
    assert abs(Fraction(total) - right_total) <= magnitude * Fraction(slack) + Fraction(5e-324)
    assert abs(Fraction(mean) - right_mean) <= magnitude / n * Fraction(slack) + Fraction(5e-324)
    # Of n * mean^2 only the part 2^-16 below is ever rounded, however large the mean is beside the deviation.
    largest = max(map(abs, values))
    variance_slack = slack * (float(right_variance) + 2.0**-15 * largest * largest) + 1e-290
    assert abs(deviation * deviation - float(right_variance)) <= variance_slack


measured = st.floats(-1e12, 1e12, allow_nan=False, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-100)


@st.composite
def cut_values(draw):
    """Values, the sizes of their panes, and an order to add the panes up in."""
    values = draw(st.lists(measured, min_size=1, max_size=40))
    if draw(st.booleans()):  # values of one device lie close together
        base = draw(measured)
        values = [base + value / 1e12 for value in values]
    cuts = sorted(draw(st.sets(st.integers(1, len(values) - 1), max_size=12))) if len(values) > 1 else []
    sizes = np.diff([0, *cuts, len(values)]).tolist()
    return values, sizes, draw(st.permutations(range(len(sizes))))


@given(cut_values())
def test_any_cut_into_panes_merged_in_any_order_is_the_exact_recomputation(case):
    assert_right(*case)


@given(st.floats(-1e100, 1e100, allow_subnormal=False), st.integers(1, 50), st.integers(1, 5))
def test_one_value_again_and_again_is_its_own_mean_and_does_not_deviate(value, times, panes):
    _, mean, deviation = merged([value] * times * panes, [times] * panes)
    assert mean == pytest.approx(value, rel=1e-15)
    assert deviation <= abs(value) * 1e-9 + 1e-150  # below that, squares vanish


@pytest.mark.parametrize(
    ("mean", "stddev_is_right_to"), [(0.0, 1e-14), (1.0, 1e-14), (1e3, 1e-12), (1e6, 1e-8), (1e7, 1e-5), (1e8, 1e-3)]
)
def test_the_deviation_keeps_its_digits_beside_a_large_mean(mean, stddev_is_right_to):
    """Plain sums of squares leave four digits at a million and none at a hundred million."""
    for seed in range(5):
        rng = random.Random(seed)
        values = [mean * (1 + seed / 7) + rng.gauss(0, 1) for _ in range(2_000)]
        sizes = []
        while sum(sizes) < len(values):
            sizes.append(min(rng.randrange(1, 60), len(values) - sum(sizes)))
        total, merged_mean, deviation = merged(values, sizes)
        right_total, right_mean, right_variance, magnitude = exact(values)
        assert abs(deviation / math.sqrt(right_variance) - 1) < stddev_is_right_to, seed
        assert abs(Fraction(merged_mean) - right_mean) <= magnitude / len(values) * Fraction(4 * EPSILON)
        assert abs(Fraction(total) - right_total) <= magnitude * Fraction(4 * EPSILON)


def test_values_at_the_limit_of_a_measure_have_finite_numbers_however_many_there_are():
    total, mean, deviation = merged([LARGEST, -LARGEST, LARGEST, LARGEST] * 50, [100, 99, 1])
    assert (total, mean) == (pytest.approx(100 * LARGEST), pytest.approx(LARGEST / 2))
    assert deviation == pytest.approx(LARGEST * math.sqrt(0.75))
    parts = split(np.array([LARGEST]), np.array([0]), np.array([1]))
    many = 10**12  # of one value: a week of a million readings a second
    sums = [many * getattr(parts, name) for name in NAMES]
    assert np.isfinite(finish(np.array([many]), *sums)).all()


def test_groups_do_not_touch_each_other():
    values = np.array([1.0, 3.0, 1e9, 1e9 + 2, -5.0])
    counts = np.array([2, 2, 1])
    parts = split(values, np.array([0, 2, 4]), counts)
    total, mean, deviation = finish(counts, *[getattr(parts, name) for name in NAMES])
    assert total.tolist() == [4.0, 2e9 + 2, -5.0]
    assert mean.tolist() == [2.0, 1e9 + 1, -5.0]
    assert deviation.tolist() == pytest.approx([1.0, 1.0, 0.0], abs=1e-3)


def test_rounding_never_gives_the_root_of_a_negative_number():
    with np.errstate(all="raise"):
        _, _, deviation = finish(*[np.array([x]) for x in (3, 0.3, 0.0, 0.03 - 1e-17, 0.0, 0.0)])
    assert deviation.tolist() == [pytest.approx(0.0, abs=1e-8)]

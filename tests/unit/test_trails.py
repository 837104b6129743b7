"""Statistics that follow the order of readings: the same in any order of arrival, and those that people compute by hand."""

import itertools
import math
from unittest import mock

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from pydantic import ValidationError

from load.judge.statistics import ORDERED, Frame, plain, tolerance
from service.settings import View
from state import blobs, trails
from state.kept import Kept
from state.list_columns import TRAIL
from state.rules import MOST_READINGS
from state.statistics import ORDERED as OF_ORDER
from state.statistics import STATISTICS
from state.window_columns import COLUMNS, PaneReadings, columns_of
from tests.examples import examples

DAY_MS = 86_400_000


def part(readings):
    """The trail of one part, of (ms, value), as a task folds it."""
    ms, values = zip(*sorted(readings, key=lambda reading: reading[0]), strict=True)
    panes = PaneReadings(
        np.array(values, np.float64), np.array(ms, np.int64), np.zeros(1, np.intp), np.array([len(ms)])
    )
    return COLUMNS[TRAIL].fold(panes)


def merged(parts):
    return trails.reduce(np.concatenate(parts), np.zeros(1, np.int64))


def numbers(trail, end=10_000, start=0):
    kept = Kept({TRAIL: trail, "start": np.array([start]), "end": np.array([end])})
    return {name: STATISTICS[name].of_window(kept).item() for name in ORDERED}


def assert_plain(actual, readings, end=10_000, start=0):
    for name, value in actual.items():
        right = plain(name, [(ms, value, "d") for ms, value in readings], Frame(start, end))
        if right is None:
            assert math.isnan(value), name
        else:
            scale = max(abs(value) for _, value in readings) * (end - start)
            assert math.isclose(value, right, rel_tol=tolerance(name, 1.0), abs_tol=1e-12 * scale), name


values = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6), st.sampled_from([-0.0, 1e140, 0.1]))
some_readings = st.lists(st.tuples(st.integers(0, 9_999), values), min_size=1, max_size=120)
many_readings = st.lists(st.tuples(st.integers(0, 9_999), values), min_size=100, max_size=120)
"""So many that trails are folded more than once."""


@examples(200)
@hypothesis.given(some_readings | many_readings, st.integers(0, 3_000), st.randoms())
def test_any_order_within_the_delay_with_any_cuts_gives_the_bits_of_one_pass(readings, delay_ms, rng):
    """Readings arrive up to `delay_ms` late, in batches of several tasks; each batch moves the watermark as far as it may."""
    arrival = sorted(readings, key=lambda reading: reading[0] + rng.randint(0, delay_ms))
    state, at = np.array([b""], np.object_), 0
    while at < len(arrival):
        size = rng.randint(1, 40)
        batch, at = arrival[at : at + size], at + size
        tasks = [batch[number::3] for number in range(3)]
        state = blobs.pair(trails.reduce, state, merged([part(task) for task in tasks if task]))
        watermark = min([ms for ms, _ in arrival[at:]], default=10_000)
        state = trails.settle(state, rng.choice((watermark, rng.randint(0, watermark))), None)
    whole = numbers(part(readings))
    for name, value in numbers(state).items():
        assert np.array(value).tobytes() == np.array(whole[name]).tobytes(), name
    assert_plain(whole, readings)


@examples(100)
@hypothesis.given(some_readings | many_readings, st.sampled_from([2.0**16, 4.0, 1e9]))
def test_a_step_down_of_a_counter_that_wraps_counts_up_to_there_and_from_zero(readings, wraps_at):
    counters = [(ms, float(int(abs(value)) % int(wraps_at))) for ms, value in readings]
    folded = trails.settle(blobs.pair(trails.reduce, np.array([b""], np.object_), part(counters)), 5_000, None)
    column = np.concatenate([folded, part(counters), folded])
    start, end = np.zeros(3, np.int64), np.full(3, 10_000)
    walked = trails.Walked(column, start, end, np.array([wraps_at, wraps_at, np.nan]))
    right = plain("increase", [(ms, value, "d") for ms, value in counters], Frame(0, 10_000, wraps_at=wraps_at))
    from_0 = plain("increase", [(ms, value, "d") for ms, value in counters], Frame(0, 10_000))
    assert walked.increase.tolist() == [right, right, from_0]


@examples(150)
@hypothesis.given(some_readings, st.lists(st.integers(1, 9_999), max_size=6), st.randoms())
def test_folded_parts_that_follow_each_other_join(readings, cuts, rng):
    """Each has a run, or readings alone, or both: as closed minutes that become parts of an hour, some in each step."""
    edges = [0, *sorted(set(cuts)), 10_000]
    groups = [[each for each in readings if low <= each[0] < high] for low, high in itertools.pairwise(edges)]
    with mock.patch.object(trails, "FOLD_FROM", 2):
        parts = [trails.settle(part(group), rng.randint(0, 10_000), None) for group in groups if group]
    for size in (1, 2, len(parts)):
        whole = np.array([b""], np.object_)
        for at in range(0, len(parts), size):
            step = parts[at : at + size]
            whole = blobs.pair(trails.reduce, whole, merged(rng.sample(step, len(step))))
        assert_plain(numbers(whole), readings)
        assert_plain(numbers(trails.settle(whole, 10_000, None)), readings)


def test_parts_that_overlap_in_time_lose_the_statistics():
    with mock.patch.object(trails, "FOLD_FROM", 2):
        early, late = (trails.settle(part([(ms, 1.0), (ms + 100, 2.0)]), 10_000, None) for ms in (0, 50))
        touching = trails.settle(part([(100, 1.0), (300, 2.0)]), 10_000, None)
    for other in (late, touching, part([(50, 1.0)])):
        assert all(math.isnan(value) for value in numbers(merged([early, other])).values())
    assert numbers(merged([touching, part([(5, 1.0)])]))["increase"] == 1.0


def test_readings_behind_the_watermark_take_bounded_room():
    state = np.array([b""], np.object_)
    readings = [(10 * number, float(number % 7)) for number in range(1_000)]
    for at in range(0, 1_000, 50):
        state = trails.settle(
            blobs.pair(trails.reduce, state, part(readings[at : at + 50])), 10 * (at + 40), MOST_READINGS
        )
        assert len(state[0]) <= 8 * (3 + 17 + 2 * (10 + trails.FOLD_FROM))
    assert numbers(state) == numbers(part(readings))
    assert_plain(numbers(state), readings)


def test_many_windows_are_walked_at_once_and_keep_apart():
    rng = np.random.default_rng(5)
    groups = [
        list(zip(rng.integers(0, 9_999, size).tolist(), rng.normal(0, 5, size).tolist(), strict=True))
        for size in rng.integers(1, 90, 40)
    ]
    column = np.concatenate([part(group) for group in groups])
    settled = trails.settle(column, 5_000, None)
    kept = Kept({TRAIL: settled, "start": np.zeros(40, np.int64), "end": np.full(40, 10_000)})
    for number, group in enumerate(groups):
        alone = {name: repr(value) for name, value in numbers(part(group)).items()}
        assert {name: repr(STATISTICS[name].of_window(kept)[number].item()) for name in ORDERED} == alone


def test_a_window_with_too_many_readings_above_the_watermark_loses_its_statistics():
    readings = [(10 * number, 1.0) for number in range(41)]
    lost = trails.settle(part(readings), 0, 40)
    assert all(math.isnan(value) for value in numbers(lost).values())
    assert len(lost[0]) == trails.LOST_BYTES
    assert not math.isnan(numbers(trails.settle(part(readings), 0, None))["increase"])
    # Readings that are folded do not count, and a lost trail stays lost.
    assert numbers(trails.settle(part(readings), 200, 40))["coverage"] == 1.0
    again = trails.settle(blobs.pair(trails.reduce, lost, part([(9_000, 1.0)])), 10_000, 40)
    assert all(math.isnan(value) for value in numbers(again).values())


def test_a_reading_inside_of_what_is_folded_loses_the_statistics_instead_of_falsifying_them():
    folded = trails.settle(part([(10 * number, 1.0) for number in range(40)]), 300, None)
    for late in ((5, 2.0), (290, 2.0)):
        assert all(math.isnan(value) for value in numbers(blobs.pair(trails.reduce, folded, part([late]))).values())
    assert not math.isnan(numbers(blobs.pair(trails.reduce, folded, part([(300, 2.0)])))["increase"])


def test_of_two_pasts_with_the_same_folded_sums_a_late_reading_has_two_answers():
    """Why views without windows have no statistics of order: the example of decision 64."""
    one, other, late = [(0, 0.0), (10, 10.0), (20, 20.0)], [(0, 0.0), (10, 5.0), (20, 20.0)], (15, 7.0)
    with mock.patch.object(trails, "FOLD_FROM", 2):
        folded = [numbers(trails.settle(part(past), 10_000, None)) for past in (one, other)]
    for name in ("increase", "increase_rate", "resets", "changes", "longest_gap"):
        assert folded[0][name] == folded[1][name], name
    assert [numbers(part([*past, late]))["increase"] for past in (one, other)] == [30.0, 20.0]


def test_a_window_that_began_without_a_trail_has_no_numbers():
    assert all(math.isnan(value) for value in numbers(np.array([b""], np.object_)).values())
    empty = trails.reduce(np.array([b"", b""], np.object_), np.zeros(1, np.int64))
    assert empty.tolist() == [b""]
    assert trails.settle(empty, 5, 40).tolist() == [b""]


def test_sums_of_many_readings_lose_no_digits():
    """A plain sum of them is wrong from the 11th digit."""
    size = 200_000
    ms = np.arange(size) * 10
    values = np.where(np.arange(size) % 2, 0.1, 1e9)
    panes = PaneReadings(values, ms, np.zeros(1, np.intp), np.array([size]))
    right = math.fsum([*(values[:-1] * 10), values[-1] * 10]) / 1000
    assert (
        numbers(trails.fold(panes.values, panes.event_ms, panes.starts, panes.counts), size * 10)["integral"] == right
    )


CASES = {
    # prometheus#1892: 3 2 is the same as 3 0 1 2; the increase has no extrapolation (prometheus#1161) and no fraction.
    "a reset counts from 0": (
        [(0, 0), (1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (6, 4)],
        10,
        {"increase": 7, "resets": 1, "changes": 6, "increase_rate": 7 / 6, "longest_gap": 1},
    ),
    # prometheus#11433: a plug that is away for minutes and comes back at 0.
    "a counter that came back at 0": (
        [(0, 20289.5), (30, 20289.5), (150, 0), (600, 6.5), (630, 6.5)],
        3600,
        {"increase": 6.5, "resets": 1, "changes": 2, "longest_gap": 450},
    ),
    # sem-community#782: a zero between two readings of a meter counts the lifetime once more; `resets` shows it.
    "a zero in between": ([(0, 15508), (10, 0), (20, 15508)], 60, {"increase": 15508, "resets": 1, "changes": 2}),
    "a counter below 0 adds nothing": ([(0, 5), (1, -2), (2, 1)], 60, {"increase": 3, "resets": 1}),
    # timescaledb-toolkit#732: the last reading counts until the end of the day.
    "the last reading holds to the end": (
        [(0, 1), (1, 1), (82_801, 1000), (86_399, 1000)],
        86_400,
        {"time_weighted_mean": (82_801 + 3_599_000) / 86_400, "coverage": 1, "integral": 3_681_801},
    ),
    # timescaledb-toolkit#241: one reading in a window is no null.
    "one reading is a mean": (
        [(9, 22.5)],
        10,
        {
            "time_weighted_mean": 22.5,
            "linear_mean": 22.5,
            "coverage": 0.1,
            "integral": 22.5,
            "linear_integral": 0,
            "increase": 0,
            "resets": 0,
            "changes": 0,
            "longest_gap": 0,
            "increase_rate": None,
        },
    ),
    # timescaledb-toolkit#208: 1 for 45 minutes and 2 for 15.
    "a quarter of an hour": ([(0, 1), (2700, 2)], 3600, {"time_weighted_mean": 1.25, "integral": 4500}),
    # influxdb#23929: a mean over time is never above the largest value, and lines end with the readings.
    "no line beyond the readings": (
        [(39_600, 1), (43_200, 0), (46_800, 1)],
        86_400,
        {"linear_mean": 0.5, "linear_integral": 3600, "time_weighted_mean": (3600 + 39_600) / 46_800},
    ),
    # flux#5349: 1, 2, 3 on three days. With lines the mean is 2.
    "a straight line": ([(0, 1), (100, 2), (200, 3)], 300, {"linear_mean": 2, "linear_integral": 400, "integral": 600}),
    "of one time the largest": ([(1, 3), (1, 7), (2, 4), (2, 1)], 10, {"increase": 4, "resets": 1, "changes": 1}),
    "-0 is 0": ([(0, -0.0), (1, 0.0), (2, -0.0)], 10, {"changes": 0, "resets": 0, "increase": 0}),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_that_people_compute_by_hand(name):
    readings, end, right = CASES[name]
    for order in itertools.islice(itertools.permutations(readings), 24):
        trail = merged([part([(1000 * at, float(value))]) for at, value in order])
        actual = numbers(trail, 1000 * end)
        for statistic, value in right.items():
            assert math.isnan(actual[statistic]) if value is None else actual[statistic] == pytest.approx(value, 1e-12)
        assert_plain(actual, [(1000 * at, float(value)) for at, value in readings], 1000 * end)


@pytest.mark.parametrize("by", [["site"], ["device"], []])
def test_a_view_without_windows_has_no_order(by):
    with pytest.raises(ValidationError, match="statistics: increase of a view without windows; they follow the order"):
        View(name="v", statistics=["increase"], by=by, window="none")


def test_a_view_by_device_and_more_has_them_and_one_without_measures_those_of_times():
    assert "increase" in View(name="v", by=["site", "device"], window="1 m", statistics=["increase"]).statistics
    of_times = View(name="v", by=["device"], window="1 m", measures=[], statistics=["longest_gap", "coverage"])
    assert {"longest_gap", "coverage"} < set(of_times.statistics)
    with pytest.raises(ValidationError, match="of no measure"):
        View(name="v", by=["device"], window="1 m", measures=[], statistics=["integral"])


def test_the_registry_and_the_oracle_have_the_same_statistics_of_order():
    assert tuple(ORDERED) == OF_ORDER
    assert columns_of(["increase"]) == ("count", "last", TRAIL)


def test_a_trail_is_sixteen_bytes_a_reading_and_a_head():
    words, sizes = blobs.join(part([(5, 1.5), (7, 2.0)]))
    assert words.tolist()[:4] == [0, 0, 0, 5]
    assert sizes.tolist() == [7]

"""Roll-ups: `from` of a view changes what it costs, not what its closed windows hold."""

import itertools
import math
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import strategies as st

from load.judge.statistics import tolerance
from service.settings import View
from state import codec, rollups, waiting, windows
from state.bucket import advance
from state.layout import empty_state
from state.rollups import Rollup
from state.statistics import STATISTICS
from state.waiting import Pace
from state.window_columns import columns_of
from tests.examples import examples
from tests.unit.test_view_statistics import BASE_MS, RULES, folded, published

ALL = tuple(STATISTICS)
MOST_MS = 180_000


def chain(by=("device",), names=ALL):
    """A view of 10 s, and 30 s and 60 s of the one before it."""
    lengths = {"one": 10_000, "two": 30_000, "three": 60_000}
    return [View(name=name, by=by, window=ms, statistics=names) for name, ms in lengths.items()]


def rules_of(of):
    found = [
        Rollup(view.name, source.name, columns_of(view.statistics), view.window_ms)
        for source, view in itertools.pairwise(of)
    ]
    return replace(RULES, rollups=rollups.levels(found), update_every={view.name: 0 for view in of})


def assert_alike(actual, expected):
    """The same windows with the same numbers, but for the rounding of sums that are added in another order."""
    assert actual.keys() == expected.keys()
    for place, fields in expected.items():
        mine = actual[place]
        assert mine.keys() == fields.keys(), place
        scale = max(abs(fields["min"]), abs(fields["max"])) * 60_000 if "min" in fields else 1e6
        for name, value in fields.items():
            close = math.isclose(mine[name], value, rel_tol=max(1e-9, tolerance(name, 1.0)), abs_tol=1e-9 * scale)
            assert close, (place, name, mine[name], value)


some = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, MOST_MS - 1), st.integers(-9, 9).map(float) | st.floats(-1e3, 1e3)),
    min_size=1,
    max_size=120,
)


@examples(60)
@pytest.mark.parametrize("by", [("device",), ()])
@hypothesis.given(some, st.integers(0, 30_000), st.sampled_from([waiting.AT_ONCE, Pace(1_000, 0)]), st.randoms())
def test_closed_windows_are_those_of_views_without_from_for_any_cuts_order_and_watermark(
    by, readings, delay_ms, pace, rng
):
    of = chain(by)
    plain, rolled = replace(rules_of(of), rollups=()), rules_of(of)
    arrival = sorted(readings, key=lambda each: each[1] + rng.randint(0, delay_ms))
    states, closed, there, at, watermark = [empty_state(plain), empty_state(rolled)], [{}, {}], [{}, {}], 0, 0
    while at < len(arrival) or watermark < MOST_MS:
        size = rng.randint(1, 40)
        batch, at = arrival[at : at + size], at + size
        watermark = max(watermark, min([ms for _, ms, _ in arrival[at:]], default=MOST_MS))
        for number, (kept, views) in enumerate(((plain, of), (rolled, of[:1]))):
            parts = [part for task in (batch[::2], batch[1::2]) if task for part in folded(task, views)]
            state, changes, leaving = advance(states[number], parts, [], BASE_MS + watermark, kept, pace)
            states[number] = codec.decode(codec.encode(state))
            now = published(leaving, of) if leaving.num_rows else {}
            assert not closed[number].keys() & now.keys(), "a window is closed once"
            closed[number] |= now
            there[number] |= published(changes.windows, of) if changes.windows.num_rows else {}
            assert all(there[number][place] == fields for place, fields in now.items()), "it was published as it is"
    assert_alike(closed[1], closed[0])
    assert not states[1].windows.num_rows


@examples(40)
@hypothesis.given(some, st.integers(0, MOST_MS))
def test_an_open_window_has_the_readings_up_to_the_last_closed_window_and_silence_those_of_all(readings, watermark):
    of = chain()
    plain, rolled = replace(rules_of(of), rollups=()), rules_of(of)
    state, *_ = advance(empty_state(rolled), folded(readings, of[:1]), [], BASE_MS + watermark, rolled)
    whole, *_ = advance(empty_state(plain), folded(readings, of), [], BASE_MS + watermark, plain)
    silent = windows.for_silence(state.windows, {}, rolled.rollups)
    assert_alike(
        published(silent, of) if silent.num_rows else {},
        published(whole.windows, of) if whole.windows.num_rows else {},
    )
    before = {
        view.name: [each for each in readings if each[1] < watermark - watermark % source.window_ms]
        for source, view in itertools.pairwise(of)
    }
    for view in of[1:]:
        mine = windows.compact(state.windows.filter(windows.pc.equal(state.windows["view"], view.name)))
        those = folded(before[view.name], [view]) if before[view.name] else []
        expected = windows.advance(windows.empty(), those, BASE_MS + watermark).open
        assert_alike(published(mine, of) if mine.num_rows else {}, published(expected, of) if expected.num_rows else {})


def test_the_last_minute_and_the_windows_it_lies_in_are_closed_in_one_step():
    of = chain(names=("count",))
    rules = rules_of(of)
    step = windows.advance(
        windows.empty(), folded([("a", 59_000, 1.0), ("a", 1_000, 2.0)], of[:1]), BASE_MS + 60_000, levels=rules.rollups
    )
    assert {place: fields["count"] for place, fields in published(step.closed, of).items()} == {
        ("one", "a", 0): 1,
        ("one", "a", 50_000): 1,
        ("two", "a", 0): 1,
        ("two", "a", 30_000): 1,
        ("three", "a", 0): 2,
    }
    assert not step.open.num_rows


def test_a_roll_up_keeps_the_columns_of_its_statistics_only():
    of = [
        View(name="one", by=("device",), window=10_000, statistics=ALL),
        View(name="two", by=("device",), window=60_000),
    ]
    rules = rules_of(of)
    step = windows.advance(windows.empty(), folded([("a", 0, 1.0)], of[:1]), BASE_MS + 10_000, levels=rules.rollups)
    [row] = step.open.to_pylist()
    lacking = {name for name, value in row.items() if value is None}
    assert row["view"] == "two"
    assert lacking == set(columns_of(ALL)) - set(columns_of(of[1].statistics))


def test_without_roll_ups_a_step_does_nothing_for_them(monkeypatch):
    monkeypatch.setattr(rollups, "parts", None)
    of = chain()
    step = windows.advance(windows.empty(), folded([("a", 0, 1.0)], of), BASE_MS + 60_000)
    assert step.closed.num_rows == 3
    assert windows.for_silence(step.open, {}).num_rows == 0


def test_roll_ups_of_roll_ups_come_behind_them_in_any_order_of_the_settings():
    of = {"day": "hour", "hour": "minute", "week": "day", "other": "minute"}
    found = rollups.levels([Rollup(view, source, (), 1) for view, source in of.items()])
    assert [sorted(each.view for each in level) for level in found] == [["hour", "other"], ["day"], ["week"]]

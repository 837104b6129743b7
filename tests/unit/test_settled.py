"""Windows that leave before they are final: what leaves when, with which revision, beside what the watermark closes."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from state import codec, distribution, settled, waiting, windows
from state.bucket import advance
from state.columns import ints
from state.delta import apply, diff
from state.layout import empty_state
from state.rules import Rules
from state.waiting import Pace
from tests.examples import examples
from tests.unit.test_state_windows import table as parts_of
from tests.unit.test_view_statistics import BASE_MS, carrying, folded

PLAIN = Rules(gap_ms=20, max_duration_ms=320, retain_ms=100, measures=("t",), update_every={"soon": 0, "late": 0})
LEADS = {"none": {}, "short": {"soon": 10}, "long": {"soon": 35}}


def parts(readings):
    return parts_of([(view, "t", key, ms // 10, 10, [float(ms)]) for key, ms in readings for view in ("soon", "late")])


def rows_of(table):
    return {(row["view"], row["key"], row["start"]): row["count"] for row in table.to_pylist()}


readings = st.lists(st.tuples(st.sampled_from(["a", "b", "ü|ß"]), st.integers(0, 30)), max_size=6)
steps = st.lists(st.tuples(readings, st.integers(0, 25), st.sampled_from([*LEADS]), st.booleans()), max_size=12)


@examples(60)
@example([([("a", 5)], 0, "short", False), ([("a", 6)], 0, "none", False), ([], 30, "long", True)])
@given(steps)
def test_a_window_leaves_when_it_is_settled_and_with_each_change_and_once_for_each_content(schedule):
    plain, state, watermark, left, revisions = empty_state(PLAIN), empty_state(PLAIN), 0, {}, {}
    for late, moved, lead, holds in schedule:
        rules, pace = replace(PLAIN, leads=LEADS[lead]), Pace(1_000, 0) if holds else waiting.AT_ONCE
        batch = parts([(key, watermark + after) for key, after in late])
        watermark += moved
        plain, _, closed = advance(plain, batch, [], watermark, PLAIN)
        after, _, leaving = advance(state, batch, [], watermark, rules, pace)
        assert waiting.without(after.windows).equals(plain.windows)
        if after is not state and (delta := diff(state, after)):
            assert apply(state, delta).windows.to_pylist() == after.windows.to_pylist()
        state = codec.decode(codec.encode(after))  # another process goes on
        revision = dict(zip(rows_of(leaving), ints(leaving, settled.REVISION).tolist(), strict=True))
        for place, count in rows_of(leaving).items():
            assert max(revision[place], 0) == revisions.get(place, -1) + 1
            assert count != left.get(place), "it has left with this content before"
            left[place], revisions[place] = count, max(revision[place], 0)
        there = rows_of(plain.windows)
        assert all(left[place] == count for place, count in rows_of(closed).items())
        assert all(left[place] == there[place] for place in there if place in left), "what has left is up to date"
        line = watermark + LEADS[lead].get("soon", 0)
        assert {place for place in there if place[0] == "soon" and place[2] + 10 <= line} <= left.keys()
        assert not any(place[0] == "late" for place in there if place in left)
        settled_now = {place for place in left if place in there}
        waits = rows_of(waiting.waiting(after.windows)) if waiting.DUE in after.windows.column_names else {}
        assert not settled_now & waits.keys(), "what is settled does not wait"
        assert rows_of(settled.not_left(after.windows)).keys() == there.keys() - settled_now


def test_a_state_in_which_nothing_leaves_early_has_the_bytes_of_before():
    rules = replace(PLAIN, leads={"soon": 10})
    state = advance(empty_state(PLAIN), parts([("a", 5)]), [], 0, rules)[0]
    assert codec.encode(state)[4] == 5
    assert ints(state.windows, settled.LEFT).tolist() == [0, settled.NEVER]
    assert codec.encode(advance(state, [], [], 0, PLAIN)[0])[4] == 5, "a window that has left remembers it"
    over = advance(state, parts([("b", 15)]), [], 10, PLAIN)[0]
    assert settled.LEFT not in over.windows.column_names
    assert codec.encode(over)[4] == 2


def test_another_number_of_buckets_keeps_what_has_left():
    rules = replace(PLAIN, leads={"soon": 10})
    states = [
        advance(empty_state(PLAIN), parts([(key, 5)]), [], 0, each)[0] for key, each in (("a", rules), ("b", PLAIN))
    ]
    whole = distribution.joined(states).windows
    assert ints(whole, settled.LEFT).tolist() == [0, -1, -1, -1]
    assert whole.column_names[: len(windows.KEY) + 1] == [*windows.KEY, settled.LEFT]


def test_a_view_that_keeps_no_readings_any_more_leaves_a_state_that_goes_on():
    bare = parts([("a", 5)])
    schema = windows.schema_of_views([("mean",), ("mean", "increase")])
    of_both = [windows._aligned([part], schema.names[len(windows.KEY) :], {windows.TRAIL})[0] for part in bare]
    rules = replace(PLAIN, leads={"soon": 10})
    before = advance(empty_state(PLAIN), of_both, [], 0, rules)[0]
    assert windows.TRAIL in before.windows.column_names
    leaving = advance(before, parts([("a", 6)]), [], 0, rules)[2]
    assert [(row["count"], row["revision"]) for row in leaving.to_pylist()] == [(2, 1)]


@pytest.mark.parametrize("by", [("device",), ()])
def test_readings_that_are_folded_are_no_change(by):
    of, leads = [carrying(by=by)], {"one": 15_000}
    readings = [("a", 9_000, 5.0), *(("a", 10_000 + 100 * number, 1.0) for number in range(20))]
    first = windows.advance(windows.empty(), folded(readings, of), BASE_MS + 5_000, leads=leads)
    assert [row["count"] for row in first.leaving.to_pylist()] == [1, 20]
    # Earlier than the reading that is carried into the second window, whose readings the watermark has passed.
    second = windows.advance(first.open, folded([("a", 8_000, 6.0)], of), BASE_MS + 15_000, leads=leads)
    assert [(row["count"], row["revision"]) for row in second.leaving.to_pylist()] == [(2, 1)]
    third = windows.advance(first.open, folded([("a", 9_500, 6.0)], of), BASE_MS + 15_000, leads=leads)
    assert [(row["count"], row["revision"]) for row in third.leaving.to_pylist()] == [(2, 1), (20, 1)]

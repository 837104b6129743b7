"""Windows batch after batch against a plain recomputation, whatever views, cuts into batches, and watermarks there are."""

import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import moments, windows
from state.rules import ENDLESS_MS
from tests.examples import examples

KEY = ("view", "measure", "key", "start", "end")
FAR = 1 << 41

parts_of_a_batch = st.lists(
    st.tuples(
        st.sampled_from(["one", "two"]),  # the view
        st.sampled_from(["t", "h"]),
        st.sampled_from(["a", "b", "ü|ß", ""]),
        st.integers(0, 12),  # the start, in tens
        st.sampled_from([10, 30]),  # the length: a view's may change between two batches
        st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3),
    ),
    max_size=12,
)
batches = st.lists(st.tuples(st.integers(0, 60), parts_of_a_batch), max_size=6)


def table(rows):
    """Parts, each in a table of its own, as tasks send them."""
    tables = []
    for view, measure, key, ten, length, values in rows:
        start, numbers = np.array([10 * ten]), np.array(values)
        sums = moments.split(numbers, np.array([0]), np.array([len(values)]))
        columns = {name: getattr(sums, name) for name in moments.NAMES} | {
            "count": np.array([len(values)]),
            "min": numbers.min(keepdims=True),
            "max": numbers.max(keepdims=True),
            "first": start,
            "last": start + len(values),
        }
        texts = pa.array(["unused", key])
        tables.append(windows.parts(view, measure, texts, np.ones(1), start, start + length, columns))
    return tables


def shown(window_table):
    """{key: (count, sum, min, max, first, last)}; the sum as near as doubles get."""
    rows = {}
    for row in window_table.to_pylist():
        total, _ = moments.totals(*(np.array([row[name]]) for name in ("count", *moments.SUMS)))
        near = pytest.approx(float(total[0]), rel=1e-9, abs=1e-6)
        rows[tuple(row[name] for name in KEY)] = (
            row["count"],
            near,
            *(row[n] for n in ("min", "max", "first", "last")),
        )
    assert len(rows) == window_table.num_rows, "a window stands twice"
    return rows


def plainly(groups):
    """The same of {key: lists of values}, one list for each part."""
    expected = {}
    for key, parts in groups.items():
        values = [value for part in parts for value in part]
        total = float(sum(map(Fraction, values)))
        expected[key] = (len(values), total, min(values), max(values), key[3], key[3] + max(map(len, parts)))
    return expected


@examples(200)
@given(batches)
def test_windows_batch_by_batch_are_those_of_a_plain_recomputation(schedule):
    state, watermark = windows.empty(), 0
    groups, closed = defaultdict(list), {}
    for step, drawn in [*schedule, (FAR, [])]:
        touched = set()
        # None ends at or before the watermark of the step before: its readings would not have been admitted.
        rows = [row for row in drawn if 10 * row[3] + row[4] > watermark]
        watermark += step
        for view, measure, key, ten, length, values in rows:
            place = view, measure, key, 10 * ten, 10 * ten + length
            groups[place].append(values)
            touched.add(place)
        before = state
        result = windows.advance(state, table(rows), watermark)
        state = result.open
        right = plainly(groups)
        assert shown(result.closed) == {key: right[key] for key in right if key[4] <= watermark and key not in closed}
        closed |= shown(result.closed)
        assert shown(state) == {key: right[key] for key in right if key[4] > watermark}
        assert shown(result.changed) == {key: right[key] for key in touched}
        assert state is before or touched or result.closed.num_rows
    assert closed == plainly(groups)
    assert state.num_rows == 0


def test_the_same_parts_give_the_same_bits_again():
    rows = [("one", "t", "a", 1, 10, [math.pi * 10.0**n, math.e]) for n in range(-6, 7)]
    first, again = (windows.advance(windows.empty(), table(rows), 0).open for _ in range(2))
    assert first.equals(again)


def test_texts_that_no_window_has_any_more_are_not_kept():
    state = windows.empty()
    for ten in range(20):
        state = windows.advance(state, table([("one", "t", f"device {ten}", ten, 10, [1.0])]), 10 * ten).open
    assert set(state["key"].chunk(0).dictionary.to_pylist()) <= {"unused", "device 19"}


def test_only_the_wanted_windows_are_chosen():
    rows = [("one", "t", "a", ten, 10, [1.0]) for ten in range(3)] + [("two", "t", "a", 1, 10, [1.0])]
    state = windows.advance(windows.empty(), table(rows), 0).open
    wanted = windows.concat(table([("one", "t", "a", 1, 10, [9.0]), ("one", "t", "b", 1, 10, [9.0])]))
    assert [(row["view"], row["start"]) for row in windows.only(state, wanted).to_pylist()] == [("one", 10)]
    assert windows.only(state, windows.empty()).num_rows == 0
    assert windows.only(windows.empty(), wanted).num_rows == 0


def test_new_windows_come_in_the_order_of_their_parts_however_dictionaries_are_numbered():
    rows = [("one", "t", key, 0, 10, [1.0]) for key in ("b", "a", "c")]
    state = windows.advance(windows.empty(), table(rows[:2]), 0).open
    key = pa.DictionaryArray.from_arrays(pa.array([2, 1], pa.int32()), pa.array(["c", "a", "b"]))
    other = state.set_column(windows.TEXTS.index("key"), windows.SCHEMA.field("key"), key)
    assert other.to_pylist() == state.to_pylist()
    new = table([("one", "t", key, 1, 10, [1.0]) for key in ("b", "c", "a")])
    opened = [windows.advance(each, new, 0).open["key"].to_pylist() for each in (state, other)]
    assert opened == [["b", "a", "b", "c", "a"]] * 2


def test_an_endless_window_takes_parts_of_any_time_until_its_view_and_measure_go():
    rows = [(view, measure, "a", 0, ENDLESS_MS, [1.0]) for view in ("one", "two") for measure in ("t", "h")]
    endless = {("one", "t"), ("one", "h"), ("two", "h")}
    first = windows.advance(windows.empty(), [*table(rows), *table([("one", "t", "a", 0, 10, [1.0])])], FAR, endless)
    assert [(row["view"], row["measure"]) for row in first.open.to_pylist()] == [
        ("one", "t"),
        ("one", "h"),
        ("two", "h"),
    ]
    assert [row["end"] for row in first.closed.to_pylist()] == [10]
    again = windows.advance(first.open, table(rows[:1]), FAR, endless)
    assert [row["count"] for row in again.open.to_pylist()] == [2, 1, 1]
    assert not again.closed.num_rows
    assert windows.advance(again.open, [], FAR, endless).open is again.open
    left = windows.advance(again.open, [], FAR, {("two", "h")})
    assert [(row["view"], row["count"]) for row in left.open.to_pylist()] == [("two", 1)]
    assert not left.closed.num_rows
    assert windows.most_keys(again.open, {"one"}) == 1
    assert windows.most_keys(again.open, set()) == 0

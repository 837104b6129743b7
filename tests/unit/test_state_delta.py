"""What a step changed, and a state that is made from it: after any steps the very rows of the state that made the step."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import codec, windows
from state.bucket import advance
from state.delta import apply, diff
from state.layout import empty_state
from state.rules import Rules
from state.runs import schema
from state.window_columns import COLUMNS
from tests.runs import fold
from tests.states import contents

FAR = 1 << 41
MEASURES = (("t",), ("t", "h"), ("h", "t"), ())


def rules(measures=("t",)):
    return Rules(gap_ms=10, max_duration_ms=160, retain_ms=100, measures=measures)


def through_bytes(before, after):
    """`after`, from `before` and the bytes of the delta; None when there is no delta."""
    delta = diff(before, after)
    return None if delta is None else apply(before, codec.decode_delta(codec.encode_delta(delta)))


def runs_of(readings, measures, limits=None):
    """Runs of (device, ms, value) readings; all devices have `limits`, (gap, interval), if given."""
    if not readings:
        return schema(measures).empty_table()
    device, ms, value = zip(*readings, strict=True)
    values = {name: np.array(value) + number for number, name in enumerate(measures)}
    runs = fold(pa.array(device), np.array(ms, np.int64), values, rules(measures))
    for name, limit in zip(("gap", "interval"), limits or (), strict=False):
        runs = runs.append_column(name, pa.array(np.full(runs.num_rows, limit)))
    return runs


def parts_of(view, key, starts, value):
    start = np.array(starts, np.int64)
    stats = {name: np.full(len(start), value) for name in COLUMNS}
    stats |= dict.fromkeys(("count", "first", "last"), start)
    return windows.parts(view, "t", pa.array(["unused", key]), np.ones(len(start)), start, start + 30, stats)


numbers = st.sampled_from([0.0, -0.0, 1.5, -3.25, float("inf"), float("nan"), 1e300])
readings = st.lists(st.tuples(st.sampled_from(["a", "b", "ü|ß", "", "d"]), st.integers(0, 90), numbers), max_size=8)
parts = st.lists(
    st.tuples(
        st.sampled_from(["one", "two"]),
        st.sampled_from(["a", "b", "ü|ß", ""]),
        st.lists(st.integers(0, 9).map(lambda ten: 10 * ten), min_size=1, max_size=3, unique=True),
        numbers,
    ),
    max_size=4,
)
limits = st.none() | st.tuples(st.integers(5, 40), st.integers(-1, 30))
steps = st.lists(st.tuples(st.integers(0, 90), st.sampled_from(MEASURES), limits, readings, parts), max_size=10)


@given(steps)
def test_any_steps_are_gone_over_again_by_their_deltas(schedule):
    state = again = empty_state(rules())
    watermark = 0
    for step, measures, own, new, new_parts in [*schedule, (FAR, ("t",), None, [], [])]:
        watermark += step
        runs = [runs_of([(device, watermark + ms, value) for device, ms, value in new], measures, own)]
        tables = [
            parts_of(view, key, [watermark // 10 * 10 + start for start in starts], value)
            for view, key, starts, value in new_parts
        ]
        after, _, _ = advance(state, tables, runs, watermark, rules(measures))
        # The step of a worker that has the state from its deltas does the same, to the order of the rows.
        after_again, _, _ = advance(again, tables, runs, watermark, rules(measures))
        assert contents(after_again) == contents(after)
        before, state = again, after
        again = through_bytes(before, after)
        if again is None:
            names = [
                (old.column_names, new.column_names)
                for old, new in zip(tables_of(before), tables_of(after), strict=True)
            ]
            assert any(old != new for old, new in names)
            again = codec.decode(codec.encode(after))
        assert contents(again) == contents(after)


def tables_of(state):
    return state.runs, state.devices, state.windows


def stepped(state, watermark, *readings, parts=()):
    return advance(state, list(parts), [runs_of(readings, ("t",))], watermark, rules())[0]


def test_a_delta_names_rows_by_position_and_repeats_no_text():
    before = stepped(
        empty_state(rules()),
        0,
        *[(f"device-{n}", 100, 1.0) for n in range(50)],
        parts=[parts_of("one", "a key", [90], 1.0)],
    )
    after = stepped(before, 0, ("device-7", 105, 2.0), ("new", 101, 0.0), parts=[parts_of("one", "a key", [90], 3.0)])
    delta = diff(before, after)
    assert [table.changed.tolist() for table in (delta.runs, delta.devices, delta.windows)] == [[7], [7], [0]]
    assert [table.added.tolist() for table in (delta.runs, delta.devices, delta.windows)] == [[50], [50], []]
    assert (delta.names.to_pylist(), [len(text) for text in delta.texts]) == (["new"], [0, 0, 0])
    assert len(codec.encode_delta(delta)) < 300
    changed_bytes = 8 * (2 * len(delta.runs.columns) + 2 * len(delta.devices.columns) + len(delta.windows.columns))
    assert delta.changed_bytes - changed_bytes == delta.names.nbytes


def test_runs_between_others_and_devices_that_are_forgotten_move_the_rows_behind_them():
    before = stepped(empty_state(rules()), 0, ("a", 100, 1.0), ("b", 100, 1.0), ("c", 100, 1.0), ("c", 200, 1.0))
    between = stepped(before, 0, ("b", 150, 1.0), ("c", 150, 1.0))
    delta = diff(before, between)
    assert (delta.runs.added.tolist(), delta.runs.removed.tolist()) == ([2, 4], [])
    assert contents(through_bytes(before, between)) == contents(between)
    between = stepped(between, 0, ("c", 250, 1.0))
    forgotten = stepped(between, 260, ("c", 265, 1.0))
    delta = diff(between, forgotten)
    assert (delta.devices.removed.tolist(), forgotten.runs["start"].to_pylist()) == ([0, 1], [250, 265])
    assert (delta.runs.removed.tolist(), delta.runs.added.tolist()) == ([0, 1, 2, 3, 4, 5], [1]), "250 stays"
    assert contents(through_bytes(between, forgotten)) == contents(forgotten)


def test_null_is_not_zero():
    before = stepped(empty_state(rules()), 0, ("a", 100, 0.0), ("b", 100, 0.0))
    column = before.devices.schema.get_field_index("t.value")
    nulls = before.devices.set_column(column, before.devices.field(column), pa.array([None, 0.0], pa.float64()))
    after = replace(before, devices=nulls)
    assert diff(before, after).devices.changed.tolist() == [0]
    assert contents(through_bytes(before, after)) == contents(after)
    assert contents(through_bytes(after, before)) == contents(before)


def test_a_step_that_brings_a_column_has_no_delta():
    before = stepped(empty_state(rules()), 0, ("a", 100, 1.0))
    wider = advance(before, [], [runs_of([("a", 101, 1.0)], ("t", "h"))], 0, rules(("t", "h")))[0]
    limited = advance(before, [], [runs_of([("a", 101, 1.0)], ("t",), (20, 5))], 0, rules())[0]
    assert (diff(before, wider), diff(before, limited)) == (None, None)
    assert diff(before, before).changed_bytes == 0


def test_a_delta_of_another_state_is_refused():
    before = stepped(empty_state(rules()), 0, ("a", 100, 1.0))
    delta = diff(before, stepped(before, 0, ("b", 100, 1.0)))
    other = stepped(before, 0, ("c", 100, 1.0), ("d", 100, 1.0))
    with pytest.raises(ValueError, match="does not fit a table of 3 rows"):
        apply(other, delta)


@pytest.mark.parametrize("span", [0, 1, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1])
@pytest.mark.parametrize("low", [0, -1, 127, -128, 128, -(1 << 15), 1 << 31, -(1 << 63)])
def test_numbers_of_any_span_come_back(span, low):
    before = stepped(empty_state(rules()), 0, ("a", 100, 1.0))
    delta = diff(before, stepped(before, 0, ("a", 101, 1.0), ("b", 101, 1.0)))
    values = np.array([low, (low + span + (1 << 63)) % (1 << 64) - (1 << 63)], np.int64)
    column = replace(delta.devices.columns[0], difference=values, added=values[::-1])
    devices = replace(delta.devices, changed=np.array([0, 70_000]), added=np.array([1, 2]), columns=(column,))
    back = codec.decode_delta(codec.encode_delta(replace(delta, devices=devices))).devices
    assert back.columns[0].difference.tolist() == values.tolist()
    assert back.columns[0].added.tolist() == values[::-1].tolist()
    assert (back.changed.tolist(), back.added.tolist(), back.size) == ([0, 70_000], [1, 2], 1)

"""Statuses of measures: each as if its device sent nothing else, emitted when they change and not before."""

import random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from service.aggregation.sessions import rules as rules_of
from service.publication.rows import device_rows
from service.redis.keys import Keys
from state.distribution import joined, split
from state.layout import TOLD, empty_state
from state.rules import Rules
from state.runs import schema
from state.table import advance, next_expiry, present
from tests.examples import examples
from tests.outputs import settings
from tests.runs import fold

RULES = Rules(gap_ms=10, max_duration_ms=160, retain_ms=1_000, measures=("t", "h"), by_measure=True)
PLAIN = Rules(gap_ms=10, max_duration_ms=160, retain_ms=1_000, measures=("t", "h"))
NOTHING = schema(("t", "h")).empty_table()


def runs(*readings, gap=None, interval=None):
    """Runs of (device, ms, measure) readings, with the limits of devices."""
    if not readings:
        return NOTHING
    device, ms, measure = zip(*readings, strict=True)
    values = {
        name: np.array([float(at) if each == name else np.nan for each, at in zip(measure, ms, strict=True)])
        for name in ("t", "h")
    }
    table = fold(pa.array(device, pa.string()), np.array(ms, np.int64), values, RULES)
    for name, of in (("gap", gap or {}), ("interval", interval or {})):
        column = [of.get(each, -1) for each in table.column("device").to_pylist()]
        table = table.append_column(name, pa.array(column, pa.int64()))
    return table


def statuses(changes):
    """(status, of t, of h) by device."""
    return {row["device"]: (row["status"], row["t.status"], row["h.status"]) for row in changes.devices.to_pylist()}


def test_a_measure_that_its_device_no_longer_sends_is_offline_when_the_device_would_be():
    state, changes = advance(None, runs(("a", 100, "t"), ("a", 100, "h")), 95, RULES)
    assert statuses(changes) == {"a": ("online", "online", "online")}
    state, _ = advance(state, runs(("a", 108, "h")), 105, RULES)
    assert next_expiry(state, RULES) == 110
    same, changes = advance(state, NOTHING, 110, RULES)
    assert same is state, "a reading exactly a gap ago is not silent"
    state, changes = advance(state, NOTHING, 111, RULES)
    assert statuses(changes) == {"a": ("online", "offline", "online")}
    assert next_expiry(state, RULES) == 118
    state, changes = advance(state, runs(("a", 117, "t")), 115, RULES)
    assert statuses(changes) == {"a": ("online", "online", "online")}
    state, changes = advance(state, NOTHING, 128, RULES)
    assert statuses(changes) == {"a": ("offline", "offline", "offline")}
    assert next_expiry(state, RULES) == 117 + RULES.retain_ms


def test_an_interval_longer_than_the_gap_asks_for_no_step():
    state, _ = advance(None, runs(("a", 100, "t"), interval={"a": 50}), 95, RULES)
    state, changes = advance(state, NOTHING, 111, RULES)
    assert statuses(changes) == {"a": ("offline", "offline", None)}
    assert next_expiry(state, RULES) == 1_100


def test_a_state_without_statuses_has_them_from_the_next_step_on_and_loses_them():
    state, _ = advance(None, runs(("a", 100, "t"), ("a", 109, "h"), ("b", 118, "t")), 95, PLAIN)
    state, _ = advance(state, runs(("a", 118, "h")), 112, PLAIN)
    assert TOLD not in state.devices.column_names
    after, changes = advance(state, NOTHING, 113, RULES)
    assert statuses(changes) == {"a": ("online", "offline", "online")}
    assert statuses(present(after, RULES)) == {"a": ("online", "offline", "online"), "b": ("online", "online", None)}
    back, _ = advance(after, runs(("a", 119, "h")), 114, PLAIN)
    assert TOLD not in back.devices.column_names


def test_a_reshape_keeps_what_was_said():
    state, _ = advance(None, runs(("a", 100, "t"), ("a", 108, "h"), ("b", 108, "t")), 111, RULES)
    parts = split(state, np.array([0, 1]), np.zeros(0, np.int64))
    again = joined([parts[0], parts[1]])
    assert advance(again, NOTHING, 112, RULES)[0] is again
    mixed = joined([parts[0], empty_state(PLAIN)])
    assert advance(mixed, NOTHING, 112, RULES)[0] is mixed


def naive(at, line, gap, interval):
    if at is None:
        return None
    if at + gap < line:
        return "offline"
    return "quiet" if interval is not None and at + interval < line else "online"


readings_lists = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 300), st.sampled_from("th")), min_size=1, max_size=40
)


@given(
    readings_lists,
    st.fixed_dictionaries({"a": st.integers(1, 60)}),
    st.fixed_dictionaries({"b": st.integers(1, 60), "c": st.integers(1, 8)}),
    st.integers(0, 1 << 30),
)
@examples(200)
def test_rows_say_each_status_in_any_order_and_with_any_cuts(readings, gaps, intervals, seed):
    """After each step the newest row of each device has the statuses that all readings so far and the watermark give."""
    draw = random.Random(seed)
    arrivals = sorted(readings, key=lambda each: each[1] + draw.randint(0, 40))
    state, watermark, said, last = None, 0, {}, {}
    for first in range(0, len(arrivals) + 12, 4):
        batch = arrivals[first : first + 4]
        to_come = min((each[1] for each in arrivals[first + 4 :]), default=1 << 40)
        state, changes = advance(state, runs(*batch, gap=gaps, interval=intervals), watermark, RULES)
        said |= statuses(changes)
        for device, at, measure in batch:
            last[device, measure] = max(at, last.get((device, measure), 0))
        moved = max(watermark, min(to_come, watermark + draw.randint(0, 30)))
        expiry = next_expiry(state, RULES)
        assert expiry is None or expiry >= watermark
        after, changes = advance(state, NOTHING, moved, RULES)
        if expiry is None or expiry >= moved:
            assert after is state
        said |= statuses(changes)
        state, watermark = after, moved
        for device, (_status, *own) in said.items():
            expected = [
                naive(last.get((device, measure)), watermark, gaps.get(device, 10), intervals.get(device))
                for measure in ("t", "h")
            ]
            assert own == expected


def test_without_the_setting_state_and_rows_are_as_before():
    assert not rules_of(settings("redis://localhost:1", "p")).by_measure
    state, changes = advance(None, runs(("a", 100, "t")), 95, PLAIN)
    assert state.devices.column_names == ["device", "last_seen", "session", "t.value", "t.at", "h.value", "h.at"]
    assert changes.devices.column_names[2:] == ["last_seen", "session", "t.value", "t.at", "h.value", "h.at"]
    rows = device_rows(changes.devices, Keys("p"), 1, "", None)
    assert (dict(rows.shared), [name for name in rows.fields if name.endswith(".status")]) == ({}, [])


def test_a_row_has_the_statuses_and_two_that_differ_in_them_alone_are_not_the_same():
    _, changes = advance(None, runs(("a", 100, "t")), 111, RULES)
    rows = device_rows(changes.devices, Keys("p"), 1, "", None)
    assert (rows.fields["t.status"], rows.fields["h.status"]) == ([b"offline"], [None])
    assert rows.shared["equal"] == ["t.status", "h.status"]

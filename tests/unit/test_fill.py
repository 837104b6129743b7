"""Windows without a reading: `fill` of views."""

from dataclasses import replace

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pydantic import ValidationError

from service.daemon import idle_closer
from service.publication.rows import as_of_watermark, window_rows
from state import codec, trail_groups, waiting
from state.bucket import advance
from state.columns import ints
from state.layout import empty_state
from state.table import present
from state.waiting import Pace
from tests.examples import examples
from tests.unit.test_view_statistics import (
    BASE_MS,
    FILLED,
    KEYS,
    RULES,
    assert_same,
    carrying,
    folded,
    plainly,
    published,
)

FILLS = replace(RULES, fills={"one": 25_000}, update_every={"one": 0})
STEP_MS = 20_000


def test_fill_needs_carry_for():
    assert carrying().fill == "none"
    with pytest.raises(ValidationError, match="fill: needs carry_for, which says for how long after its last reading"):
        carrying(fill="last", carry_for=None)


@examples(30)
@hypothesis.given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 39_999), st.floats(-9, 9)), max_size=4),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([("device",), ()]),
    st.sampled_from([{}, {"window": 20_000, "slide": 10_000}]),
    st.sampled_from([0, 15_000]),
    st.booleans(),
)
def test_windows_without_readings_appear_when_they_are_closed_or_settled_and_never_before(
    batches, by, times, lead, holds
):
    of, rules = [carrying(by=by, **FILLED, **times)], replace(FILLS, leads={"one": lead} if lead else {})
    state, there, left, readings = empty_state(rules), {}, {}, []
    # In the end the watermark passes all that readings are carried into.
    for number, drawn in enumerate([*batches, [], [], [], []]):
        floor, watermark = number * STEP_MS, (number + 1) * STEP_MS
        batch = [(device, floor + ms, value) for device, ms, value in drawn]
        readings += batch
        pace = Pace(1_000, 0) if holds else waiting.AT_ONCE
        parts = folded(batch, of) if batch else []
        state, changes, leaving = advance(state, parts, [], BASE_MS + watermark, rules, pace)
        state = codec.decode(codec.encode(state))  # another process goes on
        now = published(changes.windows, of) if changes.windows.num_rows else {}
        ends = {place: place[2] + of[0].window_ms for place in now}
        assert all(now[place]["count"] or ends[place] <= watermark + lead for place in now), "it is closed or settled"
        there |= now
        gone = published(leaving, of) if leaving.num_rows else {}
        assert all(left.get(place) != fields for place, fields in gone.items()), "it has left with this content before"
        left |= gone
        shown = published(present(state, rules).windows, of) if state.windows.num_rows else {}
        assert {place for place, fields in shown.items() if not fields["count"]} <= left.keys()
    expected = plainly(readings, of)
    assert not state.windows.num_rows
    assert_same(there, expected)
    assert_same(left, expected)


def test_a_window_that_begins_when_the_last_reading_ceases_to_hold_is_not_there():
    of = [carrying(**FILLED, carry_for=20_000)]
    rules = replace(RULES, fills={"one": 20_000})
    changes = advance(empty_state(rules), folded([("a", 0, 5.0)], of), [], BASE_MS + 90_000, rules)[1]
    assert ints(changes.windows, "start").tolist() == [BASE_MS, BASE_MS + 10_000]
    (first, second) = published(changes.windows, of).values()
    assert (first["count"], first["mean"], second["count"], "mean" in second) == (1, 5, 0, False)
    assert (second["last"], second["last_value"], second["coverage"]) == (BASE_MS, 5, 1)


def test_a_state_of_before_has_no_window_that_says_nothing():
    """Its windows without readings lack the time of what is carried into them."""
    of = [carrying()]
    (part,) = folded([("a", 0, 5.0)], of)
    column = part.column_names.index("last")
    last = ints(part, "last").copy()
    last[ints(part, "count") == 0] = -1
    before = part.set_column(column, part.schema.field(column), [last])
    changes = advance(empty_state(FILLS), [before], [], BASE_MS + 90_000, FILLS)[1]
    assert ints(changes.windows, "count").tolist() == [1]


def test_a_window_without_readings_lives_for_retain_after_its_end():
    """It is written when it is over, however long ago the reading is that it shows."""
    of = [carrying(**FILLED, retain=60_000)]
    changes = advance(empty_state(FILLS), folded([("a", 4_000, 5.0)], of), [], BASE_MS + 90_000, FILLS)[1]
    rows = window_rows(changes.windows, KEYS, of, BASE_MS)
    assert rows.ttl == [66_000, 60_000, 60_000]
    final, _ = as_of_watermark(rows, BASE_MS + 32_000, 0)
    assert final.ttl == [38_000, 48_000, 58_000], "of windows that end 22, 12 and 2 s before the watermark"


def test_silence_writes_many_windows_without_readings_in_parts_each_window_once(monkeypatch):
    monkeypatch.setattr(idle_closer, "MOST_FILLED", 3)
    table = advance(empty_state(FILLS), folded([(device, 0, 5.0) for device in "abcd"], [carrying()]), [], 0, FILLS)[0]
    tables = [each.sort_by("end") for each in (table.windows.slice(0, 7), table.windows.slice(7))]
    found = [
        (until - BASE_MS, pa.concat_tables(due), pa.concat_tables(later))
        for until, due, later in idle_closer.parts(tables, BASE_MS + 30_001)
    ]
    assert [until for until, *_ in found] == [20_000, 30_000, 30_001]
    assert [due.num_rows for _, due, _ in found] == [8, 4, 0], "those with readings, too"
    assert [later.num_rows for *_, later in found] == [4, 0, 0]
    assert [until for until, *_ in idle_closer.parts([], 7)] == [7]


@pytest.mark.parametrize("others", [[], [("z", 11_000, 1.0)]])
def test_a_group_of_too_many_devices_is_carried_without_statistics_of_order(monkeypatch, others):
    monkeypatch.setattr(trail_groups, "MOST_DEVICES", 2)
    of, readings = [carrying(by=(), **FILLED)], [(device, 5_000, 1.0) for device in "abc"]
    changes = advance(empty_state(FILLS), folded([*readings, *others], of), [], BASE_MS + 90_000, FILLS)[1]
    found = published(changes.windows, of)
    assert [fields["count"] for fields in found.values()] == ([3, 1, 0, 0] if others else [3, 0, 0])
    assert not any("coverage" in fields for fields in found.values())
    assert found["one", "all", 20_000]["last"] == BASE_MS + (11_000 if others else 5_000)

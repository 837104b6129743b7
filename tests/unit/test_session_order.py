"""Statistics of order of sessions: in any order and cuts of arrival as of one pass over the sorted readings of a session."""

import json
import math
import random
from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.judge.expected import Readings, SessionOrder, sessions
from load.judge.statistics import ORDERED, tolerance
from service.aggregation.sessions import rules as rules_of
from service.errors import SettingsError
from service.outlets import tables
from service.publication.meta import meta
from service.publication.rows import session_rows, session_statistics
from service.redis.keys import Keys
from state import codec, late_sessions, trails
from state.delta import apply, diff
from state.history import Payload, closed
from state.layout import Changes, empty_state
from state.list_columns import TRAIL
from state.rules import Rules
from state.runs import schema
from state.statistics import Shown
from state.table import advance, present
from tests.examples import examples
from tests.minimal import settings
from tests.runs import fold
from tidemark_client import Place, Session
from tidemark_client.values import Meta

RULES = Rules(gap_ms=1_000, max_duration_ms=16_000, retain_ms=100_000, measures=("t", "h"), trails=("t",))
SHOWN = Shown(tuple(ORDERED))
FAR = 1 << 41
NONE = schema(RULES.measures).empty_table()


def runs(readings, rules=RULES):
    """Runs of (device, ms, value); a value of None is one that the reading lacks."""
    device, ms, value = zip(*readings, strict=True) if readings else ((), (), ())
    values = {"t": np.array([math.nan if v is None else v for v in value], np.float64)}
    return fold(pa.array(device, pa.string()), np.array(ms, np.int64), values, rules)


def shown(table, shown=SHOWN):
    """The statistics of order of the measure t, by device, start, state and name."""
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    places = list(zip(*(table[name].to_pylist() for name in ("device", "start", "state")), strict=True))
    found = {place: {} for place in places}
    for measure, name, values in session_statistics(columns, shown):
        if measure == "t" and name in shown.names:
            for place, value in zip(places, values.to_pylist(), strict=True):
                found[place][name] = value
    return found


def one(table, **units):
    ((_, statistics),) = shown(table, replace(SHOWN, **units)).items()
    return statistics


def right(readings):
    """The same by the oracle, of all readings at once."""
    names = sorted({device for device, _, _ in readings})
    columns = Readings(
        names,
        np.array([names.index(device) for device, _, _ in readings], np.int32),
        np.array([ms for _, ms, _ in readings], np.int64),
        {"t": np.array([math.nan if v is None else v for _, _, v in readings], np.float64)},
    )
    order = SessionOrder(tuple(ORDERED), ("t",))
    every = sessions(columns, RULES.gap_ms, RULES.max_duration_ms, FAR, chosen=order)
    return {(device, start, each.state): each.measures["t"].others for (device, start), each in every.items()}


def same(actual, expected):
    assert actual.keys() == expected.keys()
    for place, values in expected.items():
        for name, value in values.items():
            mine = actual[place][name]
            if value is None or mine is None:
                assert mine is value, (place, name)
            else:
                assert mine == pytest.approx(value, rel=0, abs=tolerance(name, value)), (place, name)


def step(state, readings, watermark_ms, rules=RULES):
    return advance(state, runs(readings, rules), watermark_ms, rules)


reading = st.tuples(
    st.sampled_from("ab"),
    st.one_of(st.integers(0, 3_000), st.integers(0, 30_000)).map(lambda ms: ms // 50 * 50),
    st.sampled_from([None, 0.0, 1.0, 2.0, 5.5, -3.0, 1e9, 0.1, 7.0]),
)


@given(st.lists(reading, min_size=20, max_size=80), st.randoms(use_true_random=False), st.integers(200, 9_000))
@examples(40)
def test_any_order_of_arrival_gives_what_one_pass_over_the_sorted_readings_gives(readings, rng, delay_ms):
    arrivals = sorted(readings, key=lambda each: each[1] + rng.randint(0, delay_ms))
    state, watermark_ms, emitted = None, 0, {}
    with mock.patch.multiple(trails, FOLD_FROM=2, FOLDABLE_BYTES=56):
        while arrivals:
            size = rng.choice([1, 3, 10, 40])
            batch, arrivals = arrivals[:size], arrivals[size:]
            to_come = min((ms for _, ms, _ in arrivals), default=FAR)
            newest = max(ms for _, ms, _ in batch)
            watermark_ms = max(watermark_ms, min(to_come, newest))
            before = state or empty_state(RULES)
            state, changes = step(state, batch, watermark_ms)
            delta = diff(before, state)
            if delta is not None:
                packed = codec.decode_delta(codec.encode_delta(delta))
                assert apply(before, packed).runs.equals(state.runs)
            state = codec.decode(codec.encode(state))
            emitted |= shown(changes.sessions)
    _, changes = step(state, [], FAR)
    emitted |= shown(changes.sessions)
    final = {place: values for place, values in emitted.items() if place[2] == "closed"}
    same(final, right(readings))
    (recomputed,) = closed([Payload(0, runs=runs(readings))], FAR, 0, RULES)
    assert shown(recomputed.sessions) == final  # to the bit


def test_a_late_reading_joins_what_is_folded_of_a_session_in_the_same_cell():
    early = [("a", ms, ms / 100) for ms in range(0, 400, 10)]
    state, _ = step(None, [*early, ("a", 990, 3.0)], 395)
    state, _ = step(state, [("a", 395, 9.0)], 990)
    _, changes = step(state, [], FAR)
    same(shown(changes.sessions), right([*early, ("a", 990, 3.0), ("a", 395, 9.0)]))


def test_a_cut_by_max_duration_parts_the_increase_and_the_step_over_it_is_in_neither():
    readings = [("a", ms, ms / 500) for ms in range(0, 24_000, 500)]
    state, _ = step(None, readings, 0)
    _, changes = step(state, [], FAR)
    found = shown(changes.sessions)
    assert {place[1]: each["increase"] for place, each in found.items()} == {0: 31.0, 16_000: 15.0}
    same(found, right(readings))


def test_a_reading_before_a_session_moves_its_cut_and_the_trails_of_cells_move_with_it():
    readings = [("a", ms, ms / 500) for ms in range(10_500, 40_000, 500)]
    state, _ = step(None, readings, 9_000)
    state, changes = step(state, [("a", 9_600, 0.0)], 9_000)
    _, changes = step(state, [], FAR)
    same(shown(changes.sessions), right([*readings, ("a", 9_600, 0.0)]))


def test_a_reset_is_counted_from_0_or_up_to_where_the_counter_wraps():
    _, changes = step(None, [("a", 0, 90.0), ("a", 500, 95.0), ("a", 1_000, 5.0)], 0)
    found = one(changes.sessions)
    assert (found["increase"], found["resets"], found["increase_rate"]) == (10.0, 1, 10.0)
    found = one(changes.sessions, wraps_at=100.0, per_ms=3_600_000)
    assert (found["increase"], found["increase_rate"]) == (15.0, 54_000.0)


def test_a_session_of_one_reading_has_no_time_to_be_weighted_by():
    found = one(step(None, [("a", 500, 4.0)], 0)[1].sessions)
    assert {name for name, value in found.items() if value is None} == {
        "increase_rate",
        "time_weighted_mean",
        "coverage",
    }
    assert (found["increase"], found["integral"], found["linear_mean"]) == (0.0, 0.0, 4.0)


def test_a_session_without_a_reading_of_the_measure_has_none():
    assert set(one(step(None, [("a", 500, None)], 0)[1].sessions).values()) == {None}


def test_a_session_that_began_before_its_statistics_has_none_and_the_next_one_has():
    off = replace(RULES, trails=())
    state, _ = advance(None, runs([("a", 0, 1.0)], off), 0, off)
    assert not any(name.endswith(TRAIL) for name in state.runs.column_names)
    state, changes = step(state, [("a", 500, 2.0)], 0)
    assert set(one(changes.sessions).values()) == {None}
    _, changes = step(state, [("a", 9_000, 2.0), ("a", 9_500, 3.0)], 5_000)
    assert shown(changes.sessions)["a", 9_000, "open"]["increase"] == 1.0


def test_statistics_that_are_removed_leave_no_byte():
    off = replace(RULES, trails=())
    state, _ = step(None, [("a", 0, 1.0)], 0)
    assert codec.encode(state)[4] == 6
    for readings in ([], [("a", 500, 2.0)]):  # a bucket whose devices are silent, too
        after, changes = advance(state, runs(readings, off), 0, off)
        assert codec.encode(after)[4] == 2
        assert not any(name.endswith(TRAIL) for name in (*after.runs.column_names, *changes.sessions.column_names))
        assert advance(after, runs([], off), 0, off)[0] is after


def test_a_run_of_more_readings_than_the_state_keeps_is_absent_and_never_wrong():
    rules = replace(RULES, most_readings=20)
    _, changes = advance(None, runs([("a", ms, ms) for ms in range(30)], rules), 0, rules)
    assert set(one(changes.sessions).values()) == {None}
    _, changes = advance(None, runs([("a", ms, ms) for ms in range(30)], rules), 25, rules)
    assert one(changes.sessions)["increase"] == 29.0


def test_folded_readings_take_a_constant_number_of_bytes():
    readings = [("a", ms, ms) for ms in range(0, 990, 3)]
    state, _ = step(None, readings, 0)
    assert len(state.runs[f"t.{TRAIL}"][0].as_py()) > 16 * len(readings)
    state, _ = step(state, [("a", 990, 1.0)], 991)
    assert len(state.runs[f"t.{TRAIL}"][0].as_py()) == 160


def test_a_trail_that_is_folded_and_gets_no_reading_is_in_the_delta():
    before, _ = step(None, [("a", ms, ms) for ms in range(0, 1_000, 20)], 0)
    after, _ = step(before, [("a", 1_000, 1.0)], 990)
    assert len(after.runs[f"t.{TRAIL}"][0].as_py()) == 160
    delta = codec.decode_delta(codec.encode_delta(diff(before, after)))
    assert apply(before, delta).runs.equals(after.runs)


def test_a_correction_of_a_closed_session_gives_what_a_pass_over_all_readings_gives():
    rng = random.Random(4)
    readings = [("a", ms, float(rng.randint(0, 9))) for ms in range(0, 20_000, 50)]
    rng.shuffle(readings)
    late, base = readings[:9], readings[9:]
    table = pa.table({"device": ["a"] * 9, "event_ms": [ms for _, ms, _ in late], "t": [v for _, _, v in late]})
    rules = replace(RULES, most_readings=5)  # of a cell; a correction has no limit

    def folded(some):
        return runs(list(zip(*(some[name].to_pylist() for name in ("device", "event_ms", "t")), strict=True)), rules)

    corrected = late_sessions.corrected(runs(base), table, folded, FAR, rules)
    expected, found = right(readings), shown(corrected.sessions)
    changed = {place: values for place, values in found.items() if place[2] == "closed"}
    assert changed
    same(changed, {place: expected[place] for place in changed})


def test_what_the_state_shows_of_open_sessions_is_what_the_step_has_emitted():
    readings = [("a", ms, ms / 700) for ms in range(0, 3_900, 100)]
    state, changes = step(None, readings, 0)
    assert shown(present(state, RULES).sessions) == shown(changes.sessions)
    assert isinstance(changes, Changes)


INPUT = {"measures": {"t": "t", "h": "h"}}


def test_settings_name_statistics_of_order_and_the_measures_that_have_them():
    given = settings(input=INPUT, sessions={"statistics": ["increase", "coverage"], "measures": ["t"], "wraps_at": 100})
    assert given.sessions.statistics == ("count", "mean", "min", "max", "increase", "coverage")
    assert given.session_statistics == {"t": ("increase", "coverage"), "h": ()}
    assert rules_of(given).trails == ("t",)
    known = Meta.of(meta(given), "tidemark:meta")
    assert (known.session_statistics, known.session_measures) == (given.sessions.statistics, ("t",))
    assert (known.session_per_ms, known.session_wraps_at) == (1_000, 100)
    assert rules_of(settings(input=INPUT)).trails == ()
    assert "statistics" not in json.loads(meta(settings(input=INPUT)))["sessions"]


@pytest.mark.parametrize(
    ("sessions", "message"),
    [
        ({"statistics": ["median"]}, "'median': no statistic of sessions; there are count, mean, min, max, increase"),
        ({"measures": ["t"]}, "measures: of no statistic that it changes; these are increase"),
        ({"statistics": ["increase"], "per": "h"}, "per: of no statistic that it changes"),
        ({"statistics": ["integral"], "wraps_at": 100}, "wraps_at: of no statistic that it changes"),
        ({"statistics": ["increase"], "wraps_at": 65535}, "begins again at 65536"),
        ({"statistics": ["increase"], "measures": ["x"]}, "sessions.measures"),
    ],
)
def test_settings_refuse_what_sessions_do_not_have(sessions, message):
    with pytest.raises(SettingsError, match=message):
        settings(input=INPUT, sessions=sessions)


def test_redis_clients_and_outlets_show_them():
    given = settings(input=INPUT, sessions={"statistics": list(ORDERED), "measures": ["t"], "per": "h"})
    _, changes = step(None, [("a", 0, 90.0), ("a", 500, 95.0), ("a", 1_000, 5.0)], 0)
    of = session_rows(changes.sessions, Keys("tidemark"), given.sessions)
    fields = {name: column[0].decode() for name, column in of.fields.items() if column[0] is not None}
    shown = Session.of(
        Place("session", "a", start=0), {**fields, "revision": "0", "epoch": "1", "batch": "1", "updated": "1"}
    )
    of_t, of_h = shown.measures["t"], shown.measures["h"]
    assert (of_t.count, of_t.increase, of_t.increase_rate, of_t.resets) == (3, 10.0, 36_000.0, 1)
    assert (of_h.count, of_h.mean, of_h.increase) == (0, None, None)
    columns = given.session_statistics
    (row,) = tables.sessions(changes.sessions, columns, given.sessions.shown, 1, 1, "watermark").to_pylist()
    assert (row["t_increase"], row["t_resets"], row["t_integral"]) == (10.0, 1, 92.5 / 3_600)
    assert "h_increase" not in row
    assert tables.sessions_schema(dict.fromkeys("th", ())).names == [
        name for name in row if name.removeprefix("t_") not in ORDERED
    ]

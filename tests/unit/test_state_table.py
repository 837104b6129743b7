"""Moving a bucket's sessions forward, against plain Python that sees all readings at once."""

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.columns import Keys
from state.rules import Rules
from state.runs import fold_sorted, schema
from state.table import advance, next_expiry
from tests.examples import examples
from tests.runs import fold

RULES = Rules(gap_ms=10, max_duration_ms=160, retain_ms=1_000, measures=("t",))
FAR = 1 << 41


def runs(*readings, rules=RULES):
    """Runs of (device, ms, value) readings; a reading without a value has the value of its time."""
    rows = [(r[0], r[1], r[2] if len(r) > 2 else r[1]) for r in readings]
    device, ms, value = zip(*rows, strict=True) if rows else ((), (), ())
    values = {rules.measures[0]: np.array(value, np.float64)} if rules.measures else {}
    return fold(pa.array(device, pa.string()), np.array(ms, np.int64), values, rules)


def nothing(rules=RULES):
    return schema(rules.measures).empty_table()


def brief(changes):
    """(device, start, last, count, state, reason, merged_into) of the sessions in changes."""
    names = ("device", "start", "last", "count", "state", "reason", "merged_into")
    return sorted((tuple(row[n] for n in names) for row in changes.sessions.to_pylist()), key=lambda row: row[:5])


def opened(state):
    """(device, start) of a state's open sessions."""
    return sorted({(row["device"], row["session"]) for row in state.runs.to_pylist()})


def contents(state):
    """A state without its order of devices."""
    return (
        sorted(state.runs.to_pylist(), key=lambda row: (row["device"], row["start"])),
        sorted(state.devices.to_pylist(), key=lambda row: row["device"]),
    )


# --- one rule at a time ------------------------------------------------------------------------------------------


def test_a_session_opens_grows_and_closes_once():
    state, changes = advance(None, runs(("a", 100), ("a", 105)), 0, RULES)
    assert brief(changes) == [("a", 100, 105, 2, "open", "", None)]
    state, changes = advance(state, runs(("a", 115)), 100, RULES)
    assert brief(changes) == [("a", 100, 115, 3, "open", "", None)]
    state, changes = advance(state, nothing(), 125, RULES)
    assert not changes
    state, changes = advance(state, nothing(), 126, RULES)
    assert brief(changes) == [("a", 100, 115, 3, "closed", "gap", None)]
    assert changes.devices.to_pylist() == [
        {"device": "a", "status": "offline", "last_seen": 115, "session": None, "t.value": 115.0, "t.at": 115}
    ]
    assert not advance(state, nothing(), 127, RULES)[1]


def test_a_reading_between_two_sessions_bridges_them():
    state, _ = advance(None, runs(("a", 100), ("a", 120)), 0, RULES)
    assert opened(state) == [("a", 100), ("a", 120)]
    state, changes = advance(state, runs(("a", 110)), 0, RULES)
    assert brief(changes) == [("a", 100, 120, 3, "open", "", None), ("a", 120, 120, 1, "merged", "merged", 100)]
    assert opened(state) == [("a", 100)]


def test_a_run_inside_another_does_not_hide_how_far_that_one_reaches():
    rules = Rules(10, 16_000, 1_000, ("t",))
    state, _ = advance(None, runs(("a", 100), ("a", 109), ("a", 118), rules=rules), 0, rules)
    state, _ = advance(state, runs(("a", 101), rules=rules), 0, rules)
    state, _ = advance(state, runs(("a", 102), ("a", 125), rules=rules), 0, rules)
    assert state.runs.select(["start", "last", "count"]).to_pylist() == [{"start": 100, "last": 125, "count": 6}]


def test_an_earlier_start_moves_the_cuts_behind_it():
    state, _ = advance(None, runs(*(("a", ms) for ms in range(100, 400, 10))), 0, RULES)
    assert opened(state) == [("a", 100), ("a", 260)]
    state, changes = advance(state, runs(("a", 91)), 0, RULES)
    assert opened(state) == [("a", 91), ("a", 250)]
    assert [row[1:2] + row[4:] for row in brief(changes)] == [
        (91, "open", "", None),
        (100, "merged", "merged", 91),
        (250, "open", "", None),
        (260, "merged", "merged", 250),
    ]


@pytest.mark.parametrize("values", [*itertools.permutations([0.0, -0.0, -0.0])])
def test_zero_has_no_sign_in_any_order_and_with_any_cut(values):
    readings = [("a", 100, value) for value in values]
    for cut in range(3):
        _, changes = advance(None, pa.concat_tables([runs(*readings[:cut]), runs(*readings[cut:])]), 0, RULES)
        [session], [device] = changes.sessions.to_pylist(), changes.devices.to_pylist()
        numbers = [session["t.min"], session["t.max"], session["t.sum"], device["t.value"]]
        assert not np.signbit(numbers).any(), (cut, numbers)


def test_a_device_is_forgotten_only_after_it_was_silent_for_retain_ms():
    state, _ = advance(None, runs(("a", 100), ("b", 200)), 0, RULES)
    state, _ = advance(state, nothing(), 500, RULES)
    assert next_expiry(state, RULES) == 1_100
    assert advance(state, nothing(), 1_100, RULES)[0] is state
    busy, _ = advance(state, runs(("c", 1_100)), 1_100, RULES)
    assert busy.devices.column("device").to_pylist() == ["a", "b", "c"]
    state, changes = advance(state, nothing(), 1_101, RULES)
    assert (state.devices.column("device").to_pylist(), bool(changes)) == (["b"], False)
    state, _ = advance(state, runs(("c", 1_150)), 1_101, RULES)
    assert state.runs.column("device").to_pylist() == ["c"]
    state, _ = advance(state, nothing(), FAR, RULES)
    assert (state.devices.num_rows, state.runs.num_rows, next_expiry(state, RULES)) == (0, 0, None)


def test_an_online_device_is_not_forgotten_however_short_retain_is():
    rules = Rules(100, 1_000, 0, ("t",))
    state, _ = advance(None, runs(("a", 100), rules=rules), 0, rules)
    state, changes = advance(state, runs(("b", 160), rules=rules), 150, rules)
    assert opened(state) == [("a", 100), ("b", 160)]
    state, changes = advance(state, nothing(), 201, rules)
    assert changes.devices.select(["device", "status"]).to_pylist() == [{"device": "a", "status": "offline"}]
    assert state.devices.column("device").to_pylist() == ["b"]
    assert advance(state, nothing(rules), 261, rules)[0].devices.num_rows == 0


def test_only_devices_and_sessions_that_changed_are_in_the_changes():
    state, _ = advance(None, runs(("a", 100), ("b", 100)), 0, RULES)
    changes = advance(state, runs(("b", 101)), 0, RULES)[1]
    assert [row[0] for row in brief(changes)] == ["b"]
    assert changes.devices.column("device").to_pylist() == ["b"]


def test_a_measure_added_to_the_settings_is_null_in_what_was_there_before():
    state, _ = advance(None, runs(("a", 100, 1.0)), 0, RULES)
    wider = Rules(10, 160, 1_000, ("h", "t"))
    new = fold(pa.array(["a"]), np.array([101]), {"h": np.array([5.0]), "t": np.array([2.0])}, wider)
    state, changes = advance(state, new, 0, wider)
    (row,) = changes.sessions.to_pylist()
    assert (row["count"], row["h.count"], row["h.sum"], row["t.count"], row["t.sum"]) == (2, 1, 5.0, 2, 3.0)
    assert state.devices.column_names[3:] == ["h.value", "h.at", "t.value", "t.at"]
    assert not advance(state, nothing(wider), 110, wider)[1]


def test_a_measure_removed_from_the_settings_is_kept_while_something_has_it_but_not_emitted():
    both = Rules(10, 160, 1_000, ("t", "h"))
    new = fold(pa.array(["a"]), np.array([100]), {"h": np.array([5.0]), "t": np.array([2.0])}, both)
    state, _ = advance(None, new, 0, both)
    state, changes = advance(state, runs(("a", 101, 3.0)), 0, RULES)
    assert not [name for name in (*changes.sessions.column_names, *changes.devices.column_names) if "h." in name]
    assert state.devices.select(["h.value", "h.at"]).to_pylist() == [{"h.value": 5.0, "h.at": 100}]
    again = advance(state, nothing(both), FAR, both)[1].sessions.to_pylist()
    assert [(row["t.sum"], row["h.sum"], row["h.count"]) for row in again] == [(5.0, 5.0, 1)]
    state, _ = advance(state, runs(("b", 900)), 900, RULES)
    state, _ = advance(state, runs(("b", 1_200)), 1_200, RULES)
    assert not [name for name in (*state.runs.column_names, *state.devices.column_names) if "h." in name]


def test_sessions_of_a_shorter_gap_are_parted_when_the_settings_change():
    state, _ = advance(None, runs(("a", 101), ("a", 109), ("a", 118)), 0, RULES)
    assert opened(state) == [("a", 101)]
    shorter = Rules(5, 160, 1_000, ("t",))
    state, changes = advance(state, runs(("b", 120), rules=shorter), 0, shorter)
    assert brief(changes) == [
        ("a", 101, 109, 2, "open", "", None),  # what is one run already is not parted again
        ("a", 118, 118, 1, "open", "", None),
        ("b", 120, 120, 1, "open", "", None),
    ]


def test_sessions_without_any_measure_work():
    rules = Rules(10, 160, 1_000, ())
    state, changes = advance(None, runs(("a", 100), rules=rules), 0, rules)
    assert brief(changes) == [("a", 100, 100, 1, "open", "", None)]
    assert opened(advance(state, runs(("a", 95), rules=rules), 0, rules)[0]) == [("a", 95)]


def test_more_devices_than_a_key_has_room_for_are_refused_and_not_mixed_up():
    with pytest.raises(OverflowError, match="use more buckets"):
        Keys((1 << 21) + 1, 0, (1 << 42) - 1)
    keys = Keys(1 << 28, 1_700_000_000_000, 1_700_000_000_000 + 366 * 86_400_000)
    codes, ms = np.array([0, (1 << 28) - 1]), np.array([1_700_000_000_000, 1_731_000_000_000])
    assert keys.ms(keys.pack(codes, ms)).tolist() == ms.tolist()


# --- limits of a device's own ---


def limited(table, gap=-1, interval=-1):
    """Runs that bring limits: the same for all devices, or by device."""
    for name, of in (("gap", gap), ("interval", interval)):
        values = [of.get(device, -1) if isinstance(of, dict) else of for device in table.column("device").to_pylist()]
        table = table.append_column(name, pa.array(values, pa.int64()))
    return table


def statuses(changes):
    return {row["device"]: row["status"] for row in changes.devices.to_pylist()}


def test_a_device_is_quiet_between_its_expected_reading_and_the_end_of_its_session():
    state, changes = advance(None, limited(runs(("a", 100), ("b", 100)), interval={"a": 4}), 0, RULES)
    assert statuses(changes) == {"a": "online", "b": "online"}
    assert next_expiry(state, RULES) == 104
    assert advance(state, nothing(), 104, RULES)[0] is state
    state, changes = advance(state, nothing(), 105, RULES)
    assert (statuses(changes), brief(changes)) == ({"a": "quiet"}, [])
    assert next_expiry(state, RULES) == 110
    state, changes = advance(state, limited(runs(("a", 106)), interval=4), 105, RULES)
    assert statuses(changes) == {"a": "online"}
    state, changes = advance(state, nothing(), 111, RULES)
    assert statuses(changes) == {"a": "quiet", "b": "offline"}
    state, changes = advance(state, nothing(), 117, RULES)
    assert statuses(changes) == {"a": "offline"}


def test_a_device_whose_reading_comes_when_the_next_one_is_overdue_is_quiet_at_once():
    _, changes = advance(None, limited(runs(("a", 100)), interval=4), 105, RULES)
    assert statuses(changes) == {"a": "quiet"}


def test_a_gap_that_changes_holds_for_what_is_open_from_the_next_reading_on():
    state, _ = advance(None, limited(runs(("a", 100)), gap=50), 0, RULES)
    assert next_expiry(state, RULES) == 150
    state, changes = advance(state, limited(runs(("a", 140)), gap=50), 120, RULES)
    assert brief(changes) == [("a", 100, 140, 2, "open", "", None)]
    state, changes = advance(state, runs(("a", 145)), 120, RULES)  # none of its own any more: 10 again
    assert brief(changes) == [("a", 100, 100, 1, "closed", "gap", None), ("a", 140, 145, 2, "open", "", None)]
    assert next_expiry(state, RULES) == 155


def test_a_reading_after_a_session_that_was_closed_by_a_shorter_gap_is_not_late():
    state, _ = advance(None, runs(("a", 100)), 0, RULES)
    state, changes = advance(state, nothing(), 111, RULES)
    assert brief(changes)[0][4] == "closed"
    state, changes = advance(state, limited(runs(("a", 115)), gap=50), 111, RULES)
    assert brief(changes) == [("a", 115, 115, 1, "open", "", None)]


@pytest.mark.parametrize("wider", [RULES, replace(RULES, gap_ms=50)], ids=["the device's own gap", "the rules' gap"])
def test_a_gap_that_grows_makes_no_reading_late_that_is_on_time(wider):
    """Batch after batch: the first one with the new gap is told apart from those after it, which know it already."""
    own = {"gap": 50} if wider is RULES else {}
    state, _ = advance(None, limited(runs(("a", 100))), 0, RULES)
    state, _ = advance(state, nothing(), 111, RULES)
    starts = []
    for ms in (115, 125, 135):
        state, changes = advance(state, limited(runs(("a", ms)), **own), 111, wider)
        starts += [row["start"] for row in changes.sessions.to_pylist()]
    assert starts == [115] * 3


def test_a_state_of_devices_without_limits_is_what_it_was():
    state, _ = advance(None, limited(runs(("a", 100))), 0, RULES)
    assert not {"gap", "interval", "quiet"} & {*state.devices.column_names}


# --- against plain Python ----------------------------------------------------------------------------------------


def plain_sessions(readings, rules):
    """{(device, start): (last, count, sum, reason)} of a set of (device, ms, value), by the rule in one sentence."""
    sessions = {}
    for device in {r[0] for r in readings}:
        start = last = None
        for ms, value in sorted(r[1:] for r in readings if r[0] == device):
            cell_end = (ms // rules.cell_ms + 1) * rules.cell_ms
            near = last is not None and ms - last <= rules.gap_ms
            if not near or cell_end > start + rules.max_duration_ms:
                if near:
                    sessions[device, start][3] = "max_duration"
                start = ms
                sessions[device, start] = [ms, 0, 0.0, "gap"]
            last = ms
            session = sessions[device, start]
            session[:3] = [ms, session[1] + 1, session[2] + value]
    return {key: tuple(session) for key, session in sessions.items()}


class Mirror:
    """What a reader of the changes knows: the newest row of each session and device. Checks the order of states."""

    def __init__(self):
        self.sessions, self.devices = {}, {}

    def apply(self, changes):
        keys = [(row["device"], row["start"]) for row in changes.sessions.to_pylist()]
        assert len(set(keys)) == len(keys), "a session occurs once in a step"
        for key, row in zip(keys, changes.sessions.to_pylist(), strict=True):
            before = self.sessions.get(key, {"state": "open"})
            assert before["state"] != "closed", "a closed session never changes"
            if row["state"] == "merged":
                assert before["state"] == "open", "a session is merged once"
                assert (before["last"], before["count"]) == (row["last"], row["count"])
                assert row["merged_into"] <= row["start"]
            self.sessions[key] = row
        for row in changes.devices.to_pylist():
            self.devices[row["device"]] = row

    def all(self, state):
        return {key: row for key, row in self.sessions.items() if row["state"] == state}


eighths = st.integers(-80, 80).map(lambda n: n / 8)  # their sums are exact in any order
readings_lists = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400), eighths), min_size=1, max_size=40)
any_rules = st.builds(
    Rules, st.integers(1, 60), st.integers(1, 600) | st.integers(601, 9_000), st.integers(0, 500), st.just(("t",))
)


@given(readings_lists, any_rules, st.randoms(use_true_random=False))
def test_any_cut_and_order_gives_what_folding_all_at_once_gives(readings, rules, random):
    whole, _ = advance(None, runs(*readings, rules=rules), 0, rules)
    shuffled = random.sample(readings, len(readings))
    state, mirror = None, Mirror()
    while shuffled:
        size = random.randint(1, len(shuffled))
        batch, shuffled = shuffled[:size], shuffled[size:]
        state, changes = advance(state, runs(*batch, rules=rules), 0, rules)
        mirror.apply(changes)
    assert contents(state) == contents(whole)
    expected = plain_sessions(readings, rules)
    seen = {key: (row["last"], row["count"], row["t.sum"]) for key, row in mirror.all("open").items()}
    assert seen == {key: session[:3] for key, session in expected.items()}
    for device, row in mirror.devices.items():
        own = [r[1:] for r in readings if r[0] == device]
        latest = max(key[1] for key in expected if key[0] == device)
        assert (row["last_seen"], row["session"], row["status"]) == (max(own)[0], latest, "online")
        assert (row["t.at"], row["t.value"]) == max(own)


@given(readings_lists, any_rules, st.randoms(use_true_random=False))
def test_with_a_watermark_that_no_reading_is_behind_every_session_closes_as_plain_python_says(readings, rules, random):
    late_by = random.randint(0, 100)
    arrivals = sorted(readings, key=lambda r: r[1] + random.randint(0, late_by))
    state, mirror, watermark = None, Mirror(), 0
    while arrivals:
        size = random.randint(1, len(arrivals))
        batch, arrivals = arrivals[:size], arrivals[size:]
        # As far as the readings still to come allow: a step may close what its own readings belong to.
        watermark = max(watermark, min((r[1] for r in arrivals), default=FAR) - random.randint(0, 30))
        state, changes = advance(state, runs(*batch, rules=rules), watermark, rules)
        mirror.apply(changes)
    state, changes = advance(state, nothing(rules), FAR, rules)
    mirror.apply(changes)
    closed = {k: (r["last"], r["count"], r["t.sum"], r["reason"]) for k, r in mirror.all("closed").items()}
    assert (mirror.all("open"), state.devices.num_rows) == ({}, 0)
    assert closed == plain_sessions(readings, rules)
    assert {row["status"] for row in mirror.devices.values()} == {"offline"}


@given(readings_lists, any_rules, st.integers(0, 500))
@examples(50)
def test_the_next_expiry_is_the_last_watermark_that_changes_nothing(readings, rules, watermark):
    state, _ = advance(None, runs(*readings, rules=rules), watermark, rules)
    while (expiry := next_expiry(state, rules)) is not None:
        assert expiry >= watermark
        assert advance(state, nothing(rules), expiry, rules)[0] is state
        watermark = expiry + 1
        after, _ = advance(state, nothing(rules), watermark, rules)
        assert (after.runs.num_rows, after.devices.num_rows) < (state.runs.num_rows, state.devices.num_rows)
        state = after
    assert state.devices.num_rows == 0


@given(readings_lists, any_rules, st.fixed_dictionaries({"a": st.integers(1, 60), "b": st.integers(1, 300)}), st.data())
def test_devices_with_gaps_and_intervals_of_their_own_are_as_if_each_had_rules_of_its_own(readings, rules, gaps, data):
    """Whatever the batches and watermarks: a bucket of several devices moves like several buckets of one."""
    intervals = data.draw(st.fixed_dictionaries({"b": st.integers(1, 60), "c": st.integers(1, 60)}))
    together, mirror, watermark = None, Mirror(), 0
    alone = {device: (None, Mirror()) for device in "abc"}
    random = data.draw(st.randoms(use_true_random=False))
    arrivals = sorted(readings, key=lambda r: r[1] + random.randint(0, 100))
    for first in range(0, len(arrivals) + 10, 5):
        batch = arrivals[first : first + 5]
        to_come = min((r[1] for r in arrivals[first + 5 :]), default=FAR)
        watermark = max(watermark, min(to_come, watermark + random.randint(0, 100)))
        codes = {device: n for n, device in enumerate(dict.fromkeys(r[0] for r in batch))}
        ordered = sorted(batch, key=lambda r: (codes[r[0]], r[1]))
        table = nothing(rules)
        if batch:
            table = fold_sorted(
                np.array([codes[r[0]] for r in ordered], np.int32),
                pa.array(list(codes)),
                np.array([r[1] for r in ordered], np.int64),
                {"t": np.array([r[2] for r in ordered], np.float64)},
                rules,
                np.array([gaps.get(device, rules.gap_ms) for device in codes], np.int64),
            )
        together, changes = advance(together, limited(table, gaps, intervals), watermark, rules)
        mirror.apply(changes)
        for device, (before, own) in alone.items():
            own_rules = Rules(gaps.get(device, rules.gap_ms), rules.max_duration_ms, rules.retain_ms, rules.measures)
            own_runs = limited(runs(*[r for r in batch if r[0] == device], rules=own_rules), interval=intervals)
            after, changes = advance(before, own_runs, watermark, own_rules)
            own.apply(changes)
            alone[device] = after, own
        expiries = [
            next_expiry(s, Rules(gaps.get(d, rules.gap_ms), rules.max_duration_ms, rules.retain_ms, rules.measures))
            for d, (s, _) in alone.items()
        ]
        assert next_expiry(together, rules) == min((e for e in expiries if e is not None), default=None)
    assert mirror.sessions == {key: row for _, own in alone.values() for key, row in own.sessions.items()}
    assert mirror.devices == {key: row for _, own in alone.values() for key, row in own.devices.items()}

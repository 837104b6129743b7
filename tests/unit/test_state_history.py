"""What is closed, told from all payloads at once, is what the step-by-step state told in its time."""

import numpy as np
import pyarrow as pa
import pytest

from state import windows
from state.history import Payload, closed
from state.layout import CLOSED, empty_state
from state.rules import Rules
from state.runs import schema
from state.table import advance, present
from state.window_columns import COLUMNS
from tests.runs import fold

RULES = Rules(gap_ms=10_000, max_duration_ms=160_000, retain_ms=86_400_000, measures=("t",))
WATERMARK = 900_000
END = 1_000_000


def readings(seed):
    """(device, ms, value) of twelve devices that fall silent now and then; the first one never does."""
    rng = np.random.default_rng(seed)
    names, times = [], []
    for device in range(12):
        gaps = rng.choice([3_000, 9_000, 10_000, 10_001, 40_000], 400, p=[0.5, 0.2, 0.1, 0.1, 0.1])
        at = np.cumsum(np.full(400, 4_000) if device == 0 else gaps)
        at = at[at < END]
        names += [f"d{device}"] * len(at)
        times.append(at)
    ms = np.concatenate(times)
    return np.array(names), ms, rng.normal(20, 5, len(ms))


def tables(chosen, parts, seed=0):
    """The readings cut into payloads of runs at random, in the order that `closed` wants."""
    names, ms, values = chosen
    part = np.random.default_rng(seed).integers(0, parts, len(ms))
    payloads = []
    for number in range(parts):
        mine = part == number
        runs = fold(pa.array(names[mine]), ms[mine], {"t": values[mine]}, RULES)
        if runs.num_rows:
            payloads.append(Payload(min(runs["start"].to_pylist()), runs=runs))
    return sorted(payloads, key=lambda payload: payload.first_ms)


def sessions(payloads, whole_from_ms=0):
    """The closed sessions, and how many were unrecoverable."""
    (result,) = closed(payloads, WATERMARK, whole_from_ms, RULES)
    return result.sessions, result.unrecoverable


def rows_of(table):
    rows = sorted(table.to_pylist(), key=lambda row: (row["device"], row["start"]))
    return [{**row, "t.sum": round(row["t.sum"], 6)} for row in rows]


@pytest.mark.parametrize("seed", range(5))
def test_closed_sessions_told_at_once_are_those_that_were_told_batch_by_batch(seed):
    chosen = names, ms, values = readings(seed)
    state, wanted = empty_state(RULES), []
    step = 50_000
    for batch in range(0, END, step):
        now = (ms >= batch) & (ms < batch + step)
        runs = fold(pa.array(names[now]), ms[now], {"t": values[now]}, RULES)
        state, changes = advance(state, runs, min(max(batch - 20_000, 0), WATERMARK), RULES)
        wanted += [row for row in changes.sessions.to_pylist() if row["state"] == CLOSED]
    state, changes = advance(state, schema(("t",)).empty_table(), WATERMARK, RULES)
    wanted += [row for row in changes.sessions.to_pylist() if row["state"] == CLOSED]
    assert len(wanted) > 100
    for parts in (1, 7):
        table, unrecoverable = sessions(tables(chosen, parts, seed))
        assert unrecoverable == 0
        assert rows_of(table) == rows_of(pa.Table.from_pylist(wanted, table.schema))


def test_a_session_is_told_only_when_nothing_before_it_can_be_lacking():
    chosen = names, ms, values = readings(7)
    every, _ = sessions(tables(chosen, 1))
    whole_from = 400_000
    left = ms >= whole_from - 30_000  # older readings may be there or not
    table, unrecoverable = sessions(tables((names[left], ms[left], values[left]), 3), whole_from)
    right = {(row["device"], row["start"]): row for row in rows_of(every)}
    assert table.num_rows > 50
    assert unrecoverable > 0
    for row in rows_of(table):
        assert row == right[row["device"], row["start"]]
    # The device that is never silent: where its sessions are cut depends on readings that are gone.
    assert "d0" not in table["device"].to_pylist()
    assert "d0" in every["device"].to_pylist()
    # And nothing is left out without need: a session after a real silence is told.
    late = {key for key, row in right.items() if key[1] >= whole_from + RULES.gap_ms and key[0] != "d0"}
    micro_batch = {key for key in late if right[key]["reason"] != "gap"}
    assert len(late - micro_batch) - table.num_rows < 12


def test_a_known_session_makes_those_after_it_whole():
    chosen = names, ms, values = readings(7)
    every, _ = sessions(tables(chosen, 1))
    right = {(row["device"], row["start"]): row for row in rows_of(every)}
    start = min(at for name, at in right if name == "d0" and at >= 400_000)
    left = ms >= 370_000  # d0 has readings before the session, of one whose start is not known
    payloads = tables((names[left], ms[left], values[left]), 3)
    (result,) = closed(payloads, WATERMARK, 390_000, RULES, known={"d0": start, "d99": 0})
    wanted = {at for name, at in right if name == "d0" and at >= start}
    assert len(wanted) > 1
    found = [row for row in rows_of(result.sessions) if row["device"] == "d0"]
    assert {row["start"] for row in found} == wanted
    assert all(row == right["d0", row["start"]] for row in found)


def test_no_runs_are_no_sessions():
    table, unrecoverable = sessions([])
    assert (table.num_rows, unrecoverable) == (0, 0)


def minute(starts_ms):
    """A payload with a part of one reading for each start, in ms, of a window of a minute."""
    starts = np.array(starts_ms, np.int64)
    columns = {name: starts if name in ("first", "last") else starts * 1.0 for name in COLUMNS}
    columns["count"] = np.ones(len(starts), np.int64)
    parts = windows.parts("view", "t", pa.array(["a"]), np.zeros(len(starts)), starts, starts + 60_000, columns)
    return Payload(int(starts.min()), parts=parts)


def test_final_windows_are_told_as_soon_as_no_payload_can_reach_them():
    payloads = [minute([0, 60_000]), minute([60_000, 120_000]), minute([120_000, 840_000, 900_000])]
    parts = list(closed(payloads, WATERMARK, 0, RULES))
    rows = [[(row["start"], row["count"]) for row in each.windows.to_pylist()] for each in parts]
    assert rows == [[(0, 1)], [(60_000, 2)], [(120_000, 2), (840_000, 1)]]


def test_what_is_present_is_every_open_session_and_device_as_it_was_last_told():
    names, ms, values = readings(3)
    state, opened, devices = empty_state(RULES), {}, {}
    for batch in range(0, END, 100_000):
        now = (ms >= batch) & (ms < batch + 100_000)
        runs = fold(pa.array(names[now]), ms[now], {"t": values[now]}, RULES)
        state, changes = advance(state, runs, max(batch - 20_000, 0), RULES)
        opened |= {(row["device"], row["start"]): row for row in rows_of(changes.sessions)}
        devices |= {row["device"]: row for row in changes.devices.to_pylist()}
    current = present(state, RULES)
    wanted = [row for row in opened.values() if row["state"] == "open"]
    assert len(wanted) > 5
    assert rows_of(current.sessions) == sorted(wanted, key=lambda row: (row["device"], row["start"]))
    assert {row["device"]: row for row in current.devices.to_pylist()} == devices
    nothing = present(empty_state(RULES), RULES)
    assert (nothing.sessions.num_rows, nothing.devices.num_rows) == (0, 0)

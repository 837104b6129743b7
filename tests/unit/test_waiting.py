"""Open values that wait: what leaves when, compared with the same steps in which nothing waits."""

from dataclasses import replace
from types import SimpleNamespace
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from state import codec, distribution, waiting, windows
from state.bucket import advance
from state.delta import apply, diff
from state.layout import TOLD, empty_state
from state.rules import ENDLESS_MS, Rules
from state.table import present, present_waiting
from state.waiting import AT_ONCE, DUE, NEVER, Pace, Phases
from tests.examples import examples
from tests.runs import fold
from tests.unit.test_state_windows import table as parts_of

EVERY = 50
PLAIN = Rules(gap_ms=20, max_duration_ms=320, retain_ms=100, measures=("t",), endless=frozenset({("total", "t")}))
PACED = Rules(
    **{name: getattr(PLAIN, name) for name in ("gap_ms", "max_duration_ms", "retain_ms", "measures", "endless")},
    update_every={"slow": EVERY, "quick": 0, "total": EVERY},
    devices_every_ms=EVERY,
)

PLAIN_VIEWS = replace(PLAIN, update_every=dict.fromkeys(PACED.update_every, 0))


def runs_of(readings):
    if not readings:
        return []
    device, ms = zip(*readings, strict=True)
    return [fold(pa.array(device), np.array(ms, np.int64), {"t": np.array(ms, np.float64)}, PLAIN)]


def parts(readings):
    rows = [(view, "t", device, ms // 10, 10, [float(ms)]) for device, ms in readings for view in ("slow", "quick")]
    endless = [("total", "t", device, 0, ENDLESS_MS, [float(ms)]) for device, ms in readings]
    return parts_of(rows + endless)


def step(state, readings, watermark, rules, pace):
    return advance(state, parts(readings), runs_of(readings), watermark, rules, pace)


def stored(redis, changes):
    """What readers have after the changes: rows by kind and key."""
    names = {"sessions": ("device", "start"), "devices": ("device",), "windows": ("view", "key", "start")}
    for kind, key in names.items():
        for row in getattr(changes, kind).to_pylist():
            redis[kind, *(row[name] for name in key)] = row
    return redis


def waiting_keys(state):
    """The keys of the devices and windows that wait."""
    rows = {"devices": waiting.waiting(state.devices), "windows": waiting.waiting(state.windows)}
    return {*stored({}, SimpleNamespace(sessions=rows["devices"].slice(0, 0), **rows))}


def plain_of(state):
    """Without when a row is due, and as of when a device's measures have their statuses."""
    devices = waiting.without(state.devices)
    return [devices.drop_columns([TOLD]) if TOLD in devices.column_names else devices, waiting.without(state.windows)]


readings = st.lists(st.tuples(st.sampled_from(["a", "b", "ü|ß"]), st.integers(0, 30)), max_size=6)
steps = st.lists(st.tuples(readings, st.integers(0, 25), st.integers(0, 40), st.integers(0, 9)), max_size=12)


@pytest.mark.parametrize("by_measure", [False, True])
@examples(60)
@example([([("a", 0)], 21, 0, 0), ([("a", 0)], 21, 0, 0)])  # a reading that leaves its device's measure offline
@given(steps)
def test_what_waits_leaves_exact_and_in_time_and_finals_at_once_and_statuses_but_in_a_backlog(by_measure, schedule):
    plain_rules, rules = (replace(each, by_measure=by_measure) for each in (PLAIN, PACED))
    plain, paced, plain_redis, redis = empty_state(plain_rules), empty_state(rules), {}, {}
    now_ms, watermark, since = 1_000, 0, {}
    for late, moved, passed, kind in schedule:
        now_ms += passed
        batch = [(device, watermark + after) for device, after in late]
        # 0: a backlog is read, 1: Redis has closed values that readings may change.
        pace = Pace(now_ms, now_ms - 30) if kind == 0 else Pace(now_ms) if kind == 1 else Pace(now_ms, now_ms)
        watermark += moved
        plain, expected, closed = step(plain, batch, watermark, plain_rules, AT_ONCE)
        before = dict(redis)
        paced, changes, closed_too = step(paced, batch, watermark, rules, pace)
        assert closed.equals(closed_too)
        assert plain.runs.equals(paced.runs)
        assert all(one.equals(two) for one, two in zip(plain_of(plain), plain_of(paced), strict=True))
        stored(plain_redis, expected)
        stored(redis, changes)
        behind = {key for key in plain_redis if redis.get(key) != plain_redis[key]}
        assert all(redis[key] == plain_redis[key] for key in redis if redis[key] != before.get(key)), (
            "exact when written"
        )
        since = {key: since.get(key, now_ms) for key in behind}
        limit_ms = EVERY + (30 if kind == 0 else 0)
        assert all(now_ms - at_ms < limit_ms for at_ms in since.values())
        are_open = {key: key[3] + 10 > watermark or key[1] == "total" for key in behind if key[0] == "windows"}
        assert all(are_open.values())
        assert not (kind and any(key[1] == "quick" for key in are_open))
        assert all(plain_redis[key]["state"] == "open" for key in behind if key[0] == "sessions")
        statuses = {name for row in plain_redis.values() for name in row if name.endswith("status")}
        assert kind == 0 or not any(
            plain_redis[key][name] != redis.get(key, {}).get(name)
            for key in behind
            if key[0] == "devices"
            for name in statuses
        )
        # A reading that leaves its device as it was waits, too, and is not behind.
        assert {key for key in behind if key[0] != "sessions"} <= waiting_keys(paced)
        assert not behind or pace.line_ms <= now_ms
        assert stored(dict(redis), present_waiting(paced, rules)) == plain_redis | {
            key: redis[key] for key in redis if key not in behind
        }
    state, changes, _ = step(paced, [], watermark, rules, AT_ONCE)
    assert stored(redis, changes) == plain_redis
    assert not waiting.number(state.windows)
    assert not waiting.number(state.devices)


def test_a_key_is_due_at_its_phase_and_a_second_change_does_not_move_it():
    state = empty_state(PACED)
    due_ms = 1_000 + (crc32(b"a") - 1_000) % EVERY
    state, changes, _ = step(state, [("a", 5)], 0, PACED, Pace(1_000, 1_000))
    assert [row["view"] for row in changes.windows.to_pylist()] == ["quick"], "its every_ms is 0"
    assert changes.devices.num_rows == changes.sessions.num_rows == 1, "it is online now"
    assert sorted(state.windows[DUE].to_pylist()) == [NEVER, due_ms, due_ms]
    state, changes, _ = step(state, [("a", 6)], 0, PACED, Pace(due_ms - 1, due_ms - 1))
    assert not changes.devices.num_rows
    assert not changes.sessions.num_rows
    assert sorted(state.windows[DUE].to_pylist()) == [NEVER, due_ms, due_ms]
    assert state.devices[DUE].to_pylist() == [due_ms]
    state, changes, _ = step(state, [], 0, PACED, Pace(due_ms, due_ms))
    counts = {row["view"]: row["count"] for row in changes.windows.to_pylist()}
    assert counts == {"slow": 2, "total": 2}
    assert changes.sessions["count"].to_pylist() == [2]
    assert changes.devices["last_seen"].to_pylist() == [6]
    assert state.windows[DUE].to_pylist() == [NEVER] * 3
    again, changes, _ = step(state, [], 0, PACED, Pace(due_ms + 10 * EVERY, due_ms + 10 * EVERY))
    assert again is state
    assert not changes


def test_keys_are_due_evenly_over_the_time():
    names = pa.array([f"device-{number}" for number in range(10_000)])
    waits = Phases(names, np.arange(10_000), np.full(10_000, 5_000)).of(np.arange(10_000), 1_234_567)
    by_second = np.bincount(waits // 1_000, minlength=5)
    assert len(by_second) == 5
    assert by_second.min() > 1_800, by_second


def test_what_is_written_beside_the_batches_does_not_leave_again():
    state, _, _ = step(empty_state(PACED), [("a", 5)], 0, PACED, Pace(1_000, 1_000))
    state, _, _ = step(state, [("a", 6)], 0, PACED, Pace(1_001, 1_001))
    assert waiting.number(state.windows) == 2
    assert waiting.number(state.devices) == 1
    assert present_waiting(state, PACED).windows["count"].to_pylist() == [2, 2]
    after, changes, _ = step(state, [], 0, PACED, Pace(9_000, 9_000, is_written=True))
    assert not changes
    assert not waiting.number(after.windows)
    assert not waiting.number(after.devices)
    _, changes, _ = step(state, [("a", 7)], 0, PACED, Pace(1_002, 9_000, is_written=True))
    assert {row["view"]: row["count"] for row in changes.windows.to_pylist()} == {"slow": 3, "quick": 3, "total": 3}


def test_a_shorter_time_in_the_settings_holds_for_what_waits_already():
    rules = replace(PACED, update_every={**PACED.update_every, "slow": 1_000_000}, devices_every_ms=1_000_000)
    state, _, _ = step(empty_state(rules), [("a", 5)], 0, rules, Pace(1_000, 1_000))
    state, _, _ = step(state, [("a", 6)], 0, rules, Pace(1_001, 1_001))
    state, changes, _ = step(state, [], 0, PACED, Pace(1_051, 1_051))
    assert {row["view"] for row in changes.windows.to_pylist()} <= {"slow", "total"}
    state, changes, _ = step(state, [], 0, PLAIN_VIEWS, Pace(1_052, 1_052))
    assert not waiting.number(state.windows)
    assert not waiting.number(state.devices)
    assert changes.devices["last_seen"].to_pylist() == [6]
    again, changes, _ = step(state, [], 0, PLAIN_VIEWS, Pace(1_053, 1_053))
    assert again is state
    assert not changes


def test_sessions_that_a_smaller_gap_parts_leave_at_once_though_their_device_sent_nothing():
    state, _, _ = step(empty_state(PACED), [("a", 5), ("a", 20), ("a", 45)], 0, PACED, Pace(1_000, 1_000))
    smaller = replace(PACED, gap_ms=10)
    state, changes, _ = step(state, [("b", 21)], 0, smaller, Pace(1_001, 1_001))
    rows = [(row["device"], row["start"], row["count"]) for row in changes.sessions.to_pylist()]
    assert sorted(rows) == [("a", 5, 1), ("a", 20, 1), ("a", 45, 1), ("b", 21, 1)]


def test_windows_of_a_view_that_left_the_settings_wait_no_more_and_are_not_written():
    state, _, _ = step(empty_state(PACED), [("a", 5)], 0, PACED, Pace(1_000, 1_000))
    without = Rules(20, 320, 100, ("t",), frozenset({("total", "t")}), update_every={"quick": 0, "total": EVERY})
    state, changes, _ = advance(state, [], [], 100, without, Pace(1_001, 1_001))
    assert {row["view"] for row in changes.windows.to_pylist()} == set()
    assert present_waiting(state, without).windows["view"].to_pylist() == ["total"]


def test_a_state_in_which_nothing_waits_has_the_bytes_of_before():
    paced = plain = empty_state(PLAIN)
    for now_ms, batch in ((1_000, [("a", 5), ("b", 7)]), (1_010, [("a", 17)])):
        plain, expected, _ = step(plain, batch, now_ms - 990, PLAIN, AT_ONCE)
        paced, changes, _ = step(paced, batch, now_ms - 990, PLAIN, Pace(now_ms, now_ms))
        assert codec.encode(paced) == codec.encode(plain)
        assert codec.pack_changes(changes) == codec.pack_changes(expected)
    waits, _, _ = step(plain, [("a", 18)], 20, PACED, Pace(1_020, 1_020))
    assert codec.encode(waits)[4] == 4, "an older version refuses what it would forget"
    left, _, _ = step(waits, [], 20, PLAIN, AT_ONCE)
    assert codec.encode(left)[4] == 2, "the settings without update_every have written all"


def test_what_waits_goes_through_codec_deltas_and_another_number_of_buckets():
    first, _, _ = step(empty_state(PACED), [("a", 5), ("b", 6)], 0, PACED, Pace(1_000, 1_000))
    second, _, _ = step(first, [("a", 16), ("b", 6)], 3, PACED, Pace(1_001, 1_001))
    again = apply(codec.decode(codec.encode(first)), codec.decode_delta(codec.encode_delta(diff(first, second))))
    assert again.windows.equals(second.windows)
    assert again.devices.equals(second.devices)
    plain, _, _ = step(empty_state(PLAIN), [("c", 7)], 0, PLAIN, AT_ONCE)
    joined = distribution.joined([plain, second])
    joined = replace(joined, windows=windows.compact(joined.windows))
    assert present_waiting(joined, PACED) == present_waiting(second, PACED)
    assert present(joined, PACED).windows.num_rows == plain.windows.num_rows + second.windows.num_rows
    assert DUE not in present(joined, PACED).windows.column_names
    to = {"a": 0, "b": 1, "c": 1}
    of = (distribution.of_texts(joined.devices["device"], to), distribution.of_texts(joined.windows["key"], to))
    halves = distribution.split(joined, *of)
    assert distribution.digest(list(halves.values())) == distribution.digest([joined])
    assert waiting.number(halves[0].windows) + waiting.number(halves[1].windows) == waiting.number(second.windows)

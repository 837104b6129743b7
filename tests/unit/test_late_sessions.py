"""Late readings and closed sessions: what changes, and what must wait, against all readings walked at once."""

import numpy as np
import pyarrow as pa
import pytest

from state import runs
from state.columns import ints
from state.late_sessions import corrected, only
from state.layout import empty_state
from state.rules import Rules
from state.table import advance
from tests.runs import fold as fold_runs

MINUTE = 60_000
RULES = Rules(gap_ms=MINUTE, max_duration_ms=16 * MINUTE, retain_ms=0, measures=("t",))

Reading = tuple[str, int]


def folded(readings: list[Reading]) -> pa.Table:
    device = pa.array([name for name, _ in readings], pa.string())
    times = np.array([ms for _, ms in readings], np.int64)
    return fold_runs(device, times, {"t": np.arange(len(readings), dtype=np.float64)}, RULES)


def table(readings: list[Reading]) -> pa.Table:
    return pa.table(
        {
            "device": pa.array([name for name, _ in readings], pa.string()),
            "event_ms": pa.array([ms for _, ms in readings], pa.int64()),
        }
    )


def all_sessions(readings: list[Reading], watermark_ms: int) -> tuple[dict, dict]:
    """All sessions, (device, start) -> (last, count, reason): the closed ones, and the open ones."""
    state, every = advance(empty_state(RULES), folded(readings), 0, RULES)
    _, ended = advance(state, runs.schema(RULES.measures).empty_table(), watermark_ms, RULES)

    def of(sessions: pa.Table, wanted: str) -> dict:
        return {
            (row["device"], row["start"]): (row["last"], row["count"], row["reason"])
            for row in sessions.to_pylist()
            if row["state"] == wanted
        }

    closed = of(ended.sessions, "closed")
    return closed, {key: value for key, value in of(every.sessions, "open").items() if key not in closed}


def check(base: list[Reading], late: list[Reading], watermark_ms: int) -> tuple[dict, list[bool]]:
    """Applies what `corrected` says to what was there, and compares that with all of it walked at once."""

    def fold(some: pa.Table) -> pa.Table:
        return folded(list(zip(some["device"].to_pylist(), some["event_ms"].to_pylist(), strict=True)))

    correction = corrected(folded(base), table(late), fold, watermark_ms, RULES)
    closed, opened = all_sessions(base, watermark_ms)
    for row in correction.sessions.to_pylist():
        key = row["device"], row["start"]
        if row["state"] == "merged":
            into = row["merged_into"]
            del closed[key]
            assert into is not None
            assert into < row["start"]
        else:
            assert closed.get(key) != (row["last"], row["count"], row["reason"])
            closed[key] = row["last"], row["count"], row["reason"]
    kept = [reading for reading, waits in zip(late, correction.waiting, strict=True) if not waits]
    assert all_sessions([*base, *kept], watermark_ms) == (closed, opened)
    return closed, correction.waiting.tolist()


def test_a_late_reading_grows_joins_and_makes_closed_sessions() -> None:
    base = [("a", 0), ("a", 30_000), ("a", 200_000), ("a", 300_000), ("b", 500_000)]
    late = [("a", 10_000), ("a", 250_000), ("b", 450_000), ("c", 0)]
    closed, waiting = check(base, late, 10**7)
    assert waiting == [False] * 4
    assert closed == {
        ("a", 0): (30_000, 3, "gap"),
        ("a", 200_000): (300_000, 3, "gap"),
        ("b", 450_000): (500_000, 2, "gap"),
        ("c", 0): (0, 1, "gap"),
    }


def test_what_would_change_an_open_session_waits_and_what_would_not_does_not() -> None:
    base = [("a", 0), ("a", 500_000), ("a", 540_000), ("b", 0)]
    late = [("a", 20_000), ("a", 450_000), ("a", 520_000), ("b", 60_000), ("c", 540_000)]
    _, waiting = check(base, late, 100_000)
    assert waiting == [False, True, True, True, True]


def test_the_reason_of_a_session_changes_though_nothing_in_it_does() -> None:
    base = [("a", minute * MINUTE) for minute in range(16)]
    closed, _ = check(base, [("a", 16 * MINUTE)], 10**7)
    assert closed["a", 0] == (15 * MINUTE, 16, "max_duration")


@pytest.mark.parametrize("seed", range(40))
def test_it_is_as_if_the_late_readings_had_come_in_time(seed: int) -> None:
    random = np.random.default_rng(seed)

    def some(many: int) -> list[Reading]:
        devices, times = random.integers(0, 4, many), random.integers(0, 90 * MINUTE // 1000, many) * 1000
        return [(f"d{device}", int(ms)) for device, ms in zip(devices, times, strict=True)]

    base, late = some(int(random.integers(1, 400))), some(int(random.integers(1, 60)))
    check(base, late, int(random.integers(1, 100)) * MINUTE)
    _, waiting = check(base, late, 10**8)
    assert not any(waiting)


def test_only_the_asked_devices_since_their_time_are_kept() -> None:
    kept = only(folded([("a", 0), ("a", 10 * MINUTE), ("b", 0), ("c", 0)]), {"a": MINUTE, "b": 0})
    assert sorted(zip(kept["device"].to_pylist(), ints(kept, "start").tolist(), strict=True)) == [
        ("a", 10 * MINUTE),
        ("b", 0),
    ]

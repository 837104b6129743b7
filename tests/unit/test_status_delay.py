"""Statuses by a line ahead of the watermark: an outage shows before a session closes, and late readings still join it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.judge import expected
from service.aggregation.sessions import delays, rules
from service.errors import SettingsError
from state import codec, watermark
from state.processor import CHANGES, RUNS, TIMES, BucketProcessor
from state.rules import Rules
from state.table import advance, next_expiry, present
from state.watermark import Delays, EventTime, Partition
from tests.examples import examples
from tests.stream.records import make_settings
from tests.unit.test_measure_status import NOTHING, runs, statuses
from tests.unit.test_state_processor import Operator

PLAIN = Rules(gap_ms=10, max_duration_ms=1_600, retain_ms=10_000, measures=("t", "h"), by_measure=True)
RULES = replace(PLAIN, has_line=True)


def test_a_device_is_offline_while_its_session_waits_for_late_readings() -> None:
    state, _ = advance(None, runs(("a", 1_000, "t"), interval={"a": 4}), 500, RULES, line_ms=1_000)
    assert next_expiry(state, RULES) == 1_004
    same, _ = advance(state, NOTHING, 500, RULES, line_ms=1_004)
    assert same is state
    state, changes = advance(state, NOTHING, 500, RULES, line_ms=1_005)
    assert statuses(changes) == {"a": ("quiet", "quiet", None)}
    state, changes = advance(state, NOTHING, 500, RULES, line_ms=1_011)
    assert statuses(changes) == {"a": ("offline", "offline", None)}
    assert changes.sessions.num_rows == 0
    state, changes = advance(state, runs(("b", 1_001, "t")), 500, RULES, line_ms=1_002)
    assert statuses(changes) == {"b": ("online", "online", None)}, "a line that goes back brings nobody back"
    assert statuses(present(state, RULES))["a"] == ("offline", "offline", None)
    state, changes = advance(state, runs(("a", 1_003, "h")), 500, RULES, line_ms=1_030)
    assert statuses(changes)["a"] == ("offline", "offline", "offline")
    assert changes.sessions.to_pylist()[0]["count"] == 2, "a late reading joins the session"
    state, changes = advance(state, runs(("a", 1_029, "t")), 500, RULES, line_ms=1_031)
    assert statuses(changes) == {"a": ("online", "online", "offline")}
    state, changes = advance(state, NOTHING, 1_100, RULES, line_ms=1_100)
    assert statuses(changes)["a"] == ("offline", "offline", "offline")
    assert {row["state"] for row in changes.sessions.to_pylist()} == {"closed"}


def test_without_a_line_the_state_has_the_bytes_of_before() -> None:
    plain, _ = advance(None, runs(("a", 1_000, "t")), 500, PLAIN)
    same, changes = advance(plain, NOTHING, 900, PLAIN)
    assert same is plain
    assert not changes
    with_line, _ = advance(None, runs(("a", 1_000, "t")), 500, RULES, line_ms=1_000)
    assert codec.encode(with_line) != b""
    assert {"gap", "interval", "quiet"}.isdisjoint(plain.devices.column_names)


readings = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1_000, 1_100), st.sampled_from(["t", "h"])), min_size=1, max_size=12
)


@examples(60)
@given(st.lists(st.tuples(readings, st.integers(0, 30)), min_size=1, max_size=5))
def test_a_status_is_that_of_the_last_reading_and_the_line(steps: list[tuple[list[tuple[str, int, str]], int]]) -> None:
    state, shown, last, line_ms = None, {}, dict[str, int](), 0
    for added, ahead_ms in steps:
        line_ms = max(line_ms, *(at for _, at, _ in added)) + ahead_ms
        state, changes = advance(state, runs(*added), 900, RULES, line_ms=line_ms)
        shown |= statuses(changes)
        for device, at, _ in added:
            last[device] = max(at, last.get(device, 0))
        seen = expected._status
        assert {device: words[0] for device, words in shown.items()} == {
            device: seen(expected.joins(line_ms - at, RULES.gap_ms), line_ms - at, None) for device, at in last.items()
        }


def test_unread_records_hold_the_line_with_its_own_delay() -> None:
    before = EventTime(1_000, 2_000)
    plain, own = Delays(600, 500), Delays(600, 500, 50)

    def line(*partitions: Partition) -> int | None:
        return watermark.line([watermark.report(before, dict(enumerate(partitions)))], own)

    assert line(Partition(3_000, 3_000)) == 2_950
    assert line(Partition(3_000, 3_000), Partition(1_900, 1_950, is_unread=True)) == 1_900
    assert watermark.line([watermark.report(before, {})], plain) is None


def test_the_operator_follows_the_line_and_keeps_the_session_open() -> None:
    handle, found = Operator(RULES), []
    processor = BucketProcessor(RULES, Delays(600, 500, 50))
    processor.init(handle)
    handle.entries.key = (0,)
    times = EventTime(), EventTime(400, 1_000)
    for added, before, newest_ms in ((runs(("a", 1_000, "t")), times[0], 1_000), (NOTHING, times[1], 1_070)):
        report = watermark.report(before, {0: Partition(newest_ms, newest_ms)})
        rows = processor._step(0, [(RUNS, codec.pack(b"R", added)), (TIMES, report)])
        found += [codec.unpack_changes(payload) for kind, payload in rows if kind == CHANGES]
    assert [statuses(each)["a"][0] for each in found] == ["online", "offline"]
    assert [each.sessions.num_rows for each in found] == [1, 0]


def test_a_delay_is_at_most_that_of_the_watermark(tmp_path: Path) -> None:
    sections: Any = {"admission": {"max_delay": "1 h", "max_ahead": "10 s"}}
    made = make_settings(tmp_path, sessions={"status_delay": "30 s"}, **sections)
    assert (delays(made).status_ms, rules(made).has_line) == (30_000, True)
    plain = make_settings(tmp_path, **sections)
    assert (delays(plain).status_ms, rules(plain).has_line) == (None, False)
    with pytest.raises(SettingsError, match=r"sessions.status_delay: 2 h is more than max_delay and max_ahead"):
        make_settings(tmp_path, sessions={"status_delay": "2 h"}, **sections)


def test_a_device_that_is_back_in_its_session_is_online_from_its_reading() -> None:
    told = replace(RULES, has_transitions=True)
    state, _ = advance(None, runs(("a", 1_000, "t"), ("a", 1_008, "t")), 500, told, line_ms=1_010)
    state, _ = advance(state, NOTHING, 500, told, line_ms=1_019)
    state, changes = advance(state, runs(("a", 1_018, "t")), 500, told, line_ms=1_020)
    assert changes.sessions["start"].to_pylist() == [1_000]
    assert changes.transitions is not None
    rows = [row for row in changes.transitions.to_pylist() if row["field"] == "status"]
    assert [(row["was"], row["status"], row["at"]) for row in rows] == [("offline", "online", 1_018)]
    state, _ = advance(state, NOTHING, 500, told, line_ms=1_029)
    changes = advance(state, runs(("a", 1_040, "t"), ("a", 1_044, "t")), 500, told, line_ms=1_045)[1]
    assert changes.transitions is not None
    [at] = [row["at"] for row in changes.transitions.to_pylist() if row["field"] == "status"]
    assert at == 1_040, "the first reading after the outage"

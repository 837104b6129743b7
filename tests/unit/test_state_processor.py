"""The stateful operator on Spark's contract: rows in, rows out, state by bucket.

`Operator` stands in for Spark's side of that contract (4.1.1), so that a thousand schedules take a second;
the tests in tests/stream run the same processor in Spark itself.
"""

import random as randoms
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.serializers import CPickleSerializer
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues
from typing_extensions import override

from load.walks.entries import Entries
from state import codec, settled, watermark, windows
from state.bucket import advance
from state.columns import ints
from state.layout import empty_state
from state.processor import CHANGES, COUNTS, OUTPUT, PARTS, REJECTS, RUNS, STATE_SCHEMAS, TIMES, BucketProcessor
from state.rules import Rules
from state.store import restore
from state.watermark import Delays, EventTime
from state.window_columns import COLUMNS
from tests.examples import examples
from tests.runs import fold

RULES = Rules(gap_ms=10, max_duration_ms=160, retain_ms=100, measures=("t",))
DELAYS = Delays(delay_ms=0, max_delay_ms=0)
FAR = 1 << 41
PICKLE = CPickleSerializer()  # as Spark sends it to its workers


class Operator(StatefulProcessorHandle):
    """One partition of `transformWithStateInPandas` with the buckets 0 to 3."""

    def __init__(self, rules):
        self.rules, self.entries = rules, Entries()

    @property
    def states(self):
        return self.entries.states

    @property
    def calls(self):
        return self.entries.calls

    @override
    def getMapState(self, name, key_schema, value_schema):
        assert (name, key_schema, value_schema) == ("bucket", *STATE_SCHEMAS)
        return self.entries

    def batch(self, watermark_ms, payloads, newest_ms=None):
        """Runs one batch in a new task, to this watermark; returns the changes by bucket, in order."""
        time = EventTime(watermark_ms, watermark_ms if newest_ms is None else newest_ms)
        self.entries.calls = []
        processor = PICKLE.loads(PICKLE.dumps(BucketProcessor(self.rules, DELAYS)))
        processor.init(self)
        out, report = [], watermark.report(time, {})
        for bucket in range(4):
            self.entries.key = (bucket,)
            rows = [row if isinstance(row, tuple) else (RUNS, row) for row in payloads.get(bucket, ())]
            rows.append((TIMES, report))
            columns = {"bucket": bucket, "kind": [kind for kind, _ in rows], "payload": [data for _, data in rows]}
            frames = iter([pd.DataFrame(columns)])
            got = processor.handleInputRows(key=self.entries.key, rows=frames, timerValues=TimerValues(-1, -1))
            out += [(bucket, frame) for frame in got]
        processor.close()
        assert all(list(frame.columns) == OUTPUT.names for _, frame in out)
        rows = [(bucket, *row) for bucket, frame in out for row in zip(frame.kind, frame.payload, strict=True)]
        times = [EventTime.unpack(payload) for _, kind, payload in rows if kind == TIMES]
        assert times == [time] * 4, "every bucket has the same"
        self.passed = [(kind, payload) for _, kind, payload in rows if kind in {REJECTS, COUNTS}]
        return [(bucket, codec.unpack_changes(payload)) for bucket, kind, payload in rows if kind == CHANGES]


def payload(*readings):
    device, ms = zip(*readings, strict=True)
    values = {"t": np.array(ms, np.float64)}
    return codec.pack(b"R", fold(pa.array(device), np.array(ms, np.int64), values, RULES))


def brief(changes):
    return [(bucket, r["device"], r["start"], r["state"]) for bucket, c in changes for r in c.sessions.to_pylist()]


def test_a_bucket_costs_one_get_and_two_puts_where_something_changes():
    operator = Operator(RULES)
    operator.batch(0, {1: [payload(("a", 100)), payload(("b", 100), ("a", 105))]})
    assert operator.calls == ["get", "get", "put", "put", "get", "get"]
    operator.batch(50, {})
    assert operator.calls == ["get"] * 4


def test_a_batch_closes_what_its_own_readings_have_passed():
    operator = Operator(RULES)
    ((_, changes),) = operator.batch(120, {1: [payload(("a", 100)), part(40, length_ms=60), part(60)]})
    assert [(row["device"], row["state"]) for row in changes.sessions.to_pylist()] == [("a", "closed")]
    assert sorted(row["start"] for row in changes.windows.to_pylist()) == [40, 60]
    stored = restore([operator.states[(1,)][key] for key in (0, 1)])
    assert (stored.windows.num_rows, stored.runs.num_rows) == (0, 0)


def test_an_empty_bucket_keeps_no_state():
    operator = Operator(RULES)
    operator.batch(0, {1: [payload(("a", 100))]})
    assert brief(operator.batch(FAR, {})) == [(1, "a", 100, "closed")]
    assert (operator.states, operator.calls) == ({}, ["get", "get", "clear", "get", "get"])


def part(start_ms, count=1, length_ms=60):
    """A part of one window of key "a"."""
    start = np.array([start_ms], np.int64)
    columns = {name: start if name in ("first", "last") else start * 1.0 for name in COLUMNS}
    columns["count"] = np.array([count])
    table = windows.parts("view", "t", pa.array(["a"]), np.zeros(1), start, start + length_ms, columns)
    return PARTS, codec.pack(b"W", table)


def test_windows_are_kept_between_batches_and_let_go_of_when_the_watermark_passes_them():
    operator = Operator(RULES)
    operator.batch(0, {1: [part(0, 2)]})
    ((_, changes),) = operator.batch(30, {1: [part(0, 3), part(60)]})
    assert [(row["start"], row["count"]) for row in changes.windows.to_pylist()] == [(0, 5), (60, 1)]
    assert operator.batch(120, {}) == []
    assert operator.states == {}, "a silent bucket's windows are let go of, too"


@pytest.mark.parametrize(("newest_ms", "left"), [(100, [0, -1]), (80, [0, -1]), (79, [-1, -1])])
def test_a_longer_max_delay_settles_no_window_before_its_time(newest_ms, left):
    operator = Operator(replace(RULES, leads={"view": 40}))
    # DELAYS are 0: a watermark of 100 is of before max_delay was longer, where the newest time is earlier than that.
    operator.batch(100, {1: [part(60), part(120)]}, newest_ms)
    stored = restore([value for _, value in sorted(operator.states[(1,)].items())])
    assert ints(stored.windows, settled.LEFT).tolist() == left


def test_rejects_and_counts_pass_through_and_leave_no_state():
    operator = Operator(RULES)
    assert operator.batch(0, {3: [(COUNTS, b"counted"), (REJECTS, b"rejected")]}) == []
    assert operator.passed == [(REJECTS, b"rejected"), (COUNTS, b"counted")]
    assert (operator.calls, operator.states) == (["get"] * 4, {})


def test_state_that_cannot_be_read_fails_the_batch_and_stays():
    operator = Operator(RULES)
    operator.states[(1,)] = stored = {0: b"TDMK\x09" + bytes(60)}
    with pytest.raises(codec.CodecError, match="of version 9; supported is version 2"):
        operator.batch(0, {1: [payload(("a", 100))]})
    assert operator.states[(1,)] is stored
    assert len(stored) == 1


def test_the_order_of_payloads_does_not_matter_to_the_bit():
    rng = randoms.Random(7)
    # All in one cell, and all start alike.
    wide = Rules(gap_ms=10, max_duration_ms=16_000, retain_ms=100, measures=("t",))
    parts = []
    for _ in range(20):
        values = {"t": np.array([rng.random() * 10.0 ** rng.randint(-9, 9) for _ in range(5)])}
        parts.append(codec.pack(b"R", fold(pa.array(["a"] * 5), np.arange(5), values, wide)))
    written = set()
    for _ in range(5):
        operator = Operator(wide)
        operator.batch(0, {1: rng.sample(parts, len(parts))})
        written.add(operator.states[(1,)][1])
    assert len(written) == 1


batches = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.dictionaries(
            st.integers(0, 1), st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 80)), min_size=1, max_size=6)
        ),
    ),
    max_size=12,
)


@given(batches)
@examples(50)
def test_every_batch_does_what_advancing_every_bucket_would(schedule):
    operator, plain, line = Operator(RULES), {0: empty_state(RULES), 1: empty_state(RULES)}, 0
    for step, inputs in [*schedule, (FAR, {})]:
        payloads = {bucket: [payload(*((d, line + ms) for d, ms in rows))] for bucket, rows in inputs.items()}
        line += step
        got = {bucket: changes for bucket, changes in operator.batch(line, payloads) if changes}
        expected = {}
        for bucket, state in plain.items():
            runs = [codec.unpack(b"R", each) for each in payloads.get(bucket, ())]
            plain[bucket], changes, _ = advance(state, [], runs, line, RULES)
            if changes:
                expected[bucket] = changes
        assert {b: (c.sessions.to_pylist(), c.devices.to_pylist()) for b, c in got.items()} == {
            b: (c.sessions.to_pylist(), c.devices.to_pylist()) for b, c in expected.items()
        }
    assert operator.states == {}

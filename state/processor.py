"""The stateful operator: Spark's `transformWithStateInPandas` around `state.bucket.advance`, one state per bucket.

    frame.groupBy("bucket").transformWithStateInPandas(
        BucketProcessor(rules), outputStructType=OUTPUT, outputMode="Update", timeMode="EventTime")

It carries bytes: what they mean is decided in `state.bucket`, `state.table` and `state.windows`.

Every call on state is a round trip to the JVM over a socket, so a bucket costs one get, one update and at most one
timer a batch. There is one timer per bucket that counts, at its earliest expiry or before it: one that has become too
early is left to fire and finds nothing to do, which is cheaper than moving it each time a session goes on.

Spark hands the rows of a batch over first and fires the batch's expired timers afterwards, by the same watermark. What
`handleInputRows` has advanced is therefore finished when its timer fires: timers only serve the silent buckets.
The names of the methods and their arguments are Spark's (4.1.1 calls them by keyword).
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import BinaryType, ByteType, StructField, StructType
from typing_extensions import override

from state import codec
from state.bucket import advance, next_expiry
from state.layout import BucketState, empty_state
from state.rules import Rules

if TYPE_CHECKING:
    import pandas as pd

STATE_NAME = "bucket"
STATE_SCHEMA = StructType([StructField("state", BinaryType())])
OUTPUT = StructType([StructField("kind", ByteType()), StructField("payload", BinaryType())])

PARTS, RUNS, CHANGES, REJECTS, COUNTS, SIZE = range(6)
"""`kind` of a row. In: parts of windows and runs, which advance the state. Out: changes, and the size of the state that was
written. Rejects and counts pass through."""

SIZES = struct.Struct("<5q")
"""Payload of a row of SIZE: bucket, open windows, devices, devices with an open session, bytes of the encoded state."""


class BucketProcessor(StatefulProcessor):
    """Grouping key: `bucket` int. Input: `kind` and `payload` (`state.codec.pack`), any number of rows per bucket.

    Output: `OUTPUT`: what passes through, and one row of CHANGES per call that changed something (`codec.pack_changes`).
    `codec.CodecError` when a payload or the stored state cannot be read: the batch fails and nothing is lost.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state: ValueState = handle.getValueState(STATE_NAME, STATE_SCHEMA)
        self._advanced_to: dict[int, int] = {}

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator["pd.DataFrame"]:
        found = [
            (kind, bytes(payload))
            for frame in rows
            for kind, payload in zip(frame["kind"], frame["payload"], strict=True)
        ]
        # Sorted, as the shuffle delivers in any order: a replay then adds the same numbers in the same order.
        found.sort()
        return self._step(int(key[0]), found, timerValues.getCurrentWatermarkInMs())

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator["pd.DataFrame"]:
        bucket, watermark_ms = int(key[0]), timerValues.getCurrentWatermarkInMs()
        if self._advanced_to.get(bucket) == watermark_ms:
            return iter(())
        return self._step(bucket, [], watermark_ms)

    def _step(self, bucket: int, rows: Sequence[tuple[int, bytes]], watermark_ms: int) -> Iterator["pd.DataFrame"]:
        stored = self._state.get()
        before = codec.decode(bytes(stored[0])) if stored else empty_state(self._rules)
        parts = [codec.unpack(b"W", payload) for kind, payload in rows if kind == PARTS]
        runs = [codec.unpack(b"R", payload) for kind, payload in rows if kind == RUNS]
        after, changes, _ = advance(before, parts, runs, watermark_ms, self._rules)
        after = self._with_timer(after, watermark_ms)
        out = [row for row in rows if row[0] not in {PARTS, RUNS}]
        if after is not before:
            out.append((SIZE, SIZES.pack(bucket, *self._write(after, is_stored=stored is not None))))
        self._advanced_to[bucket] = watermark_ms
        if changes:
            out.append((CHANGES, codec.pack_changes(changes)))
        if not out:
            return iter(())
        import pandas as pd  # noqa: PLC0415 - 0.3 s at each start, of a driver's worker that only asks which state there is

        kinds, payloads = zip(*out, strict=True)
        return iter((pd.DataFrame({"kind": np.array(kinds, np.int8), "payload": list(payloads)}),))

    def _write(self, state: BucketState, *, is_stored: bool) -> tuple[int, int, int, int]:
        """Open windows, devices, devices with an open session, bytes."""
        if not (state.devices.num_rows or state.windows.num_rows):
            if is_stored:
                self._state.clear()
            return 0, 0, 0, 0
        data = codec.encode(state)
        self._state.update((data,))
        sessions = state.devices.num_rows - state.devices.column("session").null_count
        return state.windows.num_rows, state.devices.num_rows, sessions, len(data)

    def _with_timer(self, state: BucketState, watermark_ms: int) -> BucketState:
        """Registers a timer if none is going to fire by the earliest expiry.

        Spark fires a timer once `timer <= watermark` (4.1.1, seen in a run; 4.0's source says `<`). A session closes
        when `expiry < watermark`, so its timer is one millisecond later: at `expiry` itself it would be used up in a
        batch that may not close the session yet. A timer that the watermark has reached counts as fired, also when
        `handleInputRows` is here just before it is.
        """
        pending = state.timer_ms if state.timer_ms is not None and state.timer_ms > watermark_ms else None
        expiry = next_expiry(state, self._rules)
        if expiry is None or (pending is not None and pending <= expiry + 1):
            return state if pending == state.timer_ms else replace(state, timer_ms=pending)
        self._handle.registerTimer(expiry + 1)
        return replace(state, timer_ms=expiry + 1)

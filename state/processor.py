"""The session operator: Spark's `transformWithStateInPandas` around `state.table.advance`, one table per bucket.

    frame.groupBy("bucket").transformWithStateInPandas(
        SessionProcessor(rules), outputStructType=OUTPUT, outputMode="Update", timeMode="EventTime")

Every call on state is a round trip to the JVM over a socket, so a bucket costs one get, one update and at most one
timer a batch. There is one timer per bucket that counts, at its earliest expiry or before it: one that has become too
early is left to fire and finds nothing to do, which is cheaper than moving it each time a session goes on.

Spark hands the rows of a batch over first and fires the batch's expired timers afterwards, by the same watermark. What
`handleInputRows` has advanced is therefore finished when its timer fires: timers only serve the silent buckets.
The names of the methods and their arguments are Spark's (4.1.1 calls them by keyword).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType
from typing_extensions import override

from state import codec, runs
from state.layout import BucketState, empty_state
from state.rules import Rules
from state.table import advance, next_expiry

if TYPE_CHECKING:
    import pandas as pd

STATE_NAME = "bucket"
STATE_SCHEMA = StructType([StructField("state", BinaryType())])
OUTPUT = StructType([StructField("bucket", IntegerType()), StructField("payload", BinaryType())])


class SessionProcessor(StatefulProcessor):
    """Grouping key: `bucket` int. Input: `payload` binary (`codec.pack_runs`), any number of rows per bucket.

    Output: `OUTPUT`, one row per call that changed something; `payload` is `codec.pack_changes`.
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
        # Sorted, as the shuffle delivers in any order: a replay then adds the same numbers in the same order.
        payloads = sorted(bytes(payload) for frame in rows for payload in frame["payload"])
        tables = [codec.unpack_runs(payload) for payload in payloads]
        table = pa.concat_tables(tables, promote_options="default") if tables else None
        return self._step(int(key[0]), table, timerValues.getCurrentWatermarkInMs())

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator["pd.DataFrame"]:
        bucket, watermark_ms = int(key[0]), timerValues.getCurrentWatermarkInMs()
        if self._advanced_to.get(bucket) == watermark_ms:
            return iter(())
        return self._step(bucket, None, watermark_ms)

    def _step(self, bucket: int, table: pa.Table | None, watermark_ms: int) -> Iterator["pd.DataFrame"]:
        stored = self._state.get()
        before = codec.decode(bytes(stored[0])) if stored else empty_state(self._rules)
        if table is None:
            table = runs.schema(self._rules.measures).empty_table()
        after, changes = advance(before, table, watermark_ms, self._rules)
        after = self._with_timer(after, watermark_ms)
        if after is not before:
            if after.devices.num_rows:
                self._state.update((codec.encode(after),))
            else:
                self._state.clear()
        self._advanced_to[bucket] = watermark_ms
        if not changes:
            return iter(())
        import pandas as pd  # noqa: PLC0415 - 0.3 s at each start, of a driver's worker that only asks which state there is

        row = {"bucket": np.array([bucket], np.int32), "payload": [codec.pack_changes(changes)]}
        return iter((pd.DataFrame(row),))

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

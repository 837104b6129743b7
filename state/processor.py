"""The stateful operator: Spark's `transformWithStateInPandas` around `state.bucket.advance`, one state per bucket.

    frame.groupBy("bucket").transformWithStateInPandas(
        BucketProcessor(rules, delays), outputStructType=OUTPUT, outputMode="Update", timeMode="None")

It carries bytes. Their meaning is in `state.bucket`, `state.table`, `state.windows` and `state.watermark`, and their storage in
`state.store`.

Every batch gives each bucket a row of TIMES, so each bucket is advanced in each batch, and there are no timers.
The names of the methods and their arguments are Spark's (4.1.1 calls them by keyword).
"""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues
from pyspark.sql.types import BinaryType, ByteType, IntegerType, LongType, StructField, StructType
from typing_extensions import override

from state import codec, settled, waiting, watermark, windows
from state.bucket import advance
from state.columns import array, codes_of
from state.finals import Finals
from state.layout import BucketState, empty_state
from state.rules import Rules
from state.store import Store
from state.watermark import Delays

if TYPE_CHECKING:
    import pandas as pd

STATE_NAME = "bucket"
STATE_SCHEMAS = StructType([StructField("number", IntegerType())]), StructType([StructField("data", BinaryType())])
"""Keys and values of the map state: see `state.store`."""
OUTPUT = StructType([StructField("kind", ByteType()), StructField("payload", BinaryType())])

SEEDED = StructType([StructField("bytes", LongType())])

PARTS, RUNS, CHANGES, REJECTS, COUNTS, SIZE, TIMES, FINALS = range(8)
"""`kind` of a row. In: parts of windows and runs, which advance the state, and TIMES, which say to where
(`state.watermark.report`). Out: changes, the size of the state that was written, and TIMES once more
(`state.watermark.EventTime`), and where somebody asks for them the finals (`state.finals`). Rejects and counts pass through."""

SIZES = struct.Struct("<7q")
"""Payload of a row of SIZE: bucket, open windows, devices, devices with an open session, and `state.store.Written`: bytes stored,
bytes written by this batch, bytes of the rows that it changed. The open windows by view follow, as JSON. Devices that only a view
without windows still has count as devices: the limit on devices bounds these views, too."""


class BucketProcessor(StatefulProcessor):
    """Grouping key: `bucket` int. Input: `kind` and `payload` (`state.codec.pack`), any number of rows per bucket, one of them
    at least of TIMES.

    Output: `OUTPUT`: what passes through, event time after the batch, and one row of CHANGES per call that changed something
    (`codec.pack_changes`); with `finals`, one row of FINALS per call that closed something. `codec.CodecError` when a payload or
    the stored state cannot be read: the batch fails and nothing is lost. `query` names the query among those whose states a
    worker keeps.
    """

    def __init__(self, rules: Rules, delays: Delays, finals: Finals | None = None, query: str = "") -> None:
        self._rules, self._delays, self._finals, self._query = rules, delays, finals, query

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = Store(handle.getMapState(STATE_NAME, *STATE_SCHEMAS), query=self._query)

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator["pd.DataFrame"]:
        rows_in = [
            (kind, bytes(payload))
            for frame in rows
            for kind, payload in zip(frame["kind"], frame["payload"], strict=True)
        ]
        # Sorted, as the shuffle delivers in any order: a replay then adds the same numbers in the same order.
        rows_in.sort()
        import pandas as pd  # noqa: PLC0415 - 0.3 s at each start, of a driver's worker that only asks which state there is

        kinds, payloads = zip(*self._step(int(key[0]), rows_in), strict=True)
        return iter((pd.DataFrame({"kind": np.array(kinds, np.int8), "payload": list(payloads)}),))

    def _step(self, bucket: int, rows: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        reports = [payload for kind, payload in rows if kind == TIMES]
        time, pace = watermark.combine(reports, self._delays), watermark.pace(reports)
        parts = [codec.unpack(b"W", payload) for kind, payload in rows if kind == PARTS]
        runs = [codec.unpack(b"R", payload) for kind, payload in rows if kind == RUNS]
        stored = self._store.load(bucket)
        before = stored.state if stored else empty_state(self._rules)
        line_ms, rules = watermark.line(reports, self._delays), self._rules
        if rules.leads:
            leads = settled.leads_at(rules.leads, time.watermark_ms, time.newest_ms - self._delays.delay_ms)
            rules = replace(rules, leads=leads)
        after, changes, leaving = advance(before, parts, runs, time.watermark_ms, rules, pace, line_ms)
        out = [row for row in rows if row[0] not in {PARTS, RUNS, TIMES}]
        out.append((TIMES, time.pack(sum(map(waiting.number, (after.devices, after.windows))))))
        if after is not before:
            sizes = SIZES.pack(bucket, *_rows(after, self._rules), *self._store.save(bucket, stored, after))
            out.append((SIZE, sizes + json.dumps(_by_view(after)).encode()))
        if changes:
            out.append((CHANGES, codec.pack_changes(changes)))
        if self._finals is not None and (finals := self._finals.of(changes.sessions, leaving, changes.transitions)):
            out.append((FINALS, codec.pack_changes(finals)))
        return out


class Seed(StatefulProcessor):
    """Begins the states of a checkpoint with given ones. Grouping key: `bucket` int. Input: `data` (`state.codec.encode`), a row
    for each bucket. Output: `SEEDED`, the bytes that are stored."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = Store(handle.getMapState(STATE_NAME, *STATE_SCHEMAS))

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator["pd.DataFrame"]:
        (data,) = [bytes(data) for frame in rows for data in frame["data"]]
        written = self._store.save(int(key[0]), None, codec.decode(data))
        import pandas as pd  # noqa: PLC0415 - as in BucketProcessor

        return iter((pd.DataFrame({"bytes": np.array([written.stored], np.int64)}),))


def unpack_size(payload: bytes) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the numbers of SIZES and the open windows by view from the payload of a row of SIZE."""
    by_view: dict[str, int] = json.loads(payload[SIZES.size :])
    return SIZES.unpack_from(payload), by_view


def _by_view(state: BucketState) -> dict[str, int]:
    """Open windows by view: at most 0.5 ms for 100,000 windows (measured on a busy core)."""
    column = array(state.windows.column("view"))
    counts = np.bincount(codes_of(column), minlength=len(column.dictionary))
    return dict(zip(column.dictionary.to_pylist(), counts.tolist(), strict=True))


def _rows(state: BucketState, rules: Rules) -> tuple[int, int, int]:
    """Open windows, devices, devices with an open session."""
    devices = state.devices.num_rows
    online = devices - state.devices["session"].null_count
    if rules.by_device:
        devices = max(devices, windows.most_keys(state.windows, rules.by_device))
    return state.windows.num_rows, devices, online

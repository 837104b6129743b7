"""The tables that a bucket's state and its changes consist of; all times are event times in ms since the epoch."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from state import runs
from state import windows as window_tables
from state.columns import LAST, TOTALS, table_schema
from state.rules import Rules

OPEN, CLOSED, MERGED = "open", "closed", "merged"
ONLINE, QUIET, OFFLINE = "online", "quiet", "offline"
GAP, MAX_DURATION = "gap", "max_duration"


@dataclass(frozen=True, slots=True)
class BucketState:
    """The state of a bucket between batches.

    runs      `run_schema`: the runs of open sessions, sorted by (row of the device in `devices`, start)
    devices   `device_schema`: the devices that are not forgotten, among them all that have an open session
    windows   `state.windows.SCHEMA`: the windows that the watermark has not passed; where windows wait, `state.waiting.DUE` is
              behind their keys
    """

    runs: pa.Table
    devices: pa.Table
    windows: pa.Table


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one step, of the rules' measures; false when there are none.

    sessions  `session_schema`: a session occurs once, in its newest state
    devices   `status_schema`: a device that is merely forgotten does not occur
    windows   `state.windows.SCHEMA`: windows that got readings, or were closed without one, with all that they have now
    transitions  TRANSITIONS of the step with `Rules.has_transitions`, None for none; state/codec.py does not pack them

    Where values wait (state/waiting.py), these are the values that leave in the step; transitions never wait.
    """

    sessions: pa.Table
    devices: pa.Table
    windows: pa.Table = field(default_factory=window_tables.empty)
    transitions: pa.Table | None = None

    def __bool__(self) -> bool:
        return any(table.num_rows for table in (self.sessions, self.devices, self.windows))

    @classmethod
    def of_windows(cls, windows: pa.Table) -> "Changes":
        """Windows alone."""
        return cls(session_schema(()).empty_table(), status_schema(()).empty_table(), windows)


def run_schema(measures: Iterable[str], trails: Iterable[str] = ()) -> pa.Schema:
    """Of `BucketState.runs`: runs with the start of the session that each belongs to. Lists are the last columns.

    `device` is a dictionary array over `BucketState.devices.device`, in that order: its codes are rows of `devices`.
    """
    plain = runs.schema(tuple(measures), trails)
    device = pa.field("device", pa.dictionary(pa.int32(), pa.string()), nullable=False)
    return plain.set(0, device).insert(1, pa.field("session", pa.int64(), nullable=False))


def device_schema(measures: Iterable[str]) -> pa.Schema:
    """Of `BucketState.devices`: `value` and `at` of a measure are null until the device has sent it.

    `session` is the start of the latest open session or null.
    Where a device has limits of its own, three more columns (LIMITS) are behind these: its session gap and its expected
    interval in ms, -1 for none, and 1 if it was said to be quiet, 2 if offline with an open session. With `Rules.by_measure`
    there is TOLD, the watermark as of which the device's measures have the statuses that were last emitted, -1 for none.
    Where devices wait, `state.waiting.DUE` is the last column.
    """
    return table_schema(
        [
            pa.field("device", pa.string(), nullable=False),
            pa.field("last_seen", pa.int64(), nullable=False),
            pa.field("session", pa.int64()),
        ],
        measures,
        LAST,
    )


def session_schema(measures: Iterable[str], trails: Iterable[str] = ()) -> pa.Schema:
    """Of `Changes.sessions`: `merged_into` is the start of the session that took this one over, else null."""
    plain = table_schema(
        [
            pa.field("device", pa.string(), nullable=False),
            pa.field("start", pa.int64(), nullable=False),
            pa.field("last", pa.int64(), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
            pa.field("state", pa.string(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
            pa.field("merged_into", pa.int64()),
        ],
        measures,
        TOTALS,
    )
    return pa.schema([*plain, *runs.trail_fields(trails)])


TRANSITIONS = pa.schema(
    [
        pa.field("device", pa.string(), nullable=False),
        pa.field("field", pa.string(), nullable=False),
        pa.field("was", pa.string()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("last", pa.int64(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
        pa.field("is_reading", pa.bool_(), nullable=False),
    ]
)
"""Statuses before and after a step, of those that have changed or got a reading (`is_reading`). `field` is "status" for a device,
"<measure>.status" for a measure. `was` is null for a device that the state did not have, and for a measure without an earlier
reading. `last` is the time of the last reading. `at` is the time from which the status holds: that of the last reading, or a gap
or an expected interval after it. Of a device that comes online it is the start of its session."""

LIMITS = ("gap", "interval", "quiet")
TOLD = "told"


def status_schema(measures: Iterable[str], *, by_measure: bool = False) -> pa.Schema:
    """Of `Changes.devices`: `session` is the start of the (latest) open session, null when the device is offline.

    With `by_measure` the status of each measure is behind these, null until the device has sent the measure.
    """
    names = tuple(measures)
    schema = table_schema(
        [
            pa.field("device", pa.string(), nullable=False),
            pa.field("status", pa.string(), nullable=False),
            pa.field("last_seen", pa.int64(), nullable=False),
            pa.field("session", pa.int64()),
        ],
        names,
        LAST,
    )
    for name in names if by_measure else ():
        schema = schema.append(pa.field(f"{name}.status", pa.string()))
    return schema


def empty_state(rules: Rules) -> BucketState:
    """The state of a bucket without readings."""
    sessions = run_schema(rules.measures).empty_table(), device_schema(rules.measures).empty_table()
    return BucketState(*sessions, window_tables.empty())

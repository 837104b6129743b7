"""Let windows leave before they are final: `final_after` of views.

A window is settled when the watermark is at most the lead of its view (`state.rules.Rules.leads`) before its end. It leaves for
the outlets then with revision 0, and again, with the next revision, in each step that changes it. Readings count in it as before,
until the watermark passes it; then it leaves only if that step has changed it, or it never left.

The column LEFT of the state's windows has the revision with which each one has left, NEVER for those that have not. So neither a
restart nor other settings have a window leave twice, or not at all. The column exists while a view has a lead, or an open window
has left. A state without it has the bytes that it had before there was one.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from state.columns import Bools, Ints, by_name, ints

LEFT = "left"
NEVER = -1
REVISION = "revision"
"""A column of windows that leave: how often each one has left before. Without it that is 0."""


def left_of(windows: pa.Table) -> Ints:
    """Return with which revision windows have left, as a copy."""
    return np.array(ints(windows, LEFT))  # those of a table without the column are -1, which is NEVER


def are_settled(windows: pa.Table, left: Ints, watermark_ms: int, leads: Mapping[str, int]) -> Bools:
    """Return which windows are settled or final by a watermark, or have left; `leads` are in ms by view."""
    lead_ms = by_name(windows.column("view"), leads)
    settled: Bools = (ints(windows, "end") - lead_ms <= watermark_ms) | (left != NEVER)
    return settled


def leads_at(leads: Mapping[str, int], watermark_ms: int, line_ms: int) -> dict[str, int]:
    """Return the leads at a watermark; `line_ms` is the newest event time less the delay of the watermark.

    A watermark that is ahead of that line stays, after `max_delay` or `max_ahead` have become longer. Until the line has reached
    the watermark, the leads are shorter by what lies between them: else windows would be settled that have hardly begun.
    """
    ahead_ms = max(0, watermark_ms - line_ms)
    return {view: max(0, lead_ms - ahead_ms) for view, lead_ms in leads.items()}


def with_left(windows: pa.Table, left: Ints, place: int) -> pa.Table:
    """Return windows with the column at this place."""
    return windows.add_column(place, pa.field(LEFT, pa.int64(), nullable=False), pa.array(left, pa.int64()))


def with_revision(windows: pa.Table, revision: Ints) -> pa.Table:
    """Return windows that leave with the column REVISION behind theirs."""
    return windows.append_column(pa.field(REVISION, pa.int64(), nullable=False), pa.array(revision, pa.int64()))


def not_left(windows: pa.Table) -> pa.Table:
    """Return the windows that have not left, with the column if they have it; the others left with all that they have."""
    return windows.filter(pa.array(ints(windows, LEFT) == NEVER)) if LEFT in windows.column_names else windows

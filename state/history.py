"""The sessions of the past: what the runs of a bucket, read again from the beginning, say was closed.

Nothing here depends on what a state holds: the step that moved the bucket forward the first time, `advance`, is made
again over all of its runs, in the order of their times instead of that of their arrival.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from state.columns import ints
from state.layout import CLOSED, GAP, empty_state, session_schema
from state.rules import Rules
from state.runs import schema
from state.table import advance


def closed(
    tables: Iterable[tuple[int, pa.Table]], watermark_ms: int, whole_from_ms: int, rules: Rules
) -> tuple[pa.Table, int]:
    """The closed sessions of one bucket, `state.layout.session_schema`, and how many more cannot be told.

    `tables` are pairs (time of the earliest start, table of runs), ascending by that time; together they have every
    admitted reading with an event time from `whole_from_ms` on, and perhaps older ones. A session is told only when
    it begins so late that no reading before it can be lacking. That goes for the sessions that max_duration cut off it,
    too: where they begin depends on where the first one did.
    """
    state = empty_state(rules)
    widest = rules.gap_ms
    found = [session_schema(rules.measures).empty_table()]
    # Each table moves time to its own beginning: that makes none of its runs late, and closes what neither it nor a
    # later one can reach, so that memory holds little more than what is open.
    for first, table in tables:
        widest = max(widest, int(ints(table, "gap").max(initial=0)))
        state, changes = advance(state, table, min(first, watermark_ms), rules)
        found.append(_closed(changes.sessions))
    _, changes = advance(state, schema(rules.measures).empty_table(), watermark_ms, rules)
    found.append(_closed(changes.sessions))
    sessions = pa.concat_tables(found)
    if whole_from_ms <= 0 or not sessions.num_rows:
        return sessions, 0
    whole = _is_whole(sessions, whole_from_ms + widest)
    return sessions.filter(pa.array(whole)), int((~whole).sum())


def _closed(sessions: pa.Table) -> pa.Table:
    state = np.asarray(sessions["state"].to_numpy(zero_copy_only=False))
    return sessions.filter(pa.array(state == CLOSED))


def _is_whole(sessions: pa.Table, from_ms: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Per session whether its chain - the sessions before it that only max_duration parted from it - begins late enough."""
    start = ints(sessions, "start")
    devices = sessions["device"].combine_chunks().dictionary_encode()
    codes = np.asarray(devices.indices.to_numpy(zero_copy_only=False))
    order = np.lexsort((start, codes))
    goes_on = np.asarray(sessions["reason"].to_numpy(zero_copy_only=False))[order] != GAP
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (codes[order][1:] != codes[order][:-1]) | ~goes_on[:-1]
    heads = np.flatnonzero(begins)
    late_enough = start[order][heads] >= from_ms
    whole = np.empty(len(order), np.bool_)
    whole[order] = np.repeat(late_enough, np.diff(heads, append=len(order)))
    return whole

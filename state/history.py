"""Compute the final windows and closed sessions of one bucket from all of its payloads, without its state.

`state.bucket.advance`, the step of the stream, runs over the payloads in the order of their event times instead of their
arrival.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state.bucket import advance
from state.columns import ints
from state.layout import CLOSED, GAP, empty_state, session_schema
from state.rules import Rules


@dataclass(frozen=True, slots=True)
class Payload:
    """Parts of windows or runs, `state.windows.SCHEMA` or `state.runs.schema`, and the event time of the earliest reading."""

    first_ms: int
    parts: pa.Table | None = None
    runs: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """`windows` (`state.windows.SCHEMA`) are all closed windows, also those whose start is before the first whole time.
    `sessions` (`state.layout.session_schema`) are the whole ones; `unrecoverable` is the number of the others.
    """

    windows: pa.Table
    sessions: pa.Table
    unrecoverable: int = 0


def closed(payloads: Iterable[Payload], watermark_ms: int, whole_from_ms: int, rules: Rules) -> Iterator[Closed]:
    """Yield what the watermark has closed, in several parts; the last part has the sessions.

    `payloads` ascend by `first_ms`. They have every admitted reading with an event time from `whole_from_ms` on, and perhaps
    older ones. A session is whole when it begins so late that no reading before it can be missing. The sessions that
    max_duration cut off it are whole when it is, because their starts depend on its start.
    """
    state = empty_state(rules)
    widest = rules.gap_ms
    closed_sessions = [session_schema(rules.measures).empty_table()]
    # Each payload moves the watermark to its first reading. This makes no reading late, and bounds memory: all that neither
    # this payload nor a later one can change is closed.
    for payload in payloads:
        parts = [payload.parts] if payload.parts is not None else []
        runs = [payload.runs] if payload.runs is not None else []
        widest = max([widest, *(int(ints(table, "gap").max(initial=0)) for table in runs)])
        state, changes, over = advance(state, parts, runs, min(payload.first_ms, watermark_ms), rules)
        closed_sessions.append(_closed(changes.sessions))
        if over.num_rows:
            yield Closed(over, session_schema(rules.measures).empty_table())
    _, changes, over = advance(state, [], [], watermark_ms, rules)
    closed_sessions.append(_closed(changes.sessions))
    sessions, unrecoverable = pa.concat_tables(closed_sessions), 0
    if whole_from_ms > 0 and sessions.num_rows:
        whole = _is_whole(sessions, whole_from_ms + widest)
        sessions, unrecoverable = sessions.filter(pa.array(whole)), int((~whole).sum())
    yield Closed(over, sessions, unrecoverable)


def _closed(sessions: pa.Table) -> pa.Table:
    return sessions.filter(pc.equal(sessions["state"], CLOSED))


def _is_whole(sessions: pa.Table, from_ms: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Whether the chain of each session begins late enough: the sessions before it that only max_duration separates."""
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

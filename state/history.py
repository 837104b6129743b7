"""Compute the final windows and closed sessions of one bucket from all of its payloads, without its state.

`state.bucket.advance`, the step of the stream, runs over the payloads in the order of their event times instead of their
arrival.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

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


def closed(
    payloads: Iterable[Payload],
    watermark_ms: int,
    whole_from_ms: int,
    rules: Rules,
    span: tuple[int, int] | None = None,
    known: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[Closed]:
    """Yield what the watermark has closed, in several parts; the last part has the sessions: with `span`, those that begin in it.

    `payloads` ascend by `first_ms`. They have every admitted reading with an event time from `whole_from_ms` on, and perhaps
    older ones. A session is whole when it begins so late that no reading before it can be missing. The sessions that
    max_duration cut off it are whole when it is, because their starts depend on its start. Devices in `known` have the start
    of one of their sessions there: their sessions from then on are whole, and their earlier readings are left out.
    """
    # Tasks read the past in stretches of any length: a limit would lose what the stream had. Only what is final is asked for.
    # All windows are folded from readings, also those of roll-ups.
    rules = replace(rules, most_readings=None, leads={}, rollups=())
    state = empty_state(rules)
    widest = rules.gap_ms
    closed_sessions = [session_schema(rules.measures, rules.trails).empty_table()]
    # Each payload moves the watermark to its first reading. This makes no reading late, and bounds memory: all that neither
    # this payload nor a later one can change is closed.
    for payload in payloads:
        parts = [payload.parts] if payload.parts is not None else []
        runs = [_since(payload.runs, known)] if payload.runs is not None else []
        widest = max([widest, *(int(ints(table, "gap").max(initial=0)) for table in runs)])
        state, changes, over = advance(state, parts, runs, min(payload.first_ms, watermark_ms), rules)
        closed_sessions.append(_closed(changes.sessions))
        if over.num_rows:
            yield Closed(over, session_schema(rules.measures, rules.trails).empty_table())
    _, changes, over = advance(state, [], [], watermark_ms, rules)
    closed_sessions.append(_closed(changes.sessions))
    sessions, unrecoverable = pa.concat_tables(closed_sessions), 0
    if whole_from_ms > 0 and sessions.num_rows:
        whole, chosen = _is_whole(sessions, whole_from_ms + widest, known), _begins_in(sessions, span)
        sessions, unrecoverable = sessions.filter(pa.array(whole & chosen)), int((~whole & chosen).sum())
    elif span is not None:
        sessions = sessions.filter(pa.array(_begins_in(sessions, span)))
    yield Closed(over, sessions, unrecoverable)


def _closed(sessions: pa.Table) -> pa.Table:
    return sessions.filter(pc.equal(sessions["state"], CLOSED))


def _begins_in(sessions: pa.Table, span: tuple[int, int] | None) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    start = ints(sessions, "start")
    return np.ones(len(start), np.bool_) if span is None else (start >= span[0]) & (start < span[1])


def _since(runs: pa.Table, known: Mapping[str, int]) -> pa.Table:
    """Return the runs without those that begin before the known session of their device."""
    if not known:
        return runs
    devices = runs["device"].combine_chunks().dictionary_encode()
    names, codes = devices.dictionary.to_pylist(), devices.indices.to_numpy(zero_copy_only=False)
    from_ms = np.array([known.get(name, 0) for name in names], np.int64)
    return runs.filter(pa.array(ints(runs, "start") >= from_ms[codes]))


def _is_whole(
    sessions: pa.Table, from_ms: int, known: Mapping[str, int]
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Whether the chain of each session begins late enough or is known: the sessions that only max_duration separates."""
    start = ints(sessions, "start")
    devices = sessions["device"].combine_chunks().dictionary_encode()
    codes = np.asarray(devices.indices.to_numpy(zero_copy_only=False))
    order = np.lexsort((start, codes))
    goes_on = np.asarray(sessions["reason"].to_numpy(zero_copy_only=False))[order] != GAP
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (codes[order][1:] != codes[order][:-1]) | ~goes_on[:-1]
    heads = np.flatnonzero(begins)
    is_known = np.array([name in known for name in devices.dictionary.to_pylist()], np.bool_)
    late_enough = (start[order][heads] >= from_ms) | is_known[codes[order][heads]]
    whole = np.empty(len(order), np.bool_)
    whole[order] = np.repeat(late_enough, np.diff(heads, append=len(order)))
    return whole

"""Compute how late readings change closed sessions, and which late readings have to wait for an open session.

The start of a session depends on earlier readings only. So the sessions of a device from some time on follow from its readings
since the start of any session before that time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state import runs as folding
from state.columns import Bools, ints
from state.layout import CLOSED, MERGED, empty_state, session_schema
from state.rules import Rules
from state.table import advance

Fold = Callable[[pa.Table], pa.Table]
_Sessions = dict[tuple[str, int], tuple[int, int, str]]
"""By device and start: last reading, count, reason."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """`sessions` (`state.layout.session_schema`) are the changed ones: closed ones with their new values, and as merged those
    that are part of another now. `waiting` is, for each late reading, whether it would change an open session.
    """

    sessions: pa.Table
    waiting: Bools


def corrected(base: pa.Table, late: pa.Table, fold: Fold, watermark_ms: int, rules: Rules) -> Corrected:
    """Compute the changed sessions. `late` has a row for each late reading: `device`, `event_ms` and what `fold` needs.

    `base` are the runs of the devices in `late`, each since the start of a session that is not after the first late reading.
    `fold` makes runs of some rows of `late`.
    """
    rules = replace(rules, most_readings=None)  # as in state/history.py: all readings of a session come at once
    device = late["device"].to_pylist()
    event_ms = ints(late, "event_ms")
    before = _sessions(base, watermark_ms, rules)
    keep = np.ones(late.num_rows, np.bool_)
    while True:
        with_late = pa.concat_tables([base, fold(late.filter(pa.array(keep)))], promote_options="default")
        after = _sessions(with_late, watermark_ms, rules)
        from_ms = _first_difference(before.open, after.open)
        touched = np.array(
            [ms >= from_ms.get(name, ms + 1) for name, ms in zip(device, event_ms, strict=True)], np.bool_
        )
        drop = keep & touched
        # A reading long before an open session may still move its start, because max_duration then cuts elsewhere.
        unexplained = from_ms.keys() - {name for name, gone in zip(device, drop, strict=True) if gone}
        drop |= keep & np.array([name in unexplained for name in device], np.bool_)
        if not drop.any():
            break
        keep &= ~drop
    return Corrected(_changes(before, after, rules), ~keep)


@dataclass(frozen=True, slots=True)
class _Split:
    """The closed sessions, as a table and by key, and the open ones."""

    table: pa.Table
    closed: _Sessions
    open: _Sessions


def _sessions(runs: pa.Table, watermark_ms: int, rules: Rules) -> _Split:
    state, every = advance(empty_state(rules), runs, 0, rules)
    _, ended = advance(state, folding.schema(rules.measures).empty_table(), watermark_ms, rules)
    table = ended.sessions.filter(pc.equal(ended.sessions["state"], CLOSED))
    closed = _sizes(table)
    return _Split(table, closed, {key: size for key, size in _sizes(every.sessions).items() if key not in closed})


def _sizes(sessions: pa.Table) -> _Sessions:
    columns = [sessions[name].to_pylist() for name in ("device", "start", "last", "count", "reason")]
    return {(device, start): (*size,) for device, start, *size in zip(*columns, strict=True)}


def _first_difference(before: _Sessions, after: _Sessions) -> dict[str, int]:
    """By device, the start of the first open session that late readings would change."""
    first: dict[str, int] = {}
    for device, start in {key for key, _ in before.items() ^ after.items()}:
        first[device] = min(start, first.get(device, start))
    return first


def _changes(before: _Split, after: _Split, rules: Rules) -> pa.Table:
    new = [before.closed.get(key) != size for key, size in _sizes(after.table).items()]
    tables = [after.table.filter(pa.array(new, pa.bool_()))]
    gone = sorted(before.closed.keys() - after.closed.keys())
    if gone:
        starts: dict[str, list[int]] = {}
        for device, start in sorted(after.closed):
            starts.setdefault(device, []).append(start)
        rows: list[dict[str, Any]] = []
        for row in before.table.to_pylist():
            device, start = row["device"], row["start"]
            if (device, start) not in after.closed:
                into = max((s for s in starts.get(device, ()) if s < start), default=None)
                rows.append({**row, "state": MERGED, "reason": MERGED, "merged_into": into})
        tables.append(pa.Table.from_pylist(rows, schema=session_schema(rules.measures, rules.trails)))
    return pa.concat_tables(tables)


def only(runs: pa.Table, from_ms: Mapping[str, int]) -> pa.Table:
    """The runs of the named devices that end at the time given for each, or later."""
    pairs = zip(runs["device"].to_pylist(), ints(runs, "last").tolist(), strict=True)
    return runs.filter(pa.array([from_ms.get(name, ms + 1) <= ms for name, ms in pairs], pa.bool_()))

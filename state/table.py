"""Advance a bucket's sessions and devices by one step.

    advance(state, runs, watermark, rules, pace) -> (state, changes)

is pure and vectorised: no loop over devices, sessions or readings. Its steps, whose numbers the code uses:

1  new runs are merged with the runs of the open sessions; the devices' last values are brought up to date
2  a walk over each device's runs in time order finds where sessions begin
3  a session that no longer begins where it did is emitted once, as "merged"; one that has changed as "open"
4  a session that the watermark has passed is emitted as "closed" and its runs are forgotten
5  a device without an open session is offline; one silent for longer than `retain_ms` is forgotten

A device whose runs bring a gap of their own has that one from then on, also for what is open. One whose runs bring an
expected interval is quiet, while its session is open, when `watermark_ms > last_seen + interval`. Where the rules have a line of
their own for statuses, `line_ms` takes the watermark's place for these.

The close rule is `watermark_ms > last + gap_ms`: a reading exactly `gap_ms` after `last` still joins (as in Spark's
`session_window`), and no reading below the watermark is admitted.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state import blobs, waiting, windows
from state import runs as folding
from state.columns import (
    LAST,
    TOTALS,
    Array,
    Block,
    Bools,
    Codes,
    Ints,
    Keys,
    array,
    codes_of,
    combine,
    concat,
    factorise,
    ints,
    joined,
    measures_of,
    stats_arrays,
)
from state.devices import Devices
from state.layout import (
    CLOSED,
    GAP,
    LIMITS,
    MAX_DURATION,
    MERGED,
    OPEN,
    TOLD,
    BucketState,
    Changes,
    empty_state,
    run_schema,
    session_schema,
    status_schema,
)
from state.rules import EVENT_MS_LIMIT, Rules
from state.settled import LEFT, NEVER
from state.waiting import AT_ONCE, Pace


def next_expiry(state: BucketState, rules: Rules) -> int | None:
    """The earliest t such that a watermark > t closes a session, makes a device quiet or forgets it; None when nothing is left.

    It is not below the watermark that `state` was advanced to.
    """
    return min([*_next_closings(state, rules), *_next_statuses(state, rules)], default=None)


def _is_due(state: BucketState, rules: Rules, watermark_ms: int, line_ms: int) -> bool:
    """Return whether the state changes without readings: by time, or as it has trails that the rules do not have any more.

    Version 0.4.0 reads no state with trails.
    """
    wanted = {field.name for field in folding.trail_fields(rules.trails)}
    if any(field.type == blobs.TYPE and field.name not in wanted for field in state.runs.schema):
        return True
    closings, statuses = _next_closings(state, rules), _next_statuses(state, rules)
    return min(closings, default=watermark_ms) < watermark_ms or min(statuses, default=line_ms) < line_ms


def _next_closings(state: BucketState, rules: Rules) -> list[int]:
    """Return what the watermark has to pass before a session closes or a device is forgotten."""
    candidates: list[int] = []
    open_session, last_seen = ints(state.devices, "session"), ints(state.devices, "last_seen")
    if state.runs.num_rows:
        gap = _gaps(ints(state.devices, "gap"), rules)
        codes, session, last = (
            codes_of(state.runs.column("device")),
            ints(state.runs, "session"),
            ints(state.runs, "last"),
        )
        final = np.ones(len(session), np.bool_)
        final[:-1] = (session[1:] != session[:-1]) | (codes[1:] != codes[:-1])
        candidates.append(int((last + gap[codes])[final].min()))
    silent = open_session < 0
    if silent.any():
        candidates.append(int(last_seen[silent].min()) + rules.retain_ms)
    return candidates


def _next_statuses(state: BucketState, rules: Rules) -> list[int]:
    """Return what the watermark, or the line of statuses, has to pass before a status changes."""
    candidates: list[int] = []
    gap, interval, word = (ints(state.devices, name) for name in LIMITS)
    gap = _gaps(gap, rules)
    is_open, last_seen = ints(state.devices, "session") >= 0, ints(state.devices, "last_seen")
    expected = is_open & (interval >= 0) & (word <= 0)
    if expected.any():
        candidates.append(int((last_seen + interval)[expected].min()))
    if rules.has_line and (there := is_open & (word < 2)).any():
        candidates.append(int((last_seen + gap)[there].min()))
    if rules.by_measure:
        candidates += _next_silences(state.devices, gap, interval)
    return candidates


def _next_silences(devices: pa.Table, gap: Ints, interval: Ints) -> list[int]:
    """Return the earliest times at which a measure's last reading is an interval or a gap ago, and that were not passed yet."""
    told, times = ints(devices, TOLD), list[int]()
    is_expected = (interval >= 0) & (interval < gap)
    for measure in measures_of(devices):
        at = ints(devices, f"{measure}.at")
        for due in (np.where(is_expected, at + interval, -1), at + gap):
            pending = due[(at >= 0) & (due >= told) & (due >= 0)]
            times += [int(pending.min())] if len(pending) else []
    return times


def advance(
    state: BucketState | None,
    runs: pa.Table,
    watermark_ms: int,
    rules: Rules,
    pace: Pace = AT_ONCE,
    line_ms: int | None = None,
) -> tuple[BucketState, Changes]:
    """One step. `runs` is a table of `state.runs.schema`, in any order and cut; empty when only time has passed.

    No reading may be below the watermark of the step before: its session may be closed. The result depends on the set of
    readings only, not on how they were cut into batches or ordered (sums: up to the rounding of additions in another order).
    A step that changes nothing returns the same `state` object.
    The rules' measures are computed and emitted. Others that `state` has are kept as long as a device or run has a
    value of them, and not emitted. ValueError when a device is null.
    Where devices wait (state/waiting.py), a device and its open sessions leave together: when they are due, or its status
    changes. `line_ms` takes the watermark's place for statuses; by default it is the watermark.
    """
    line_ms = watermark_ms if line_ms is None else max(watermark_ms, line_ms)
    before = state or empty_state(rules)
    known = measures_of(before.runs), measures_of(before.devices), measures_of(runs)
    measures = tuple(dict.fromkeys((*rules.measures, *itertools.chain(*known))))
    codes, names = _common_codes(before.devices, runs)
    devices = Devices(before.devices, names, measures, pace, rules.devices_every_ms)
    new = folding.block_of(runs, measures, rules.trails)
    own_gap, interval = ints(runs, "gap"), ints(runs, "interval")

    is_paced = bool(rules.devices_every_ms) or pace.is_holding or waiting.DUE in before.devices.column_names
    is_moved = is_paced and waiting.is_moved(before.devices, pace, rules.devices_every_ms)
    if not len(codes) and not is_moved and not _is_due(before, rules, watermark_ms, line_ms):
        devices_schema = status_schema(rules.measures, by_measure=rules.by_measure)
        return before, Changes(session_schema(rules.measures, rules.trails).empty_table(), devices_schema.empty_table())

    # 1, 2
    devices.see(codes, new, own_gap, interval)
    gap = _gaps(devices.gap, rules)
    of_old = folding.block_of(before.runs, measures, rules.trails)
    old = _Old(codes_of(before.runs.column("device")), ints(before.runs, "session"), of_old)
    walk = _walk(np.concatenate((old.codes, codes)), concat(old.runs, new), gap, rules)

    # 3
    changed = np.zeros(len(walk.codes), np.bool_)
    changed[walk.session_of_row[len(old.codes) :]] = True
    walk = walk.settled(changed, watermark_ms, rules.most_readings)
    merged, parted = _moves(walk, old, changed)
    over = walk.sessions.last + gap[walk.codes] < watermark_ms
    devices.set_open(walk.codes[~over], walk.sessions.start[~over])
    devices.set_words(line_ms, gap if rules.has_line else None)
    if rules.by_measure:
        devices.set_measures(line_ms, gap)
    remembered = devices.remembered(watermark_ms, rules.retain_ms)
    if is_paced:
        changed = devices.leave(pace, ~remembered, parted)[walk.codes]
    if rules.by_measure:
        devices.tell(line_ms)
    opened = np.flatnonzero(changed & ~over)
    tables = [_sessions(names, walk.codes[opened], walk.take(opened), rules)]
    if len(merged):
        tables.append(_merged(names, walk, old, merged, rules))

    # 4
    ended = np.flatnonzero(over)
    if len(ended):
        table = _sessions(names, walk.codes[ended], walk.take(ended), rules)
        reason = np.where(walk.followed(gap)[ended], MAX_DURATION, GAP)
        tables.append(_with(table, state=pa.repeat(CLOSED, len(ended)), reason=pa.array(reason.tolist(), pa.string())))

    # 5
    transitions = devices.transitions(line_ms, gap) if rules.has_transitions else None
    changes = Changes(pa.concat_tables(tables), devices.statuses(rules.measures), transitions=transitions)
    keep = ~over[walk.session_of_run]
    session = walk.sessions.start[walk.session_of_run[keep]]
    is_holding = bool(rules.devices_every_ms) or pace.is_holding
    table = devices.table(remembered, devices.measures_in_use(remembered, rules.measures), is_holding=is_holding)
    rows = (np.cumsum(remembered) - 1).astype(np.int32)[walk.run_codes[keep]]
    runs_left = _runs(table, rows, session, walk.runs.take(keep), rules.measures)
    return replace(before, runs=runs_left, devices=table), changes


def present(state: BucketState, rules: Rules) -> Changes:
    """The open sessions, devices and windows of a state, as changes."""
    codes, names = _common_codes(state.devices, state.runs)
    devices = Devices(state.devices, names, rules.measures)
    devices.touch()
    if rules.by_measure:
        devices.set_measures(None, _gaps(devices.gap, rules))
    sessions = session_schema(rules.measures, rules.trails).empty_table()
    if len(codes):
        session = ints(state.runs, "session")
        heads = np.flatnonzero((np.diff(codes, prepend=-1) != 0) | (np.diff(session, prepend=-1) != 0))
        block = folding.sessions_of(folding.block_of(state.runs, rules.measures, rules.trails), heads)
        sessions = _sessions(names, codes[heads], block, rules)
    # Of those without readings only what has left is published before it is closed.
    shown = windows.are_shown(state.windows, rules.fills)
    shown &= (ints(state.windows, "count") > 0) | (ints(state.windows, LEFT) != NEVER)
    open_windows = waiting.without(state.windows)
    if not shown.all():
        open_windows = windows.compact(open_windows.filter(pa.array(shown)))
    return Changes(sessions, devices.statuses(rules.measures), open_windows)


def present_waiting(state: BucketState, rules: Rules) -> Changes:
    """The values of `present` that wait (state/waiting.py), windows of the rules' views."""
    names = array(waiting.waiting(state.devices)["device"])
    changes = present(state, rules)
    sessions, devices = (
        table.filter(pc.is_in(table["device"], names)).combine_chunks() for table in (changes.sessions, changes.devices)
    )
    open_windows = waiting.waiting(state.windows)
    are_wanted = windows.are_of(open_windows, rules.update_every) & ~windows.are_dropped(open_windows, rules.endless)
    open_windows = open_windows.filter(pa.array(are_wanted))
    return Changes(sessions, devices, windows.with_readings(windows.compact(open_windows)))


@dataclass(frozen=True, slots=True)
class _Old:
    """The state's runs as columns, in its order, with the start of the session of each."""

    codes: Codes
    session: Ints
    runs: Block


@dataclass(frozen=True, slots=True)
class _Walk:
    """Rows (old and new runs) merged into runs, and runs walked into sessions; runs and sessions by (code, start).

    `sessions` have no trails: those of `take` do.
    """

    keys: Keys
    runs: Block
    run_codes: Codes
    session_of_run: Ints
    session_of_row: Ints
    sessions: Block
    codes: Codes  # of the sessions

    def settled(self, changed: Bools, watermark_ms: int, most: int | None) -> "_Walk":
        """The walk with the readings of changed sessions folded that the watermark has passed."""
        if not self.runs.trails:
            return self
        return replace(self, runs=folding.settled(self.runs, changed[self.session_of_run], watermark_ms, most))

    def take(self, rows: Ints) -> Block:
        """Some sessions, in their order, with trails."""
        block = self.sessions.take(rows)
        if not self.runs.trails:
            return block
        session = self.session_of_run[of_rows := np.isin(self.session_of_run, rows)]
        heads = np.flatnonzero(np.diff(session, prepend=-1))
        trails = {name: column[of_rows] for name, column in self.runs.trails.items()}
        return replace(block, trails=folding.joined(trails, heads))

    def followed(self, gap_ms: Ints) -> Bools:
        """Which sessions have another one of the same device within the gap: max_duration parted them."""
        result = np.zeros(len(self.codes), np.bool_)
        near = self.sessions.start[1:] - self.sessions.last[:-1] <= gap_ms[self.codes[1:]]
        result[:-1] = near & (self.codes[1:] == self.codes[:-1])
        return result

    def covering(self, keys: Ints) -> tuple[Ints, Bools]:
        """The session over each (code, ms) key, and whether it begins right there."""
        starts = self.keys.pack(self.codes, self.sessions.start)
        rows = np.searchsorted(starts, keys, side="right") - 1
        return rows, starts[rows] == keys


def _gaps(own: Ints, rules: Rules) -> Ints:
    """Session gaps, where -1 is that of the rules."""
    return np.where(own < 0, rules.gap_ms, own)


def _walk(codes: Codes, rows: Block, gap_ms: Ints, rules: Rules) -> _Walk:
    """`gap_ms` is each device's."""
    keys = Keys(len(gap_ms), int(rows.start.min(initial=EVENT_MS_LIMIT)), int(rows.last.max(initial=0)))
    order, run_heads, runs = folding.merge(codes, keys, rows, rules, gap_ms)
    run_codes = codes[order[run_heads]]
    begins = folding.session_heads(run_codes, keys, runs.start, runs.last, rules, gap_ms)
    heads = np.flatnonzero(begins)
    session_of_run = np.cumsum(begins) - 1
    session_of_row = np.empty(len(codes), np.int64)
    session_of_row[order] = np.repeat(session_of_run, np.diff(run_heads, append=len(codes)))
    return _Walk(keys, runs, run_codes, session_of_run, session_of_row, combine(runs, heads), run_codes[heads])


def _moves(walk: _Walk, old: _Old, changed: Bools) -> tuple[Ints, Codes]:
    """Mark the sessions that gained or lost old runs. Return the keys of those whose start begins none now, and all devices."""
    moved = np.flatnonzero(walk.sessions.start[walk.session_of_row[: len(old.codes)]] != old.session)
    if not len(moved):
        return moved, old.codes[moved]
    changed[walk.session_of_row[moved]] = True
    left = walk.keys.pack(old.codes[moved], old.session[moved])
    covering, same = walk.covering(left)
    changed[covering[same]] = True
    return np.unique(left[~same]), old.codes[moved]


def _merged(names: Array, walk: _Walk, old: _Old, merged: Ints, rules: Rules) -> pa.Table:
    """Sessions as they were before the step, and the start of the session that each is part of now."""
    keys = walk.keys.pack(old.codes, old.session)
    rows = np.flatnonzero(np.isin(keys, merged))
    heads = np.flatnonzero(np.diff(keys[rows], prepend=-1))
    into = walk.sessions.start[walk.covering(merged)[0]]
    table = _sessions(names, old.codes[rows[heads]], folding.sessions_of(old.runs.take(rows), heads), rules)
    word = pa.repeat(MERGED, len(heads))
    return _with(table, state=word, reason=word, merged_into=pa.array(into))


def _sessions(names: Array, codes: Codes, block: Block, rules: Rules) -> pa.Table:
    """Open sessions."""
    arrays = [
        names.take(codes),
        pa.array(block.start),
        pa.array(block.last),
        pa.array(block.count),
        pa.repeat(OPEN, len(codes)),
        pa.repeat("", len(codes)),
        pa.nulls(len(codes), pa.int64()),
    ]
    for name in rules.measures:
        arrays += stats_arrays(block.stats[name], TOTALS)
    arrays += folding.trail_arrays(block)
    return pa.Table.from_arrays(arrays, schema=session_schema(rules.measures, rules.trails))


def _with(table: pa.Table, **columns: Array) -> pa.Table:
    for name, column in columns.items():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), column)
    return table


def _runs(devices: pa.Table, rows: Codes, session: Ints, block: Block, always: tuple[str, ...]) -> pa.Table:
    measures = (*always, *(m for m, stat in block.stats.items() if m not in always and stat.count.any()))
    arrays = [
        pa.DictionaryArray.from_arrays(rows, array(devices.column("device"))),
        pa.array(session),
        pa.array(block.start),
        pa.array(block.last),
        pa.array(block.count),
    ]
    for name in measures:
        arrays += stats_arrays(block.stats[name], (*TOTALS, *LAST))
    arrays += folding.trail_arrays(block)
    return pa.Table.from_arrays(arrays, schema=run_schema(measures, block.trails))


def _common_codes(devices: pa.Table, runs: pa.Table) -> tuple[Codes, Array]:
    """Codes of the runs' devices, and the devices by code: those of the device table first, in its order."""
    codes, texts = factorise(runs.column("device"))
    names, place = joined(array(devices.column("device")), texts)
    return place[codes], names

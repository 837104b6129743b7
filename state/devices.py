"""The device table while a step works on it: NumPy columns indexed by device code.

The codes 0 .. known - 1 are the rows of the state's device table; new devices follow.

A measure has a status by the rules of its device, as if the device sent nothing else: it is offline when the watermark has passed
its last reading by more than the gap, before that quiet when it has by more than the expected interval. The status follows
from the watermark, so the state keeps only the watermark as of which the statuses are those that were last emitted.

With `Rules.has_line` a line takes the watermark's place for statuses. It is ahead of the watermark, so a device may be offline
while its session is open. A line may go back, a status without a reading does not.
"""

import numpy as np
import pyarrow as pa

from state import waiting
from state.columns import Array, Block, Bools, Codes, Floats, Ints, combine_last, floats, ints, nullable
from state.layout import LIMITS, OFFLINE, ONLINE, QUIET, TOLD, TRANSITIONS, device_schema, status_schema
from state.waiting import Pace, Phases

_WORDS = pa.array([ONLINE, QUIET, OFFLINE])


class Devices:
    """Mutable columns of one step."""

    def __init__(
        self, table: pa.Table, names: Array, measures: tuple[str, ...], pace: Pace = waiting.AT_ONCE, every_ms: int = 0
    ) -> None:
        """`names` are the devices by code, beginning with those of `table`; n = len(names)."""
        self.names = names
        self._table = table
        self._known = table.num_rows
        self.last_seen = self._stored("last_seen")
        self.session = self._stored("session")
        self.gap, self.interval, quiet = map(self._stored, LIMITS)
        self.word: Ints = np.maximum(quiet, 0)
        """The places in _WORDS of devices with an open session."""
        self._word_before = self.word
        self.at: dict[str, Ints] = {m: self._stored(f"{m}.at") for m in measures}
        new = np.full(len(names) - self._known, np.nan)
        self.value: dict[str, Floats] = {m: np.append(floats(table, f"{m}.value"), new) for m in measures}
        self._session_before = self.session.copy()
        self._touched = np.zeros(len(names), np.bool_)
        self._readings: Codes = np.zeros(0, np.int32)
        self._told: Ints | None = None
        self._measure_gap: Ints = self.gap
        self.due = self._padded(waiting.due_now(table, pace, every_ms))
        self._leaves: Bools | None = None
        self._every_ms = every_ms
        self._measures_changed = np.zeros(len(names), np.bool_)

    def see(self, codes: Codes, runs: Block, gap: Ints, interval: Ints) -> None:
        """Update devices by runs: last reading, each measure's last value (the larger one when times are equal), limits."""
        if not len(codes):
            return
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        heads = np.flatnonzero(np.diff(ordered, prepend=-1))
        rows = ordered[heads]
        self._touched[rows] = True
        self._readings = rows
        self.gap[rows], self.interval[rows] = gap[order][heads], interval[order][heads]
        self.last_seen[rows] = np.maximum(self.last_seen[rows], np.maximum.reduceat(runs.last[order], heads))
        for measure, stat in runs.stats.items():
            value, at = combine_last(stat.value[order], stat.at[order], heads, len(order))
            had_value, had_at = self.value[measure][rows], self.at[measure][rows]
            self.at[measure][rows] = np.maximum(at, had_at)
            newest = np.where(at > had_at, value, had_value)
            self.value[measure][rows] = np.where(at == had_at, np.fmax(value, had_value), newest)

    def set_open(self, codes: Codes, start: Ints) -> None:
        """Set the open sessions of all devices; of several sessions of a device, the latest."""
        self.session[:] = -1
        np.maximum.at(self.session, codes, start)

    def set_words(self, line_ms: int, gap: Ints | None = None) -> None:
        """A device with an open session is quiet when the line has passed the time of its next expected reading. With `gap`, the
        gap of each device, the line is ahead of the watermark: the device is offline when it has passed the last reading by more.
        """
        is_open = self.session >= 0
        self.word = (is_open & (self.interval >= 0) & (self.last_seen + self.interval < line_ms)).astype(np.int64)
        if gap is not None:
            word = np.where(is_open & (self.last_seen + gap < line_ms), 2, self.word)
            stays = is_open
            stays[self._readings] = False
            self.word = np.where(stays, np.maximum(word, self._word_before), word)

    def set_measures(self, watermark_ms: int | None, gap: Ints) -> None:
        """Have each measure's status emitted, as of the watermark; None for that of the row that was last emitted.

        `gap` has the gap of each device.
        """
        told = self._stored(TOLD)
        self._told, self._measure_gap = told, gap
        if watermark_ms is not None:
            for measure, at in self.at.items():
                now = self._word(at, np.maximum(told, watermark_ms))
                self._measures_changed |= self._word(self._stored(f"{measure}.at"), told) != now
                self._touched |= self._word(at, told) != now

    def tell(self, watermark_ms: int) -> None:
        """Note the watermark for the devices that are emitted, and for those with a reading that wait: their measures have the
        statuses that were emitted before. After `set_measures` and `leave`."""
        if self._told is not None:
            for rows in (self._touched, self._rows()):
                self._told[rows] = np.maximum(self._told[rows], watermark_ms)

    def _word(self, at: Ints, line_ms: Ints) -> Ints:
        """Return the place in _WORDS of the status of a measure with these last readings."""
        is_offline = at + self._measure_gap < line_ms
        is_quiet = (self.interval >= 0) & (at + self.interval < line_ms)
        return np.where(at < 0, 0, np.where(is_offline, 2, is_quiet))

    def _rows(self) -> Ints:
        """Return the devices that leave; where none waits those that had a reading, or have another open session or status."""
        leaves = (self._touched | self._have_another_status()) if self._leaves is None else self._leaves
        return np.flatnonzero(leaves)

    def touch(self) -> None:
        """Mark all devices as changed."""
        self._touched[:] = True

    def leave(self, pace: Pace, forgotten: Bools, parted: Codes) -> Bools:
        """Return the devices that leave, where devices wait; `statuses` has them and no others.

        They are due, or new, or have another status or open session, or a session that was `parted` or merged, or they have a
        reading and are `forgotten`. While a backlog is read, those that are new or have another status wait, too,
        until the first batch that holds nothing back.
        """
        every = np.full(len(self.names), self._every_ms)
        codes = np.arange(len(self.names))
        is_told = self._have_another_status()
        is_told[self._known :] = True
        waiting.begin(self.due, self._touched | is_told, Phases(self.names, codes, every), pace)
        self.due[is_told] = np.minimum(self.due[is_told], pace.planned_ms)
        leaves: Bools = waiting.leaving(self.due, pace) | (forgotten & (self.due != waiting.NEVER))
        if not pace.is_holding:
            leaves |= is_told
        leaves[parted] = True
        self.due[leaves] = waiting.NEVER
        self._leaves = leaves
        return leaves

    def _have_another_status(self) -> Bools:
        changed: Bools = (self.session != self._session_before) | (self.word != self._word_before)
        return changed | self._measures_changed

    def remembered(self, watermark_ms: int, retain_ms: int) -> Bools:
        """Which devices stay: those with an open session, and those seen within `retain_ms` of the watermark."""
        return (self.session >= 0) | (self.last_seen + retain_ms >= watermark_ms)

    def statuses(self, measures: tuple[str, ...]) -> pa.Table:
        """`status_schema` of the devices that had a reading, or whose open session or a status is another one than before."""
        rows = self._rows()
        session = self.session[rows]
        word = np.where(session < 0, 2, self.word[rows]).astype(np.int8)
        status = pa.DictionaryArray.from_arrays(word, _WORDS)
        return pa.Table.from_arrays(
            [
                self.names.take(rows),
                status.cast(pa.string()),
                pa.array(self.last_seen[rows]),
                nullable(session, session < 0),
                *self._measure_arrays(rows, measures),
                *self._measure_statuses(rows, measures),
            ],
            schema=status_schema(measures, by_measure=self._told is not None),
        )

    def transitions(self, watermark_ms: int, gap: Ints) -> pa.Table:
        """TRANSITIONS of the step, without regard to what waits. `gap` has the gap of each device."""
        before = np.where(self._session_before < 0, 2, self._word_before)
        before[self._known :] = -1
        word = np.where(self.session < 0, 2, self.word)
        is_reading = np.zeros(len(word), np.bool_)
        is_reading[self._readings] = True
        # A device that is offline with an open session is back in that session: it has begun before the outage.
        is_new = self.session > self._stored("last_seen")
        begins = np.where(((before < 0) | (before == 2)) & is_new, self.session, self.last_seen)
        tables = [self._transitions("status", before, word, self.last_seen, begins, gap, is_reading)]
        if self._told is not None:
            told = self._stored(TOLD)
            line_ms = np.maximum(told, watermark_ms)
            for measure, at in self.at.items():
                at_before = self._stored(f"{measure}.at")
                before = np.where(at_before < 0, -1, self._word(at_before, told))
                word = np.where(at < 0, -1, self._word(at, line_ms))
                tables.append(self._transitions(f"{measure}.status", before, word, at, at, gap, at != at_before))
        return pa.concat_tables(tables)

    def _transitions(
        self, field: str, before: Ints, word: Ints, last: Ints, begins: Ints, gap: Ints, is_reading: Bools
    ) -> pa.Table:
        """Return the rows of a status; `before` and `word` are places in _WORDS, -1 for none."""
        rows = np.flatnonzero((before != word) | is_reading)
        at = np.choose(word[rows], [begins[rows], (last + self.interval)[rows], (last + gap)[rows]])
        was, status = (
            pa.DictionaryArray.from_arrays(pa.array(codes[rows].astype(np.int8), mask=codes[rows] < 0), _WORDS)
            for codes in (before, word)
        )
        return pa.Table.from_arrays(
            [
                self.names.take(rows),
                pa.repeat(field, len(rows)),
                was.cast(pa.string()),
                status.cast(pa.string()),
                pa.array(last[rows]),
                pa.array(at),
                pa.array(is_reading[rows]),
            ],
            schema=TRANSITIONS,
        )

    def _measure_statuses(self, rows: Ints, measures: tuple[str, ...]) -> list[Array]:
        arrays: list[Array] = []
        if self._told is not None:
            for measure in measures:
                at = self.at[measure]
                codes = pa.array(self._word(at, self._told)[rows].astype(np.int8), mask=at[rows] < 0)
                arrays.append(pa.DictionaryArray.from_arrays(codes, _WORDS).cast(pa.string()))
        return arrays

    def table(self, keep: Bools, measures: tuple[str, ...], *, is_holding: bool = False) -> pa.Table:
        """`device_schema` of the devices to keep, with the column of state/waiting.py if `is_holding` or one of them waits."""
        rows = np.flatnonzero(keep)
        names = self.names if len(rows) == len(self.names) else self.names.take(rows)
        session = self.session[rows]
        table = pa.Table.from_arrays(
            [
                names,
                pa.array(self.last_seen[rows]),
                nullable(session, session < 0),
                *self._measure_arrays(rows, measures),
            ],
            schema=device_schema(measures),
        )
        limits = self.gap[rows], self.interval[rows], self.word[rows]
        if (limits[0] >= 0).any() or (limits[1] >= 0).any() or limits[2].any():
            for name, column in zip(LIMITS, limits, strict=True):
                table = table.append_column(pa.field(name, pa.int64(), nullable=False), pa.array(column))
        if self._told is not None:
            table = table.append_column(pa.field(TOLD, pa.int64()), pa.array(self._told[rows]))
        due = self.due[rows]
        if is_holding or (due != waiting.NEVER).any():
            table = waiting.with_due(table, due, table.num_columns)
        return table

    def measures_in_use(self, keep: Bools, always: tuple[str, ...]) -> tuple[str, ...]:
        """`always`, and the other measures that one of the devices to keep has a value of."""
        return (*always, *(m for m, at in self.at.items() if m not in always and (at[keep] >= 0).any()))

    def _measure_arrays(self, rows: Ints, measures: tuple[str, ...]) -> list[Array]:
        arrays = []
        for measure in measures:
            at = self.at[measure][rows]
            arrays += [nullable(self.value[measure][rows], at < 0), nullable(at, at < 0)]
        return arrays

    def _stored(self, name: str) -> Ints:
        """Return a column of the state's table, which no step changes; -1 for new devices."""
        return self._padded(ints(self._table, name))

    def _padded(self, values: Ints) -> Ints:
        return np.append(values, np.full(len(self.names) - self._known, -1, np.int64))

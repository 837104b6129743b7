"""What Redis must hold for a set of admitted readings: the second, independent implementation of the rules.

It imports nothing of the service and computes in another way. The pipeline folds readings into panes and runs and
merges those; here a window is a slice of all readings sorted by key and time, with a mean and deviations of its own in
extended precision (two passes), and sessions are found by walking a device's readings one by one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from load.judge.calendars import Calendar, is_zone
from load.judge.statistics import DEFAULT, Frame, of_carried, plain

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

EXACTLY_GAP_JOINS = True
"""Two readings exactly one gap apart are of the same session: what Spark's `session_window` does (run on 4.1.1)."""

CELLS = 16
"""max_duration cuts a session at an edge of these many cells to max_duration."""

ENDLESS_MS = 1 << 42
"""The length of the one window of a view without windows."""

NO_ATTRIBUTE = "(none)"
OTHER_VALUES = "(other)"
EVENTS = "events"
"""The measure of a view that counts readings, whatever they have."""
_CHUNK = 2_000_000  # readings unfolded into windows at a time: about 100 MB

WindowKey = tuple[str, str, str, int]
"""view, measure, key, start (ms)"""


@dataclass(frozen=True, slots=True)
class View:
    """A view of the settings. `step_ms` is the slide, or the window where windows do not slide."""

    name: str
    by: tuple[str, ...]
    window_ms: int
    step_ms: int
    measures: tuple[str, ...]
    statistics: tuple[str, ...] = DEFAULT
    where: str | None = None
    carry_ms: int | None = None
    calendar: Calendar | None = None
    """Where its windows begin and end, if they are of a time zone; then the two lengths mean nothing."""
    zone_column: str | None = None
    """The column of its keys that has the zone of `calendar`; `of_key` has the view of one key."""
    per_s: int = 1
    """The seconds to which rates and areas refer."""
    wraps_at: float | None = None
    """Where its counters begin again at 0, if they do."""
    lead_ms: int = 0
    """How long before they are final its windows are settled: `max_delay` less `final_after`."""
    fills: bool = False
    """Whether windows without a reading are there once they are closed, while one before them holds."""
    source: "View | None" = None
    """The view of whose closed windows it is put together, if it is not of readings."""

    def of_key(self, key: str) -> "View":
        """The view as the windows of one key are."""
        if self.zone_column is None or self.calendar is None:
            return self
        zone = key.split("|")[self.by.index(self.zone_column)]
        return replace(self, zone_column=None, calendar=replace(self.calendar, zone="UTC" if zone[0] == "(" else zone))

    def key(self, device: str, attributes: Mapping[str, str | None]) -> str:
        """The key of a device, without a zone that does not exist."""
        column = self.zone_column
        if column is not None and not is_zone(attributes.get(column)) and attributes.get(column) != OTHER_VALUES:
            attributes = {**attributes, column: None}
        return key_text(self.by, device, attributes)

    def end(self, start: int) -> int:
        """The end of the window that begins at a time."""
        return start + self.window_ms if self.calendar is None else self.calendar.span(start)[1]

    def starts(self, event_ms: int) -> Sequence[int]:
        """The starts of the windows that a time is in."""
        if self.calendar is not None:
            return [self.calendar.span(event_ms)[0]]
        return range(event_ms // self.step_ms * self.step_ms, event_ms - self.window_ms, -self.step_ms)

    def filled(self, event_ms: int, line_ms: int) -> Iterator[int]:
        """The starts of the windows behind a reading in which it holds, and that end by a time."""
        start = self.next_start(event_ms)
        while self.fills and start < event_ms + (self.carry_ms or 0) and self.end(start) <= line_ms:
            yield start
            start = self.next_start(start)

    def holds(self, start: int, before: Mapping[str, tuple[int, float]]) -> bool:
        """Whether one of the readings before a window still holds in it."""
        return max(ms for ms, _ in before.values()) + (self.carry_ms or 0) > start

    def has(self, event_ms: int, watermark_ms: int, idle_ms: int) -> bool:
        """Whether a reading is in its window yet: that of the source is closed, or silence has closed its own."""
        if self.source is None:
            return True
        return self.source.last_end(event_ms) <= watermark_ms or self.last_end(event_ms) <= idle_ms

    def next_start(self, at: int) -> int:
        """The start of the first window that begins after a time."""
        return (at // self.step_ms + 1) * self.step_ms if self.calendar is None else self.calendar.span(at)[1]

    def last_end(self, event_ms: int) -> int:
        """The end of the last window that a reading is in, or is carried into."""
        at = event_ms + (self.carry_ms or 0)
        if self.calendar is not None and self.zone_column is not None:
            return self.calendar.latest_end(at)
        return self.end(at // self.step_ms * self.step_ms if self.calendar is None else self.calendar.span(at)[0])

    def local(self, start: int) -> str:
        """A start on the clock of the zone, "" without one."""
        return "" if self.calendar is None else self.calendar.local(start)

    def frame(self, start: int, end: int, before: Mapping[str, tuple[int, float]]) -> Frame:
        """What a window's statistics need besides its readings; `before` are the readings that are carried into it."""
        return Frame(start, end, before, self.carry_ms, self.per_s, self.wraps_at)

    @property
    def is_endless(self) -> bool:
        """Whether it has one window, which never ends."""
        return self.window_ms == ENDLESS_MS


@dataclass(frozen=True, slots=True)
class WindowValue:
    """One window of one key: `stddev` is the population's, `first` and `last` are event times (ms).

    `others` are the statistics that its view names and that are not in DEFAULT; None is "absent". `local_start` is the start on
    the clock of the view's zone, "" without one.
    """

    start: int
    end: int
    count: int
    sum: float
    mean: float
    min: float
    max: float
    stddev: float
    first: int
    last: int
    closed_by: str
    others: Mapping[str, float | None] = field(default_factory=dict)
    local_start: str = ""

    @property
    def final(self) -> bool:
        """Whether it is closed."""
        return self.closed_by != ""


@dataclass(frozen=True, slots=True)
class MeasureValue:
    """One measure over a session; the three numbers are NaN when `count` is 0. `others` are of order; None is "absent"."""

    count: int
    mean: float
    min: float
    max: float
    others: Mapping[str, float | None] = field(default_factory=dict)


class SessionOrder(NamedTuple):
    """The statistics of order of sessions, the measures that have them, and the units as a view has them."""

    statistics: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    per_s: int = 1
    wraps_at: float | None = None

    def of(self, event_ms: Integers, values: Floats, end: int) -> dict[str, float | None]:
        """The statistics of one session's readings of a measure, the lacking ones being NaN."""
        kept = [
            (ms, value, "") for ms, value in zip(event_ms.tolist(), values.tolist(), strict=True) if not np.isnan(value)
        ]
        frame = Frame(int(event_ms[0]), end, {}, None, self.per_s, self.wraps_at)
        return {name: plain(name, kept, frame) if kept else None for name in self.statistics}


NO_ORDER = SessionOrder()


@dataclass(frozen=True, slots=True)
class Session:
    """`reason` and `closed_by` are "" while the state is "open"."""

    start: int
    last: int
    count: int
    state: str
    reason: str
    measures: Mapping[str, MeasureValue]
    closed_by: str


@dataclass(frozen=True, slots=True)
class Device:
    """`session` is the start of the latest open session; `values` maps a measure to its last value and its time.

    `statuses` are those of measures, if measures have a status.
    """

    status: str
    last_seen: int
    session: int | None
    values: Mapping[str, tuple[float, int]]
    attributes: Mapping[str, str | None]
    statuses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Readings:
    """Admitted readings as columns of one length; `device` indexes `names`, NaN is a measure the reading lacks. `texts` are the
    columns of the record that views group by, and `meets` says for each view with a filter which readings meet it."""

    names: Sequence[str]
    device: NDArray[np.int32]
    event_ms: Integers
    values: Mapping[str, Floats]
    texts: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    meets: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)


class _Readings(NamedTuple):
    """The readings of a view's windows, sorted by key and time; a window has those of `low[number] .. high[number] - 1`."""

    names: Sequence[str]
    device: NDArray[np.int32]
    event_ms: Integers
    values: Floats
    key: Integers
    low: NDArray[np.intp]
    high: NDArray[np.intp]

    def before(self, number: int, key: int, from_ms: int) -> dict[str, tuple[int, float]]:
        """Each device's last reading of a window's key before it, from a time on; of several at that time the largest."""
        found: dict[str, tuple[int, float]] = {}
        for at in range(int(self.low[number]) - 1, -1, -1):
            if self.key[at] != key or self.event_ms[at] < from_ms:
                break
            each = self.event_ms[at].item(), self.values[at].item()
            device = self.names[self.device[at]]
            found[device] = max(found.get(device, each), each)
        return found

    def of(self, number: int) -> list[tuple[int, float, str]]:
        """One window's readings."""
        part = slice(int(self.low[number]), int(self.high[number]))
        devices = [self.names[code] for code in self.device[part].tolist()]
        return list(zip(self.event_ms[part].tolist(), self.values[part].tolist(), devices, strict=True))


class _Part(NamedTuple):
    """The windows of one view and measure, sorted by key and start; `bounds[code]` is where a key's windows begin.

    `others` are the names of statistics beside DEFAULT, which follow from `readings`.
    """

    codes: Mapping[str, int]
    keys: Sequence[str]
    bounds: Integers
    key: Integers
    start: Integers
    numbers: tuple[NDArray[np.int64 | np.float64], ...]
    before: int
    others: tuple[str, ...]
    readings: _Readings | None


class Windows(Mapping[WindowKey, WindowValue]):
    """All expected windows, as columns: about 80 bytes a window, a million of them fit in memory.

    Statistics beside DEFAULT are computed when a window is asked for, from the readings of its view, which are kept for that.
    """

    def __init__(self, watermark_ms: int, idle_ms: int) -> None:
        self.watermark_ms, self.idle_ms = watermark_ms, idle_ms
        self._parts: dict[tuple[str, str], _Part] = {}
        self._views: dict[tuple[str, str], View] = {}
        self._size = 0

    def add(
        self,
        view: View,
        measure: str,
        keys: Sequence[str],
        table: "_Table",
        others: tuple[str, ...] = (),
        readings: _Readings | None = None,
    ) -> None:
        """Add the windows of a view and a measure; `table.key` indexes `keys` and is sorted."""
        bounds = np.searchsorted(table.key, np.arange(len(keys) + 1)).astype(np.int64)
        numbers = (table.count, table.sum, table.mean, table.min, table.max, table.stddev, table.first, table.last)
        codes = {key: code for code, key in enumerate(keys)}
        self._parts[view.name, measure] = _Part(
            codes, keys, bounds, table.key, table.start, numbers, self._size, others, readings
        )
        self._views[view.name, measure] = view
        self._size += len(table.start)

    def number(self, key: WindowKey) -> int | None:
        """The window's place in the order of iteration, None when it is not expected."""
        view, measure, text, start = key
        part = self._parts.get((view, measure))
        code = None if part is None else part.codes.get(text)
        if part is None or code is None:
            return None
        low, high = int(part.bounds[code]), int(part.bounds[code + 1])
        at = low + int(np.searchsorted(part.start[low:high], start))
        return part.before + at if at < high and part.start[at] == start else None

    def __getitem__(self, key: WindowKey) -> WindowValue:
        number = self.number(key)
        if number is None:
            raise KeyError(key)
        part = self._parts[key[0], key[1]]
        count, total, mean, low, high, stddev, first, last = (c[number - part.before].item() for c in part.numbers)
        view = self._views[key[0], key[1]].of_key(key[2])
        end = view.end(key[3])
        lines = {"watermark": self.watermark_ms, "settled": self.watermark_ms + view.lead_ms, "idle": self.idle_ms}
        closed_by = next((cause for cause, line_ms in lines.items() if end <= line_ms), "")
        others: dict[str, float | None] = {}
        if part.readings is not None:
            kept = part.readings.of(number - part.before)
            carry_ms = view.carry_ms
            of = number - part.before, int(part.key[number - part.before])
            before = {} if carry_ms is None else part.readings.before(*of, key[3] - carry_ms)
            if count:
                others = {name: plain(name, kept, view.frame(key[3], end, before)) for name in part.others}
            else:
                others = of_carried(part.others, view.frame(key[3], end, before))
        local = view.local(key[3])
        return WindowValue(key[3], end, count, total, mean, low, high, stddev, first, last, closed_by, others, local)

    def __iter__(self) -> Iterator[WindowKey]:
        for (view, measure), part in self._parts.items():
            for code, start in zip(part.key.tolist(), part.start.tolist(), strict=True):
                yield view, measure, part.keys[code], start

    def __len__(self) -> int:
        return self._size


@dataclass(frozen=True, slots=True)
class _Table:
    key: Integers
    start: Integers
    count: Integers
    sum: Floats
    mean: Floats
    min: Floats
    max: Floats
    stddev: Floats
    first: Integers
    last: Integers
    low: NDArray[np.intp]
    high: NDArray[np.intp]


def key_text(by: Sequence[str], device: str, attributes: Mapping[str, str | None]) -> str:
    """The key of a view for a device: "all", one column's text, or several, percent-encoded and joined by |."""
    if not by:
        return "all"
    parts = [device if column == "device" else attributes.get(column) for column in by]
    if len(parts) == 1:
        return NO_ATTRIBUTE if parts[0] is None else parts[0]
    return "|".join(NO_ATTRIBUTE if p is None else p.replace("%", "%25").replace("|", "%7C") for p in parts)


def windows(
    views: Sequence[View],
    readings: Readings,
    attributes: Mapping[str, Mapping[str, str | None]],
    watermark_ms: int,
    idle_ms: int = -1,
    with_late: Readings | None = None,
) -> Windows:
    """Every window of every view that holds a reading; `attributes` is the reference, by device and column.

    `idle_ms` is the time up to which windows were closed because all input was silent, -1 for none. `with_late` are the readings
    that views without windows count: the admitted ones, and those that are only late.
    """
    result, admitted = Windows(watermark_ms, idle_ms), readings
    for view in views:
        readings = with_late if view.is_endless and with_late is not None else admitted
        keys, key = _keys(view, readings, attributes)
        order = np.lexsort((readings.event_ms, key))
        if view.name in readings.meets:
            order = order[readings.meets[view.name][order]]
        for measure in view.measures:
            values = np.zeros(len(order)) if measure == EVENTS else readings.values[measure][order]
            has = ~np.isnan(values)
            if view.source is not None:
                times = readings.event_ms[order].tolist()
                has &= np.array([view.has(ms, watermark_ms, idle_ms) for ms in times], np.bool_)
            if has.any():
                kept = order[has]
                table = _slide(key[kept], readings.event_ms[kept], values[has], [view.of_key(each) for each in keys])
                if view.fills:
                    line_ms = max(watermark_ms + view.lead_ms, idle_ms)
                    table = _filled(
                        table, key[kept], readings.event_ms[kept], [view.of_key(each) for each in keys], line_ms
                    )
                others = tuple(name for name in view.statistics if name not in DEFAULT)
                raw = None
                if others:
                    device, ms = readings.device[kept], readings.event_ms[kept]
                    of = key[kept], table.low, table.high
                    raw = _Readings(readings.names, device, ms, values[has], *of)
                result.add(view, measure, keys, table, others, raw)
    return result


def _keys(
    view: View, readings: Readings, attributes: Mapping[str, Mapping[str, str | None]]
) -> tuple[list[str], Integers]:
    """The view's keys, sorted, and the number of each reading's."""
    own = [name for name in view.by if name in readings.texts]
    if not own:
        texts = [view.key(name, attributes.get(name, {})) for name in readings.names]
    else:
        columns = (readings.texts[name] for name in own)
        texts = [
            view.key(name, {**attributes.get(name, {}), **dict(zip(own, each, strict=True))})
            for name, *each in zip((readings.names[d] for d in readings.device), *columns, strict=True)
        ]
    keys = sorted(set(texts))
    codes = {key: code for code, key in enumerate(keys)}
    key = np.array([codes[text] for text in texts], np.int64)
    return keys, key if own else key[readings.device]


def _slide(key: Integers, event_ms: Integers, values: Floats, views: Sequence[View]) -> _Table:
    """Windows over readings sorted by key and time, at least one of them; `views` has the view of each key."""
    view = views[0]
    if view.calendar is not None:
        calendars = [each.calendar or view.calendar for each in views]
        starts = [calendars[code].span(ms)[0] for code, ms in zip(key.tolist(), event_ms.tolist(), strict=True)]
        candidate = np.stack([key, np.array(starts, np.int64)])
    else:
        step = event_ms // view.step_ms
        new = np.append(True, (np.diff(key) != 0) | (np.diff(step) != 0))
        back = np.arange(view.window_ms // view.step_ms)
        starts = np.subtract.outer(step[new], back).ravel() * view.step_ms
        candidate = np.stack([np.repeat(key[new], len(back)), starts])
    candidate = candidate[:, np.lexsort(candidate[::-1])]
    once = np.append(True, (np.diff(candidate, axis=1) != 0).any(axis=0))
    group, start = candidate[:, once]
    end = np.array([views[code].end(ms) for code, ms in zip(group.tolist(), start.tolist(), strict=True)], np.int64)
    # Key and time as one sorted number, so that a window is found by two binary searches.
    origin = int(start.min())
    width = int(end.max()) - origin + 1
    if (int(key.max()) + 1) * width >= 1 << 63:
        raise ValueError(f"readings of {int(key.max()) + 1} keys over {width} ms are too far apart for 64 bits")
    place = key * width + (event_ms - origin)
    low = np.searchsorted(place, group * width + (start - origin))
    high = np.searchsorted(place, group * width + (end - origin))
    total, mean, least, most, stddev = _slices(values, low, high)
    count = (high - low).astype(np.int64)
    first, last = event_ms[low], event_ms[high - 1]
    return _Table(group, start, count, total, mean, least, most, stddev, first, last, low, high)


def _filled(table: _Table, key: Integers, event_ms: Integers, views: Sequence[View], line_ms: int) -> _Table:
    """The windows of a view that fills, too, that have no reading; `views` has the view of each key."""
    known = set(zip(table.key.tolist(), table.start.tolist(), strict=True))
    rows = zip(key.tolist(), event_ms.tolist(), strict=True)
    # Readings are in the order of time: the last one before a window is the one that counts.
    added = {
        (code, start): (ms, at + 1)
        for at, (code, ms) in enumerate(rows)
        for start in views[code].filled(ms, line_ms)
        if (code, start) not in known
    }
    of = {name: np.array([each[n] for each in added], np.int64) for n, name in enumerate(("key", "start"))}
    of |= {name: np.array([each[n] for each in added.values()], np.int64) for n, name in enumerate(("last", "low"))}
    of["high"] = of["low"]
    columns = {name: np.append(getattr(table, name), of.get(name, np.zeros(len(added)))) for name in _Table.__slots__}
    order = np.lexsort((columns["start"], columns["key"]))
    return _Table(**{name: column[order].astype(getattr(table, name).dtype) for name, column in columns.items()})


def _slices(values: Floats, low: NDArray[np.intp], high: NDArray[np.intp]) -> tuple[Floats, ...]:
    """sum, mean, min, max and population stddev of each `values[low[i]:high[i]]`; no slice is empty."""
    size = high - low
    after = np.cumsum(size)
    result = tuple(np.empty(len(low)) for _ in range(5))
    done = 0
    while done < len(low):
        limit = (int(after[done - 1]) if done else 0) + _CHUNK
        until = max(done + 1, int(np.searchsorted(after, limit, "right")))
        n = size[done:until]
        first = np.cumsum(n) - n
        each = values[np.repeat(low[done:until] - first, n) + np.arange(int(n.sum()))]
        wide = each.astype(np.longdouble)
        total = np.add.reduceat(wide, first)
        mean = total / n
        square = np.add.reduceat(np.square(wide - np.repeat(mean, n)), first)
        columns = total, mean, np.minimum.reduceat(each, first), np.maximum.reduceat(each, first), np.sqrt(square / n)
        for column, chunk in zip(result, columns, strict=True):
            column[done:until] = chunk
        done = until
    return result


def joins(distance_ms: int, gap_ms: int) -> bool:
    """Whether a reading this long after a session's last one is within the gap."""
    return distance_ms <= gap_ms if EXACTLY_GAP_JOINS else distance_ms < gap_ms


def sessions(
    readings: Readings,
    gap_ms: int,
    max_duration_ms: int,
    watermark_ms: int,
    idle_ms: int = -1,
    own_gap_ms: Mapping[str, int] | None = None,
    chosen: SessionOrder = NO_ORDER,
) -> dict[tuple[str, int], Session]:
    """Every session, by device and start; closed when no reading at or after the watermark can join it any more.

    `idle_ms` is as for `windows`; `own_gap_ms` are the gaps of devices that have one of their own. `chosen` are the statistics of
    order that sessions have.
    """
    gaps = [(own_gap_ms or {}).get(name, gap_ms) for name in readings.names]
    order = np.lexsort((readings.event_ms, readings.device))
    cell_ms = max(1, max_duration_ms // CELLS)
    begins: list[int] = []
    cut: list[bool] = []  # whether the session was ended by max_duration, one behind `begins`
    device, start, last, cell = -1, 0, 0, 0
    for at, (d, ms) in enumerate(zip(readings.device[order].tolist(), readings.event_ms[order].tolist(), strict=True)):
        within_gap = d == device and joins(ms - last, gaps[d])
        now = ms // cell_ms
        if not (within_gap and (now == cell or (now + 1) * cell_ms <= start + max_duration_ms)):
            begins.append(at)
            cut.append(within_gap)
            start = ms
        device, last, cell = d, ms, now
    if not begins:
        return {}
    first = np.array(begins)
    until = np.append(first[1:], len(order))
    measures = {name: _measured(values[order], first) for name, values in readings.values.items()}
    result = {}
    rows = zip(
        readings.device[order][first].tolist(),
        readings.event_ms[order][first].tolist(),
        readings.event_ms[order][until - 1].tolist(),
        (until - first).tolist(),
        [*cut[1:], False],
        strict=True,
    )
    for at, (d, begin, end, count, was_cut) in enumerate(rows):
        passed = [joins(line - end, gaps[d]) for line in (watermark_ms, idle_ms)]
        closed_by = "watermark" if not passed[0] else "idle" if not passed[1] else ""
        is_closed = bool(closed_by)
        reason = ("max_duration" if was_cut else "gap") if is_closed else ""
        values = {name: column[at] for name, column in measures.items()}
        for name in chosen.measures:
            own = order[first[at] : until[at]]
            others = chosen.of(readings.event_ms[own], readings.values[name][own], end)
            values[name] = replace(values[name], others=others)
        state = "closed" if is_closed else "open"
        result[readings.names[d], begin] = Session(begin, end, count, state, reason, values, closed_by)
    return result


def _measured(values: Floats, first: NDArray[np.intp]) -> list[MeasureValue]:
    has = ~np.isnan(values)
    count = np.add.reduceat(has.astype(np.int64), first)
    total = np.add.reduceat(np.where(has, values, 0).astype(np.longdouble), first)
    with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN that stands for "no value"
        mean = (total / count).astype(np.float64)
    low = np.where(count > 0, np.minimum.reduceat(np.where(has, values, np.inf), first), np.nan)
    high = np.where(count > 0, np.maximum.reduceat(np.where(has, values, -np.inf), first), np.nan)
    return list(map(MeasureValue, count.tolist(), mean.tolist(), low.tolist(), high.tolist()))


def devices(
    readings: Readings,
    known: Mapping[tuple[str, int], Session],
    attributes: Mapping[str, Mapping[str, str | None]],
    line_ms: int = 0,
    interval_ms: Mapping[str, int] | None = None,
    gap_ms: Callable[[str], int] | None = None,
    *,
    by_measure: bool = True,
) -> dict[str, Device]:
    """Every device that was admitted; of two values at one time the larger is the last one.

    One of which `interval_ms` says how often it should send is quiet once the line is past that, until it is offline. With
    `gap_ms`, the session gap of a device, it is offline once the line is past that, whether its session is open or not, and
    each measure has a status as if the device sent nothing else (`by_measure`).
    """

    def statuses(name: str, sent: Mapping[str, tuple[float, int]]) -> dict[str, str]:
        if gap_ms is None or not by_measure:
            return {}
        gap, interval = gap_ms(name), (interval_ms or {}).get(name)
        return {measure: _status(joins(line_ms - at, gap), line_ms - at, interval) for measure, (_, at) in sent.items()}

    last_seen = np.full(len(readings.names), np.iinfo(np.int64).min)
    np.maximum.at(last_seen, readings.device, readings.event_ms)
    values: list[dict[str, tuple[float, int]]] = [{} for _ in readings.names]
    for measure, column in readings.values.items():
        has = np.flatnonzero(~np.isnan(column))
        order = has[np.lexsort((column[has], readings.event_ms[has], readings.device[has]))]
        device = readings.device[order]
        for at in order[np.append(np.flatnonzero(np.diff(device)), len(order) - 1)] if len(order) else []:
            values[readings.device[at]][measure] = (float(column[at]), int(readings.event_ms[at]))
    latest: dict[str, int] = {}
    for (name, start), session in known.items():
        if session.state == "open":
            latest[name] = max(start, latest.get(name, start))
    return {
        name: Device(
            _status(
                name in latest and (gap_ms is None or joins(line_ms - seen, gap_ms(name))),
                line_ms - seen,
                (interval_ms or {}).get(name),
            ),
            seen,
            latest.get(name),
            values[code],
            attributes.get(name, {}),
            statuses(name, values[code]),
        )
        for code, (name, seen) in enumerate(zip(readings.names, last_seen.tolist(), strict=True))
    }


def _status(has_session: bool, silent_ms: int, interval_ms: int | None) -> str:
    if not has_session:
        return "offline"
    return "quiet" if interval_ms is not None and silent_ms > interval_ms else "online"

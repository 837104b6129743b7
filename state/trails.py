"""Trails: the readings of one device in a window by event time, from which steps, gaps and areas under the values follow.

Two halves of a window that overlap in time cannot be merged from their sums: a step is between two neighbouring readings. So a
trail keeps readings one by one, as long as another reading may come between them. Those behind the watermark are folded, in the
order of time, to a `run`: the first and the last of them, and sums.

    MERGED   the readings of all parts, by time; of several readings at one time it is one, with the largest value
    FOLDED   each reading adds to the sums of the run what lies between it and the reading before it

Sums are added in the order of time, one after the other, with the rounding error kept beside them (Neumaier). What is folded when
makes no difference: any order of arrival, with any cuts, gives the same bits as one pass over the sorted readings.

A trail is lost when the stream has more than `MOST_READINGS` readings of it that are not folded, or when a reading comes between
ones that are folded, which admission does not let happen. A lost trail stays lost. Its statistics are absent: no number is wrong.

Where windows become parts of longer ones (state/rollups.py), a part may have a run, and readings that are not folded. Parts
follow each other in time. So runs and readings are folded to one run, in the order of time: what lies between two of them is a
step, a gap and an area like those between two readings. These sums are added in another order than those of single readings.

Where a view carries readings (`carry_for`), a trail also has the last reading before its window, if that still holds when the
window begins: each part has the last of its readings for the windows that follow (`carried`), and of all of these the latest
one stays. What lies between it and the first reading of the window counts in the window, of areas the part behind its start.

A trail is kept as integers (state/blobs.py): how long a reading holds at most in ms, 0 for no limit; 1 with a run, 0 without, -1
if it is lost; the window's start where readings are carried, else 0; the run, as doubles; then event time and value of each
other reading.
docs/decisions/0064-trails-of-readings.md compares with other ways.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from state import blobs
from state.blobs import Blobs, sorted_by
from state.columns import Bools, Floats, Ints

FOLD_FROM = 16
"""Readings behind the watermark from which they are folded: a run has the bytes of eight readings."""

LOST = -1
_HEAD, _PAIR = 3, 2
LOST_BYTES = 8 * _HEAD
"""Bytes of a lost trail. Any other trail has a reading or a run."""
LOST_TRAIL = np.array([0, LOST, 0], "<i8").tobytes()
FOLDABLE_BYTES = 8 * (_HEAD + _PAIR * FOLD_FROM)
"""Bytes of the shortest trail that has readings to fold."""
_SUMS = ("increase", "wrapped", "area", "line")
_FIELDS = (
    "first",
    "first_value",
    "last",
    "last_value",
    *_SUMS,
    *(f"{name}_low" for name in _SUMS),
    "held",
    "lined",
    "gap",
    "resets",
    "changes",
)
_AT = {name: number for number, name in enumerate(_FIELDS)}
_WIDTH = len(_FIELDS)
_HIGH, _LOW = slice(_AT["increase"], _AT["line"] + 1), slice(_AT["increase_low"], _AT["line_low"] + 1)


@dataclass(frozen=True, slots=True)
class Trails:
    """n trails: `hold`, `kind` (1 with a run, 0 without, `LOST`) and `start` of each, and `runs`, _WIDTH x n doubles.

    The readings that are not folded are sorted by trail (`owner`) and `ms`; a trail has one at a time.
    """

    hold: Ints
    kind: Ints
    start: Ints
    runs: Floats
    owner: Ints
    ms: Ints
    value: Floats

    def pack(self, is_empty: Bools) -> Blobs:
        """Return the trails as lists, no bytes at all where `is_empty`."""
        pairs = np.bincount(self.owner, minlength=len(self.hold))
        has_run = self.kind == 1
        sizes = np.where(is_empty, 0, _HEAD + _WIDTH * has_run + _PAIR * pairs)
        words = np.empty(int(sizes.sum()), np.int64)
        heads = np.cumsum(sizes) - sizes
        is_pair = np.ones(len(words), np.bool_)
        for number, column in enumerate((self.hold, self.kind, self.start)):
            at = heads[~is_empty] + number
            words[at] = column[~is_empty]
            is_pair[at] = False
        at = _of_runs(heads[has_run])
        words[at] = self.runs[:, has_run].view(np.int64)
        is_pair[at] = False
        words[is_pair] = np.column_stack((self.ms, self.value.view(np.int64))).ravel()
        return blobs.split(words, sizes)


def fold(values: Floats, event_ms: Ints, starts: npt.NDArray[np.intp], counts: Ints) -> Blobs:
    """Return a trail of each group of readings by time; group i begins at `starts[i]` and has `counts[i]` > 0."""
    owner = np.repeat(np.arange(len(starts)), counts)
    # + 0.0 turns -0.0 to 0.0: which of the two is the larger one depends on their order in NumPy.
    once = _once(owner, event_ms, values + 0.0)
    zero = np.zeros(len(starts), np.int64)
    trails = Trails(zero, zero, zero, np.zeros((_WIDTH, len(starts))), *once)
    return trails.pack(np.zeros(len(starts), np.bool_))


def held(column: Blobs, start: Ints, hold_ms: int) -> Blobs:
    """Return trails without runs as those of windows that begin at `start`, whose readings hold at most `hold_ms`."""
    trails = unpack(column)
    hold = np.full(len(column), hold_ms)
    of_windows = Trails(hold, trails.kind, start, trails.runs, trails.owner, trails.ms, trails.value)
    return of_windows.pack(np.zeros(len(column), np.bool_))


def last(column: Blobs) -> tuple[Blobs, Ints, Floats]:
    """Return trails of the last reading alone, of trails with readings and without runs, and its time and value."""
    trails = unpack(column)
    ends = np.flatnonzero(np.diff(trails.owner, append=-1))
    ms, value, zero = trails.ms[ends], trails.value[ends], np.zeros(len(column), np.int64)
    only = Trails(zero, zero, zero, trails.runs, np.arange(len(column)), ms, value)
    return only.pack(np.zeros(len(column), np.bool_)), ms, value


def reduce(column: Blobs, heads: Ints) -> Blobs:
    """Return the trail of the rows `heads[i] .. heads[i + 1] - 1` for each i."""
    sizes = np.diff(heads, append=len(column))
    if (sizes == 1).all():
        return column
    parts = unpack(column)
    of_part = np.repeat(np.arange(len(heads)), sizes)
    runs = np.zeros((_WIDTH, len(heads)))
    has_run = parts.kind == 1
    runs[:, of_part[has_run]] = parts.runs[:, has_run]
    number_of_runs = np.add.reduceat(has_run.astype(np.int64), heads)
    kind = np.minimum(number_of_runs, 1)
    owner, ms, value = of_part[parts.owner], parts.ms, parts.value
    order = sorted_by(owner, ms)
    owner, ms, value = _once(owner[order], ms[order], value[order])
    start = np.maximum.reduceat(parts.start, heads)
    is_last_before = np.ones(len(owner), np.bool_)
    is_last_before[:-1] = (owner[1:] != owner[:-1]) | (ms[1:] >= start[owner[1:]])
    if not is_last_before.all():
        owner, ms, value = owner[is_last_before], ms[is_last_before], value[is_last_before]
    is_lost = np.minimum.reduceat(parts.kind, heads) == LOST
    newest = np.full(len(heads), -1.0)
    np.maximum.at(newest, of_part[has_run], parts.runs[_AT["last"], has_run])
    is_before = ms <= newest[owner]
    is_joined = number_of_runs > 1
    is_joined[owner[is_before]] = True
    if is_joined.any():
        # What is carried into a window lies before all that is folded there.
        is_lost |= is_joined & (start != 0)
        chosen = is_joined[of_part] & has_run
        runs, overlap = _joined(
            runs,
            is_joined,
            np.concatenate((of_part[chosen], owner[is_before])),
            np.concatenate((parts.runs[:, chosen], _alone(ms[is_before], value[is_before])), axis=1),
            np.maximum.reduceat(parts.hold, heads),
        )
        is_lost |= overlap
        owner, ms, value = owner[~is_before], ms[~is_before], value[~is_before]
    kind[is_lost] = LOST
    stays = ~is_lost[owner]
    lengths = np.fromiter(map(len, column), np.int64, len(column))
    hold = np.maximum.reduceat(parts.hold, heads)
    merged = Trails(hold, kind, start, runs, owner[stays], ms[stays], value[stays])
    return merged.pack(np.maximum.reduceat(lengths, heads) == 0)


def in_turn(column: Blobs, heads: Ints) -> Blobs:
    """Return the trail of the rows `heads[i] .. heads[i + 1] - 1` for each i, which follow each other in time.

    Each row is folded whole before they are joined: what was folded of it before makes no difference to the bits.
    """
    parts = unpack(column)
    has_run = (parts.kind == 1) | (np.bincount(parts.owner, minlength=len(column)) > 0)
    kind = np.where(parts.kind == LOST, LOST, has_run.astype(np.int64))
    none = np.zeros(0, np.int64)
    folded = Trails(parts.hold, kind, parts.start, _walked(parts), none, none, none.astype(np.float64))
    return reduce(folded.pack(kind == 0), heads)


def settle(column: Blobs, watermark_ms: int, most: int | None) -> Blobs:
    """Return the trails with the readings before the watermark folded; lost are those that still have more than `most`."""
    if not len(column):
        return column
    trails = unpack(column)
    size = len(column)
    is_behind = trails.ms < watermark_ms
    behind = np.bincount(trails.owner[is_behind], minlength=size)
    is_folded = (behind >= FOLD_FROM)[trails.owner] & is_behind
    left = np.bincount(trails.owner[~is_folded], minlength=size)
    is_over = left > (len(trails.ms) if most is None else most)
    if not (is_folded | is_over[trails.owner]).any():
        return column
    folded = np.flatnonzero(behind >= FOLD_FROM)
    runs, kind = trails.runs.copy(), trails.kind.copy()
    place = np.zeros(size, np.int64)
    place[folded] = np.arange(len(folded))
    some = Trails(
        trails.hold[folded],
        kind[folded],
        trails.start[folded],
        runs[:, folded],
        place[trails.owner[is_folded]],
        trails.ms[is_folded],
        trails.value[is_folded],
    )
    runs[:, folded] = _walked(some)
    kind[folded] = 1
    kind[is_over] = LOST
    stays = ~is_folded & (kind != LOST)[trails.owner]
    rest = Trails(trails.hold, kind, trails.start, runs, trails.owner[stays], trails.ms[stays], trails.value[stays])
    return rest.pack(np.fromiter(map(len, column), np.int64, size) == 0)


def is_carrying(trail: bytes) -> bool:
    """Return whether readings are carried into the window of a trail."""
    return len(trail) > 0 and int(np.frombuffer(trail, "<i8", _HEAD)[-1]) != 0


def unpack(column: Blobs) -> Trails:
    """Return the trails in lists."""
    words, sizes = blobs.join(column)
    size, starts = len(column), np.cumsum(sizes) - sizes
    has = sizes > 0
    is_pair = np.ones(len(words), np.bool_)
    heads = np.zeros((_HEAD, size), np.int64)
    for number in range(_HEAD):
        heads[number, has] = words[starts[has] + number]
        is_pair[starts[has] + number] = False
    hold, kind, start = heads
    has_run = kind == 1
    runs = np.zeros((_WIDTH, size))
    at = _of_runs(starts[has_run])
    runs[:, has_run] = words[at].view(np.float64)
    is_pair[at] = False
    pairs = words[is_pair].reshape(-1, _PAIR)
    owner = np.repeat(np.arange(size), (sizes - _HEAD * has - _WIDTH * has_run) // _PAIR)
    return Trails(hold, kind, start, runs, owner, pairs[:, 0].copy(), pairs[:, 1].copy().view(np.float64))


class Walked:
    """The numbers of n trails in windows from `start` to `end`, in ms; NaN where a trail is lost or has no reading."""

    def __init__(self, column: Blobs, start: Ints, end: Ints, wraps_at: Floats | None = None) -> None:
        """`wraps_at` is for each trail the value at which its counter begins again at 0, NaN for one that does not."""
        trails = unpack(column)
        self._runs = _walked(trails)
        has = (trails.kind == 1) | (np.bincount(trails.owner, minlength=len(column)) > 0)
        self._runs[:, (trails.kind == LOST) | ~has] = np.nan
        self._start, self._end, self._hold, self._wraps_at = start, end, trails.hold, wraps_at

    def __getitem__(self, name: str) -> Floats:
        values: Floats = self._runs[_AT[name]]
        return values

    def _sum(self, name: str) -> Floats:
        return self[name] + self[f"{name}_low"]

    @property
    def increase(self) -> Floats:
        """The sum of the steps up; a step down counts from 0, or up to where the counter wraps and from there."""
        if self._wraps_at is None:
            return self._sum("increase")
        over = self["increase"] + self._wraps_at * self["resets"] - self["wrapped"]
        over += self["increase_low"] - self["wrapped_low"]
        increase: Floats = np.where(np.isnan(self._wraps_at), self._sum("increase"), over)
        return increase

    @property
    def increase_rate(self) -> Floats:
        """The increase in a second; NaN where all readings have one time."""
        return quotient(self.increase * 1000, self["last"] - self["first"])

    @property
    def longest_gap(self) -> Floats:
        """The longest time between two neighbouring readings, in seconds."""
        return self["gap"] / 1000

    @cached_property
    def _after(self) -> Floats:
        """How long the last reading holds in the window after it, in ms."""
        until = np.where(self._hold > 0, np.minimum(self._end, self["last"] + self._hold), self._end)
        after: Floats = np.maximum(until - np.maximum(self["last"], self._start), 0.0)
        return after

    @property
    def held(self) -> Floats:
        """The time for which a value holds, in ms."""
        return self["held"] + self._after

    @property
    def line(self) -> Floats:
        """The area under straight lines, times ms."""
        return self._sum("line")

    @cached_property
    def area(self) -> Floats:
        """The area under the values, times ms."""
        high, low = self["area"][None].copy(), self["area_low"][None].copy()
        _add(high, low, (self["last_value"] * self._after)[None])
        area: Floats = (high + low)[0]
        return area

    @property
    def integral(self) -> Floats:
        """The area under the values, each of which holds until the next reading or the window's end, in seconds."""
        return self.area / 1000

    @property
    def mean(self) -> Floats:
        """The area in the time for which a value holds."""
        return quotient(self.area, self.held)

    @property
    def coverage(self) -> Floats:
        """The share of the window for which a value holds."""
        share: Floats = self.held / (self._end - self._start)
        return share

    @property
    def linear_integral(self) -> Floats:
        """The area under straight lines from each reading to the next, in seconds."""
        return self.line / 1000

    @property
    def linear_mean(self) -> Floats:
        """The area under straight lines in their time; without a line the last value."""
        return np.where(self["lined"] > 0, quotient(self.line, self["lined"]), self["last_value"])


def quotient(numbers: Floats, amounts: Floats) -> Floats:
    """Return the quotients, NaN where an amount is not above 0."""
    quotients: Floats = np.divide(numbers, amounts, out=np.full(len(numbers), np.nan), where=amounts > 0)
    return quotients


def _of_runs(heads: Ints) -> Ints:
    """Return the places of the words of runs, _WIDTH x n, in lists that begin at `heads`."""
    places: Ints = heads + _HEAD + np.arange(_WIDTH)[:, None]
    return places


def _once(owner: Ints, ms: Ints, value: Floats) -> tuple[Ints, Ints, Floats]:
    """Return sorted readings, of several at one time the largest."""
    is_new = blobs.are_new(owner, ms)
    if is_new.all():
        return owner, ms, value
    heads = np.flatnonzero(is_new)
    return owner[heads], ms[heads], np.maximum.reduceat(value, heads)


def _walked(trails: Trails) -> Floats:
    """Return the runs of trails with all of their readings folded; any numbers where a trail has neither."""
    runs = trails.runs.copy()
    owner, ms, value = trails.owner, trails.ms, trails.value
    if not len(owner):
        return runs
    sizes = np.bincount(owner, minlength=len(trails.hold))
    rows = np.flatnonzero(sizes)
    heads = (np.cumsum(sizes) - sizes)[rows]
    new = trails.kind[rows] != 1
    begun, firsts = rows[new], heads[new]
    for name, first in (("first", ms), ("first_value", value), ("last", ms), ("last_value", value)):
        runs[_AT[name], begun] = first[firsts]
    # Each reading with the one before it; the first one of a trail comes after itself. Areas begin with the window.
    before_ms, before = np.empty(len(ms)), np.empty(len(ms))
    before_ms[1:], before[1:] = ms[:-1], value[:-1]
    before_ms[heads], before[heads] = runs[_AT["last"], rows], runs[_AT["last_value"], rows]
    passed, hold = ms - before_ms, trails.hold[owner]
    begin_ms = np.maximum(before_ms, trails.start[owner])
    until_ms = np.where(hold > 0, np.minimum(ms, before_ms + hold), ms)
    held = np.maximum(until_ms - begin_ms, 0.0)
    lined = np.where((hold > 0) & (passed > hold), 0.0, np.maximum(ms - begin_ms, 0.0))
    step, is_down = value - before, value < before
    share = np.divide(begin_ms - before_ms, passed, out=np.zeros(len(ms)), where=passed > 0)
    from_0 = np.where(is_down, np.maximum(value, 0.0), step)
    terms = np.stack(
        (
            from_0,
            from_0 - step,  # what a wrap counts less than its length: the steps up are the same either way
            before * held,
            ((before + step * share) * 0.5 + value * 0.5) * lined,
        )
    )
    _add_in_order(runs, rows, heads, sizes[rows], terms)
    # Whole numbers below 2^53: their sums are exact in any order.
    for name, numbers in (("held", held), ("lined", lined), ("resets", is_down), ("changes", step != 0)):
        runs[_AT[name], rows] += np.add.reduceat(numbers.astype(np.float64), heads)
    runs[_AT["gap"], rows] = np.maximum(runs[_AT["gap"], rows], np.maximum.reduceat(passed, heads))
    ends = heads + sizes[rows] - 1
    runs[_AT["last"], rows], runs[_AT["last_value"], rows] = ms[ends], value[ends]
    return runs


def _alone(ms: Ints, value: Floats) -> Floats:
    """Return runs of one reading each."""
    runs = np.zeros((_WIDTH, len(ms)))
    runs[_AT["first"]] = runs[_AT["last"]] = ms
    runs[_AT["first_value"]] = runs[_AT["last_value"]] = value
    return runs


def _joined(runs: Floats, chosen: Bools, owner: Ints, pieces: Floats, hold: Ints) -> tuple[Floats, Bools]:
    """Return the runs with those that are `chosen` made of pieces, which are runs of their owners; and the owners of which two
    pieces overlap in time: neither has a reading of which it is known what came before."""
    order = sorted_by(owner, pieces[_AT["first"]].astype(np.int64))
    owner, pieces = owner[order], pieces[:, order]
    is_first = np.diff(owner, prepend=-1) != 0
    overlap = np.zeros(len(chosen), np.bool_)
    overlap[owner[1:][~is_first[1:] & (pieces[_AT["first"], 1:] <= pieces[_AT["last"], :-1])]] = True
    joined = runs.copy()
    joined[:, chosen] = 0.0
    joined[:, owner[is_first]] = pieces[:, is_first]
    rank = np.arange(len(owner)) - np.maximum.accumulate(np.where(is_first, np.arange(len(owner)), 0))
    for number in range(1, int(rank.max()) + 1):
        of, piece = owner[rank == number], pieces[:, rank == number]
        one = np.arange(len(of))
        step = Trails(
            hold[of],
            np.ones(len(of), np.int64),
            np.zeros(len(of), np.int64),
            joined[:, of],
            one,
            piece[_AT["first"]].astype(np.int64),
            piece[_AT["first_value"]],
        )
        whole = _walked(step)
        for terms in (piece[_HIGH], piece[_LOW]):
            high, low = whole[_HIGH].copy(), whole[_LOW].copy()
            _add(high, low, terms)
            whole[_HIGH], whole[_LOW] = high, low
        for name in ("held", "lined", "resets", "changes"):
            whole[_AT[name]] += piece[_AT[name]]
        whole[_AT["gap"]] = np.maximum(whole[_AT["gap"]], piece[_AT["gap"]])
        for name in ("last", "last_value"):
            whole[_AT[name]] = piece[_AT[name]]
        joined[:, of] = whole
    return joined, overlap


def _add_in_order(runs: Floats, rows: Ints, heads: Ints, sizes: Ints, terms: Floats) -> None:
    """Add to the sums of `rows` their terms, one after the other: those of row i are `sizes[i]` > 0 from `heads[i]`."""
    order = np.argsort(-sizes, kind="stable")
    rows, heads, sizes = rows[order], heads[order], sizes[order]
    high, low = runs[_HIGH][:, rows], runs[_LOW][:, rows]
    # Rows that have an n-th term, for each n: the first ones, because the longest come first.
    many = np.searchsorted(-sizes, -np.arange(int(sizes[0])), "left")
    for rank, size in enumerate(many.tolist()):
        _add(high[:, :size], low[:, :size], terms[:, heads[:size] + rank])
    runs[_HIGH, rows], runs[_LOW, rows] = high, low


def _add(high: Floats, low: Floats, terms: Floats) -> None:
    """Add terms to sums, in place; `low` has what rounding took from `high` (Neumaier)."""
    total = high + terms
    low += np.where(np.abs(high) >= np.abs(terms), (high - total) + terms, (terms - total) + high)
    high[...] = total

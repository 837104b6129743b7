"""Trails of several devices: what a view that is not by device keeps for statistics of order.

The order of readings is that of one device. So a window of a group keeps a trail (state/trails.py) of each of its devices, and
its statistics are made of theirs:

    increase, increase_rate, resets, changes, integral, linear_integral     the sum
    time_weighted_mean, linear_mean                                         the mean over the time that they cover, of all devices
    coverage                                                                the mean of the devices' shares
    longest_gap                                                             the longest one

Devices are in the order of their hashes, so that sums have the same bits in any order of arrival. A group is lost when a trail of
it is, or when it has more than `MOST_DEVICES`: it is then a lost trail.

A group is kept as integers (state/blobs.py): the number of devices, `GROUP` where a trail has its kind, the window's start where
readings are carried, else 0; of each device its hash and the number of integers of its trail; then the trails. The functions take
columns that have both, trails of one device and groups; the rows of one window are of one kind.
"""

import numpy as np

from state import blobs, trails
from state.blobs import Blobs
from state.columns import Bools, Floats, Ints
from state.trails import LOST, LOST_TRAIL, Walked

MOST_DEVICES = 10_000

GROUP = 2
_HEAD, _ENTRY = 3, 2


def of_devices(column: Blobs, hashes: Ints) -> Blobs:
    """Return groups of one device each, of its trail and hash."""
    return _joined(np.arange(len(column)), hashes, column, len(column))


def held(column: Blobs, start: Ints, hold_ms: int) -> Blobs:
    """As trails.held."""
    if not are_groups(column).any():
        return trails.held(column, start, hold_ms)
    owner, hashes, lists = _apart(column)
    return _joined(owner, hashes, trails.held(lists, start[owner], hold_ms), len(column))


def last(column: Blobs) -> tuple[Ints, Blobs, Ints, Floats]:
    """Return the rows of each device's last reading, alone in a trail or a group, and its time and value. No row is lost."""
    if not are_groups(column).any():
        return np.arange(len(column)), *trails.last(column)
    owner, hashes, lists = _apart(column)
    alone, ms, value = trails.last(lists)
    return owner, of_devices(alone, hashes), ms, value


def reduce(column: Blobs, heads: Ints) -> Blobs:
    """As trails.reduce."""
    of_groups = are_groups(column)
    if not of_groups.any():
        return trails.reduce(column, heads)
    sizes = np.diff(heads, append=len(column))
    is_group = np.logical_or.reduceat(of_groups, heads)
    reduced = np.empty(len(heads), np.object_)
    for chosen, reduce_all in ((~is_group, trails.reduce), (is_group, _reduced)):
        if chosen.any():
            of_chosen = sizes[chosen]
            reduced[chosen] = reduce_all(column[np.repeat(chosen, sizes)], np.cumsum(of_chosen) - of_chosen)
    return reduced


def settle(column: Blobs, watermark_ms: int, most: int | None) -> Blobs:
    """As trails.settle."""
    of_groups = are_groups(column)
    if not of_groups.any():
        return trails.settle(column, watermark_ms, most)
    owner, hashes, lists = _apart(column[of_groups])
    settled = column.copy()
    settled[~of_groups] = trails.settle(column[~of_groups], watermark_ms, most)
    settled[of_groups] = _joined(
        owner, hashes, trails.settle(lists, watermark_ms, most), int(np.count_nonzero(of_groups))
    )
    return settled


def are_groups(column: Blobs) -> Bools:
    """Return which rows are groups."""
    return _are(column, GROUP)


def are_lost(column: Blobs) -> Bools:
    """Return which rows are lost."""
    return _are(column, LOST)


def _are(column: Blobs, kind: int) -> Bools:
    of_kind = np.array([kind], "<i8").tobytes()
    return np.fromiter((each[8:16] == of_kind for each in column), np.bool_, len(column))


def _reduced(column: Blobs, heads: Ints) -> Blobs:
    number = np.repeat(np.arange(len(heads)), np.diff(heads, append=len(column)))
    owner, hashes, lists = _apart(column)
    owner = number[owner]
    order = np.lexsort((hashes, owner))
    owner, hashes = owner[order], hashes[order]
    of_device = np.flatnonzero(blobs.are_new(owner, hashes))
    merged = trails.reduce(lists[order], of_device)
    groups = _joined(owner[of_device], hashes[of_device], merged, len(heads))
    # A lost group has no devices, only that mark.
    groups[number[np.fromiter((each == LOST_TRAIL for each in column), np.bool_, len(column))]] = LOST_TRAIL
    return groups


def _apart(column: Blobs) -> tuple[Ints, Ints, Blobs]:
    """Return the row, the hash and the trail of each device of groups; a trail of one device has the hash 0."""
    words, sizes = blobs.join(column)
    starts, has = np.cumsum(sizes) - sizes, sizes > 0
    is_group = np.zeros(len(column), np.bool_)
    is_group[has] = words[starts[has] + 1] == GROUP
    devices = has.astype(np.int64)
    devices[is_group] = words[starts[is_group]]
    owner = np.repeat(np.arange(len(column)), devices)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(devices) - devices, devices)
    entry = starts[owner] + _HEAD + _ENTRY * place
    in_group = is_group[owner]
    hashes, lengths = np.zeros(len(owner), np.int64), sizes[owner]
    hashes[in_group], lengths[in_group] = words[entry[in_group]], words[entry[in_group] + 1]
    is_word = np.ones(len(words), np.bool_)
    for number in range(_HEAD):
        is_word[starts[is_group] + number] = False
    for number in range(_ENTRY):
        is_word[entry[in_group] + number] = False
    return owner, hashes, blobs.split(words[is_word], lengths)


def _joined(owner: Ints, hashes: Ints, lists: Blobs, size: int) -> Blobs:
    """Return groups, of devices in the order of owner and hash; lost where a trail is lost or devices are too many."""
    words, lengths = blobs.join(lists)
    devices = np.bincount(owner, minlength=size)
    of_words = np.bincount(owner, lengths, size).astype(np.int64)
    sizes = np.where(devices > 0, _HEAD + _ENTRY * devices + of_words, 0)
    has = devices > 0
    joined = np.empty(int(sizes.sum()), np.int64)
    starts = np.cumsum(sizes) - sizes
    is_word = np.ones(len(joined), np.bool_)
    begins = np.cumsum(lengths) - lengths
    start = np.zeros(size, np.int64)
    np.maximum.at(start, owner, words[begins + 2])
    for number, head in enumerate((devices, np.full(size, GROUP), start)):
        joined[starts[has] + number] = head[has]
        is_word[starts[has] + number] = False
    place = np.arange(len(owner)) - np.repeat(np.cumsum(devices) - devices, devices)
    entry = starts[owner] + _HEAD + _ENTRY * place
    joined[entry], joined[entry + 1] = hashes, lengths
    is_word[entry] = is_word[entry + 1] = False
    joined[is_word] = words
    groups = blobs.split(joined, sizes)
    is_lost = devices > MOST_DEVICES
    is_lost[owner[words[begins + 1] == LOST]] = True
    groups[is_lost] = LOST_TRAIL
    return groups


class Together:
    """The numbers of windows of one or of several devices; NaN where a trail or a group is lost or has no reading.

    It has what trails.Walked has, of the devices of each window together.
    """

    def __init__(self, column: Blobs, start: Ints, end: Ints, wraps_at: Floats | None = None) -> None:
        owner, _, lists = _apart(column)
        of_device = None if wraps_at is None else wraps_at[owner]
        self._walked = Walked(lists, start[owner], end[owner], of_device)
        self._heads = np.flatnonzero(np.diff(owner, prepend=-1))
        self._has_devices = np.bincount(owner, minlength=len(column)) > 0
        self._devices = self._sum(np.ones(len(owner)))

    def _sum(self, numbers: Floats, merge: np.ufunc = np.add) -> Floats:
        """The sum of each window's devices, or another merge; NaN where a window has none."""
        total = np.full(len(self._has_devices), np.nan)
        if len(self._heads):
            total[self._has_devices] = merge.reduceat(numbers, self._heads)
        return total

    def __getitem__(self, name: str) -> Floats:
        return self._sum(self._walked[name])

    @property
    def increase(self) -> Floats:
        return self._sum(self._walked.increase)

    @property
    def increase_rate(self) -> Floats:
        """Of the devices that have one."""
        rates = self._walked.increase_rate
        has = ~np.isnan(rates)
        known = self._sum(has.astype(np.float64))
        rate: Floats = np.where(known > 0, self._sum(np.where(has, rates, 0.0)), np.nan)
        return rate

    @property
    def longest_gap(self) -> Floats:
        return self._sum(self._walked.longest_gap, np.maximum)

    @property
    def integral(self) -> Floats:
        return self._sum(self._walked.integral)

    @property
    def mean(self) -> Floats:
        return trails.quotient(self._sum(self._walked.area), self._sum(self._walked.held))

    @property
    def coverage(self) -> Floats:
        coverage: Floats = self._sum(self._walked.coverage) / self._devices
        return coverage

    @property
    def linear_integral(self) -> Floats:
        return self._sum(self._walked.linear_integral)

    @property
    def linear_mean(self) -> Floats:
        """Without any line the mean of the last values."""
        lined = self._sum(self._walked["lined"])
        last: Floats = self._sum(self._walked["last_value"]) / self._devices
        return np.where(lined > 0, trails.quotient(self._sum(self._walked.line), lined), last)

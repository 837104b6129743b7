"""Duplicates: which readings of a bucket have a key that another reading had before.

    firsts(memory, keys, floor_ms) -> which keys are duplicates, and the places of the first readings with them
    remember(memory, keys, floor_ms) -> a memory that has these keys, too

A key is a device, by its hash, and one more number: the event time, or a hash of it and of fields of the record. Two devices
never share a key, so no device can make another's reading a duplicate.

A memory has keys with their event times and places, in sorted segments. A new segment is merged with those before it that are not
larger than twice its size, so that a key is merged some ten times in all. Keys below a floor in event time are forgotten. The
order of the keys of a batch decides which reading is the first one, not the order in which tasks got them.
"""

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.columns import Array, Bools, Ints, ints

SCHEMA = pa.schema(
    [
        pa.field("device", pa.int64(), nullable=False),
        pa.field("second", pa.int64(), nullable=False),
        pa.field("event_ms", pa.int64(), nullable=False),
        pa.field("topic", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
    ]
)
"""Of keys: the device's hash, the other number, the event time in ms, and the place of the reading: the topic's hash, the
partition and the offset, with the number of a reading in a record that is an array in its upper bits
(service/aggregation/screen.py). A number of the topic would change when topics come and go."""

PLACE = ("topic", "partition", "offset")

_DEVICES = 1 << 18
"""Hashes of devices that a worker keeps."""
_SEGMENT = 1_000
"""Keys of a segment that is merged with the one before it, however small that is."""

# Of each process its own, so that nobody can choose keys that meet in the index.
_FACTORS = np.frombuffer(os.urandom(16), "<u8") | np.uint64(1)


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys, sorted by `index`, a number of the key that two keys may share. The other columns are those of SCHEMA."""

    index: npt.NDArray[np.uint64]
    device: Ints
    second: Ints
    event_ms: Ints
    topic: Ints
    partition: npt.NDArray[np.int32]
    offset: Ints

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(getattr(self, name).nbytes for name in _COLUMNS)

    def take(self, rows: Ints) -> "Segment":
        """The keys of these rows."""
        return Segment(*(getattr(self, name)[rows] for name in _COLUMNS))


_COLUMNS = ("index", *SCHEMA.names)


@dataclass(frozen=True, slots=True)
class Memory:
    """Segments, the oldest and largest first. A key that was forgotten and came again is in two of them."""

    segments: tuple[Segment, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(segment.nbytes for segment in self.segments)


def hashes(names: Array) -> Ints:
    """Return the hash of each device id or topic: 64 bits of BLAKE2b. It stays the same for ever: the checkpoint has it."""
    return np.array([_hash(text) for text in names.to_pylist()], np.int64)


@lru_cache(_DEVICES)
def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def memory(keys: pa.Table) -> Memory:
    """A memory of these keys, none of which is there twice."""
    return Memory((_segment(keys),)) if keys.num_rows else Memory()


def firsts(known: Memory, keys: pa.Table, floor_ms: int) -> tuple[Bools, list[Ints]]:
    """Return which keys are duplicates, and for these the place of the first reading with the key: the columns PLACE.

    `keys` are in the order that decides. A key that is known with an event time below `floor_ms` is forgotten.
    """
    device, second = ints(keys, "device"), ints(keys, "second")
    order = np.lexsort((second, device))
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(device[order]) != 0) | (np.diff(second[order]) != 0)
    heads = order[np.flatnonzero(begins)]
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(begins) - 1
    is_duplicate: Bools = heads[group] != np.arange(len(order))
    places = [ints(keys, name)[heads] for name in PLACE]
    is_known = np.zeros(len(heads), np.bool_)
    for segment in known.segments:
        rows, found = _find(segment, device[heads], second[heads], floor_ms)
        is_known[found] = True
        for place, name in zip(places, PLACE, strict=True):
            place[found] = getattr(segment, name)[rows]
    is_duplicate |= is_known[group]
    return is_duplicate, [place[group[is_duplicate]] for place in places]


def remember(known: Memory, added: pa.Table, floor_ms: int) -> Memory:
    """A memory that has the keys `added`, too. Keys below the floor go with their segment, or when it is merged."""
    kept = [segment for segment in known.segments if segment.event_ms.max() >= floor_ms]
    if not added.num_rows:
        return Memory(tuple(kept))
    new = _segment(added)
    while kept and len(kept[-1]) <= max(_SEGMENT, 2 * len(new)):
        new = _merged(kept.pop(), new, floor_ms)
    return Memory((*kept, new))


def living(known: Memory, floor_ms: int) -> pa.Table:
    """The keys that are not forgotten, as a table of SCHEMA."""
    columns = {
        name: np.concatenate([getattr(each, name)[each.event_ms >= floor_ms] for each in known.segments] or [[]])
        for name in SCHEMA.names
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def _segment(keys: pa.Table) -> Segment:
    device, second = ints(keys, "device"), ints(keys, "second")
    columns = [keys[name].to_numpy() for name in SCHEMA.names]
    index = _numbers(device, second)
    return Segment(index, *columns).take(np.argsort(index, kind="stable"))


def _merged(first: Segment, second: Segment, floor_ms: int) -> Segment:
    rows = np.flatnonzero(first.event_ms >= floor_ms)
    whole = Segment(*(np.concatenate((getattr(first, name)[rows], getattr(second, name))) for name in _COLUMNS))
    return whole.take(np.argsort(whole.index, kind="stable"))


def _numbers(device: Ints, second: Ints) -> npt.NDArray[np.uint64]:
    numbers: npt.NDArray[np.uint64] = device.astype(np.uint64) * _FACTORS[0] + second.astype(np.uint64) * _FACTORS[1]
    return numbers


def _find(known: Segment, device: Ints, second: Ints, floor_ms: int) -> tuple[Ints, Ints]:
    """The rows of the segment that have one of the keys and are not forgotten, and the key of each."""
    rows, found = [], []
    numbers = _numbers(device, second)
    # Sorted: a search that goes on where the last one ended stays in the processor's cache.
    key = np.argsort(numbers)
    at = np.searchsorted(known.index, numbers[key])
    while len(key):
        is_there = at < len(known)
        key, at = key[is_there], at[is_there]
        is_alike = known.index[at] == numbers[key]
        key, at = key[is_alike], at[is_alike]
        is_key = (
            (known.device[at] == device[key]) & (known.second[at] == second[key]) & (known.event_ms[at] >= floor_ms)
        )
        rows.append(at[is_key])
        found.append(key[is_key])
        key, at = key[~is_key], at[~is_key] + 1
    return np.concatenate([np.zeros(0, np.int64), *rows]), np.concatenate([np.zeros(0, np.int64), *found])

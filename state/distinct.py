"""Sketches of the sets of devices of windows, from which their number follows.

A device is a hash of 63 bits. A sketch is the `MOST` smallest different hashes of a window, ascending. With fewer than `MOST` it
has all of them, and the number is exact. Otherwise the number follows from the share of all hashes that lie below the largest
one in the sketch; its standard error is 1 / sqrt(MOST - 2).

The sketch follows from the set of devices alone: merging in any order, with any cuts, gives the same bytes. It is kept as
integers (state/blobs.py).
"""

import hashlib

import numpy as np

from state import blobs
from state.blobs import Blobs, sorted_by
from state.columns import Array, Ints

MOST = 2_048

ERROR = 0.0222
"""The standard error as a share of the number, from `MOST` devices."""

_RANGE = float(1 << 63)


def hashes(devices: Array) -> Ints:
    """Return the hash of each device id. It stays the same for ever, because the state has it."""
    data = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in devices.to_pylist())
    return (np.frombuffer(data, "<u8") >> np.uint64(1)).astype(np.int64)


def fold(devices: Ints) -> Blobs:
    """Return a sketch of each single device, by its hash."""
    return blobs.split(devices, np.ones(len(devices), np.int64))


def reduce(column: Blobs, heads: Ints) -> Blobs:
    """Return the sketch of the rows `heads[i] .. heads[i + 1] - 1` for each i."""
    sizes = np.diff(heads, append=len(column))
    if (sizes == 1).all():
        return column
    hashed, lengths = blobs.join(column)
    owner = np.repeat(np.repeat(np.arange(len(heads)), sizes), lengths)
    order = sorted_by(owner, hashed)
    owner, hashed = owner[order], hashed[order]
    is_new = blobs.are_new(owner, hashed)
    owner, hashed = owner[is_new], hashed[is_new]
    lengths = np.bincount(owner, minlength=len(heads))
    rank = np.arange(len(owner)) - (np.cumsum(lengths) - lengths)[owner]
    return blobs.split(hashed[rank < MOST], np.minimum(lengths, MOST))


def number(column: Blobs) -> Ints:
    """Return the number of devices of each sketch."""
    hashed, lengths = blobs.join(column)
    is_full = lengths == MOST
    largest = hashed[np.cumsum(lengths)[is_full] - 1]
    numbers = lengths.copy()
    numbers[is_full] = np.round((MOST - 1) * (_RANGE / (largest + 1)))
    return numbers

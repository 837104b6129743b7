"""Distribute what the buckets hold over another number of buckets, and compare the contents before and after.

    split(state, of_devices, of_windows) -> the parts of a state by bucket
    joined(parts) -> one state of parts
    digest(states) -> the numbers of entries and a hash, which do not depend on how entries are divided

A device with its runs goes to the bucket of the device, a window to its own. Values are moved, never computed.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from state import blobs, settled, waiting, windows
from state.columns import Array, Column, Ints, array, codes_of, plain, together
from state.layout import LIMITS, BucketState

_NO_LIMITS = dict(zip(LIMITS, (-1, -1, 0), strict=True))


@dataclass(frozen=True, slots=True)
class Digest:
    """The numbers of runs, devices and windows, and a hash over all of their columns."""

    runs: int
    devices: int
    windows: int
    hash: str

    def __str__(self) -> str:
        return f"{self.devices} devices, {self.runs} runs of open sessions, {self.windows} windows"


def split(state: BucketState, of_devices: Ints, of_windows: Ints) -> dict[int, BucketState]:
    """Return the parts of a state by bucket. The buckets are those of the rows of `state.devices` and `state.windows`."""
    names, codes = array(state.devices.column("device")), codes_of(state.runs.column("device"))
    parts = {}
    for bucket in np.unique(np.concatenate((of_devices, of_windows))).tolist():
        is_kept = of_devices == bucket
        of_runs = is_kept[codes]
        rows = (np.cumsum(is_kept) - 1)[codes[of_runs]]
        mask = pa.array(is_kept)
        device = pa.DictionaryArray.from_arrays(rows.astype(np.int32), names.filter(mask))
        runs = state.runs.filter(pa.array(of_runs))
        parts[bucket] = BucketState(
            runs.set_column(0, runs.schema.field(0), device).combine_chunks(),
            state.devices.filter(mask).combine_chunks(),
            windows.compact(state.windows.filter(pa.array(of_windows == bucket))),
        )
    return parts


def joined(parts: Sequence[BucketState]) -> BucketState:
    """Return one state of several, at least one. No device and no window is in two of them."""
    has_limits = any(LIMITS[0] in part.devices.column_names for part in parts)
    tables = [waiting.without(part.devices) for part in parts]
    devices = together([_with_limits(table) if has_limits else table for table in tables])
    before = np.cumsum([0, *(part.devices.num_rows for part in parts)])
    tables = [
        part.runs.set_column(0, "row", pa.array(codes_of(part.runs.column("device")) + first))
        for part, first in zip(parts, before.tolist(), strict=False)
    ]
    runs = together(tables)
    rows = array(runs.column("row")).to_numpy(zero_copy_only=False).astype(np.int32)
    device = pa.DictionaryArray.from_arrays(rows, array(devices.column("device")))
    runs = runs.set_column(0, parts[0].runs.schema.field(0), device)
    whole = windows.concat([waiting.without(part.windows) for part in parts])
    return BucketState(
        runs,
        _with_marks(devices, [part.devices for part in parts], devices.num_columns),
        _with_marks(whole, [part.windows for part in parts], len(windows.KEY)),
    )


def digest(states: Sequence[BucketState]) -> Digest:
    """Return the digest of all entries of the states of all buckets, in any order."""
    if not states:
        return Digest(0, 0, 0, "")
    whole = joined(states)
    hashed = hashlib.blake2b(digest_size=16)
    tables = {"device": whole.devices, "device session start": whole.runs, " ".join(windows.KEY): whole.windows}
    for keys, table in tables.items():
        ordered = plain(table).sort_by([(key, "ascending") for key in keys.split()])
        for name in sorted(ordered.column_names):
            for content in (name.encode(), *_content(ordered.column(name))):
                hashed.update(len(content).to_bytes(8, "little") + content)
    return Digest(whole.runs.num_rows, whole.devices.num_rows, whole.windows.num_rows, hashed.hexdigest())


def of_texts(column: Column, buckets: Mapping[str, int]) -> Ints:
    """Return the bucket of each text of a column, by a table of all texts."""
    whole = array(column)
    if isinstance(whole, pa.DictionaryArray):
        return of_texts(whole.dictionary, buckets)[codes_of(whole)]
    return np.array([buckets[text] for text in whole.to_pylist()], np.int64)


def _with_marks(whole: pa.Table, parts: Sequence[pa.Table], place: int) -> pa.Table:
    """Return a table of parts with those of `waiting.MARKS` that one of the parts has."""
    if any(settled.LEFT in part.column_names for part in parts):
        whole = settled.with_left(whole, np.concatenate([settled.left_of(part) for part in parts]), place)
    if any(waiting.DUE in part.column_names for part in parts):
        whole = waiting.with_due(whole, np.concatenate([waiting.due_of(part) for part in parts]), place)
    return whole


def _with_limits(devices: pa.Table) -> pa.Table:
    """The devices with columns for limits of their own, as the step that sees the first limit adds them."""
    if LIMITS[0] in devices.column_names:
        return devices
    for name, value in _NO_LIMITS.items():
        column = pa.array(np.full(devices.num_rows, value, np.int64))
        devices = devices.append_column(pa.field(name, pa.int64(), nullable=False), column)
    return devices


def _content(column: Column) -> Iterator[bytes]:
    """The bytes of a column: which rows are null, and the values of the others; a double by its bits."""
    whole: Array = array(column)
    yield whole.is_null().to_numpy(zero_copy_only=False).tobytes()
    if whole.type == blobs.TYPE or pa.types.is_string(whole.type):
        texts = [text or b"" for text in whole.cast(pa.large_binary()).to_pylist()]
        yield np.fromiter(map(len, texts), np.int64, len(texts)).tobytes()
        yield b"".join(texts)
    else:
        yield whole.fill_null(0).to_numpy(zero_copy_only=False).tobytes()

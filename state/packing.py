"""Bytes of a delta: arrays of numbers in as few bytes a number as their span needs, one after the other.

Little endian. Lengths are not repeated: the first array has all of them.

    numbers    1 byte: the width of the lowest number (low four bits) and of the others' distance to it (high four bits), each
               0, 1, 2, 4 or 8 bytes; the lowest number; the distances. Nothing at all for no numbers
    positions  the numbers between one and the next
    nulls      1 byte: 0 for none, else 1 and then a bit a row, the lowest bit first
    texts      numbers of the lengths in bytes, and the UTF-8 bytes
    lists      nulls, numbers of the lengths in bytes, and the bytes. Columns of lists are the last ones, up to the end: a delta
               without any has the bytes that it had before there were lists. Those of runs come before those of windows; the
               number of columns of runs has theirs in its upper bits
"""

import numpy as np
import pyarrow as pa

from state import blobs
from state.columns import Array, Bools, Ints
from state.delta import Change, Delta, Values

_UNSIGNED = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_TABLES, _COUNTS, _TEXTS = 3, 5, 4
_LISTS_FROM = 16
_COLUMNS = 4


def pack(delta: Delta) -> bytes:
    """The bytes of a delta."""
    tables = delta.runs, delta.devices, delta.windows
    texts = delta.names, *delta.texts
    writer = _Writer()
    counts = [(t.size, len(t.removed), len(t.changed), len(t.added), len(t.columns)) for t in tables]
    numbers = np.array([*sum(counts, ()), *map(len, texts)], np.int64)
    numbers[_COLUMNS] += len(delta.run_lists) << _LISTS_FROM
    writer.numbers(numbers)
    for table in tables:
        writer.positions(table.removed)
        writer.positions(table.changed)
        writer.positions(table.added)
        for values in table.columns:
            writer.numbers(values.difference)
            writer.numbers(values.added)
            writer.nulls(values.nulls)
    for codes in delta.codes:
        writer.numbers(codes)
    for text in texts:
        writer.texts(text)
    for column in (*delta.run_lists, *delta.lists):
        writer.lists(column)
    return b"".join(writer.pieces)


def unpack(data: bytes) -> Delta:
    """The delta in the bytes of `pack`; ValueError when they cannot be one."""
    reader = _Reader(data)
    counts = reader.numbers(_TABLES * _COUNTS + _TEXTS).tolist()
    if min(counts) < 0:
        raise ValueError(f"a count is {min(counts)}")
    number_of_lists, counts[_COLUMNS] = divmod(counts[_COLUMNS], 1 << _LISTS_FROM)
    runs, devices, windows = (_change(reader, *counts[n * _COUNTS : (n + 1) * _COUNTS]) for n in range(_TABLES))
    codes = tuple(reader.numbers(len(windows.added)) for _ in range(_TEXTS - 1))
    names, *texts = (reader.texts(count) for count in counts[-_TEXTS:])
    run_lists = tuple(reader.lists(len(runs.changed) + len(runs.added)) for _ in range(number_of_lists))
    lists = []
    while reader.has_more:
        lists.append(reader.lists(len(windows.changed) + len(windows.added)))
    return Delta(runs, devices, windows, names, tuple(texts), codes, tuple(lists), run_lists)


def _change(reader: "_Reader", size: int, removed: int, changed: int, added: int, columns: int) -> Change:
    return Change(
        size,
        reader.positions(removed),
        reader.positions(changed),
        reader.positions(added),
        tuple(
            Values(reader.numbers(changed), reader.numbers(added), reader.nulls(changed + added))
            for _ in range(columns)
        ),
    )


class _Writer:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def numbers(self, values: Ints) -> None:
        if not len(values):
            return
        low, high = int(values.min()), int(values.max())
        width = next((w for w in (0, 1, 2, 4) if high - low < 1 << 8 * w), 8)
        low = low if width < 8 else 0
        low_width = next((w for w in (1, 2, 4) if -(1 << 8 * w - 1) <= low < 1 << 8 * w - 1), 8) if low else 0
        self.pieces += [bytes([low_width | width << 4]), low.to_bytes(low_width, "little", signed=True)]
        if width:
            self.pieces.append((values - low).astype(_UNSIGNED[width]).tobytes())

    def positions(self, values: Ints) -> None:
        if len(values):
            self.numbers(np.diff(values, prepend=-1))

    def nulls(self, values: Bools | None) -> None:
        some = values is not None and bool(values.any())
        self.pieces.append(bytes([some]))
        if values is not None and some:
            self.pieces.append(np.packbits(values, bitorder="little").tobytes())

    def texts(self, values: Array) -> None:
        """A string array."""
        size = len(values)
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, "<i4", size + 1, 4 * values.offset) if size else np.zeros(1, np.int32)
        self.numbers(np.diff(ends).astype(np.int64))
        self.pieces.append(bytes(data[int(ends[0]) : int(ends[-1])]) if data is not None else b"")

    def lists(self, values: Array) -> None:
        """An array of blobs.TYPE. A column always has a byte, so that the reader can count columns."""
        self.nulls(values.is_null().to_numpy(zero_copy_only=False))
        lists = blobs.of_column(values)
        self.numbers(np.fromiter(map(len, lists), np.int64, len(lists)))
        self.pieces += lists.tolist()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def _take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) != size:
            raise ValueError(f"{size} bytes were expected at {self._at}, {len(piece)} are left")
        self._at += size
        return piece

    def numbers(self, size: int) -> Ints:
        if not size:
            return np.zeros(0, np.int64)
        widths = self._take(1)[0]
        low = int.from_bytes(self._take(widths & 15), "little", signed=True)
        width = widths >> 4
        if not width:
            return np.full(size, low, np.int64)
        return np.frombuffer(self._take(size * width), _UNSIGNED[width]).astype(np.int64) + low

    def positions(self, size: int) -> Ints:
        return np.cumsum(self.numbers(size)) - 1

    def nulls(self, size: int) -> Bools | None:
        if self._take(1) == b"\0":
            return None
        bits = np.frombuffer(self._take((size + 7) // 8), np.uint8)
        return np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)

    def texts(self, size: int) -> Array:
        offsets = np.concatenate(([0], np.cumsum(self.numbers(size)))).astype(np.int32)
        data = self._take(int(offsets[-1]))
        values: Array = pa.StringArray.from_buffers(size, pa.py_buffer(offsets), pa.py_buffer(data))
        return values

    def lists(self, size: int) -> Array:
        nulls = self.nulls(size)
        offsets = np.concatenate(([0], np.cumsum(self.numbers(size)))).astype(np.int64)
        bits = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes())
        data = self._take(int(offsets[-1]))
        values: Array = pa.Array.from_buffers(blobs.TYPE, size, [bits, pa.py_buffer(offsets), pa.py_buffer(data)])
        return values

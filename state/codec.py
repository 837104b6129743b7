"""Bytes of what is kept or shuffled: the state of a bucket, the changes of a step, the runs of a batch.

Layout, little endian; 40 bytes of head keep the Arrow buffers behind them aligned to eight:

    0   4  magic "TDMK"
    4   1  version
    5   1  kind: S state, C changes, R runs
    6   2  zero
    8   8  number: timer_ms (-1: none) of a state, dropped of changes, else 0
    16  4  CRC-32 of everything but these four bytes
    20  4  zero
    24  8  length of the first table
    32  8  length of the second table (0 for runs)
    40     the tables, each an Arrow IPC stream

Only the version is allowed to say how bytes are to be read: bytes of another version, or damaged ones, are refused and
never guessed at. Measures are data, not layout: adding or removing one is no new version. Nor is Arrow's compression of columns:
a stream says so itself.
A state's runs name their device by its row in the device table, so that no string is there twice.
"""

import struct
import zlib
from typing import Literal

import pyarrow as pa

from state.columns import array, codes_of
from state.layout import BucketState, Changes

VERSION = 1
COMPRESSED_FROM = 1 << 20
"""Bytes of a state's table above which its columns are compressed by LZ4; what is shuffled is compressed by Spark. Every batch
sends a bucket's state through two sockets, into RocksDB and into a changelog, and a restart reads several of those: of 62,500
devices 9 MB became 3.7, for 6 ms more of encoding and 1 of decoding. A small table's columns cost more than they save: 0.3 ms
each way."""

_MAGIC = b"TDMK"
_HEAD = struct.Struct("<4sBcHqLLQQ")
_CRC = slice(16, 20)
_ROW = "row"
_PLAIN = pa.ipc.IpcWriteOptions()
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")

Kind = Literal[b"S", b"C", b"R"]
_KINDS = {b"S": "the state of a bucket", b"C": "changes", b"R": "runs"}


class CodecError(ValueError):
    """Bytes that this version cannot read; the text says what was found and what is supported."""


def encode(state: BucketState) -> bytes:
    """A bucket's state."""
    rows = pa.array(codes_of(state.runs.column("device")), pa.int32())
    runs = state.runs.set_column(0, pa.field(_ROW, pa.int32(), nullable=False), rows)
    return _pack(b"S", -1 if state.timer_ms is None else state.timer_ms, runs, state.devices)


def decode(data: bytes) -> BucketState:
    """The state in the bytes of `encode`; CodecError when they are of another version, kind, or damaged."""
    timer, (runs, devices) = _unpack(b"S", data, 2)
    device = pa.DictionaryArray.from_arrays(array(runs.column(_ROW)), array(devices.column("device")))
    runs = runs.set_column(0, pa.field("device", device.type, nullable=False), device)
    return BucketState(runs, devices, None if timer < 0 else timer)


def pack_changes(changes: Changes) -> bytes:
    """The changes of a step."""
    return _pack(b"C", changes.dropped, changes.sessions, changes.devices)


def unpack_changes(data: bytes) -> Changes:
    """The changes in the bytes of `pack_changes`; CodecError as for `decode`."""
    dropped, (sessions, devices) = _unpack(b"C", data, 2)
    return Changes(sessions, devices, dropped)


def pack_runs(runs: pa.Table) -> bytes:
    """A table of runs."""
    return _pack(b"R", 0, runs)


def unpack_runs(data: bytes) -> pa.Table:
    """The runs in the bytes of `pack_runs`; CodecError as for `decode`."""
    return _unpack(b"R", data, 1)[1][0]


def _pack(kind: Kind, number: int, *tables: pa.Table) -> bytes:
    bodies = [_ipc(table, stored=kind == b"S") for table in tables]
    lengths = [body.size for body in bodies] + [0] * (2 - len(bodies))
    head = bytearray(_HEAD.pack(_MAGIC, VERSION, kind, 0, number, 0, 0, *lengths))
    crc = zlib.crc32(head)
    for body in bodies:
        crc = zlib.crc32(body, crc)
    head[_CRC] = crc.to_bytes(4, "little")
    return b"".join((head, *bodies))


def _ipc(table: pa.Table, *, stored: bool) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = _COMPRESSED if stored and table.nbytes > COMPRESSED_FROM else _PLAIN
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _unpack(kind: Kind, data: bytes, tables: int) -> tuple[int, list[pa.Table]]:
    found = f"{_KINDS[kind]}: {len(data)} bytes"
    if len(data) < _HEAD.size or bytes(data[:4]) != _MAGIC:
        msg = f"{found} beginning with {bytes(data[:4])!r}; supported is {_MAGIC!r}, version {VERSION}"
        raise CodecError(msg)
    # The version comes first: of another version, not even the place of the checksum is known.
    if data[4] != VERSION:
        msg = f"{found} of version {data[4]}; supported is version {VERSION}"
        raise CodecError(msg)
    _, _, found_kind, _, number, crc, _, first, second = _HEAD.unpack_from(data)
    head = bytearray(data[: _HEAD.size])
    head[_CRC] = bytes(4)
    body = memoryview(data)[_HEAD.size :]
    if first + second != len(body) or zlib.crc32(body, zlib.crc32(head)) != crc:
        expected = f"{_HEAD.size + first + second} bytes with checksum {crc:#010x}"
        msg = f"{found} of version {VERSION} are damaged: expected are {expected}"
        raise CodecError(msg)
    if found_kind != kind:
        msg = f"{found} hold {_KINDS.get(found_kind, repr(found_kind))} instead"
        raise CodecError(msg)
    buffer = pa.py_buffer(data)
    parts = [(_HEAD.size, first), (_HEAD.size + first, second)]
    try:
        return number, [_table(buffer.slice(start, length)) for start, length in parts[:tables]]
    except (pa.ArrowException, OSError) as error:
        msg = f"{found} cannot be read as version {VERSION}: {error}"
        raise CodecError(msg) from error


def _table(buffer: pa.Buffer) -> pa.Table:
    with pa.ipc.open_stream(buffer) as reader:
        return reader.read_all()

"""Bytes of what is kept or shuffled: the state of a bucket, the changes of a step, parts of windows, runs, rejects.

Layout, little endian; the head is padded to a multiple of eight bytes, so that the Arrow buffers behind it are aligned:

    0   4  magic "TDMK"
    4   1  version
    5   1  kind: S state, C changes, W parts of windows, R runs, J rejects
    6   2  zero
    8   4  CRC-32 of everything but these four bytes
    12  4  n, the number of tables
    16  8n length of each table; a table of changes without rows has length 0
           the tables, each an Arrow IPC stream

The version alone says how the bytes are read: bytes of another version, or damaged ones, are refused and never guessed at.
Magic and version keep their places in every version, so a later version recognises these bytes and either reads them by a
decoder that it kept for them, or names the version that it lacks.
Measures and views are data, not layout: adding or removing one is no new version. Nor is Arrow's compression of columns: a
stream says so itself. A state's runs name their device by its row in the device table, so that no string is there twice.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from state import windows
from state.columns import array, codes_of
from state.layout import BucketState, Changes, session_schema, status_schema

VERSION = 2
"""1: a state had no windows; Spark's own aggregation kept them."""
COMPRESSED_FROM = 1 << 20
"""Bytes of a state's table above which its columns are compressed by LZ4; what is shuffled is compressed by Spark. Every batch
sends a bucket's state through two sockets, into RocksDB and into a changelog, and a restart reads several of those: of 62,500
devices 9 MB became 3.7, for 6 ms more of encoding and 1 of decoding. A small table's columns cost more than they save: 0.3 ms
each way."""

_MAGIC = b"TDMK"
_HEAD = struct.Struct("<4sBcHLL")
_LENGTH = struct.Struct("<Q")
_CRC = slice(8, 12)
_ROW = "row"
_PLAIN = pa.ipc.IpcWriteOptions()
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")

Kind = Literal[b"S", b"C", b"W", b"R", b"J"]
_KINDS = {b"S": "the state of a bucket", b"C": "changes", b"W": "parts of windows", b"R": "runs", b"J": "rejects"}


class CodecError(ValueError):
    """Bytes that this version cannot read; the text says what was found and what is supported."""


def encode(state: BucketState) -> bytes:
    """A bucket's state."""
    rows = pa.array(codes_of(state.runs.column("device")), pa.int32())
    runs = state.runs.set_column(0, pa.field(_ROW, pa.int32(), nullable=False), rows)
    return _pack(b"S", [runs, state.devices, state.windows])


def decode(data: bytes) -> BucketState:
    """The state in the bytes of `encode`; CodecError when they are of another version, kind, or damaged."""
    runs, devices, open_windows = _unpack(b"S", data)
    device = pa.DictionaryArray.from_arrays(array(runs.column(_ROW)), array(devices.column("device")))
    runs = runs.set_column(0, pa.field("device", device.type, nullable=False), device)
    return BucketState(runs, devices, open_windows)


def pack_changes(changes: Changes) -> bytes:
    """The changes of a step."""
    tables = [changes.sessions, changes.devices, changes.windows]
    return _pack(b"C", [table if table.num_rows else None for table in tables])


def unpack_changes(data: bytes) -> Changes:
    """The changes in the bytes of `pack_changes`; CodecError as for `decode`. A table without rows has no measures."""
    schemas = session_schema(()), status_schema(()), windows.SCHEMA
    tables = zip(_unpack(b"C", data), schemas, strict=True)
    return Changes(*(table if table.num_columns else schema.empty_table() for table, schema in tables))


def pack(kind: Literal[b"W", b"R", b"J"], table: pa.Table) -> bytes:
    """One table: parts of windows (`state.windows.SCHEMA`), runs (`state.runs.schema`) or rejects."""
    return _pack(kind, [table])


def unpack(kind: Literal[b"W", b"R", b"J"], data: bytes) -> pa.Table:
    """The table in the bytes of `pack`; CodecError as for `decode`."""
    return _unpack(kind, data)[0]


def _pack(kind: Kind, tables: Sequence[pa.Table | None]) -> bytes:
    bodies = [b"" if table is None else _ipc(table, stored=kind == b"S") for table in tables]
    lengths = b"".join(_LENGTH.pack(len(body)) for body in bodies)
    head = bytearray(_HEAD.pack(_MAGIC, VERSION, kind, 0, 0, len(bodies)))
    crc = zlib.crc32(lengths, zlib.crc32(head))
    for body in bodies:
        crc = zlib.crc32(body, crc)
    head[_CRC] = crc.to_bytes(4, "little")
    return b"".join((head, lengths, *bodies))


def _ipc(table: pa.Table, *, stored: bool) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = _COMPRESSED if stored and table.nbytes > COMPRESSED_FROM else _PLAIN
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _unpack(kind: Kind, data: bytes) -> list[pa.Table]:
    what = f"{_KINDS[kind]}: {len(data)} bytes"
    if len(data) < _HEAD.size or bytes(data[:4]) != _MAGIC:
        msg = f"{what} beginning with {bytes(data[:4])!r}; supported is {_MAGIC!r}, version {VERSION}"
        raise CodecError(msg)
    # The version comes first: of another version, not even the place of the checksum is known.
    if data[4] != VERSION:
        msg = f"{what} of version {data[4]}; supported is version {VERSION}"
        raise CodecError(msg)
    _, _, kind_there, _, crc, count = _HEAD.unpack_from(data)
    head = bytearray(data[: _HEAD.size])
    head[_CRC] = bytes(4)
    if zlib.crc32(memoryview(data)[_HEAD.size :], zlib.crc32(head)) != crc:
        msg = f"{what} of version {VERSION} are damaged: their checksum is not {crc:#010x}"
        raise CodecError(msg)
    if kind_there != kind:
        msg = f"{what} hold {_KINDS.get(kind_there, repr(kind_there))} instead"
        raise CodecError(msg)
    at = _HEAD.size + count * _LENGTH.size
    buffer, tables = pa.py_buffer(data), []
    try:
        for (length,) in _LENGTH.iter_unpack(data[_HEAD.size : at]):
            tables.append(_table(buffer.slice(at, length)) if length else pa.table({}))
            at += length
    except (pa.ArrowException, OSError) as error:
        msg = f"{what} cannot be read as version {VERSION}: {error}"
        raise CodecError(msg) from error
    return tables


def _table(buffer: pa.Buffer) -> pa.Table:
    with pa.ipc.open_stream(buffer) as reader:
        return reader.read_all()

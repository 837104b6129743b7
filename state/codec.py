"""Bytes of what is kept or shuffled: a bucket's state and its deltas, changes of a step, parts of windows, runs, rejects.

Layout, little endian; the head is padded to a multiple of eight bytes, so that the Arrow buffers behind it are aligned:

    0   4  magic "TDMK"
    4   1  version
    5   1  kind: S state, D delta of a state, H head of what is stored, C changes, W parts of windows, R runs, J rejects, K keys
    6   2  zero
    8   4  CRC-32 of everything but these four bytes
    12  4  n, the number of bodies
    16  8n length of each body; a table of changes without rows has length 0
           the bodies: tables, each an Arrow IPC stream; of a delta the length of its bytes (state/packing.py), 8 bytes, and those
           bytes, compressed by Zstandard if there are fewer then; of a head the number of deltas, bytes of the base and of the
           deltas, 8 each, and the token

The version alone says how the bytes are read: bytes of another version, or damaged ones, are refused and never guessed at.
Magic and version keep their places in every version, so a later version recognises these bytes and either reads them by a
decoder that it kept for them, or names the version that it lacks.
Measures and views are data, not layout: adding or removing one is no new version. Nor is Arrow's compression of columns: a
stream names its own compression. A state's runs name their device by its row in the device table, so that no string is stored
twice.

Version 2 has windows with the columns of `windows.SCHEMA`, none of them null. Version 3 has the columns that the views need
(`state.statistics.COLUMNS`), null in windows that lack one. Version 4 has rows that wait (state/waiting.py), version 5 windows
that leave before they are final (state/settled.py), version 6 trails of runs (state/runs.py). A state is written as the lowest
version that can hold it, so that a service of that version can still read it.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from state import blobs, packing, settled, waiting, windows
from state.columns import array, codes_of
from state.delta import Delta
from state.layout import BucketState, Changes, session_schema, status_schema
from state.window_columns import COLUMNS

VERSION = 2
VERSIONS = (VERSION, 3, 4, 5, 6)
"""Those that can be read."""
COMPRESSED_FROM = 1 << 14
"""Bytes of a state's table above which its columns are compressed by Zstandard; what is shuffled is compressed by Spark. A whole
state is written seldom, and read where the worker does not have it: a MB takes some 50 ms through the socket. Of 62,500 devices
with a window each 16.7 MB became 8.0 by LZ4 and 5.0 by Zstandard, in about the same time. A small table's columns cost more
than they save: 0.3 ms each way."""

_MAGIC = b"TDMK"
_HEAD = struct.Struct("<4sBcHLL")
_LENGTH = struct.Struct("<Q")
_STORED = struct.Struct("<QQQ16s")
_CRC = slice(8, 12)
_SUPPORTED = f"{', '.join(map(str, VERSIONS[:-1]))} or {VERSIONS[-1]}"
_ROW = "row"
_PLAIN = pa.ipc.IpcWriteOptions()
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")

Kind = Literal[b"S", b"D", b"H", b"C", b"W", b"R", b"J", b"K"]
_KINDS = {
    b"S": "the state of a bucket",
    b"D": "a delta",
    b"H": "the head of a bucket",
    b"C": "changes",
    b"W": "parts of windows",
    b"R": "runs",
    b"J": "rejects",
    b"K": "keys of readings",
}


class CodecError(ValueError):
    """Bytes that this version cannot read; the text names their version or damage, and the supported version."""


@dataclass(frozen=True, slots=True)
class Head:
    """What is stored of a bucket: a base, and `deltas` since then. `token` has 16 bytes: see state/store.py."""

    deltas: int
    base_bytes: int
    delta_bytes: int
    token: bytes


def encode(state: BucketState) -> bytes:
    """A bucket's state."""
    rows = pa.array(codes_of(state.runs.column("device")), pa.int32())
    runs = state.runs.set_column(0, pa.field(_ROW, pa.int32(), nullable=False), rows)
    version = VERSION if state.windows.schema.equals(windows.SCHEMA) else 3
    if any(waiting.DUE in table.column_names for table in (state.devices, state.windows)):
        version = 4
    if settled.LEFT in state.windows.column_names:
        version = 5
    if any(field.type == blobs.TYPE for field in state.runs.schema):
        version = 6
    return _pack(b"S", [_ipc(table, stored=True) for table in (runs, state.devices, state.windows)], version)


def decode(data: bytes) -> BucketState:
    """The state in the bytes of `encode`; CodecError when they are of another version, kind, or damaged."""
    runs, devices, open_windows = _unpack_tables(b"S", data)
    device = pa.DictionaryArray.from_arrays(array(runs.column(_ROW)), array(devices.column("device")))
    runs = runs.set_column(0, pa.field("device", device.type, nullable=False), device)
    if unknown := sorted(set(open_windows.column_names) - {*windows.KEY, *waiting.MARKS, *COLUMNS}):
        msg = f"{_what(b'S', data)}: its windows have {', '.join(unknown)}, which no statistic of this version has"
        raise CodecError(msg)
    return BucketState(runs, devices, open_windows)


def encode_delta(delta: Delta) -> bytes:
    """What changed in a bucket's state."""
    data = packing.pack(delta)
    compressed = pa.compress(data, codec="zstd")
    return _pack(b"D", [_LENGTH.pack(len(data)) + (bytes(compressed) if compressed.size < len(data) else data)])


def decode_delta(data: bytes) -> Delta:
    """The delta in the bytes of `encode_delta`; CodecError as for `decode`."""
    (body,) = _unpack(b"D", data)
    try:
        (length,) = _LENGTH.unpack_from(body)
        packed = bytes(body)[_LENGTH.size :]
        if len(packed) < length:
            packed = pa.decompress(packed, length, codec="zstd", asbytes=True)
        return packing.unpack(packed)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise _unreadable(_what(b"D", data), error) from error


def encode_head(head: Head) -> bytes:
    """What is stored of a bucket."""
    return _pack(b"H", [_STORED.pack(head.deltas, head.base_bytes, head.delta_bytes, head.token)])


def decode_head(data: bytes) -> Head:
    """The head in the bytes of `encode_head`; CodecError as for `decode`."""
    (body,) = _unpack(b"H", data)
    return Head(*_STORED.unpack(body))


def pack_changes(changes: Changes) -> bytes:
    """The changes of a step."""
    tables = [changes.sessions, changes.devices, changes.windows]
    return _pack(b"C", [_ipc(table) if table.num_rows else b"" for table in tables])


def unpack_changes(data: bytes) -> Changes:
    """The changes in the bytes of `pack_changes`; CodecError as for `decode`. A table without rows has no measures."""
    schemas = session_schema(()), status_schema(()), windows.SCHEMA
    tables = zip(_unpack_tables(b"C", data), schemas, strict=True)
    return Changes(*(table if table.num_columns else schema.empty_table() for table, schema in tables))


def pack(kind: Literal[b"W", b"R", b"J", b"K"], table: pa.Table) -> bytes:
    """One table: parts of windows (`state.windows.SCHEMA`), runs (`state.runs.schema`), rejects, or `state.duplicates.SCHEMA`."""
    return _pack(kind, [_ipc(table)])


def unpack(kind: Literal[b"W", b"R", b"J", b"K"], data: bytes) -> pa.Table:
    """The table in the bytes of `pack`; CodecError as for `decode`."""
    return _unpack_tables(kind, data)[0]


def _pack(kind: Kind, bodies: Sequence[bytes | pa.Buffer], version: int = VERSION) -> bytes:
    lengths = b"".join(_LENGTH.pack(len(body)) for body in bodies)
    head = bytearray(_HEAD.pack(_MAGIC, version, kind, 0, 0, len(bodies)))
    crc = zlib.crc32(lengths, zlib.crc32(head))
    for body in bodies:
        crc = zlib.crc32(body, crc)
    head[_CRC] = crc.to_bytes(4, "little")
    return b"".join((head, lengths, *bodies))


def _ipc(table: pa.Table, *, stored: bool = False) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = _COMPRESSED if stored and table.nbytes > COMPRESSED_FROM else _PLAIN
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _what(kind: Kind, data: bytes) -> str:
    return f"{_KINDS[kind]}: {len(data)} bytes"


def _unreadable(what: str, error: Exception) -> CodecError:
    return CodecError(f"{what} cannot be read as version {_SUPPORTED}: {error}")


def _unpack(kind: Kind, data: bytes) -> list[pa.Buffer]:
    what = _what(kind, data)
    if len(data) < _HEAD.size or bytes(data[:4]) != _MAGIC:
        raise CodecError(f"{what} beginning with {bytes(data[:4])!r}; supported is {_MAGIC!r}, version {_SUPPORTED}")
    # The version is compared first: another version may have its checksum in another place.
    if data[4] not in VERSIONS:
        raise CodecError(f"{what} of version {data[4]}; supported is version {_SUPPORTED}")
    _, _, kind_there, _, crc, count = _HEAD.unpack_from(data)
    head = bytearray(data[: _HEAD.size])
    head[_CRC] = bytes(4)
    if zlib.crc32(memoryview(data)[_HEAD.size :], zlib.crc32(head)) != crc:
        raise CodecError(f"{what} of version {data[4]} are damaged: their checksum is not {crc:#010x}")
    if kind_there != kind:
        raise CodecError(f"{what} hold {_KINDS.get(kind_there, repr(kind_there))} instead")
    at = _HEAD.size + count * _LENGTH.size
    buffer, bodies = pa.py_buffer(data), []
    try:
        for (length,) in _LENGTH.iter_unpack(data[_HEAD.size : at]):
            bodies.append(buffer.slice(at, length))
            at += length
    except (IndexError, ValueError, struct.error) as error:
        raise _unreadable(what, error) from error
    return bodies


def _unpack_tables(kind: Kind, data: bytes) -> list[pa.Table]:
    bodies = _unpack(kind, data)
    try:
        return [_table(body) if body.size else pa.table({}) for body in bodies]
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(_what(kind, data), error) from error


def _table(buffer: pa.Buffer) -> pa.Table:
    with pa.ipc.open_stream(buffer) as reader:
        return reader.read_all()

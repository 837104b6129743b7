"""Bytes of the state: they come back as they were, and bytes of another version or damaged ones are refused.

`data/state_v2.b64` is a state as version 2 wrote it. If this file's tests fail because the layout has changed, the
version has to go up and `decode` has to say what it does with version 2; the golden file stays as it is.
"""

import base64
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import codec, windows
from state.layout import Changes, empty_state, session_schema, status_schema
from state.rules import Rules
from state.table import advance
from state.window_columns import COLUMNS
from tests.runs import fold

RULES = Rules(gap_ms=10_000, max_duration_ms=600_000, retain_ms=86_400_000, measures=("temperature", "humidity"))
GOLDEN = Path(__file__).parent / "data" / "state_v2.b64"


def batch(first_ms):
    device = pa.array(["pump-1", "pump-2", "pump-1", "naïve/Gerät"])
    ms = np.array([0, 1_000, 20_000, 2_000], np.int64) + first_ms
    values = {"temperature": np.array([20.5, 21.0, np.nan, -1.0]), "humidity": np.array([np.nan, np.nan, 40.0, 41.0])}
    return fold(device, ms, values, RULES)


def window():
    """Two windows of a device."""
    start = np.array([1_699_999_980_000, 1_700_000_040_000], np.int64)
    statistics = {name: start + 7 if name in ("first", "last") else start / 3 for name in COLUMNS}
    return windows.parts(
        "device_1m",
        "temperature",
        pa.array(["pump-1"]),
        np.zeros(2),
        start,
        start + 60_000,
        statistics | {"count": np.array([2, 3])},
    )


def example():
    """A state with open, closed and forgotten parts, and the last step's changes."""
    state, _ = advance(None, batch(1_700_000_000_000), 0, RULES)
    state, changes = advance(state, batch(1_700_000_015_000), 1_700_000_012_000, RULES)
    return replace(state, windows=window()), changes


def same(left, right):
    return left.schema.equals(right.schema) and left.to_pylist() == right.to_pylist()


def golden():
    return base64.b64decode(GOLDEN.read_text())


def test_a_state_comes_back_as_it_was():
    state, _ = example()
    back = codec.decode(codec.encode(state))
    assert same(back.runs, state.runs)
    assert same(back.devices, state.devices)
    assert same(back.windows, state.windows)
    assert codec.encode(back) == codec.encode(state)


def test_an_empty_state_comes_back():
    back = codec.decode(codec.encode(empty_state(RULES)))
    assert (back.runs.num_rows, back.devices.num_rows, back.windows.num_rows) == (0, 0, 0)


def test_a_large_state_comes_back_from_fewer_bytes():
    devices = 20_000
    device = pa.array([f"device-{number:06}" for number in range(devices)])
    ms = np.full(devices, 1_700_000_000_000, np.int64)
    runs = fold(device, ms, {"temperature": np.full(devices, 20.5), "humidity": np.full(devices, 40.0)}, RULES)
    state, _ = advance(None, runs, 0, RULES)
    assert min(state.runs.nbytes, state.devices.nbytes) > codec.COMPRESSED_FROM
    data = codec.encode(state)
    assert len(data) < (state.runs.nbytes + state.devices.nbytes) / 4
    decoded = codec.decode(data)
    assert same(decoded.runs, state.runs)
    assert same(decoded.devices, state.devices)
    assert len(codec.pack(b"R", runs)) > runs.nbytes / 2  # the shuffle compresses it


def test_changes_and_runs_come_back():
    _, changes = example()
    back = codec.unpack_changes(codec.pack_changes(replace(changes, windows=window())))
    assert same(back.sessions, changes.sessions)
    assert same(back.devices, changes.devices)
    assert same(back.windows, window())
    assert same(codec.unpack(b"R", codec.pack(b"R", batch(5))), batch(5))
    assert same(codec.unpack(b"W", codec.pack(b"W", window())), window())


def test_changes_of_nothing_are_few_bytes_and_come_back_empty():
    nothing = Changes(session_schema(RULES.measures).empty_table(), status_schema(RULES.measures).empty_table())
    packed = codec.pack_changes(nothing)
    assert len(packed) < 64
    assert not codec.unpack_changes(packed)


def test_the_state_that_version_2_wrote_is_still_read():
    state, _ = example()
    old = codec.decode(golden())
    assert same(old.runs, state.runs)
    assert same(old.devices, state.devices)
    assert same(old.windows, state.windows)


def test_the_state_written_today_has_the_layout_of_version_2():
    written = codec.encode(example()[0])
    assert codec.VERSION == 2
    assert written[:8] == golden()[:8]
    for today, then in zip(tables(written), tables(golden()), strict=True):
        assert same(today, then)


def tables(data):
    """The three Arrow streams, found as the layout says."""
    count = int.from_bytes(data[12:16], "little")
    at, streams = 16 + 8 * count, []
    for number in range(count):
        length = int.from_bytes(data[16 + 8 * number :][:8], "little")
        streams.append(pa.ipc.open_stream(data[at : at + length]).read_all())
        at += length
    assert (count, at) == (3, len(data))
    return streams


@pytest.mark.parametrize("version", [0, 1, 255])
def test_another_version_is_refused_by_name(version):
    data = bytearray(golden())
    data[4] = version
    with pytest.raises(codec.CodecError, match=f"of version {version}; supported is version 2"):
        codec.decode(bytes(data))


def test_bytes_of_another_kind_are_refused():
    with pytest.raises(codec.CodecError, match=r"the state of a bucket: .* hold runs instead"):
        codec.decode(codec.pack(b"R", batch(5)))
    with pytest.raises(codec.CodecError, match=r"changes: .* hold the state of a bucket instead"):
        codec.unpack_changes(golden())


def test_bytes_that_are_not_ours_are_refused():
    for data in (b"", b"TDM", b"\x80\x04\x95 something pickled, long enough to have a head"):
        with pytest.raises(codec.CodecError, match="supported is b'TDMK', version 2"):
            codec.decode(data)


@given(st.data())
def test_damage_anywhere_is_noticed(data):
    whole = golden()
    kind = data.draw(st.sampled_from(["flip", "cut", "grow"]))
    where = data.draw(st.integers(0, len(whole) - 1))
    damaged = {
        "flip": lambda: whole[:where] + bytes([whole[where] ^ data.draw(st.integers(1, 255))]) + whole[where + 1 :],
        "cut": lambda: whole[:where],
        "grow": lambda: whole + bytes(where + 1),
    }[kind]()
    with pytest.raises(codec.CodecError):
        codec.decode(damaged)


def test_intact_bytes_that_are_no_arrow_are_refused_too():
    head = bytearray(golden()[:24])
    head[8:12] = bytes(4)
    head[12:16], head[16:24] = (1).to_bytes(4, "little"), (64).to_bytes(8, "little")
    body = b"\x07" * 64
    head[8:12] = zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "little")
    with pytest.raises(codec.CodecError, match="cannot be read as version 2"):
        codec.decode(bytes(head) + body)

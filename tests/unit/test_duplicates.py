"""Duplicates against a plain dictionary: whatever keys there are, and however they are cut into batches."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from state import codec, duplicates
from tests.examples import examples

keys = st.tuples(st.integers(0, 3), st.integers(-2, 2), st.integers(0, 40))
batches = st.lists(st.tuples(st.lists(keys, max_size=8), st.integers(0, 15)), max_size=8)


def table(rows, offset=0):
    columns = [np.array([row[place] for row in rows], np.int64) for place in range(3)]
    places = np.arange(offset, offset + len(rows))
    return pa.table([*columns, places % 2, (places % 3).astype(np.int32), places], schema=duplicates.SCHEMA)


@examples(300)
@given(batches)
def test_the_first_reading_of_each_key_is_found_and_forgotten_below_the_floor(schedule):
    known, plain, floor, offset = duplicates.Memory(), {}, 0, 0
    for rows, step in schedule:
        added = table(rows, offset)
        found, (topics, partitions, offsets) = duplicates.firsts(known, added, floor)
        plain = {key: first for key, first in plain.items() if first[0] >= floor}
        expected, places, new = [], [], []
        for number, (device, second, event_ms) in enumerate(rows):
            key, place = (device, second), offset + number
            expected.append(key in plain)
            if key in plain:
                places.append((plain[key][1] % 2, plain[key][1] % 3, plain[key][1]))
            else:
                plain[key] = event_ms, place
                new.append(number)
        assert found.tolist() == expected
        assert list(zip(topics.tolist(), partitions.tolist(), offsets.tolist(), strict=True)) == places
        known = duplicates.remember(known, added.take(pa.array(new, pa.int64())), floor)
        floor, offset = floor + step, offset + len(rows)
        again = codec.unpack(b"K", codec.pack(b"K", duplicates.living(known, floor)))
        assert again.num_rows == sum(first[0] >= floor for first in plain.values())
        if offset % 2:
            known = duplicates.memory(again)


def test_keys_that_meet_in_the_index_are_told_apart(monkeypatch):
    monkeypatch.setattr(duplicates, "_FACTORS", np.zeros(2, np.uint64))
    known = duplicates.memory(table([(device, second, 5) for device in range(20) for second in range(5)]))
    found, (_, partitions, offsets) = duplicates.firsts(known, table([(19, 4, 5), (20, 4, 5), (0, 0, 5)]), 0)
    assert found.tolist() == [True, False, True]
    assert (partitions.tolist(), offsets.tolist()) == ([0, 0], [99, 0])


def test_what_is_forgotten_takes_no_memory():
    known = duplicates.Memory()
    for batch in range(50):
        rows = [(device, batch, 100 * batch) for device in range(100)]
        known = duplicates.remember(known, table(rows), 100 * (batch - 5))
    assert len(known) <= 1_700
    assert known.nbytes == 52 * len(known)

"""Looking up what a step brings among what the state has."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from state.columns import joined, places

TEXTS = st.text("ab\u00e9\x00", max_size=2)


@given(st.lists(st.integers(-3, 9), unique=True), st.lists(st.integers(-3, 9), unique=True))
def test_the_place_of_each_wanted_value(wanted: list[int], values: list[int]) -> None:
    expected = [values.index(each) if each in values else -1 for each in wanted]
    assert places(pa.array(wanted, pa.int64()), pa.array(values, pa.int64())).tolist() == expected


@given(st.lists(TEXTS, unique=True), st.lists(TEXTS))
def test_texts_are_joined_to_those_that_are_known(known: list[str], texts: list[str]) -> None:
    before = pa.array(known, pa.string())
    after, place = joined(before, pa.array(texts, pa.string()))
    assert after.to_pylist() == [*known, *dict.fromkeys(text for text in texts if text not in known)]
    assert [after[row].as_py() for row in place] == texts
    assert (after is before) == (len(after) == len(known))

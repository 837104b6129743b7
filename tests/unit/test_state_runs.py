"""Folding readings into runs, against the definition: a run has no gap above the session gap and stays in its cell."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.rules import EVENT_MS_LIMIT, Rules
from state.runs import fold_sorted, schema
from tests.runs import fold

RULES = Rules(gap_ms=10, max_duration_ms=1_600, retain_ms=10_000, measures=("t", "h"))


def folded(readings, rules=RULES):
    """Runs of (device, ms, t, h) readings as dictionaries, by device and start."""
    columns = list(zip(*readings, strict=True)) or [[], [], [], []]
    values = {name: np.array(column, np.float64) for name, column in zip(("t", "h"), columns[2:], strict=True)}
    table = fold(pa.array(columns[0], pa.string()), np.array(columns[1], np.int64), values, rules)
    assert table.schema == schema(rules.measures)
    return sorted(table.to_pylist(), key=lambda row: (row["device"], row["start"]))


def plain(readings, rules):
    """The same, slowly."""
    runs = []
    ordered = sorted(readings, key=lambda r: r[:2])
    for (device, _), group in itertools.groupby(ordered, lambda r: (r[0], r[1] // rules.cell_ms)):
        members = list(group)
        cuts = [i for i in range(1, len(members)) if members[i][1] - members[i - 1][1] > rules.gap_ms]
        for low, high in itertools.pairwise([0, *cuts, len(members)]):
            part = members[low:high]
            row = {"device": device, "start": part[0][1], "last": part[-1][1], "count": len(part)}
            for index, name in enumerate(rules.measures, start=2):
                has = [(r[1], r[index]) for r in part if r[index] is not None]
                numbers = [number for _, number in has]
                at, value = max(has, default=(None, None))
                totals = (sum(numbers), min(numbers), max(numbers)) if has else (None, None, None)
                row |= zip([f"{name}.{p}" for p in ("count", "sum", "min", "max")], [len(has), *totals], strict=True)
                row |= {f"{name}.value": value, f"{name}.at": at}
            runs.append(row)
    return runs


def test_a_measure_that_no_reading_has_is_null():
    (row,) = folded([("a", 5, None, 1)])
    assert [row[f"t.{p}"] for p in ("count", "sum", "min", "max", "value", "at")] == [0, None, None, None, None, None]
    only_t = fold(pa.array(["a"]), np.array([5]), {"t": np.array([1.0])}, RULES).to_pylist()
    assert (only_t[0]["t.sum"], only_t[0]["h.count"], only_t[0]["h.sum"]) == (1.0, 0, None)


def test_an_infinite_reading_spoils_only_its_own_numbers():
    rows = folded([("a", 1, float("inf"), 1), ("a", 2, float("-inf"), 2), ("b", 1, 4, 1)])
    assert (rows[0]["t.min"], rows[0]["t.max"], rows[0]["h.sum"], rows[1]["t.sum"]) == (-np.inf, np.inf, 3.0, 4.0)
    assert np.isnan(rows[0]["t.sum"])


@pytest.mark.parametrize("ms", [-1, EVENT_MS_LIMIT])
def test_an_event_time_that_is_never_admitted_is_refused(ms):
    with pytest.raises(ValueError, match=r"admission allows 0 \.\. 4398046511103"):
        folded([("a", ms, 1, 1)])


def test_the_whole_range_of_event_times_folds():
    rows = folded([("b", EVENT_MS_LIMIT - 1, 1, 1), ("a", 0, 1, 1), ("a", EVENT_MS_LIMIT - 1, 1, 1)])
    assert [(r["device"], r["start"]) for r in rows] == [("a", 0), ("a", EVENT_MS_LIMIT - 1), ("b", EVENT_MS_LIMIT - 1)]


def test_a_null_device_and_an_unknown_measure_are_refused():
    with pytest.raises(ValueError, match="1 of 2 readings have no device"):
        fold(pa.array(["a", None]), np.array([1, 2]), {}, RULES)
    with pytest.raises(ValueError, match="'x'"):
        fold(pa.array(["a"]), np.array([1]), {"x": np.array([1.0])}, RULES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gap_ms": 0}, "gap_ms is 0"),
        ({"max_duration_ms": -5}, "max_duration_ms is -5"),
        ({"retain_ms": -1}, "retain_ms is -1"),
        ({"measures": ("a", "a")}, "every name must be there once"),
        ({"measures": ("",)}, "not be empty"),
    ],
)
def test_rules_that_cannot_hold_are_refused(change, message):
    fields = {"gap_ms": 1, "max_duration_ms": 1, "retain_ms": 0, "measures": ("a",)} | change
    with pytest.raises(ValueError, match=message):
        Rules(**fields)


eighths = st.integers(-80, 80).map(lambda n: n / 8)  # their sums are exact in any order
readings_lists = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 400), st.none() | eighths, st.none() | eighths), max_size=40
)
any_rules = st.builds(Rules, st.integers(1, 60), st.integers(1, 600), st.integers(0, 500), st.just(("t", "h")))


@given(readings_lists, any_rules)
def test_folding_equals_the_definition(readings, rules):
    assert folded(readings, rules) == plain(readings, rules)


@given(readings_lists, any_rules)
def test_sorted_and_dictionary_input_fold_to_the_same_runs(readings, rules):
    ordered = sorted(readings, key=lambda r: r[:2])
    names = pa.array(["a", "b", "c", "unused"])
    codes = np.array(["abc".index(r[0]) for r in ordered], np.int32)
    times = np.array([r[1] for r in ordered], np.int64)
    values = {name: np.array([r[i] for r in ordered], np.float64) for i, name in ((2, "t"), (3, "h"))}
    expected = plain(readings, rules)
    assert fold_sorted(codes, names, times, values, rules).to_pylist() == expected
    assert fold(pa.DictionaryArray.from_arrays(codes, names), times, values, rules).to_pylist() == expected

"""The registry of statistics, and everything that takes its list from it."""

import dataclasses
import json
import math
import typing

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.judge.statistics import PLAIN
from schemas import generated
from service.outlets.tables import windows_schema
from state import distinct, quantiles
from state.kept import Kept
from state.statistics import ALWAYS, ORDERED, SESSION_STATISTICS, STATISTICS, Statistic
from state.window_columns import COLUMNS, PaneReadings
from tests.stream.records import make_settings
from tidemark_client import Window, values
from tidemark_client.values import Summary

readings = st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 5_000)), min_size=1, max_size=12)


def folded(parts):
    """The columns of parts, each a list of (value, event time), as one task folds them."""
    rows = [reading for part in parts for reading in sorted(part, key=lambda reading: reading[1])]
    values, event_ms = (np.array(column) for column in zip(*rows, strict=True))
    counts = np.array([len(part) for part in parts])
    heads, devices = np.cumsum(counts) - counts, np.zeros(len(parts), np.int64)
    panes = PaneReadings(values.astype(np.float64), event_ms.astype(np.int64), heads, counts, devices)
    return {name: column.fold(panes) for name, column in COLUMNS.items()} | in_window(len(parts))


def in_window(size, start=0, end=10_000):
    """The window of all parts."""
    return {"start": np.full(size, start), "end": np.full(size, end)}


def merged(columns, order):
    """The columns of all parts, merged in this order."""
    heads = np.zeros(1, np.int64)
    ordered = {name: values[order] for name, values in columns.items()}
    return {name: column.reduce(ordered, heads) for name, column in COLUMNS.items()} | in_window(1)


def test_errors_of_sketches_are_those_of_their_limits():
    assert f"none up to {quantiles.EXACT} different values" in STATISTICS["p99"].error
    assert f"none below {distinct.MOST} devices, then {100 * distinct.ERROR:.1f} %" in STATISTICS["distinct"].error


@given(st.lists(readings, min_size=1, max_size=6), st.randoms())
def test_parts_merge_to_the_same_statistics_in_any_order(parts, rng):
    columns = folded(parts)
    orders = [list(range(len(parts))), rng.sample(range(len(parts)), len(parts))]
    first, other = (Kept(merged(columns, order)) for order in orders)
    whole = Kept(folded([[reading for part in parts for reading in part]]))
    for name, statistic in STATISTICS.items():
        value = statistic.of_window(first).tolist()
        # A deviation is the root of a difference: of rounding 1e-16 of the squares, 1e-8 of the values is left.
        near = pytest.approx(value, rel=1e-9, abs=1e-2 if name == "stddev" else 1e-8, nan_ok=True)
        assert statistic.of_window(other).tolist() == near, name
        assert statistic.of_window(whole).tolist() == near, name


few_times = st.lists(
    st.tuples(st.sampled_from([-1.0, -0.0, 0.0, 2.5, 1e140]), st.integers(0, 2)), min_size=1, max_size=6
)


@given(st.lists(few_times, min_size=1, max_size=6), st.randoms())
def test_the_first_and_the_last_value_depend_on_the_set_of_readings_only(parts, rng):
    columns = folded(parts)
    order = rng.sample(range(len(parts)), len(parts))
    cut = rng.randint(1, len(parts))
    halves = [Kept(merged(columns, some)) for some in (order[:cut], order[cut:]) if some]
    names = ("first", "last", "first_value", "last_value")
    pairs = [{name: half[name] for name in names} for half in halves]
    kept = pairs[0] if len(pairs) == 1 else {name: COLUMNS[name].pair(*pairs) for name in names}
    readings = [(ms, value, "d") for part in parts for value, ms in part]
    for name in ("first_value", "last_value", "delta", "rate"):
        value = STATISTICS[name].of_window(Kept(kept)).item()
        right = PLAIN[name](readings)
        assert math.isnan(value) if right is None else value == pytest.approx(right, rel=1e-15), name
        assert math.copysign(1, value) == 1 or value != 0 or name not in {"first_value", "last_value"}


def test_every_statistic_has_the_columns_that_it_reads():
    columns = folded([[(1.0, 5), (3.0, 7)]])
    for statistic in STATISTICS.values():
        kept = Kept({name: columns[name] for name in (*statistic.columns, "start", "end")})
        assert len(statistic.of_window(kept)) == 1


def test_the_contract_and_its_page_have_the_statistics_of_the_registry():
    """If this fails: python -m schemas.generated."""
    for path, text in generated.texts().items():
        assert path.read_text(encoding="utf-8") == text, path.name
    fields = json.loads(generated.CONTRACT.read_text(encoding="utf-8"))["keys"]["window"]["fields"]["properties"]
    assert set(STATISTICS) < set(fields)


def test_a_statistic_is_added_in_the_registry_and_the_oracle(monkeypatch, tmp_path):
    """The example of docs/how-to-add.md."""
    width = Statistic("width", "`max` - `min`", "measure", "rounding", ("min", "max"), lambda w: w["max"] - w["min"])
    monkeypatch.setitem(STATISTICS, "width", width)
    monkeypatch.setitem(PLAIN, "width", lambda readings: PLAIN["max"](readings) - PLAIN["min"](readings))
    contract, page, client = generated.texts().values()
    assert '"width": {"$ref": "#/$defs/number"},' in contract
    assert "| `width` | `max` - `min` | the measure's | rounding | no |" in page
    assert "    width: float | None\n" in client
    view = {"name": "device", "window": "1 m", "statistics": ["width"]}
    assert make_settings(tmp_path, views=[view]).views[0].statistics == ("count", "last", "width")
    assert windows_schema().field("width").type == pa.float64()
    kept = Kept(folded([[(1.0, 5), (3.5, 7)], [(-2.0, 6)]]))
    readings = [[(5, 1.0, "d"), (7, 3.5, "d")], [(6, -2.0, "d")]]
    assert width.of_window(kept).tolist() == [PLAIN["width"](each) for each in readings]


def test_the_client_has_a_typed_field_for_each_statistic():
    types = typing.get_type_hints(Window)
    for name, statistic in STATISTICS.items():
        plain = int if statistic.is_whole else float
        assert types[name] == (plain if name in ALWAYS else plain | None), name
    assert tuple(each.name for each in dataclasses.fields(Summary)) == (*SESSION_STATISTICS, *ORDERED)
    assert tuple(SESSION_STATISTICS) == values.SESSION_STATISTICS

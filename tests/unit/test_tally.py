"""What the windows' aggregation drops follows from the panes that came, whatever the views."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.admission.readings import PARTITION_BITS, partition_of
from service.aggregation import tally
from service.settings import View

PANE_MS = 1_000
VIEWS = (
    (View(name="tumbling", window=3_000), [0, 1]),
    (View(name="sliding", window=4_000, slide=2_000), [1]),
    (View(name="short", window=1_000), [0]),
)


def plainly(values: list[tuple[int, int]], view: View, measures: list[int], late_ms: int) -> int:
    """Value by value, window by window."""
    dropped = 0
    for measure, at_ms in values:
        for start in range(at_ms // view.step_ms * view.step_ms, at_ms - view.window_ms, -view.step_ms):
            dropped += measure in measures and start <= at_ms < start + view.window_ms <= late_ms
    return dropped


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20_000)), min_size=1), st.integers(0, 25_000))
def test_what_is_dropped_is_counted_for_each_view_and_window(values: list[tuple[int, int]], late_ms: int) -> None:
    parts = []
    for measure in {measure for measure, _ in values}:
        panes = np.array([at // PANE_MS for each, at in values if each == measure])
        parts.append(tally.of_panes(measure, panes, np.ones(len(panes), np.int64), PANE_MS))
    counted = tally.unpack(tally.total(parts).pack())
    assert tally.late(counted, VIEWS, late_ms) == tuple(plainly(values, v, list(m), late_ms) for v, m in VIEWS)


def test_nothing_is_dropped_of_nothing() -> None:
    assert tally.late(tally.total([]), VIEWS, 10**13) == (0, 0, 0)
    assert tally.times(tally.total([])) == {}


@pytest.mark.parametrize(("code", "place"), [(0, ("a", 0)), (7, ("a", 7)), ((1 << PARTITION_BITS) + 7, ("b", 7))])
def test_a_partition_of_any_topic_is_one_number(code: int, place: tuple[str, int]) -> None:
    assert partition_of(code, ["a", "b"]) == place

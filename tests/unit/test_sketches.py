"""Sketches in Redis: who has them, and the quantiles that a reader computes of several."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.checkpoint.view_versions import begun, since
from service.publication.rows import window_rows
from service.redis.keys import Keys
from service.settings import View
from state import quantiles
from tests import minimal
from tests.outputs import T0, window_table
from tidemark_client import sketch

KEYS = Keys("tidemark")
NAMES = ["mean", "min", "max", "p95"]


def sketched(view: str, *windows: Sequence[float]) -> list[str]:
    """The field `sketch` of windows with these values."""
    rows = window_table([(view, "d1", T0 + 60_000 * n, values) for n, values in enumerate(windows)], NAMES)
    fields = window_rows(rows, KEYS, [View(name=view, window="1 m", statistics=NAMES, sketches=True)], T0).fields
    return [text.decode() for text in fields["sketch"] if text is not None]


def merged(texts: Sequence[str], percents: Sequence[int]) -> list[float]:
    return sketch.quantiles([sketch.read(text) for text in texts], percents)


def exact(values: Sequence[float], percent: int) -> float:
    """`percentile_disc` of SQL."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def test_a_sketch_is_the_level_and_the_bins_of_the_values() -> None:
    number = int(np.float64(2.5).view(np.int64))
    below = -int(np.float64(1.5).view(np.int64)) - 1  # the bits of -1.5, all but the sign inverted
    assert sketched("a", [2.5, 2.5, -1.5]) == [f"0 {below}:1 {number}:2"]
    assert merged(sketched("a", [2.5, 2.5, -1.5]), (1, 33, 34, 100)) == [-1.5, -1.5, 2.5, 2.5]


@pytest.mark.parametrize("count", [1, 7, 32])
def test_few_values_of_many_windows_give_exact_quantiles(count: int) -> None:
    values = [[round(math.sin(k * count + n) * 50, 1) for n in range(count)] for k in range(40)]
    flat = [each for window in values for each in window]
    assert merged(sketched("a", *values), (50, 95, 99)) == [exact(flat, percent) for percent in (50, 95, 99)]


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=300),
    st.lists(st.integers(0, 300), max_size=4),
    st.sampled_from([1, 50, 95, 99, 100]),
)
@example([1.6e308 + n * 1e305 for n in range(40)], [], 50)
@example([-1.7e308 + n * 1e305 for n in range(40)], [20], 50)
@example([5e-324 * n for n in range(-40, 40)], [7], 50)
def test_any_cut_gives_the_quantile_of_one_pass(values: list[float], cuts: list[int], percent: int) -> None:
    def texts(edges: Sequence[int]) -> list[str]:
        parts = [values[a:b] for a, b in itertools.pairwise([0, *edges, len(values)]) if a < b]
        return [
            quantiles.text(quantiles.fold(np.array(p), np.array([0], np.intp), np.array([len(p)]))[0]).decode()
            for p in parts
        ]

    [found] = merged(texts(sorted(min(each, len(values)) for each in cuts)), (percent,))
    assert found == pytest.approx(exact(values, percent), rel=quantiles.ERROR, abs=1e-300)
    packed = quantiles.fold(np.array(values), np.array([0], np.intp), np.array([len(values)]))
    assert merged(texts([]), (percent,)) == quantiles.unpack(packed).quantile(percent).tolist()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "x 1:1",
        "0 1",
        "0 1:1:1",
        "0 1:0",
        "-1 1:1",
        "64 1:1",
        "0 9218868437227405312:1",
        "52 4611686018427387904:1",
        "\ud800 1:1",
    ],
)
def test_a_text_of_no_sketch_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no sketch: "):
        sketch.read(text)


def test_a_window_of_another_view_or_without_quantiles_has_no_sketch() -> None:
    views = [
        View(name="with", window="1 m", statistics=NAMES, sketches=True),
        View(name="without", window="1 m", statistics=NAMES),
    ]
    table = window_table([("with", "d1", T0, [1.0]), ("without", "d1", T0, [1.0])], NAMES)
    rows = window_rows(table, KEYS, views, T0)
    assert [text is not None for text in rows.fields["sketch"]] == [True, False]
    assert rows.shared["partly"] is True
    assert "sketch" not in window_rows(table.slice(1), KEYS, views[1:], T0).fields, "what is off writes nothing"
    old = window_table([("with", "d1", T0, [1.0])])
    assert window_rows(old, KEYS, views[:1], T0).fields["sketch"] == [None], "it began before the view had a quantile"


def test_sketches_need_a_quantile() -> None:
    with pytest.raises(ValidationError, match="sketches: of no statistic that it changes; these are median, p95, p99"):
        View(name="a", window="1 m", sketches=True)


def test_windows_lose_their_sketches_when_the_view_does() -> None:
    on, off = (
        begun(minimal.settings(views=[{"name": "a", "window": "1 m", "statistics": NAMES, "sketches": each}]), "{}")
        for each in (True, False)
    )
    assert [view.since for view in since(7, on, off).views] == [7], "publish.lua removes the fields of older windows"
    assert [view.since for view in since(7, on, on).views] == [0]

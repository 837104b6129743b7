"""The comparison of `make browser`: what a page shows, and what Redis has held."""

from typing import Any

import pytest

from load.browser.chromium import find
from load.browser.comparison import PREFIX, Rows, window_rows
from load.browser.tables import Cell, same
from service.errors import SetupError

PROGRESS = {"final": "1000", "epoch": "1", "batch": "7"}
HELD = {
    "start": "0",
    "end": "1000",
    "count": "1200",
    "mean": "-1.239",
    "min": "0.00012",
    "max": "5e9",
    "epoch": "1",
    "batch": "6",
}
SHOWN = {
    "Mean": Cell("\u22121.24"),
    "Min": Cell("1.200e-4"),
    "Max": Cell("5.000e9"),
    "Readings": Cell("1,200"),
    "State": Cell("final"),
}


class Shown:
    """A page with one table."""

    def __init__(self, cells: dict[str, Cell]) -> None:
        self._cells = {name: (cell.text, cell.times) for name, cell in cells.items()}

    def evaluate(self, _script: str, _argument: str) -> Any:
        return [("0", self._cells)]


def rows(cells: dict[str, Cell]) -> Rows:
    page: Any = Shown(cells)
    return window_rows(page, "site", "power", "leeds", [PROGRESS])


def differences(cells: dict[str, Cell], held: dict[str, str]) -> list[str]:
    ((key, compare),) = rows(cells).items()
    assert key == f"{PREFIX}:window:site:power:leeds:0"
    return list(compare(held))


def test_a_row_that_redis_has_held_does_not_differ() -> None:
    assert differences(SHOWN, HELD) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Mean", "1.24"),
        ("Mean", "\u22121.25"),
        ("Mean", "\u2013"),
        ("Min", "1.300e-4"),
        ("Max", "5.010e9"),
        ("Readings", "1,201"),
        ("State", "open"),
        ("State", "final corrected"),
    ],
)
def test_each_wrong_cell_differs(name: str, text: str) -> None:
    (difference,) = differences({**SHOWN, name: Cell(text)}, HELD)
    assert name in difference or "corrected" in difference


def test_a_dash_is_no_value() -> None:
    assert same(Cell("\u2013"), None)
    assert not same(Cell("\u2013"), "0")


def test_a_missing_chromium_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SetupError, match="apt-get install chromium"):
        find()

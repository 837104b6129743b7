"""Rows of the table of faults, by id."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from service.errors import SetupError

if TYPE_CHECKING:
    from load.faults.run import Run

Figures: TypeAlias = dict[str, Any]
"""What a row measured, by name; goes to the JSON beside the figures that every row has."""

Play = Callable[["Run"], Figures]

ORDER = ("U", "F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9", "F10", "F11", "F12", "F13", "F14", "H", "cluster")

_rows: dict[str, "Row"] = {}


@dataclass(frozen=True, slots=True)
class Row:
    """`play` says what goes wrong and when; `rate` is in records a second, `testbed` are Testbed's keyword arguments.

    With `proxy` the service reaches Redis through run.proxy, which can make it slow.
    """

    id: str
    title: str
    play: Play
    rate: float
    devices: int
    testbed: Mapping[str, Any] = field(default_factory=dict)
    proxy: bool = False


def row(
    id: str,  # noqa: A002 - the word of the table
    title: str,
    *,
    rate: float = 2_000.0,
    devices: int = 1_000,
    testbed: Mapping[str, Any] | None = None,
    proxy: bool = False,
) -> Callable[[Play], Play]:
    """Register the decorated function as the row `id`."""

    def register(play: Play) -> Play:
        _rows[id] = Row(id, title, play, rate, devices, dict(testbed or {}), proxy)
        return play

    return register


def rows() -> dict[str, Row]:
    """All rows by id, in the table's order; those of modules that are not imported yet are."""
    package = importlib.import_module("load.faults.rows")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    known = [*ORDER, *sorted(_rows.keys() - set(ORDER))]
    return {each: _rows[each] for each in known if each in _rows}


def find(id: str) -> Row:  # noqa: A002
    """The row `id`; SetupError when there is none."""
    known = rows()
    if id not in known:
        what = f"There is no row {id!r}"
        raise SetupError(what, remedy=f"Rows: {', '.join(known)}")
    return known[id]

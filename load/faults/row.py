"""Rows of the table of faults: their settings, their functions, and the registry by id."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load.faults.run import Figures, Run, Setup
from service.errors import SetupError, TidemarkError

Play = Callable[[Run], Figures]

ORDER = (
    "U",
    "F1",
    "F2",
    "F3",
    "F4",
    "F5",
    "F6",
    "F7",
    "F8",
    "F9",
    "F10",
    "F11",
    "F12",
    "F13",
    "F14",
    "H",
    "cluster",
    "sentinel",
    "views",
    "rebuild",
    "backlog",
    "outlets",
    "pipelines",
    "secrets",
    "year",
    "soak",
    "batches",
    "causes",
)

_rows: dict[str, "Row"] = {}


@dataclass(frozen=True, slots=True)
class Row:
    """`play` says what goes wrong and when, on a run with `setup`."""

    setup: Setup
    play: Play


def row(
    id: str,  # noqa: A002 - the word of the table
    title: str,
    *,
    rate: float = 2_000.0,
    devices: int = 1_000,
    testbed: Mapping[str, Any] | None = None,
    proxy: bool = False,
    inputs: int = 1,
    tls: bool = False,
) -> Callable[[Play], Play]:
    """Register the decorated function as the row `id`."""

    def register(play: Play) -> Play:
        _rows[id] = Row(Setup(id, title, rate, devices, dict(testbed or {}), proxy, inputs, tls), play)
        return play

    return register


def rows() -> dict[str, Row]:
    """Return all rows by id, in the table's order. Imports the modules of rows."""
    package = importlib.import_module("load.faults.rows")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    known = [*ORDER, *sorted(_rows.keys() - set(ORDER))]
    return {each: _rows[each] for each in known if each in _rows}


def find(id: str) -> Row:  # noqa: A002
    """The row `id`; SetupError when there is none."""
    known = rows()
    if id not in known:
        raise SetupError(f"There is no row {id!r}", remedy=f"Rows: {', '.join(known)}")
    return known[id]


def play(
    row: Row,
    seed: int,
    *,
    short: bool,
    times: int | None = None,
    seconds: float | None = None,
    folder: Path | None = None,
    only: str = "",
    keep: bool = False,
) -> tuple[Run, Figures]:
    """Play a row to its end; whatever breaks is a violation in the history."""
    setup = row.setup
    run = Run(setup, seed, short=short, times=times, seconds=seconds, folder=folder, only=only, keep=keep)
    print(
        f"{setup.id}: {setup.title}; seed {seed}, {setup.rate:.0f} records a second, files in {run.folder}", flush=True
    )
    figures: Figures = {}
    with run:
        try:
            figures = run.finish(row.play(run))
        except TidemarkError as problem:
            run.violation("played", f"{problem.code}: {problem}")
    return run, figures

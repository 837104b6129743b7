"""Rows of the table of faults: their settings, their functions, and the registry by id."""

import importlib
import pkgutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from load.faults.run import Figures, Run, Setup
from service.errors import SetupError, TidemarkError

Play = Callable[[Run], Figures]

ORDER = (
    "U",
    *(f"F{number}" for number in range(1, 15)),
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


def row(id: str, title: str, **setup: Any) -> Callable[[Play], Play]:  # noqa: A002 - the word of the table
    """Register the decorated function as the row `id`; `setup` are further fields of Setup."""

    def register(play: Play) -> Play:
        _rows[id] = Row(Setup(id, title, **setup), play)
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


def play(row: Row, seed: int, **options: Any) -> tuple[Run, Figures]:
    """Play a row to its end, with options of Run."""
    setup, run = row.setup, Run(row.setup, seed, **options)
    print(
        f"{setup.id}: {setup.title}; seed {seed}, {setup.rate:.0f} records a second, files in {run.folder}", flush=True
    )
    with run:
        return run, to_end(row, run)


def to_end(row: Row, run: Run) -> Figures:
    """Return what a row measures on a run that has begun; whatever breaks is a violation, and the next row is played."""
    try:
        return run.finish(row.play(run))
    except TidemarkError as problem:
        run.violation("played", f"{problem.code}: {problem}")
    except Exception as problem:
        traceback.print_exc()
        run.violation("played", f"{type(problem).__name__}: {problem}")
    return {}

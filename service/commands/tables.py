"""Print tables for people: the text of a device, a broker or a file cannot control the terminal, or colour it."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from service.printing import printable

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 120
"""Where the output is no terminal."""


def console() -> "Console":
    """Return standard output as a console of Rich."""
    from rich.console import Console  # noqa: PLC0415 - it takes 60 ms

    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _WIDTH)


def line(to: "Console", text: str, style: str = "") -> None:
    """Print one line; a terminal may wrap it, a file gets it whole."""
    from rich.text import Text  # noqa: PLC0415

    to.print(Text(printable(text), style=style), soft_wrap=True)


def table(to: "Console", title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    made = Table(title=Text(printable(title)), title_justify="left")
    for name in columns:
        made.add_column(name, overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(str(cell))) for cell in row))
    to.print(made)

"""`tidemark sql`: answer a question in SQL as a table for people, as JSON or as CSV.

JSON is one list of objects, in which the second column of a name gets `_2`. CSV has a line of column names. Times are ISO 8601 in
UTC, and null is empty in CSV. Text of a device or a sender is data in both. In a table and on a terminal, control characters are
escaped.
"""

import csv
import io
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from service.commands import progress
from service.errors import QuestionError
from service.printing import aligned, counted, document, printable, say
from service.settings import Settings
from tidemark_sql import question

WIDTH = 80
"""Columns of the output where it is no terminal."""
SHOWN = 1_000
"""Rows of a table for people."""
_PART = 10_000
"""Rows that are printed at a time."""


def ask(settings: Settings, text: str) -> pa.Table:
    """Return the answer, with a progress bar on a terminal. Raises as tidemark_sql.question.answer."""
    with progress.bar("keys") as watch:
        return question.answer(settings, text, watch)


def show(answer: pa.Table, form: str) -> None:
    """Print an answer in the form "table", "json" or "csv"."""
    if form == "json":
        names = _distinct(answer.column_names)
        rows = (dict(zip(names, map(_plain, row), strict=True)) for row in _rows(answer))
        print("[", end="")  # noqa: T201
        for number, row in enumerate(rows):
            print(",\n " if number else "", document(row), sep="", end="")  # noqa: T201
        print("]")  # noqa: T201
    elif form == "csv":
        is_terminal = sys.stdout.isatty()
        for line in _csv(answer):
            if is_terminal:
                say(line)
            else:
                sys.stdout.write(f"{line}\r\n")
    else:
        cells = [[printable(_text(value)) for value in row] for row in _rows(answer.slice(0, SHOWN))]
        _show_rows(answer.column_names, cells)
        more = f", the first {SHOWN:,} are shown: --csv and --json have all" if answer.num_rows > SHOWN else ""
        say(f"{answer.num_rows:,} row{'' if answer.num_rows == 1 else 's'}{more}")


def _show_rows(names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print rows as lines with aligned columns; where one does not fit the terminal, each row as a line a column."""
    heads = [printable(name) for name in names]
    lines = list(aligned([heads, *cells]))
    if max(map(len, lines)) <= width():
        for line in lines:
            say(line)
        return
    widest = max(map(len, heads))
    for number, row in enumerate(cells):
        say(f"row {number + 1}")
        for name, value in zip(heads, row, strict=True):
            say(f"  {name:<{widest}}  {value}".rstrip())


def width() -> int:
    """Return the columns of the terminal, WIDTH where the output is none."""
    return shutil.get_terminal_size((WIDTH, 0)).columns if sys.stdout.isatty() else WIDTH


def _rows(answer: pa.Table) -> Iterator[tuple[Any, ...]]:
    for batch in answer.to_batches(_PART):
        try:
            columns = [column.to_pylist() for column in batch.columns]
        except OverflowError as error:
            what = "The answer has a time after the year 9999"
            raise QuestionError(what, remedy="Ask for it as text: CAST(time AS VARCHAR)") from error
        yield from zip(*columns, strict=True)


def _csv(answer: pa.Table) -> Iterator[str]:
    for row in [answer.column_names, *([_text(value) for value in row] for row in _rows(answer))]:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(row)
        yield line.getvalue()


def _plain(value: Any) -> Any:
    """Return a value for JSON, which has neither times nor NaN."""
    if isinstance(value, datetime | pa.MonthDayNano):
        return _text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Decimal):  # also a sum of whole numbers, which DuckDB computes with 128 bits
        return float(value) if value.as_tuple().exponent else int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names with _2, _3 and so on after a name that is used already: an object has each name once."""
    distinct: list[str] = []
    for name in names:
        each, number = name, 1
        while each in distinct:
            number += 1
            each = f"{name}_{number}"
        distinct.append(each)
    return distinct


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, pa.MonthDayNano):
        return _length(value)
    return _time(value) if isinstance(value, datetime) else str(value)


def _length(value: pa.MonthDayNano) -> str:
    """Return an interval, such as that between two times, as SQL writes it: 2 days 01:30:00.250."""
    ms = abs(value.nanoseconds) // 1_000_000
    time = f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1_000 % 60:02}.{ms % 1_000:03}"
    days = [counted(number, unit) for number, unit in ((value.months, "month"), (value.days, "day")) if number]
    return " ".join([*days, f"-{time}" if value.nanoseconds < 0 else time])


def _time(value: datetime) -> str:
    text = value.isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")

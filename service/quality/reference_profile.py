"""`tidemark profile --reference`: draws a suite of Great Expectations from the reference, for a data engineer to read and edit.

Rows without a key and repeated keys are always refused, so the suite has only what this reference shows, with a margin:

    rows                     at least half as many as now
    key                      99 % of the keys have a shape of today's: the same letters, any digits
    a column                 at most 2 in 100 rows more lack it
    a column of few values   90 % of the rows have one of today's values, so that a new site is no fault
    any other column         99 % of the texts have a shape of today's, or only its characters where shapes are many

Columns with limits of devices have their own check (service/reference/limits.py).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from service.errors import ReferenceDataError, SettingsError
from service.pipeline.command_session import started
from service.quality.suite import LESS_THERE, MOSTLY, Item, item, less, pattern, require_place, save
from service.reference import database
from service.reference.expectations import broken_invariants
from service.settings import Reference, Settings

NAME = "reference.expectations.json"
FEWEST_ROWS = 0.5
"""Share of the rows of today."""
FEW = 30
"""A column with no more values than this, and ten rows for each, is a column of few values."""
ROWS_OF_A_VALUE = 10
MOSTLY_KNOWN = 0.9
NOTES = (
    "Drawn by `tidemark profile --reference`. Columns are those of [reference] query; every value is text. "
    "Keys are always checked: present, and unique."
)


def profile(settings: Settings, out: Path, say: Callable[[str], object], *, replace: bool = False) -> None:
    """Draw a suite of the reference as the database has it now and write it to `out`.

    Raises SettingsError when there is no [reference], or the file exists and `replace` is false, SetupError when it cannot be
    written, ReferenceDataError when the reference cannot be read, has no rows, or has rows that are always refused.
    """
    reference = settings.reference
    if reference is None:
        what = "there is no [reference] in the settings"
        raise SettingsError(what, remedy="Add one, or draw expectations of the readings without --reference")
    require_place(out, replace=replace)
    with started(settings, master="local[1]", is_brief=True) as spark:
        table = database.fetch(spark, reference)
    save(out, draw(table, reference), f"{table.num_rows} rows", say, replace=replace)


def draw(table: pa.Table, reference: Reference) -> dict[str, Any]:
    """Return the suite of a reference as `database.fetch` returns it. The same rows give the same suite.

    Raises ReferenceDataError for a table without rows, and for rows that are always refused.
    """
    if not table.num_rows:
        what = f"{database.address(reference.url)}: [reference] query returns no rows to draw expectations from"
        raise ReferenceDataError(what, remedy="Correct the query, or fill the table")
    if faults := broken_invariants(table, reference.key):
        what = "the reference data is always refused:\n  " + "\n  ".join(faults)
        raise ReferenceDataError(what, remedy="Correct the data of [reference] query")
    fewest = max(1, int(table.num_rows * FEWEST_ROWS))
    items: list[Item] = [{"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": fewest}}]
    items += _texts(reference.key, table.column(0))
    for name in table.column_names[1:]:
        if name not in reference.limit_columns:
            items += _column(name, table[name])
    drawn = {"rows": table.num_rows}
    return {"name": "reference", "meta": {"notes": NOTES, "drawn_from": drawn}, "expectations": items}


def _column(name: str, values: pa.ChunkedArray) -> Iterator[Item]:
    there = 1 - values.null_count / len(values)
    if not there:
        return
    yield item("column_values_to_not_be_null", name, mostly=less(there, LESS_THERE))
    unique = sorted(pc.unique(values.drop_null()).to_pylist())
    if len(unique) <= FEW and len(values) >= ROWS_OF_A_VALUE * len(unique):
        yield item("column_values_to_be_in_set", name, value_set=unique, mostly=MOSTLY_KNOWN)
    else:
        yield from _texts(name, values)


def _texts(name: str, values: pa.ChunkedArray) -> Iterator[Item]:
    if regex := pattern(pc.unique(values.drop_null()).to_pylist()):
        yield item("column_values_to_match_regex", name, regex=regex, mostly=MOSTLY)

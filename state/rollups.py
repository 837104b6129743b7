"""Roll-ups: windows of one view that closed windows of another view become parts of (`from` of views).

A window that the watermark passes is complete. It is then a part of the window of the roll-up that it lies in, and merges there
as the parts of readings do elsewhere. So a month of days has thirty merges, whatever its days have. An open window of a roll-up
has the readings of the closed windows; what is still open follows when it is closed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from state.columns import Array, Ints, array, codes_of, ints
from state.window_columns import COLUMNS

if TYPE_CHECKING:
    from state.calendar import Calendar

Level = Sequence["Rollup"]


@dataclass(frozen=True, slots=True)
class Rollup:
    """The windows of `view`, of `window_ms` or of a calendar, are put together of those of `source` with these `measures`, and
    keep `columns`."""

    view: str
    source: str
    measures: Collection[str]
    columns: Collection[str]
    window_ms: int
    calendar: "Calendar | None" = None

    def span(self, start: Ints) -> tuple[Ints, Ints]:
        """Return the starts and ends of the windows that contain these times."""
        if self.calendar is not None:
            return self.calendar.starts(start), self.calendar.ends(start)
        starts: Ints = start - start % self.window_ms
        return starts, starts + self.window_ms


def levels(rollups: Sequence[Rollup]) -> tuple[tuple[Rollup, ...], ...]:
    """Return the roll-ups in the order of their sources: those of readings first, then those of these."""
    found: list[tuple[Rollup, ...]] = []
    left = list(rollups)
    while left:
        waiting = {each.view for each in left}
        found.append(tuple(each for each in left if each.source not in waiting))
        left = [each for each in left if each.source in waiting]
    return tuple(found)


def parts(windows: pa.Table, level: Level, until_ms: int) -> list[pa.Table]:
    """Return the parts that the windows that end by a time are of the windows of roll-ups: a table for each roll-up."""
    views, measures = (array(windows.column(name)) for name in ("view", "measure"))
    names, codes, measured = views.dictionary.to_pylist(), codes_of(views), measures.dictionary.to_pylist()
    is_due = (ints(windows, "end") <= until_ms) & (ints(windows, "count") > 0)
    found = []
    for each in level:
        if each.source not in names:
            continue
        is_part = np.array([name in each.measures for name in measured], np.bool_)[codes_of(measures)]
        if len(rows := np.flatnonzero(is_due & is_part & (codes == names.index(each.source)))):
            found.append(_renamed(windows.take(pa.array(rows)), each))
    return found


def _renamed(windows: pa.Table, rollup: Rollup) -> pa.Table:
    start, end = rollup.span(ints(windows, "start"))
    size = windows.num_rows
    replaced: dict[str, Array] = {
        "view": pa.DictionaryArray.from_arrays(np.zeros(size, np.int32), pa.array([rollup.view])),
        "start": pa.array(start),
        "end": pa.array(end),
    }
    fields, arrays = [], []
    for field in windows.schema:
        is_lacking = field.name in COLUMNS and field.name not in rollup.columns
        fields.append(field.with_nullable(True) if is_lacking else field)
        column = pa.nulls(size, field.type) if is_lacking else replaced.get(field.name, array(windows[field.name]))
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

"""Let open values wait before they are written again: `update_every` of views and devices, and a backlog that is read.

    begin(due, changed, phases, pace)    rows that have changed are due at the next phase of their key
    leaving(due, pace) -> which rows     rows that are due leave, each with all that it has then

A row that waits has the service's time (ms) at which it is due, in the column DUE of the state's windows or devices. A row
without a change has NEVER. The phase of a key follows from its text. So keys are due evenly spread over `update_every`, and each
key at most once in it. A row that changes again keeps its time. What waits is state: a restart, a replay and a reshape keep it.

The column exists while rows may wait. A state without it has the bytes that it had before there was one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.columns import Array, Bools, Codes, Ints, array, by_name, codes_of, ints
from state.settled import LEFT

DUE = "due"
MARKS = DUE, LEFT
"""The columns of a state that no statistic has, in their order."""
NEVER = -1
EVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Pace:
    """When rows leave, in ms of the service's clock: `planned_ms` is the time of the batch, and rows that are due by `line_ms`
    leave. It is earlier than the time of the batch while a backlog is read, and EVER where all rows leave.

    With `is_written` Redis has the rows that waited before the batch: they wait no more, and do not leave again. Silence may
    have closed them there since."""

    planned_ms: int = 0
    line_ms: int = EVER
    is_written: bool = False

    @property
    def is_holding(self) -> bool:
        """Whether also rows wait whose `update_every` is 0."""
        return self.line_ms < self.planned_ms


AT_ONCE = Pace()
"""All rows leave."""


def due_of(table: pa.Table) -> Ints:
    """Return when the rows of a table are due, as a copy."""
    return np.array(ints(table, DUE))  # those of a table without the column are -1, which is NEVER


def due_now(table: pa.Table, pace: Pace, every_ms: Ints | int) -> Ints:
    """Return when the rows of a table are due in a batch, by the present `update_every` of each row or of all: the settings may
    have a shorter one since a row waits."""
    if pace.is_written:
        return np.full(table.num_rows, NEVER)
    return np.minimum(due_of(table), pace.planned_ms + every_ms)  # NEVER stays what it is


def is_moved(table: pa.Table, pace: Pace, every_ms: Ints | int) -> bool:
    """Return whether a row that waits leaves or waits no more, though it does not change."""
    return number(table) > 0 and (pace.is_written or bool(leaving(due_now(table, pace, every_ms), pace).any()))


def number(table: pa.Table) -> int:
    """Return the number of rows that wait."""
    return int(np.count_nonzero(ints(table, DUE) != NEVER)) if DUE in table.column_names else 0


def without(table: pa.Table) -> pa.Table:
    """Return a table without the columns MARKS; the same object where it has none."""
    marks = [name for name in MARKS if name in table.column_names]
    return table.drop_columns(marks) if marks else table


def with_due(table: pa.Table, due: Ints, place: int) -> pa.Table:
    """Return a table with the column at this place."""
    return table.add_column(place, pa.field(DUE, pa.int64(), nullable=False), pa.array(due, pa.int64()))


def waiting(table: pa.Table) -> pa.Table:
    """Return the rows that wait, without the columns MARKS."""
    return without(table).filter(pa.array(ints(table, DUE) != NEVER)).combine_chunks()


def begin(due: Ints, changed: Bools, phases: "Phases", pace: Pace) -> None:
    """Set when those of the changed rows are due that do not wait yet."""
    rows = np.flatnonzero(changed & (due == NEVER))
    if len(rows):
        due[rows] = pace.planned_ms + phases.of(rows, pace.planned_ms)


def leaving(due: Ints, pace: Pace) -> Bools:
    """Return which rows leave because they are due."""
    leaves: Bools = (due != NEVER) & (due <= pace.line_ms)
    return leaves


@dataclass(frozen=True, slots=True)
class Phases:
    """The keys of rows, `codes` of `texts`, and the `update_every` of each row in ms; 0 for rows that are due at once."""

    texts: Array
    codes: Codes | Ints
    every_ms: Ints

    @classmethod
    def of_windows(cls, windows: pa.Table, every_ms: Mapping[str, int]) -> "Phases":
        """`every_ms` is by view."""
        keys = array(windows.column("key"))
        return cls(keys.dictionary, codes_of(keys), by_name(windows.column("view"), every_ms))

    def of(self, rows: Ints, now_ms: int) -> Ints:
        """Return for how long these rows wait: until the next phase of each, 0 to `every_ms` - 1."""
        every_ms = np.maximum(self.every_ms[rows], 1)
        if (every_ms == 1).all():
            return np.zeros(len(rows), np.int64)
        used, place = np.unique(self.codes[rows], return_inverse=True)
        names = self.texts.take(pa.array(used)).to_pylist()
        hashes: npt.NDArray[Any] = np.fromiter((crc32(name.encode()) for name in names), np.int64, len(names))
        waits: Ints = (hashes[place] - now_ms) % every_ms
        return waits

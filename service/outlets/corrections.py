"""Corrected and backfilled values on their way to the outlets: from the process of a command to the service.

    outlets/corrected-<run>-<n>     an entry: windows and sessions with their revisions, n of a run

The service takes them between two batches, as parts of the last committed batch (service/outlets/silence.py). Each name occurs
once. A correction that is cut off leaves its values again when it is repeated, with a larger revision and under another name.
"""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.outlets.outbox import FOLDER, Outbox, Scope, Views
from service.outlets.outlet import Position
from service.outlets.tables import REVISION
from state import codec
from state.layout import Changes, session_schema, status_schema
from state.windows import empty

_NAME = re.compile(r"corrected-\d+-\d+")


def leave(outbox: Outbox, run: int, number: int, views: Views, windows: pa.Table, sessions: pa.Table) -> None:
    """Store the corrected values of a round of a run for the service, as `store`. Raises as Outbox."""
    if windows.num_rows or sessions.num_rows:
        store(outbox, name(run, number), views, windows, sessions)


def name(run: int, number: int) -> str:
    """Return the name under which the service takes the values of a round of a run."""
    return f"{FOLDER}/corrected-{run}-{number:06d}"


def store(outbox: Outbox, under: str, views: Views, windows: pa.Table, sessions: pa.Table) -> None:
    """Store closed values, with the column REVISION, under a name of the checkpoint. Raises as Outbox.

    `views` are those of the windows: the service may have others when it takes the values.
    """
    changes = Changes(
        sessions if sessions.num_rows else session_schema(()).empty_table(),
        status_schema(()).empty_table(),
        windows if windows.num_rows else empty(),
    )
    outbox.write(under, Position(0, 0), [codec.pack_changes(changes)], "watermark", Scope(views))


def names(outbox: Outbox) -> list[str]:
    """Return the names of the stored ones, in order."""
    found = [name for name in outbox.files.names(FOLDER) if _NAME.fullmatch(name)]
    return sorted(found, key=lambda name: tuple(map(int, name.split("-")[1:])))


InRedis = Sequence[tuple[int, int] | None]
"""Revision and count that Redis has for the key of each row of a table, None for no key."""


def corrected(table: pa.Table, stored: InRedis, revision: int) -> pa.Table:
    """Return the rows that Redis has with as many readings, or has no more, with a revision.

    It must be larger than any before, which Redis may have forgotten: with the key, or with all of its data.
    """
    return _kept(table, stored, np.full(table.num_rows, revision, np.int64))


def backfilled(table: pa.Table, stored: InRedis, revision: int) -> pa.Table:
    """Return the rows as `corrected` does. Those that never changed in Redis, or are there no more, have revision 0: outlets
    may have newer ones."""
    has_changed = [each is not None and each[0] > 0 for each in stored]
    return _kept(table, stored, np.where(np.array(has_changed, np.bool_), revision, 0))


def _kept(table: pa.Table, stored: InRedis, revisions: npt.NDArray[np.int64]) -> pa.Table:
    counts: npt.NDArray[np.int64] = table["count"].to_numpy()
    keep = [each is None or each[1] == count for each, count in zip(stored, counts, strict=True)]
    column = pa.field(REVISION, pa.int64(), nullable=False)
    return table.append_column(column, pa.array(revisions)).filter(pa.array(keep, pa.bool_()))

"""Corrected and backfilled values on their way to the outlets: from the process of a command to the service.

    outlets/corrected-<run>-<n>     an entry: windows and sessions with their revisions, n of a run

The service takes them between two batches, as parts of the last committed batch (service/outlets/silence.py). Each name occurs
once. A correction that is cut off leaves its values again when it is repeated, with a larger revision and under another name.
"""

import re

import numpy as np
import pyarrow as pa

from service.outlets.outbox import FOLDER, Outbox, Scope, Views
from service.outlets.outlet import Position
from state import codec, settled
from state.columns import Ints
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


def with_revision(table: pa.Table, revision: int, in_redis: Ints | None = None) -> pa.Table:
    """Return values with a revision, which is larger than any before, of which Redis may have forgotten some.

    With `in_redis`, the revisions there, rows that never changed in Redis, or are there no more, have revision 0.
    """
    revisions = np.full(table.num_rows, revision, np.int64) if in_redis is None else np.where(in_redis, revision, 0)
    return settled.with_revision(table, revisions)

"""The snapshot of a running query, which changes only between two batches.

No batch runs while the pointer `serving` changes, so all tasks of a batch read one snapshot. That includes a task that runs again
because an executor was lost.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from service.errors import ReferenceDataError
from service.micro_batch import MicroBatch
from service.reference import history
from service.reference.attributes import SERVING, Attributes, HandedOut, Serving
from service.reference.expectations import require_columns
from service.reference.folder import SharedFolder
from service.reference.snapshots import LAST_BATCH, Place, Snapshot, folder_of, latest, point

_log = logging.getLogger(__name__)


def in_use(folder: Place, columns: Sequence[str]) -> Attributes:
    """Return the look-up for the plan of a query: in the snapshot that a batch has when it runs."""
    root = folder.root if isinstance(folder, SharedFolder) else folder
    return Serving(root, tuple(columns)) if isinstance(root, Path) else HandedOut(tuple(columns))


class CurrentSnapshot:
    """The snapshot that a running query uses.

    `attributes` looks devices up in it; `snapshot` is its content. Not thread-safe: call it from the query's thread.
    """

    def __init__(self, folder: Place, columns: Sequence[str], *, resume: bool = False) -> None:
        """Take the folder's last good snapshot; raises ReferenceDataError when there is none, or it lacks a column.

        With `resume`, take the snapshot of the last batch if it exists and has the columns: the batch may be replayed, and must
        read the same attributes. `swap` after it takes the last good one.
        """
        self.folder = folder_of(folder)
        self._columns = tuple(columns)
        self.attributes = in_use(folder, self._columns)
        self.snapshot = (self._of_last_batch() if resume else None) or self._last_good()
        self._of_batch: Snapshot | None = None
        self._history: history.History | None = None
        point(folder, SERVING, self.snapshot.version)

    def swap(self, snapshot: Snapshot | None = None) -> bool:
        """Use another snapshot, by default the last good one, from the next batch on. Return whether its content differs.

        Call it while no batch runs: in foreachBatch after its action. Raises ReferenceDataError, and keeps the former snapshot,
        when the new one lacks a column or is damaged.
        """
        new, former = snapshot or self._last_good(), self.snapshot
        require_columns(new.table, self._columns)
        if new.version != former.version:
            point(self.folder, SERVING, new.version)
        self.snapshot = new
        return new.version != former.version

    def before_batch(self) -> None:
        """Write the pointer to the snapshot when a batch begins, for a replay. Raises SetupError when that fails.

        A batch begins after the one before is committed, and a swap after its action does not change the pointer.
        """
        if self._of_batch is None or self._of_batch.version != self.snapshot.version:
            point(self.folder, LAST_BATCH, self.snapshot.version)
        self._of_batch = self.snapshot

    def note(self, micro_batch: MicroBatch) -> None:
        """Note the offsets from which the snapshot is used, before a batch runs. Raises CheckpointError, or SetupError."""
        if self._history is None:
            self._history = history.read(self.folder)
        after = self._history.after(micro_batch, self.snapshot.version, self.snapshot.table)
        if after != self._history:
            history.DOCUMENT.write(self.folder, after)
            self._history = after

    def rewind(self) -> None:
        """Use the snapshot of the last batch again, before a restart of the query that may replay the batch."""
        if self._of_batch is not None:
            self.swap(self._of_batch)

    def _of_last_batch(self) -> Snapshot | None:
        try:
            snapshot = latest(self.folder, pointer=LAST_BATCH)
        except ReferenceDataError as error:
            _log.warning("%s. Going on with the last good snapshot", error.what)
            return None
        fits = snapshot is not None and set(self._columns) <= set(snapshot.table.column_names)
        return snapshot if fits else None

    def _last_good(self) -> Snapshot:
        snapshot = latest(self.folder)
        if snapshot is None:
            msg = f"{self.folder}: there is no reference snapshot"
            raise ReferenceDataError(msg, remedy="Load one from the database first")
        require_columns(snapshot.table, self._columns)
        return snapshot
